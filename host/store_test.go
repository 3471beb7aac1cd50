package host

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// TestStoreSameBytes: one copy for the same bytes, whatever the name; what the
// check refuses leaves nothing.
func TestStoreSameBytes(t *testing.T) {
	s := store{t.TempDir()}
	install := func(content string, check error) (binary, error) {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close() //nolint:errcheck // read only
		return s.install(f, func(*os.File) error { return check })
	}
	a, err := install("one", nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := install("one", nil)
	if err != nil || b.sum != a.sum || b.exec != a.exec {
		t.Errorf("got %+v, %v; want %+v", b, err, a)
	}
	no := errors.New("no")
	if _, err := install("two", no); !errors.Is(err, no) {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(s.dir); len(entries) != 1 {
		t.Errorf("the store holds %v", entries)
	}
	if err := s.sweep(nil); err != nil {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(s.dir); len(entries) != 0 {
		t.Errorf("after a sweep the store holds %v", entries)
	}
}

// TestInstallAndRun: many installs and execs at once; none may find its file
// busy for good.
func TestInstallAndRun(t *testing.T) {
	s := store{t.TempDir()}
	prog := program(t)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			path := filepath.Join(t.TempDir(), "f")
			if err := os.WriteFile(path, []byte(prog+strings.Repeat("x", i)), 0o600); err != nil {
				t.Error(err)
				return
			}
			f, err := os.Open(path)
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close() //nolint:errcheck // read only
			b, err := s.install(f, func(*os.File) error { return nil })
			if err != nil {
				t.Error(err)
				return
			}
			// A sibling that was forked while the copy was written may hold it for
			// a moment; pluginlink.Spawner waits that out, so does this.
			for range 1000 {
				if err = exec.Command(b.exec).Run(); err == nil || !strings.Contains(err.Error(), "text file busy") {
					break
				}
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
