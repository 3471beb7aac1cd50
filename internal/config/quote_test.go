package config

import (
	"fmt"
	"strings"
	"testing"
)

func TestWithoutSecrets(t *testing.T) {
	for text, want := range map[string]string{
		"":                                      "",
		"30":                                    "30",
		"@file":                                 "@file",
		"127.0.0.1:7400,ftp://x":                "127.0.0.1:7400,ftp://x",
		"ws://u:p@h:1":                          "ws://...@h:1",
		"u:p@h:1":                               "...@h:1",
		"ws://u:p@ss@h:1":                       "ws://...@h:1",
		"ws://a:1,wss://u:p,q@h:1,b:2":          "ws://...@h:1,b:2",
		"u:p://q@h":                             "...@h",
		"ws://h:1/?session=s":                   "ws://h:1/?...",
		"h?x=1,ws://u:p@h:1/cluster/v1?x=2&y=3": "...@h:1/cluster/v1?...",
	} {
		if got := withoutSecrets(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// TestMessagesHoldNoSecrets: whatever key is given a URL with a password and a session in
// it, and from wherever: no message and no warning has them.
func TestMessagesHoldNoSecrets(t *testing.T) {
	const canary = "s3cr3t-CANARY"
	refused := 0
	for _, key := range Keys() {
		for _, text := range []string{
			"ws://ops:" + canary + "@127.0.0.1:1",
			"127.0.0.1:7400, wss://ops:" + canary + "@p2.example:7400/cluster/v1",
			"ops:" + canary + "@p2.example:7400",
			"wss://p2.example:7400/cluster/v1?session=" + canary,
			"etcd://ops:" + canary + "@p2.example:2379/conduit",
			"postgres://ops:a," + canary + "@p2.example?password=" + canary,
		} {
			section, name, nested := strings.Cut(key.Name, ".")
			file := fmt.Sprintf("%s: %q\n", section, text)
			if nested {
				path := strings.Split(name, ".")
				file = section + ": {" + strings.Join(path, ": {") + fmt.Sprintf(": %q", text) + strings.Repeat("}", len(path)) + "\n"
			}
			flag := "--" + strings.NewReplacer(".", "-", "_", "-").Replace(key.Name) + "=" + text
			for where, got := range map[string]func() (*Config, []Problem){
				"file":        func() (*Config, []Problem) { return load(t, file, nil, valid) },
				"environment": func() (*Config, []Problem) { return load(t, "", []string{key.Env() + "=" + text}, valid) },
				"flag":        func() (*Config, []Problem) { return load(t, "", nil, append([]string{flag}, valid...)) },
			} {
				c, problems := got()
				refused += len(problems)
				for _, p := range problems {
					if strings.Contains(p.String(), canary) {
						t.Errorf("%s by %s: %s", key.Name, where, p)
					}
				}
				for _, w := range c.Warnings {
					if strings.Contains(w, canary) {
						t.Errorf("%s by %s warns: %s", key.Name, where, w)
					}
				}
			}
		}
	}
	if refused < 3*len(Keys()) { // most keys take no URL
		t.Errorf("only %d of them were refused", refused)
	}
}
