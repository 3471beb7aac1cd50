package config

import (
	"strings"

	"github.com/elemental-conduit/conduit/internal/values"
)

// SessionEnv holds the caller's session secret. It has the prefix of the keys
// but is none of them: a secret has no place in a file of settings.
const SessionEnv = EnvPrefix + "SESSION"

// readEnv reads the environment layer. A variable that has the prefix and is no
// key is a warning, not an error: an environment is often shared.
func readEnv(environ []string, keys []Key) (texts map[string]text, warnings []string) {
	byName := make(map[string]string, len(keys))
	names := make([]string, 0, len(keys))
	for i := range keys {
		byName[keys[i].Env()] = keys[i].Name
		names = append(names, keys[i].Env())
	}
	texts = map[string]text{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, EnvPrefix) || name == SessionEnv || name == EtcdPasswordEnv {
			continue
		}
		key, ok := byName[name]
		if !ok {
			warnings = append(warnings, "the environment variable "+name+" is not a key and is ignored"+values.Suggest(name, names))
			continue
		}
		texts[key] = text{text: value, where: name}
	}
	return texts, warnings
}
