package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestReadmeCommands runs what the README shows, block by block and in order, as
// a reader would: in a directory that holds the repository as "conduit". Only
// what cannot be had in a test is changed, and only so: the two commands that CI
// runs itself are left out, the build is the one that the tests made, the worker
// runs in the background, and its port is a free one.
func TestReadmeCommands(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	i := prepare(t, nil)
	conduitDir := filepath.Join(i.dir, "conduit")
	if err := os.MkdirAll(filepath.Join(conduitDir, "bin"), 0o750); err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]string{"conduit-host": built.host, "echo": built.echo} {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(conduitDir, "bin", name), data, 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	readme := string(text)
	source := regexp.MustCompile("(?s)```go\n(package main.*?)```").FindStringSubmatch(readme)
	if source == nil {
		t.Fatal("the README shows no plugin")
	}
	ours, err := os.ReadFile("testdata/greeter/main.go.txt")
	if err != nil {
		t.Fatal(err)
	}
	// That one is as the design has it, and the README's as gofmt has it.
	formatted, err := format.Source(ours)
	if err != nil {
		t.Fatal(err)
	}
	if source[1] != string(formatted) {
		t.Errorf("the README's plugin is not the one in testdata/greeter, which gofmt makes\n%s", formatted)
	}

	script := "set -eu\ncd conduit\n"
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(readme, -1) {
		for line := range strings.Lines(block[1]) {
			switch {
			case strings.HasPrefix(line, "make demo"), strings.HasPrefix(line, "make test"), strings.HasPrefix(line, "make build"):
			case strings.Contains(line, " serve --mode external "):
				line = strings.ReplaceAll(line, "127.0.0.1:7400", "$peer")
				script += strings.TrimSpace(line) + " --log-format json --gateway-listen 127.0.0.1:0 --ops-listen 127.0.0.1:0 2>front.log & front=$!\n" +
					"trap 'kill $worker $front; wait $worker $front || true' EXIT\n" +
					"until grep -q '^management: ' front.log; do sleep 0.1; done\ngateway=$(sed -n 's/^gateway: //p' front.log)\n"
			case strings.Contains(line, " serve "):
				script += strings.TrimSpace(line) + " --log-format json --cluster-listen 127.0.0.1:0 --ops-listen 127.0.0.1:0 2>worker.log & worker=$!\n" +
					"trap 'kill $worker; wait $worker || true' EXIT\n" +
					"until grep -q '^cluster: ' worker.log; do sleep 0.1; done\npeer=$(sed -n 's/^cluster: //p' worker.log)\n" +
					"until bin/conduit-host call '*://echo/echo/conduit.example.Echo' Upper '\"up?\"' --peer $peer >/dev/null 2>&1; do sleep 0.1; done\n"
			case strings.HasPrefix(line, "mkdir greeter"):
				script += "cd ..\n" + line + "cp $SOURCE main.go\n"
			default:
				line = strings.ReplaceAll(line, "ws://127.0.0.1:7400", "$peer")
				line = strings.ReplaceAll(line, "http://127.0.0.1:7480", "$gateway")
				line = strings.ReplaceAll(line, "=../conduit", "="+root)
				if strings.Contains(line, " Greet ") {
					// "Found within two seconds", says the README; a busy machine may take longer.
					script += "until " + strings.TrimSpace(line) + " >/dev/null 2>&1; do sleep 0.1; done\n"
				}
				script += line
			}
		}
	}
	if n := strings.Count(script, "conduit-host call"); n < 7 {
		t.Fatalf("only %d calls found in the README", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir = i.dir
	cmd.Env = append(os.Environ(), "SOURCE="+filepath.Join(root, "integration/testdata/greeter/main.go.txt"), "XDG_RUNTIME_DIR=")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		log, _ := os.ReadFile(filepath.Join(conduitDir, "worker.log"))
		front, _ := os.ReadFile(filepath.Join(conduitDir, "front.log"))
		log = append(log, front...)
		t.Fatalf("%v\n%s\n%s\nworker: %s\nscript:\n%s", err, out.String(), errs.String(), log, script)
	}
	for _, want := range []string{`"HELLO"`, "0\n1\n2\n3\n4\n", `{"text":"Hello, Ada!"}`, "0\n1\n2\n", `"greeter"`, "it is the only candidate", "front "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the commands did not print %q:\n%s", want, out.String())
		}
	}
}

// TestPluginPageTest compiles and runs the test of docs/plugins.md, with the
// README's plugin split as that page says. The files are there for the go command
// only.
func TestPluginPageTest(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/plugins.md")
	if err != nil {
		t.Fatal(err)
	}
	greeter, err := os.ReadFile("testdata/greeter/main.go.txt")
	if err != nil {
		t.Fatal(err)
	}
	split := regexp.MustCompile("(?s)```go\n(func main\\(\\).*?)```").FindSubmatch(page)
	test := regexp.MustCompile("(?s)```go\n(package main\n.*?)```").FindSubmatch(page)
	main := regexp.MustCompile(`(?s)func main\(\) \{.*?\n\}\n`)
	if split == nil || test == nil || !main.Match(greeter) {
		t.Fatal("docs/plugins.md shows no split main or no test, or the README's plugin has no main")
	}
	dir := t.TempDir()
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for name, text := range map[string][]byte{"main.go": main.ReplaceAllLiteral(greeter, split[1]), "main_test.go": test[1]} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		seen, err := filepath.Abs("testdata/greeter/" + name)
		if err != nil {
			t.Fatal(err)
		}
		overlay.Replace[seen] = file
	}
	list, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "test", "-v", "-overlay", filepath.Join(dir, "overlay.json"), "./testdata/greeter").CombinedOutput() //nolint:gosec // our own
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestGreet")) {
		t.Errorf("%v\n%s", err, out)
	}
}
