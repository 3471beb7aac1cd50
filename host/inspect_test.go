package host

import (
	"os"
	"path/filepath"
	"testing"

	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// TestInspect: what is found of a file without starting it. The command line's stories
// have the rest, with real plugins.
func TestInspect(t *testing.T) {
	dir := t.TempDir()
	self, err := pluginFile()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"good": program, "text": []byte("hello"), "note.txt": program} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o700); err != nil { //nolint:gosec // programs
			t.Fatal(err)
		}
	}
	for name, want := range map[string]map[string]string{ // the kinds of what is wrong, by what was looked at
		"good":     {},
		"text":     {"program": refusedNotPlugin},
		"note.txt": {"name": refusedName},
		"none":     {"file": refusedNotReadable},
	} {
		found := Inspect(filepath.Join(dir, name))
		for _, f := range found {
			if f.Kind != want[f.Name] || (f.Kind == "") != (f.Reason == "") {
				t.Errorf("%s: %s is %q (%s), want %q", name, f.Name, f.Kind, f.Reason, want[f.Name])
			}
			delete(want, f.Name)
		}
		if len(want) > 0 {
			t.Errorf("%s: not looked at: %v", name, want)
		}
	}
}

func TestConsiders(t *testing.T) {
	for name, want := range map[string]bool{"echo": true, ".echo": false, "echo~": false, "echo.bak": false, sumsName: false, "README.md": false} {
		if got := Considers(name); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestCheckDescriptionForAuthors(t *testing.T) {
	if err := CheckDescription(&conduitv1.Description{Element: "e"}); err != nil {
		t.Error(err)
	}
	if err := CheckDescription(&conduitv1.Description{Element: "../../etc"}); err == nil {
		t.Error("an element may call itself ../../etc")
	}
}
