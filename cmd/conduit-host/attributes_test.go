package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/elemental-conduit/conduit/host"
	"github.com/elemental-conduit/conduit/internal/config"
)

// What is configured wins over the file, as in the original; that the file has the name,
// too, keeps the value out of sight.
func TestInstanceAttributes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secrets.yaml")
	if err := os.WriteFile(file, []byte("both: file\nsecret: hidden\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Sources{
		Environ: []string{"CONDUIT_CFG_HOST_ATTRIBUTES=both=key,plain=shown", "CONDUIT_CFG_HOST_ATTRIBUTES_FILE=" + file},
		Machine: config.ThisMachine(false),
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := instanceAttributes(c)
	if err != nil || len(got) != 3 {
		t.Fatalf("%v, %v", got, err)
	}
	for name, want := range map[string]host.Attribute{
		"both":   {Value: "key", Sensitive: true, Source: host.FromInstance},
		"secret": {Value: "hidden", Sensitive: true, Source: host.FromInstance},
		"plain":  {Value: "shown", Source: host.FromInstance},
	} {
		if got[name] != want {
			t.Errorf("%s is %#v, sensitive %v", name, got[name], got[name].Sensitive)
		}
	}
}
