package manifest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/elemental-conduit/conduit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestParse: each value arrives where it belongs.
func TestParse(t *testing.T) {
	got, err := Parse("m", []byte(everything))
	if err != nil {
		t.Fatal(err)
	}
	if where := got.Where("elements[0].env.DEPTH"); where != "m:6" {
		t.Errorf("DEPTH is at %s", where)
	}
	if where := got.Where("elements[1].args[0]"); where != "m:8" {
		t.Errorf("what was not said is at %s", where)
	}
	got.path, got.lines = "", nil
	yes, now := true, time.Duration(0)
	want := &Manifest{
		Elements: []Element{
			{
				Name: "greeter", Path: "bin/greeter", Args: []string{"--port", "80", "true", "1.50"}, Env: map[string]string{"COLOUR": "red", "DEPTH": "3"},
				SHA256: map[string]string{"linux-amd64": "E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855"},
			},
			{Name: "greeter", Path: "bin/greeter"},
		},
		Attributes:     map[string]string{"text": "a", "number": "1.50", "truth": "true", "odd-name/x.y": ""},
		AttributesFile: "secrets.yaml", Enabled: &yes, RunAs: RunAsSuperuser, Concurrency: 16,
		Drain: Drain{Timeout: &now, Claims: ClaimsRelease}, Reload: StopFirst,
		Timeouts: Timeouts{Start: time.Second, Ready: 90 * time.Second, Health: time.Second / 2, Stop: 2 * time.Second},
		Limits:   Limits{CPUs: 1.5, MemorySoft: 512 << 20, Files: 1024, Core: 1 << 30},
		Sandbox:  SandboxBestEffort,
		Backoff:  Backoff{Min: 100 * time.Millisecond, Max: time.Minute, CrashLoopAfter: 3, StableAfter: 10 * time.Second},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	for r, want := range map[RunAs]conduit.Level{"": conduit.User, RunAsAnonymous: conduit.Anonymous, RunAsUser: conduit.User, RunAsSuperuser: conduit.Superuser} {
		if got := r.Level(); got != want {
			t.Errorf("run_as %q is %s, want %s", r, got, want)
		}
	}
}

// TestAllProblems: everything that is wrong is found at once, in the order of lines.
func TestAllProblems(t *testing.T) {
	_, err := Parse("m", []byte("bogus: 1\nelements:\n  - {path: /a}\n  - {name: x}\nsandbox: on\n"))
	e, ok := errors.AsType[*Error](err)
	if !ok || len(e.Problems) != 4 {
		t.Fatalf("got %v", err)
	}
	for i, line := range []int{1, 3, 4, 5} {
		if e.Problems[i].Line != line {
			t.Errorf("problem %d: %s, want line %d", i, e.Problems[i], line)
		}
	}
	if s := e.Error(); !strings.HasPrefix(s, "m:1: bogus: ") || !strings.HasSuffix(s, "(and 3 more)") {
		t.Error(s)
	}
	if _, err := Parse("m", []byte(strings.Repeat("x", MaxFile+1))); err == nil || !strings.Contains(err.Error(), "larger than 256KiB") {
		t.Errorf("a large file: %v", err)
	}
	if _, err := Parse("m", []byte("a: \xff")); err == nil || !strings.Contains(err.Error(), "UTF-8") {
		t.Errorf("what is no text: %v", err)
	}
}

// place makes a directory with files, by name, text and mode.
func place(t *testing.T, files ...any) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "d")
	for i := 0; i < len(files); i += 3 {
		name, text, mode := filepath.Join(dir, fmt.Sprint(files[i])), fmt.Sprint(files[i+1]), files[i+2].(int)                                                  //nolint:forcetypeassert // the test's own
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o600), os.Chmod(name, os.FileMode(mode))); err != nil { //nolint:gosec // as deployed
			t.Fatal(err)
		}
	}
	return dir
}

// TestCheckDir: what a manifest names is looked for, and who can read or change it.
func TestCheckDir(t *testing.T) {
	const text = "elements:\n  - path: bin/a\n  - path: b\nattributes_file: secrets\n"
	for _, c := range []struct {
		name  string
		files []any
		link  [2]string
		says  []string // one for each problem
	}{
		{name: "good", files: []any{Name, text, 0o644, "bin/a", "x", 0o755, "b", "x", 0o755, "secrets", "a: 1", 0o600}},
		{name: "missing", files: []any{Name, text, 0o644, "bin/a", "x", 0o755}, says: []string{Name + ":3: elements[1].path: b is not there", Name + ":4: attributes_file: secrets is not there"}},
		{name: "a directory", files: []any{Name, text, 0o644, "bin/a/x", "x", 0o755, "b", "x", 0o755, "secrets", "", 0o600}, says: []string{Name + ":2: elements[0].path: bin/a is no file"}},
		{name: "a link out", files: []any{Name, text, 0o644, "bin/a", "x", 0o755, "secrets", "", 0o600}, link: [2]string{"/etc/passwd", "b"}, says: []string{":3: elements[1].path: b leads out of the directory, to /etc/passwd"}},
		{name: "a link within", files: []any{Name, text, 0o644, "bin/a", "x", 0o755, "secrets", "", 0o600}, link: [2]string{"bin/a", "b"}},
		{name: "a secret for all", files: []any{Name, text, 0o644, "bin/a", "x", 0o755, "b", "x", 0o755, "secrets", "a: 1", 0o644}, says: []string{"secrets can be read by everybody (mode 0644), and may hold secrets: chmod 600 "}},
		{name: "a secret for a group", files: []any{Name, text, 0o644, "bin/a", "x", 0o755, "b", "x", 0o755, "secrets", "a: 1", 0o640}, says: []string{"by its group"}},
		{name: "a secret that anyone writes", files: []any{Name, text, 0o644, "bin/a", "x", 0o755, "b", "x", 0o755, "secrets", "a: 1", 0o602}, says: []string{":4: attributes_file: secrets is not usable: anyone can write it"}},
		{name: "a bad secret", files: []any{Name, text, 0o644, "bin/a", "x", 0o755, "b", "x", 0o755, "secrets", "a: [1]", 0o600}, says: []string{"secrets:1: a: is a list"}},
		{name: "that anyone writes", files: []any{Name, text, 0o666}, says: []string{Name + ": anyone can write it"}},
		{name: "bad", files: []any{Name, "bogus: 1", 0o644}, says: []string{Name + ":1: bogus"}},
		{name: "large", files: []any{Name, strings.Repeat("#", MaxFile+1), 0o644}, says: []string{"more than 256KiB"}},
		{name: "no file", files: []any{Name + "/x", "", 0o644}, says: []string{"it is no file"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := place(t, c.files...)
			if c.link[1] != "" {
				if err := os.Symlink(c.link[0], filepath.Join(dir, c.link[1])); err != nil {
					t.Fatal(err)
				}
			}
			problems, err := Check(filepath.Dir(dir), false)
			if err != nil || len(problems) != len(c.says) {
				t.Fatalf("got %v, %v, want %d problems", problems, err, len(c.says))
			}
			for i, says := range c.says {
				if !strings.Contains(problems[i].String(), says) {
					t.Errorf("%s does not say %q", problems[i], says)
				}
			}
		})
	}
	if _, err := Check(filepath.Join(t.TempDir(), "none"), false); err == nil {
		t.Error("a root that is not there has nothing wrong")
	}
}

// FuzzParse: no text makes it panic or hang; what it takes holds to its rules, and it says
// of each fault where it is.
func FuzzParse(f *testing.F) {
	for _, c := range cases {
		f.Add([]byte(c.text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := Parse("m", text)
		if err != nil {
			e, ok := errors.AsType[*Error](err)
			if !ok || len(e.Problems) == 0 || len(e.Problems) > 100 || m != nil {
				t.Fatalf("got %v, %v", m, err)
			}
			for _, p := range e.Problems {
				if p.Message == "" || strings.ContainsAny(p.Message, "\n\x00") {
					t.Errorf("a message %q", p.Message)
				}
			}
			return
		}
		if len(m.Elements) > MaxElements {
			t.Errorf("%d elements", len(m.Elements))
		}
		for _, e := range m.Elements {
			if !filepath.IsLocal(e.Path) || filepath.Clean(e.Path) == "." {
				t.Errorf("path %q", e.Path)
			}
			for name := range e.Env {
				if strings.HasPrefix(name, "PLUGIN_") || strings.HasPrefix(name, "LD_") || strings.ContainsAny(name, "=\x00") {
					t.Errorf("variable %q", name)
				}
			}
		}
	})
}
