package boltstore

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/auth"
)

// badStore holds an error to naming the file and saying what is wrong.
func badStore(t *testing.T, what string, err error, path, says string) {
	t.Helper()
	e, ok := errors.AsType[*conduit.Error](err)
	if !ok || e.Reason != conduit.ReasonBadStore || e.Code != conduit.FailedPrecondition || !strings.Contains(e.Message, path) || !strings.Contains(e.Message, says) {
		t.Errorf("%s: %v, want bad_store that names the file and says %q", what, err, says)
	}
}

// TestForeign: what is no store is named as such, and left as it is.
func TestForeign(t *testing.T) {
	path, _ := withUsers(t)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	other := filepath.Join(dir, "other.db")
	db, err := bbolt.Open(other, fileMode, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = db.Update(func(tx *bbolt.Tx) error { _, err := tx.CreateBucket([]byte("things")); return err })
	_ = db.Close()
	foreignDB, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	newer := func() []byte {
		p := filepath.Join(dir, "newer.db")
		if err := os.WriteFile(p, whole, fileMode); err != nil {
			t.Fatal(err)
		}
		db, err := bbolt.Open(p, fileMode, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = db.Update(func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte(bucketStore)).Put([]byte(keyFormat), []byte{0, 0, 0, 0, 0, 0, 0, 2})
		})
		if err := errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
		b, _ := os.ReadFile(p)
		return b
	}()
	page := os.Getpagesize()
	for name, c := range map[string]struct {
		content []byte
		says    string
	}{
		"empty":            {nil, "it is empty"},
		"a byte":           {[]byte{0}, "not a bbolt database"},
		"text":             {[]byte("users:\n- ada\n"), "not a bbolt database"},
		"long text":        {bytes.Repeat([]byte("users and more\n"), 10_000), "not a bbolt database"},
		"zeros":            {make([]byte, 64<<10), "not a bbolt database"},
		"SQLite":           {append([]byte("SQLite format 3\x00"), make([]byte, 20_000)...), "not a bbolt database"},
		"another's bbolt":  {foreignDB, "another program's"},
		"a newer format":   {newer, "format 2"},
		"one page":         {whole[:page], "cut short"},
		"a part of a page": {whole[:100], "cut short"},
		"two pages":        {whole[:2*page], "cut short"},
		"all but a page":   {whole[:len(whole)-page], ""},
		"headers zeroed":   {append(make([]byte, 2*page), whole[2*page:]...), "not a bbolt database"},
		"headers' sums": {func() []byte {
			b := bytes.Clone(whole)
			b[sumAt] ^= 1
			b[page+sumAt] ^= 1
			return b
		}(), "neither of its headers"},
	} {
		p := filepath.Join(dir, "auth.db")
		if err := os.WriteFile(p, c.content, fileMode); err != nil {
			t.Fatal(err)
		}
		for _, o := range []Options{{}, {MustExist: true}} {
			_, err := Open(t.Context(), p, o)
			if name == "all but a page" && err == nil {
				continue // bbolt may keep a page in reserve
			}
			badStore(t, name, err, p, c.says)
		}
		if now, err := os.ReadFile(p); err != nil || !bytes.Equal(now, c.content) {
			t.Errorf("%s: the file was changed (%v)", name, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestNoFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(t.Context(), dir, Options{}); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a directory: %v", err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, fileMode); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), fifo, Options{}); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a pipe: %v", err)
	}
	for _, path := range []string{filepath.Join(dir, "none", "auth.db"), filepath.Join(fifo, "auth.db")} {
		_, err := Open(t.Context(), path, Options{})
		if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Reason != conduit.ReasonStoreUnavailable || !strings.Contains(e.Message, path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	path := filepath.Join(dir, "auth.db")
	if _, err := Open(t.Context(), path, Options{MustExist: true}); err == nil || !strings.Contains(err.Error(), "is not there") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file was made: %v", err)
	}
}

func TestMode(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	path, s := withUsers(t)
	if info, err := os.Stat(path); err != nil || info.Mode() != fileMode {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o602, 0o660, 0o666, 0o610} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		_, err := Open(t.Context(), path, Options{})
		badStore(t, mode.String(), err, path, "chmod 600 "+path)
		_, err = s.User(t.Context(), "child")
		badStore(t, mode.String(), err, path, "chmod 600 "+path)
		_, err = s.Generation(t.Context())
		badStore(t, mode.String(), err, path, "chmod 600 "+path)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	opened(t, path)
}

// TestReplaced: another store in the place of this one is not taken for it.
func TestReplaced(t *testing.T) {
	path, s := withUsers(t)
	if _, err := s.Generation(t.Context()); err != nil {
		t.Fatal(err)
	}
	away := path + ".away"
	if err := os.Rename(path, away); err != nil {
		t.Fatal(err)
	}
	_, err := s.Generation(t.Context())
	if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Reason != conduit.ReasonStoreUnavailable || !strings.Contains(e.Message, "is not there") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a store was made in its place")
	}
	other := opened(t, path)
	if other.ID() == s.ID() {
		t.Error("two stores have one id")
	}
	_, err = s.Generation(t.Context())
	badStore(t, "generation", err, path, "replaced")
	_, err = s.User(t.Context(), "child")
	badStore(t, "user", err, path, "replaced")
	if err := os.Rename(away, path); err != nil {
		t.Fatal(err)
	}
	if _, err := s.User(t.Context(), "child"); err != nil {
		t.Error(err)
	}
}

// TestOpenTogether: of many who start at once all get the same store.
func TestOpenTogether(t *testing.T) {
	path := place(t)
	stores := make([]*Store, 16)
	var wg sync.WaitGroup
	for i := range stores {
		wg.Go(func() {
			var err error
			if stores[i], err = Open(t.Context(), path, Options{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, s := range stores {
		if s.ID() != stores[0].ID() {
			t.Fatal("two stores")
		}
	}
}

// TestDamage: whatever happens to the bytes of a file, the answer is an error or
// what was written, never a crash, and a file that does not open is not touched.
func TestDamage(t *testing.T) {
	path, s := withUsers(t)
	for i := range 200 {
		if err := step(t.Context(), s, "child", i%5 == 0); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	r := rand.New(rand.NewPCG(1, 2))
	var named, silent int
	try := func(what string, content []byte) {
		p := place(t)
		if err := os.WriteFile(p, content, fileMode); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		s, err := Open(ctx, p, Options{MustExist: true, LockTimeout: time.Second})
		if err != nil {
			named++
			badStore(t, what, err, p, p)
			if now, err := os.ReadFile(p); err != nil || !bytes.Equal(now, content) {
				t.Errorf("%s: the file was changed (%v)", what, err)
			}
			return
		}
		silent++
		for range 2 {
			err := errors.Join(
				step(ctx, s, "child", true),
				s.AddUser(ctx, auth.User{ID: auth.NewUserID(), Name: "new", Level: conduit.User, Stamp: auth.Seal([]byte("x"))}),
				s.Touch(ctx, time.Now(), []auth.Touch{{}}))
			if e, ok := errors.AsType[*conduit.Error](err); err != nil && (!ok || errors.Is(err, errLocked)) {
				t.Errorf("%s: %v is no *conduit.Error (%v), or says that nobody let go of the lock", what, err, e)
			}
		}
	}
	for at := 0; at < len(whole); at += page {
		for _, fill := range []byte{0, 0xff, 'x'} {
			b := bytes.Clone(whole)
			for i := range b[at : at+page] {
				b[at+i] = fill
			}
			try("a page overwritten", b)
		}
		b := bytes.Clone(whole)
		copy(b[at:at+page], whole[r.IntN(len(whole)/page)*page:])
		try("a page in another's place", b)
		try("cut short", whole[:at+1+r.IntN(page-1)])
	}
	for range 150 {
		b := bytes.Clone(whole)
		at := r.IntN(len(b)/page) * page
		switch r.IntN(3) {
		case 0:
			b[at+r.IntN(64)] ^= 1 << r.IntN(8) // the head of a page
		case 1:
			b[at+r.IntN(page)] ^= 1 << r.IntN(8)
		case 2:
			for range 8 {
				b[at+r.IntN(page)] = byte(r.Uint32())
			}
		}
		try("bytes changed", b)
	}
	t.Logf("%d were named as damaged, %d are whole as far as they are read", named, silent)
	if named < 100 {
		t.Error("hardly any damage was seen: the test must be wrong")
	}
}
