package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/elemental-conduit/conduit/internal/config"
)

// load makes a configuration from flags as they would stand in the environment.
func load(t *testing.T, environ ...string) *config.Config {
	t.Helper()
	c, err := config.Load(config.Sources{
		Environ: append([]string{"CONDUIT_CFG_MODE=worker", "CONDUIT_CFG_AUTH_MODE=disabled", "CONDUIT_CFG_NAME=w"}, environ...),
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A default port that is taken moves on; the place of a free one is another test's
// to take, so nothing here asks for a certain one.
func TestListenMovesOn(t *testing.T) {
	c := load(t)
	first, err := listen(t.Context(), c, "cluster.listen")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := listen(t.Context(), c, "cluster.listen")
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	port := func(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }
	if port(first) < 7400 || port(second) <= port(first) {
		t.Errorf("ports %d and %d", port(first), port(second))
	}

	asked := load(t, "CONDUIT_CFG_CLUSTER_LISTEN="+first.Addr().String())
	_, err = listen(t.Context(), asked, "cluster.listen")
	if err == nil || exitStatus(err) != exitUsage || !strings.Contains(err.Error(), "cluster.listen: "+first.Addr().String()+" is in use") {
		t.Errorf("a port that was asked for: %v", err)
	}
}

func TestListenElsewhere(t *testing.T) {
	c, err := config.Load(config.Sources{Environ: []string{"CONDUIT_CFG_OPS_LISTEN=192.0.2.1:7490"}})
	if _, ok := errors.AsType[*config.Error](err); !ok {
		t.Fatal(err)
	}
	_, err = listen(t.Context(), c, "ops.listen")
	if err == nil || exitStatus(err) != exitUsage || !strings.Contains(err.Error(), "cannot listen on 192.0.2.1:7490") {
		t.Errorf("an address that this machine does not have: %v", err)
	}
}

func TestOwnDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := ownDir("run_dir", dir, false); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("made with %v, %v", info.Mode(), err)
	}
	if err := os.Chmod(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	err := ownDir("run_dir", dir, false)
	if err == nil || !strings.Contains(err.Error(), "run_dir: "+dir+" is open to other users (mode 0750); close it with `chmod 700 "+dir+"`") {
		t.Errorf("open to the group: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ownDir("run_dir", file, false); err == nil || exitStatus(err) != exitUsage {
		t.Errorf("a file: %v", err)
	}
}
