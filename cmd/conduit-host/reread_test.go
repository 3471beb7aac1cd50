package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// What a look tells of, step by step; two looks stand for the pause between them.
func TestChangesOfFiles(t *testing.T) {
	dir := t.TempDir()
	path, next := filepath.Join(dir, "conduit.yaml"), filepath.Join(dir, "next")
	now := time.Now().Add(-time.Hour)
	put := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Second) // else a slow clock of the file system hides a second write
		if err := os.Chtimes(path, now, now); err != nil {
			t.Fatal(err)
		}
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	put(path, "a: 1")
	w := watchFiles(path, filepath.Join(dir, "none"))
	looks := func(what string, want ...bool) {
		t.Helper()
		for n, one := range want {
			if got := w.look(); got != one {
				t.Errorf("%s: look %d says %v", what, n+1, got)
			}
		}
	}
	looks("nothing happened", false, false)
	put(path, "a: 2")
	looks("another text", false, true, false)
	put(path, "a: 2")
	looks("the same text", false, false, false)
	put(path, "")
	looks("emptied", false)
	put(path, "a: 3")
	looks("and written", false, true, false)
	put(path, "a: 4")
	w.took()
	looks("taken by a signal", false, false, false)

	do(os.Remove(path))
	looks("removed", false, false)
	put(path, "a: 4")
	looks("back as it was", false, false, false)
	put(next, "a: 5")
	do(os.Rename(next, path))
	looks("replaced", false, true, false)

	// As Kubernetes mounts a ConfigMap: the file is a link, and what it leads to changes.
	put(next, "a: 6")
	link := filepath.Join(dir, "link")
	do(os.Symlink(path, link))
	w = watchFiles(link)
	looks("a link", false, false)
	do(os.Remove(link))
	do(os.Symlink(next, link))
	looks("that leads elsewhere", false, true, false)

	// What is written between the first look and the reading of the file is not lost, also
	// where a file is added meanwhile.
	w = (&app{configFile: path}).watchConfig()
	put(path, "a: 7")
	w.add(next)
	w.add("")
	looks("written before it was read", false, true, false)
	put(next, "b: 1")
	looks("a file that was added", false, true, false)
}

func TestBlankFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "conduit.yaml")
	for text, want := range map[string]bool{"": true, " \n\t\n": true, "# nothing yet\n": false, "mode: worker\n": false} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := isBlank(path); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	for _, path := range []string{"", os.DevNull, path + ".none"} {
		if isBlank(path) {
			t.Errorf("%q is no empty file", path)
		}
	}
}
