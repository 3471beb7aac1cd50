package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestFilesThatMatter(t *testing.T) {
	for name, want := range map[string]bool{
		"main.go": true, "go.mod": true, "page.html": true,
		".main.go.swp": false, "main.go~": false, "#main.go#": false, ".#main.go": false, "4913": false, "main_test.go": false, "main.go___jb_tmp___": false, "main.go.tmp": false,
	} {
		if got := matters("/some/where/" + name); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestSources: a save in any package that the program is built of is told of, and in no
// other directory; a package that is imported later is watched from then on.
func TestSources(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("app/go.mod", "module example.org/app\n\ngo 1.26\n\nrequire example.org/lib v0.0.0\n\nreplace example.org/lib => ../lib\n")
	write("app/cmd/main.go", "package main\n\nimport _ \"example.org/app/a\"\n\nfunc main() {}\n")
	write("app/a/a.go", "package a\n\nimport _ \"embed\"\n\n//go:embed pages/x.html\nvar X string\n")
	write("app/a/pages/x.html", "x")
	write("app/b/b.go", "package b\n")
	write("lib/lib.go", "package lib\n")
	write("lib/go.mod", "module example.org/lib\n\ngo 1.26\n")
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	s, err := watchSources(ctx, filepath.Join(dir, "app/cmd"), append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	told := func(what string) {
		t.Helper()
		select {
		case <-s.changed:
		case <-ctx.Done():
			t.Fatalf("nobody was told of %s; watched are %v", what, s.watched)
		}
	}
	for _, name := range []string{"app/cmd/main.go", "app/a/a.go", "app/a/pages/x.html", "app/go.mod"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		write(name, string(data))
		told(name)
	}
	for _, not := range []string{"app/b", "lib"} {
		if s.watched[filepath.Join(dir, not)] {
			t.Errorf("%s is watched, of which nothing is built", not)
		}
	}
	write("app/cmd/main.go", "package main\n\nimport (\n\t_ \"example.org/app/b\"\n\t_ \"example.org/lib\"\n)\n\nfunc main() {}\n")
	told("an import")
	s.refresh(ctx, time.Now())
	for name, want := range map[string]bool{"app/a": false, "app/b": true, "lib": true} {
		if got := s.watched[filepath.Join(dir, name)]; got != want {
			t.Errorf("after the import changed, %s is watched: %t", name, got)
		}
	}
	write("lib/lib.go", "package lib // changed\n")
	told("a module that a directory replaces")
}
