package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/elemental-conduit/conduit/internal/config"
)

// shipped loads a configuration of deploy/, which has no problem and no warning.
func shipped(t *testing.T, text string, environ ...string) *config.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "conduit.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Sources{File: file, Environ: environ, Flags: &config.Flags{}, Machine: config.Machine{HostName: "box"}})
	if err != nil || len(c.Warnings) > 0 {
		t.Fatalf("it is not taken: %v, %q", err, c.Warnings)
	}
	return c
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The unit's times are those that the program needs.
func TestSystemdUnit(t *testing.T) {
	unit := map[string][]string{}
	for line := range strings.Lines(readText(t, "../../deploy/systemd/conduit-host.service")) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			unit[name] = append(unit[name], value)
		}
	}
	one := func(name string) string {
		if len(unit[name]) != 1 {
			t.Fatalf("%s is there %d times", name, len(unit[name]))
		}
		return unit[name][0]
	}
	c := shipped(t, readText(t, "../../deploy/systemd/conduit.yaml"), unit["Environment"]...)
	if got, want := one("TimeoutStopSec"), c.Value("drain.grace").Text; got != want || c.Duration("drain.grace") == 0 {
		t.Errorf("TimeoutStopSec is %s, and drain.grace %s", got, want)
	}
	start, why := config.ParseDuration(one("TimeoutStartSec"))
	if least := c.Duration("host.start_timeout") + c.Duration("host.ready_timeout"); why != "" || start <= least {
		t.Errorf("TimeoutStartSec is %s (%s), and plugins have %v", one("TimeoutStartSec"), why, least)
	}
	for name, want := range map[string]string{"KillMode": "mixed", "Type": "notify", "OOMPolicy": "continue", "ExecReload": "/bin/kill -HUP $MAINPID"} {
		if one(name) != want {
			t.Errorf("%s=%s, want %s", name, one(name), want)
		}
	}
	for _, name := range []string{"ExecStart", "ExecStartPre"} {
		words := strings.Fields(one(name))
		understood(t, name, "conduit-host "+strings.Join(words[1:], " "))
	}
	if dir := "/var/lib/" + one("StateDirectory"); c.String("data_dir") != dir || one("WorkingDirectory") != dir {
		t.Errorf("data_dir is %s, and the unit's %s", c.String("data_dir"), dir)
	}
	if dir := "/run/" + one("RuntimeDirectory"); c.String("run_dir") != dir {
		t.Errorf("run_dir is %s, and the unit's %s", c.String("run_dir"), dir)
	}
}

// manifests are the documents of deploy/kubernetes by kind and name.
func manifests(t *testing.T) map[string]map[string]any {
	t.Helper()
	docs := map[string]map[string]any{}
	for doc := range strings.SplitSeq(readText(t, "../../deploy/kubernetes/conduit.yaml"), "\n---\n") {
		var v map[string]any
		if err := yaml.Load([]byte(doc), &v); err != nil {
			t.Fatal(err)
		}
		docs[fmt.Sprintf("%v %v", v["kind"], at(v, "metadata", "name"))] = v
	}
	return docs
}

// at follows names, and indexes of lists, into a document; nil if there is nothing.
func at(v any, path ...any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[step]
		case int:
			list, _ := v.([]any)
			if step >= len(list) {
				return nil
			}
			v = list[step]
		}
	}
	return v
}

// What the pod is given in time and in ports is what its configuration needs. That the
// objects are valid is held by deploy/kubernetes/check.
func TestKubernetesValues(t *testing.T) {
	docs := manifests(t)
	text, _ := at(docs["ConfigMap conduit"], "data", "conduit.yaml").(string)
	c := shipped(t, text)
	pod := at(docs["StatefulSet conduit"], "spec", "template", "spec")
	container := at(pod, "containers", 0)

	whole, _ := at(pod, "terminationGracePeriodSeconds").(int)
	before, _ := at(container, "lifecycle", "preStop", "sleep", "seconds").(int)
	if grace := time.Duration(whole-before) * time.Second; grace != c.Duration("drain.grace") || grace <= 0 {
		t.Errorf("terminationGracePeriodSeconds less preStop is %v, and drain.grace %v", grace, c.Duration("drain.grace"))
	}
	period, _ := at(container, "startupProbe", "periodSeconds").(int)
	times, _ := at(container, "startupProbe", "failureThreshold").(int)
	if d, least := time.Duration(period*times)*time.Second, c.Duration("host.start_timeout")+c.Duration("host.ready_timeout"); d <= least {
		t.Errorf("the startupProbe waits %v, and plugins have %v", d, least)
	}
	// Of those that are to notice, the slowest is the readinessProbe.
	period, _ = at(container, "readinessProbe", "periodSeconds").(int)
	times, _ = at(container, "readinessProbe", "failureThreshold").(int)
	if d := time.Duration(period*times) * time.Second; d >= c.Duration("drain.delay") {
		t.Errorf("the readinessProbe takes %v to notice a drain, and drain.delay is %v", d, c.Duration("drain.delay"))
	}

	ports := map[string]string{}
	list, _ := at(container, "ports").([]any)
	for _, p := range list {
		ports[fmt.Sprint(at(p, "name"))] = fmt.Sprint(at(p, "containerPort"))
	}
	for _, door := range []string{"cluster", "gateway", "ops"} {
		listen := c.String(door + ".listen")
		if _, port, _ := strings.Cut(listen, ":"); ports[door] != port {
			t.Errorf("%s.listen is %s, and the port %s", door, listen, ports[door])
		}
	}
	for probe, path := range map[string]string{"startupProbe": "/readyz", "readinessProbe": "/readyz", "livenessProbe": "/livez"} {
		if got := at(container, probe, "httpGet", "path"); got != path {
			t.Errorf("%s asks for %v, not %s", probe, got, path)
		}
	}
	if words, ok := at(container, "args").([]any); !ok {
		t.Error("the container has no args")
	} else {
		understood(t, "args", "conduit-host "+strings.Trim(fmt.Sprint(words), "[]"))
	}
	srv := c.String("discovery.srv.name")
	if want := fmt.Sprintf("_cluster._tcp.%v.", at(docs["StatefulSet conduit"], "spec", "serviceName")); !strings.HasPrefix(srv, want) {
		t.Errorf("discovery.srv.name is %s, and the headless service's records %s", srv, want)
	}
	if !c.ServesCluster() || at(docs["Service conduit"], "spec", "ports", 0, "name") != "cluster" {
		t.Error("nobody would be found by it")
	}
}

// The image's variables are keys, and its ports those of the defaults.
func TestContainerfile(t *testing.T) {
	var environ, ports []string
	for line := range strings.Lines(readText(t, "../../deploy/Containerfile")) {
		verb, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch verb {
		case "ENV":
			environ = append(environ, strings.Fields(rest)...)
		case "EXPOSE":
			ports = append(ports, strings.Fields(rest)...)
		case "RUN", "ADD":
			t.Errorf("%q: there is nothing in an empty image to run, and nothing is fetched", line)
		}
	}
	c := shipped(t, "mode: both\n", environ...)
	for _, key := range []string{"data_dir", "host.deployments", "log.format"} {
		if c.Value(key).Layer != config.FromEnv {
			t.Errorf("the image does not set %s", key)
		}
	}
	for _, key := range []string{"cluster.listen", "gateway.listen", "ops.listen"} {
		if _, port, _ := strings.Cut(c.String(key), ":"); !slices.Contains(ports, port) {
			t.Errorf("%s listens at %s, and the image exposes %v", key, port, ports)
		}
	}
}

// Each message that docs/operations.md says one may see, as code in the line "Symptom",
// is one that the program has: it stands in one string of the source, with … for what is
// filled in.
func TestSymptomsAreReal(t *testing.T) {
	var texts []string
	if err := walkSource(os.DirFS("../.."), func(name, text string) error {
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err == nil {
			texts = append(texts, literals(file)...)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	// What is filled in is … in the page, and in it stands no ` inside of a message.
	said := regexp.MustCompile(`%[-+#.0-9]*[a-zA-Z]`).ReplaceAllString(strings.Join(texts, "\n"), "…")
	said = strings.ReplaceAll(said, "`", "")
	quoted := regexp.MustCompile("`([^`]+)`")
	symptoms, pages := 0, 0
	for line := range strings.Lines(readText(t, "../../docs/operations.md")) {
		if strings.HasPrefix(line, "### ") {
			pages++
		}
		rest, ok := strings.CutPrefix(line, "**Symptom**")
		if !ok {
			continue
		}
		symptoms++
		messages := quoted.FindAllStringSubmatch(rest, -1)
		if len(messages) == 0 {
			t.Errorf("no message in %q", line)
		}
		for _, m := range messages {
			if message := strings.Trim(m[1], "… "); !strings.Contains(said, message) {
				t.Errorf("nothing in the source says %q", message)
			}
		}
	}
	if symptoms < 15 || pages < symptoms {
		t.Errorf("%s, of %s", strconv.Itoa(symptoms)+" symptoms", strconv.Itoa(pages)+" pages")
	}
}

// literals are the texts of a file's source; those that are put together of several are
// one.
func literals(file *ast.File) []string {
	var texts []string
	var text func(e ast.Expr) (string, bool)
	text = func(e ast.Expr) (string, bool) {
		switch e := e.(type) {
		case *ast.BasicLit:
			s, err := strconv.Unquote(e.Value)
			return s, e.Kind == token.STRING && err == nil
		case *ast.BinaryExpr:
			x, xs := text(e.X)
			y, ys := text(e.Y)
			return x + y, e.Op == token.ADD && xs && ys
		}
		return "", false
	}
	ast.Inspect(file, func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		if !ok {
			return true
		}
		s, ok := text(e)
		if ok {
			texts = append(texts, s)
		}
		return !ok
	})
	return texts
}

func walkSource(root fs.FS, each func(name, text string) error) error {
	return fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "benchmarks" || d.Name() == "check" || d.Name() == "proto"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		return each(path, string(text))
	})
}
