package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/elemental-conduit/conduit/discovery/discoverytest"
)

// beHost makes the test binary the program, for tests that need a process to send
// signals to.
const beHost = "CONDUIT_TEST_BE_HOST"

func TestMain(m *testing.M) {
	if os.Getenv(beHost) != "" {
		main()
		return
	}
	testscript.Main(leakChecked{m}, map[string]func(){"conduit-host": main})
}

// leakChecked looks for goroutines that the tests left behind.
type leakChecked struct{ *testing.M }

func (m leakChecked) Run() int {
	remove, err := buildPlugins()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer remove()
	code := m.M.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// echoBinary and txpersistBinary are the paths of plugins/echo and plugins/txpersist,
// built once.
var echoBinary, txpersistBinary string

func buildPlugins() (remove func(), err error) {
	dir, err := os.MkdirTemp("", "conduit-plugins-")
	if err != nil {
		return nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	echoBinary, txpersistBinary = filepath.Join(dir, "echo"), filepath.Join(dir, "txpersist")
	if out, err := exec.Command("go", "build", "-o", dir+"/", "../../plugins/echo", "../../plugins/txpersist").CombinedOutput(); err != nil {
		remove()
		return nil, fmt.Errorf("the plugins do not build: %w\n%s", err, out)
	}
	return remove, nil
}

// TestScripts runs the stories of testdata/script: each is a directory of files,
// the commands that a person would type, and what they would see.
func TestScripts(t *testing.T) {
	dns := discoverytest.NewDNS(t) // of which no story changes anything: no name exists there
	withDNS := func(env *testscript.Env) error {
		env.Setenv("DNS", dns.Addr())
		return setup(env)
	}
	testscript.Run(t, testscript.Params{Dir: "testdata/script", Setup: withDNS, Cmds: storyCommands(), RequireExplicitExec: true, RequireUniqueNames: true})
}

// setup gives a story its own home, and nothing of the environment that the test
// runs in.
func setup(env *testscript.Env) error {
	env.Setenv("HOME", env.WorkDir)
	env.Setenv("XDG_RUNTIME_DIR", "")
	env.Values[storyKey{}] = map[string]*storyInstance{}
	return nil
}

// TestDocumentedCommands runs what docs/cli.md shows, as a story: in a block of
// "console", the lines that begin with $ are typed, and the lines below them are
// what comes back, on standard error if they begin with "error:".
func TestDocumentedCommands(t *testing.T) {
	text, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	script := consoleScript(string(text))
	if !strings.Contains(script, "exec conduit-host") {
		t.Fatal("docs/cli.md shows no command")
	}
	file := filepath.Join(t.TempDir(), "cli.txtar")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{Files: []string{file}, Setup: setup})
}

// TestDocumentedStories runs the blocks of "sh" of pages, in order: each line is
// one command, which succeeds. Only what cannot be had in a test is changed: ports
// are free ones, an instance runs in the background, one that was drained is started
// again for the next that is to be, and who has just started is given the time to
// find the others.
func TestDocumentedStories(t *testing.T) {
	dir := t.TempDir()
	var files []string
	for page, want := range map[string]int{"cli": 20, "cluster": 9, "tls": 3, "capacity": 7} {
		text, err := os.ReadFile("../../docs/" + page + ".md")
		if err != nil {
			t.Fatal(err)
		}
		script, n := shellStory(t, string(text))
		if n < want {
			t.Errorf("docs/%s.md has %d commands in its blocks; %d at least are expected", page, n, want)
		}
		file := filepath.Join(dir, page+".txtar")
		if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	testscript.Run(t, testscript.Params{Files: files, Setup: setup, Cmds: storyCommands(), RequireExplicitExec: true})
}

// shellStory makes a story of a page's commands, and counts them. Beside its
// instances there is a worker of another directory, at the port 7401.
func shellStory(t *testing.T, page string) (script string, n int) {
	t.Helper()
	var b strings.Builder
	if strings.Contains(page, "*://matches/") {
		b.WriteString("deploy matches\n")
	}
	b.WriteString("deploy echo\n")
	if strings.Contains(page, "conduit-host persist") {
		b.WriteString("deploy txpersist txpersist\n")
	}
	b.WriteString("serving elsewhere --data-dir elsewhere --host-deployments deployments\nenv OTHER=$CLUSTER\n")
	block, worker, drained, searching := "", "", false, false
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		switch fence, ok := strings.CutPrefix(line, "```"); {
		case ok:
			block = fence
			continue
		case block != "sh":
			continue
		}
		n++
		command, ok := strings.CutPrefix(strings.TrimPrefix(line, "bin/"), "conduit-host ")
		if !ok {
			t.Fatalf("%q is no command line of conduit-host", line)
		}
		command = strings.NewReplacer("wss://127.0.0.1:7400", "$WORKER", "ws://127.0.0.1:7400", "$WORKER", "ws://127.0.0.1:7401", "$OTHER",
			"-static 127.0.0.1:7400,127.0.0.1:7401", "-static $WORKER,$OTHER", "-static 127.0.0.1:7400", "-static $WORKER").Replace(command)
		verb, flags, _ := strings.Cut(command, " ")
		switch {
		case verb == "serve":
			start := "serves " + flags + "\n"
			b.WriteString(start)
			searching = searching || strings.Contains(flags, "--discovery-static")
			if worker == "" {
				worker = start
				b.WriteString("env WORKER=$CLUSTER\n")
			}
		case verb == "drain":
			if drained {
				b.WriteString(worker)
			}
			drained = true
			b.WriteString("exec conduit-host " + command + "\nended worker-1 exit status 0\n")
		case verb == "call" && searching:
			b.WriteString("eventually conduit-host " + command + "\n")
		default:
			b.WriteString("exec conduit-host " + command + "\n")
		}
	}
	return b.String() + "\n-- request.json --\n{\"name\": \"Ada\"}\n-- photo.jpg --\nnot much of a photo\n", n
}

func consoleScript(text string) string {
	var script, files strings.Builder
	n := 0
	finish := func(output []string) {
		if n == 0 || output == nil {
			return
		}
		stream := "stdout"
		if len(output) > 0 && strings.HasPrefix(output[0], "error:") {
			stream = "stderr"
		}
		fmt.Fprintf(&script, "cmp %s want-%d\n", stream, n)
		fmt.Fprintf(&files, "-- want-%d --\n%s\n", n, strings.Join(output, "\n"))
	}
	var block string
	var output []string
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		switch {
		case strings.HasPrefix(line, "```"):
			finish(output)
			output = nil
			block = strings.TrimPrefix(line, "```")
		case block == "console" && strings.HasPrefix(line, "$ "):
			finish(output)
			n++
			output = []string{}
			not := ""
			if i+1 < len(lines) && strings.HasPrefix(lines[i+1], "error:") {
				not = "! "
			}
			fmt.Fprintf(&script, "%sexec %s\n", not, line[2:])
		case block == "console":
			output = append(output, line)
		}
	}
	return script.String() + "\n" + files.String()
}
