package pluginlink

import (
	"fmt"
	"slices"
	"strings"
)

// inherited are the variables of the host that a plugin gets. Everything else
// stays behind, since a daemon's environment holds secrets.
var inherited = []string{ //nolint:gochecknoglobals // a table that nobody writes
	"PATH", "HOME", "LANG", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	"GODEBUG", "GOMEMLIMIT", "GOMAXPROCS",
}

// pluginEnv puts a plugin's environment together: of the host's only what is on
// the list, over it what the deployment declares, over that what the protocol
// needs. No name appears twice.
func pluginEnv(host, declared, protocol []string) ([]string, error) {
	at := map[string]int{}
	var env []string
	set := func(kv string) {
		name, _, _ := strings.Cut(kv, "=")
		if i, ok := at[name]; ok {
			env[i] = kv
			return
		}
		at[name] = len(env)
		env = append(env, kv)
	}
	for _, kv := range host {
		name, _, _ := strings.Cut(kv, "=")
		if slices.Contains(inherited, name) || strings.HasPrefix(name, "LC_") {
			set(kv)
		}
	}
	for _, kv := range declared {
		if err := checkDeclared(kv); err != nil {
			return nil, err
		}
		set(kv)
	}
	for _, kv := range protocol {
		set(kv)
	}
	return env, nil
}

// checkDeclared refuses variables that would change the protocol or what the
// dynamic loader runs.
func checkDeclared(kv string) error {
	name, _, ok := strings.Cut(kv, "=")
	switch {
	case !ok || name == "" || strings.ContainsRune(kv, 0):
		return fmt.Errorf("environment entry %q is not NAME=value", name)
	case strings.HasPrefix(name, "PLUGIN_"), strings.HasPrefix(name, envPrefix), strings.HasPrefix(name, "LD_"), strings.HasPrefix(name, "DYLD_"):
		return fmt.Errorf("environment variable %s may not be set for a plugin: names that begin with PLUGIN_, %s, LD_ or DYLD_ are not free; choose another", name, envPrefix)
	}
	return nil
}
