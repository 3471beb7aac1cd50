package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// sources is the directory of a deployment as an operator has it: a manifest, two
// elements, and a text beside them.
func sources(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "pair")
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil { //nolint:gosec // as any directory
		t.Fatal(err)
	}
	for name, binary := range map[string]string{"echo": built.echo, "greeter": built.greeter} {
		if err := os.Link(binary, filepath.Join(dir, "bin", name)); err != nil { // nobody writes to either
			t.Fatal(err)
		}
	}
	putFile(t, filepath.Join(dir, "deployment.yaml"), "elements:\n- {name: echo, path: bin/echo}\n- {name: greeter, path: bin/greeter}\nattributes_file: secrets.yaml\n", 0o644)
	putFile(t, filepath.Join(dir, "secrets.yaml"), "word: secret\n", 0o600)
	putFile(t, filepath.Join(dir, "share", "text"), "a text\n", 0o644)
	return dir
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// putFile writes a file of this mode, with the directories above it.
func putFile(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755) //nolint:gosec // as any directory
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o600)
	}
	if err == nil {
		err = os.Chmod(path, mode)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// serving are the elements of the instance as "name generation", and their pids.
func (i *instance) serving() (list []string, pids map[string]float64) {
	i.t.Helper()
	pids = map[string]float64{}
	for _, row := range i.rows("ls", "elements") {
		name, _ := row["element"].(string)
		generation, _ := row["generation"].(float64)
		pid, _ := row["pid"].(float64)
		list, pids[name] = append(list, name+" "+strconv.Itoa(int(generation))), pid
	}
	return list, pids
}

// below are the files in a directory and in those below it, by their paths from there.
func below(t *testing.T, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			list = append(list, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestDeployDirectory: the life of a directory with a manifest in an operator's hands, with
// ends of the host in between, one of them by kill -9.
func TestDeployDirectory(t *testing.T) {
	t.Parallel()
	const echo, greeter = "*://pair/echo/conduit.example.Echo", "*://pair/greeter/example.Greeter"
	i := start(t, nil)
	from, at := sources(t), filepath.Join(i.deployments, "pair")
	answers := func(when string) {
		t.Helper()
		i.call(echo, "Upper", `"`+when+`"`).want(t, 0, `"`+strings.ToUpper(when)+`"`+"\n")
		i.call(greeter, "Greet", `{"name":"`+when+`"}`).want(t, 0, `{"text":"Hello, `+when+`!"}`+"\n")
	}
	serves := func(when string, want ...string) map[string]float64 {
		t.Helper()
		list, pids := i.serving()
		if !slices.Equal(list, want) || len(i.plugins()) != len(want) {
			t.Errorf("%s: %q serve, in the processes %v, want %q", when, list, i.plugins(), want)
		}
		answers(when)
		return pids
	}
	again := func(end func()) {
		t.Helper()
		end()
		i.launch()
		i.waitReady()
	}

	// All of it is refused, or nothing is.
	refused := func(what, want string, wrong func(dir string)) {
		t.Helper()
		bad := sources(t)
		wrong(bad)
		before := below(t, i.deployments)
		i.ask("deploy", bad).want(t, 2, "", want)
		if after := below(t, i.deployments); !slices.Equal(after, before) {
			t.Errorf("a directory with %s has left %q, where %q were", what, after, before)
		}
	}
	replaced := func(name, text string, mode os.FileMode) func(string) {
		return func(dir string) {
			path := filepath.Join(dir, name)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if text != "" {
				putFile(t, path, text, mode)
			}
		}
	}
	refused("a slip in its manifest", "deployment.yaml:1: element", replaced("deployment.yaml", "element: []\n", 0o644))
	refused("a program that is no plugin", "does not say what it is", replaced("bin/echo", "#!/bin/sh\nexit 3\n", 0o755))
	if rows := i.rows("ls", "deployments"); len(rows) != 0 || len(i.plugins()) != 0 {
		t.Errorf("of refused directories there is %v, and the processes %v", rows, i.plugins())
	}

	i.ask("deploy", from).want(t, 0, "pair: ready (all of its 2 elements)\n")
	first := serves("first", "echo 1", "greeter 1")
	refused("a program that is not there", "bin/greeter is not there", replaced("bin/greeter", "", 0))
	refused("secrets that others may read", "secrets.yaml", replaced("secrets.yaml", "word: secret\n", 0o644))
	refused("a pipe", "pipe is neither", func(dir string) {
		if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644); err != nil {
			t.Fatal(err)
		}
	})

	// Of a changed one only what has changed is started.
	old := string(readFile(t, built.greeter))
	replaced("bin/greeter", old+"changed", 0o755)(from)
	putFile(t, filepath.Join(from, "share", "text"), "another text\n", 0o644)
	i.ask("deploy", from).want(t, 0, "pair: ready (all of its 2 elements)\n")
	second := serves("changed", "echo 1", "greeter 2")
	if second["echo"] != first["echo"] || second["greeter"] == first["greeter"] {
		t.Errorf("the processes were %v, and are %v", first, second)
	}

	again(i.kill)
	serves("killed and started again", "echo 1", "greeter 1")
	i.ask("rollback", "pair").want(t, 0, "pair: ready (all of its 2 elements)\n")
	serves("rolled back", "echo 1", "greeter 2")
	if text := string(readFile(t, filepath.Join(at, "share", "text"))); text != "a text\n" || string(readFile(t, filepath.Join(at, "bin", "greeter"))) != old {
		t.Errorf("its files are not those before: the text is %q", text)
	}
	again(func() {
		i.signal(syscall.SIGTERM)
		if code := i.wait(); code != 0 {
			t.Errorf("exit %d:\n%s", code, i.output())
		}
	})
	serves("ended and started again", "echo 1", "greeter 1")
	i.ask("rollback", "pair").want(t, 0, "pair: ready (all of its 2 elements)\n")
	if string(readFile(t, filepath.Join(at, "bin", "greeter"))) != old+"changed" {
		t.Error("a second rollback does not undo the first")
	}

	i.ask("undeploy", "pair").want(t, 0, "pair: removed\n")
	i.noneLeft()
	if left := below(t, i.deployments); len(left) > 0 {
		t.Errorf("there is still %q", left)
	}
	i.ask("rollback", "pair").want(t, 3, "", "reason=deployment_not_found")
	again(i.kill)
	if rows := i.rows("ls", "deployments"); len(rows) != 0 {
		t.Errorf("after its end there is %v", rows)
	}
}
