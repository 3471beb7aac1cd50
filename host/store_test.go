package host

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestStoreSameBytes: one copy for the same bytes, whatever the name; what the
// check refuses leaves nothing.
func TestStoreSameBytes(t *testing.T) {
	s := newStore(t.TempDir(), false)
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
		return s.install(f, func(*os.File, string) error { return check })
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
	s := newStore(t.TempDir(), false)
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
			b, err := s.install(f, func(*os.File, string) error { return nil })
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

// TestStoreDamaged: a copy is what its bytes are, whatever its name says; it is not
// run when it was changed, and is made anew from the same file.
func TestStoreDamaged(t *testing.T) {
	for _, c := range []struct {
		what   string
		damage func(copied string) error
		says   string
	}{
		{"cut short", func(p string) error { return errors.Join(os.Chmod(p, 0o755), os.Truncate(p, 100)) }, "SHA-256"}, //nolint:gosec // a program
		{"zeros of its size", func(p string) error {
			info, err := os.Stat(p)
			return errors.Join(err, os.Remove(p), os.WriteFile(p, make([]byte, info.Size()), 0o555)) //nolint:gosec // a program
		}, "SHA-256"},
		{"one byte, with its old time", func(p string) error {
			if err := os.Chmod(p, 0o755); err != nil { //nolint:gosec // a program
				return err
			}
			f, err := os.OpenFile(p, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close() //nolint:errcheck // written below
			info, err1 := f.Stat()
			_, err2 := f.WriteAt([]byte("x"), 100)
			return errors.Join(err1, err2, os.Chtimes(p, info.ModTime(), info.ModTime()))
		}, "SHA-256"},
		{"another program", func(p string) error { return errors.Join(os.Remove(p), os.WriteFile(p, []byte("#!/bin/sh\n"), 0o555)) }, "SHA-256"}, //nolint:gosec // a program
		{"gone", os.Remove, "gone"},
		{"a link to the right bytes", func(p string) error { return errors.Join(os.Rename(p, p+"x"), os.Symlink(p+"x", p)) }, "link"},
		{"a pipe", func(p string) error { return errors.Join(os.Remove(p), syscall.Mkfifo(p, 0o755)) }, "no program"},
		{"not executable", func(p string) error { return os.Chmod(p, 0o444) }, "no program"},               //nolint:gosec // the case
		{"for anyone to write", func(p string) error { return os.Chmod(p, 0o757) }, "anyone can write it"}, //nolint:gosec // the case
	} {
		t.Run(c.what, func(t *testing.T) {
			s := newStore(t.TempDir(), false)
			path := filepath.Join(t.TempDir(), "f")
			want := program(t)
			if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
				t.Fatal(err)
			}
			install := func() binary {
				t.Helper()
				f, err := os.Open(path)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close() //nolint:errcheck // read only
				b, err := s.install(f, func(*os.File, string) error { return nil })
				if err != nil {
					t.Fatal(err)
				}
				return b
			}
			good := func(b binary) {
				t.Helper()
				f, err := s.open(b.sum)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close() //nolint:errcheck // read only
				got, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<30))
				if err != nil || string(got) != want {
					t.Errorf("%d bytes, %v; want %d", len(got), err, len(want))
				}
			}
			b := install()
			good(b)
			for deadline := time.Now().Add(10 * time.Second); !s.wasRead(b.sum, stampAt(t, b.exec)) && runtime.GOOS == "linux"; good(b) {
				if time.Now().After(deadline) {
					t.Fatal("the copy is read at each open")
				}
			}
			for what, mend := range map[string]func() error{
				"restored": func() error { return s.restore(b) }, "installed again": func() error { install(); return nil },
			} {
				if err := c.damage(b.exec); err != nil {
					t.Fatal(err)
				}
				if f, err := s.open(b.sum); err == nil || !strings.Contains(err.Error(), c.says) {
					t.Fatalf("opened as %v, %v", f, err)
				} else if _, ok := errors.AsType[*damaged](err); !ok {
					t.Errorf("%v is no *damaged", err)
				}
				if err := mend(); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				good(b)
			}
			// With other bytes in the file there is nothing to make it of.
			if err := errors.Join(c.damage(b.exec), os.WriteFile(path, []byte("other"), 0o600)); err != nil {
				t.Fatal(err)
			}
			if err := s.restore(b); err == nil || !strings.Contains(err.Error(), "other bytes by now") {
				t.Errorf("restored: %v", err)
			}
		})
	}
}

func stampAt(t *testing.T, path string) stamp {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return stampOf(info)
}

// BenchmarkStoreOpen is what looking at the bytes adds to each start.
func BenchmarkStoreOpen(b *testing.B) {
	s := newStore(b.TempDir(), false)
	path := filepath.Join(b.TempDir(), "f")
	const size = 16 << 20 // of a Go plugin
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		b.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // read only
	bin, err := s.install(f, func(*os.File, string) error { return nil })
	if err != nil {
		b.Fatal(err)
	}
	open := func(b *testing.B) {
		b.Helper()
		f, err := s.open(bin.sum)
		if err != nil {
			b.Fatal(err)
		}
		_ = f.Close()
	}
	b.Run("unread", func(b *testing.B) {
		for b.Loop() {
			clear(s.read)
			open(b)
		}
	})
	b.Run("unchanged", func(b *testing.B) {
		for b.Loop() {
			open(b)
		}
	})
}
