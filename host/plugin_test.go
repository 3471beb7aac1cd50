package host

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// pluginVar names the program that tests deploy: this one, or where this one is built for
// the race detector, another that is the same without.
const pluginVar = "HOST_PLUGIN"

// pluginFile returns the program that tests deploy.
func pluginFile() (string, error) {
	if path := os.Getenv(pluginVar); path != "" {
		return path, nil
	}
	return os.Executable()
}

// mustPluginFile is pluginFile in a test.
func mustPluginFile(tb testing.TB) string {
	tb.Helper()
	path, err := pluginFile()
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// buildPlugin has tests of the race detector deploy a program that is built without it: as
// plugins its processes take three times as long to start, and it is a third larger, which
// is copied, read and hashed at each deploy. What is looked for here are races of the
// host; those of a plugin's end are looked for by the tests of internal/pluginlink and
// pluginapi, whose plugins are built for it. The func removes what was built.
func buildPlugin() (remove func(), err error) {
	remove = func() {}
	if !raceEnabled {
		return remove, nil
	}
	dir, err := os.MkdirTemp("", "host-plugin")
	if err != nil {
		return remove, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	path := filepath.Join(dir, "plugin")
	out, err := exec.Command("go", "test", "-c", "-ldflags", "-s -w", "-o", path, ".").CombinedOutput()
	if err != nil {
		return remove, fmt.Errorf("the program to deploy does not build: %w\n%s", err, out)
	}
	return remove, os.Setenv(pluginVar, path)
}
