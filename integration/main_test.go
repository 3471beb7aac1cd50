// Package integration holds black-box tests: real conduit-host processes, real
// plugins, called from the command line and from Go. They see what a user sees.
package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// built says where the binaries under test are; TestMain fills it.
var built struct{ dir, host, echo, greeter string }

func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (code int, err error) {
	built.dir, err = os.MkdirTemp("", "cdt-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(built.dir)) }()
	built.host = filepath.Join(built.dir, "conduit-host")
	built.echo = filepath.Join(built.dir, "echo")
	built.greeter = filepath.Join(built.dir, "greeter")
	if err := goBuild("..", built.host, "./cmd/conduit-host"); err != nil {
		return 1, err
	}
	if err := goBuild("..", built.echo, "./plugins/echo"); err != nil {
		return 1, err
	}
	if err := buildGreeter(); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

func goBuild(dir, out, pkg string, env ...string) error {
	cmd := exec.Command("go", "build", "-o", out, pkg)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", pkg, err, text)
	}
	return nil
}

// buildGreeter builds the author's example as an author does: in a module of
// its own that requires this one. Its requirements and sums are ours, so that
// the build needs no network.
func buildGreeter() error {
	root, err := filepath.Abs("..")
	if err != nil {
		return err
	}
	dir := filepath.Join(built.dir, "greeter-src")
	if err := os.Mkdir(dir, 0o750); err != nil {
		return err
	}
	source, err := os.ReadFile("testdata/greeter/main.go.txt")
	if err != nil {
		return err
	}
	ours, err := os.ReadFile("../go.mod")
	if err != nil {
		return err
	}
	sums, err := os.ReadFile("../go.sum")
	if err != nil {
		return err
	}
	const module = "github.com/elemental-conduit/conduit"
	mod := strings.Replace(string(ours), "module "+module, "module example.org/greeter", 1) +
		"\nrequire " + module + " v0.0.0\n\nreplace " + module + " => " + root + "\n"
	for name, data := range map[string][]byte{"main.go": source, "go.mod": []byte(mod), "go.sum": sums} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return err
		}
	}
	return goBuild(dir, built.greeter, ".", "GOFLAGS=-mod=mod")
}
