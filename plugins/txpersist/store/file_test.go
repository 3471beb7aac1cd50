package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/elemental-conduit/conduit/address"
)

func open(t *testing.T, file string, change ...func(*Options)) (*Store, error) {
	t.Helper()
	opts := Options{File: file, Node: testNode, noSync: true, LockTimeout: 50 * time.Millisecond}
	for _, f := range change {
		f(&opts)
	}
	return Open(t.Context(), opts)
}

// wantRefused opens a file that must be refused, and must stay as it is.
func wantRefused(t *testing.T, file string, kind Kind, says string, change ...func(*Options)) {
	t.Helper()
	before, readErr := os.ReadFile(file)
	s, err := open(t, file, change...)
	if err == nil {
		_ = s.Close()
		t.Errorf("%s was opened, want %s", file, kind)
		return
	}
	if KindOf(err) != kind || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), says) {
		t.Errorf("the error is %v, want %s: %s: ...%s", err, kind, file, says)
	}
	if after, err := os.ReadFile(file); readErr == nil && (err != nil || !bytes.Equal(before, after)) {
		t.Errorf("%s was changed (%v)", file, err)
	}
}

// UnixFSCloseOpenTest.testOpenTwice (10.8).
func TestOpenAndCloseTenTimes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "store")
	for i := range 10 {
		s := openStore(t, file)
		s.view(paths("/"), func(tx *ReadTx) {
			if n := len(list(t, tx, "/**")); n != i {
				t.Errorf("%d resources are there, want %d", n, i)
			}
		})
		s.add(fmt.Sprintf("/%d", i))
		must(t, s.Close())
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	_, err := Open(t.Context(), Options{Node: testNode})
	wantKind(t, err, KindArgument)
	_, err = Open(t.Context(), Options{File: filepath.Join(t.TempDir(), "x")})
	wantKind(t, err, KindArgument)
	_, err = Open(t.Context(), Options{File: filepath.Join(t.TempDir(), "no", "x"), Node: testNode})
	wantKind(t, err, KindFailed)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the error is %v", err)
	}
	wantRefused(t, t.TempDir(), KindFailed, "")
}

// An empty file that somebody made, for its rights, becomes a store.
func TestEmptyFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "store")
	must(t, os.WriteFile(file, nil, 0o640))
	s := openStore(t, file)
	s.add("/a")
	wantFiles(t, filepath.Dir(file), "store")
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the file is %v, %v", info, err)
	}
}

// STO-01.
func TestFileInUse(t *testing.T) {
	s := newStore(t)
	_, err := open(t, s.File())
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Kind != KindInUse || e.PID != os.Getpid() || e.Subject != s.File() {
		t.Errorf("the error is %v, want that this process has it", err)
	}
	// Released while somebody waits, it opens.
	opened := make(chan error, 1)
	go func() {
		again, err := Open(t.Context(), Options{File: s.File(), Node: testNode, noSync: true, LockTimeout: time.Minute})
		if err == nil {
			err = again.Close()
		}
		opened <- err
	}()
	must(t, s.Close())
	must(t, <-opened)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	held := openStore(t, s.File())
	_, err = Open(ctx, Options{File: held.File(), Node: testNode, LockTimeout: time.Hour})
	wantKind(t, err, KindInUse)
}

func TestFileHeldByAnotherProcessIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "store")
	c := startChild(t, "hold", file)
	c.line(t) // it has it
	_, err := open(t, file)
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Kind != KindInUse || e.PID != c.cmd.Process.Pid || !strings.Contains(err.Error(), strconv.Itoa(e.PID)) {
		t.Errorf("the error is %v, want that process %d has it", err, c.cmd.Process.Pid)
	}
	c.kill(t)
	openStore(t, file) // a crash frees the lock
}

func TestForeignAndAdopt(t *testing.T) {
	s := newStore(t)
	ids := s.add("/a")
	s.update(paths("/a"), func(tx *WriteTx) {
		must(t, tx.CreateTask(address.RandomTaskID(ids["/a"]), time.UnixMilli(1)))
	})
	must(t, s.Close())
	file := s.File()
	wantRefused(t, file, KindForeign, testNode.String(), func(o *Options) { o.Node = otherNode })
	wantKind(t, Adopt(t.Context(), file, otherNode, testNode), KindForeign)
	wantKind(t, Adopt(t.Context(), file, testNode, address.NodeID{}), KindArgument)
	must(t, Adopt(t.Context(), file, testNode, otherNode))
	wantRefused(t, file, KindForeign, otherNode.String())

	adopted, err := open(t, file, func(o *Options) { o.Node = otherNode })
	must(t, err)
	id := address.ResourceIDFromUUID(otherNode, ids["/a"].UUID())
	err = adopted.View(t.Context(), paths("/"), func(tx *ReadTx) error {
		wantContents(t, tx, id, []byte("/a"))
		_, err := tx.Exists(ids["/a"])
		wantKind(t, err, KindNode)
		return nil
	})
	must(t, err)
	if due, err := adopted.Due(t.Context(), time.Now(), 10); err != nil || len(due) != 1 || due[0].ID.Resource() != id {
		t.Errorf("due: %v, %v", due, err)
	}
	must(t, adopted.Close())
}

func TestUnknownFormat(t *testing.T) {
	dir := t.TempDir()
	bare := filepath.Join(dir, "bbolt")
	db, err := bolt.Open(bare, 0o600, nil)
	must(t, err)
	must(t, db.Update(func(tx *bolt.Tx) error { return second(tx.CreateBucket([]byte("mine"))) }))
	must(t, db.Close())
	wantRefused(t, bare, KindFormat, "not of a store")

	s := newStore(t)
	must(t, s.db.Update(func(tx *bolt.Tx) error {
		return putMeta(tx.Bucket([]byte(bucketMeta)), "format", binary.BigEndian.AppendUint32(nil, formatVersion+1))
	}))
	must(t, s.Close())
	wantRefused(t, s.File(), KindFormat, fmt.Sprintf("%08x", formatVersion+1))

	text := filepath.Join(dir, "text")
	must(t, os.WriteFile(text, bytes.Repeat([]byte("no store\n"), 5000), 0o600))
	wantRefused(t, text, KindCorrupt, "")
	short := filepath.Join(dir, "short")
	must(t, os.WriteFile(short, []byte("x"), 0o600))
	wantRefused(t, short, KindCorrupt, "")
}

// good makes a file of about 1 MB to damage, and returns what Load gives.
func good(t *testing.T) (file string, want map[address.ResourceID][]byte) {
	t.Helper()
	s := newStore(t)
	want = map[address.ResourceID][]byte{}
	for round := range 3 {
		s.update(paths("/"), func(tx *WriteTx) {
			for i := range 400 {
				id := newID()
				want[id] = bytes.Repeat([]byte{byte(i)}, 10*i)
				must(t, tx.Save(path(fmt.Sprintf("/%d/%d", round, i)), id, want[id]))
			}
		})
	}
	must(t, s.Close())
	m := metaOf(t, s.File())
	must(t, os.Truncate(s.File(), int64(m.pages)*m.pageSize)) // without the room to grow
	return s.File(), want
}

func damage(t *testing.T, file string, change func(b []byte) []byte) string {
	t.Helper()
	b, err := os.ReadFile(file)
	must(t, err)
	out := filepath.Join(t.TempDir(), "damaged")
	must(t, os.WriteFile(out, change(b), 0o600))
	return out
}

// STO-03: damage is refused with what and where, and the file stays as it is.
func TestDamagedFiles(t *testing.T) {
	file, want := good(t)
	m := metaOf(t, file)
	page := int(m.pageSize)
	zero := func(from, to int) func([]byte) []byte {
		return func(b []byte) []byte { clear(b[from:to]); return b }
	}
	pageAt := func(id uint64, b []byte) []byte { return b[int(id)*page:][:page] }

	wantRefused(t, damage(t, file, func(b []byte) []byte { return b[:len(b)/2] }), KindCorrupt, "cut off")
	wantRefused(t, damage(t, file, func(b []byte) []byte { return b[:page+100] }), KindCorrupt, "cut off")
	wantRefused(t, damage(t, file, zero(0, 2*page)), KindCorrupt, "neither head")
	wantRefused(t, damage(t, file, func(b []byte) []byte {
		binary.LittleEndian.PutUint16(pageAt(m.freelist, b)[8:], flagLeaf)
		return b
	}), KindCorrupt, fmt.Sprintf("page %d", m.freelist))
	wantRefused(t, damage(t, file, func(b []byte) []byte {
		for p := range 2 {
			binary.LittleEndian.PutUint32(b[p*page+pageHeader+4:], 3)
		}
		return b
	}), KindCorrupt, "version")
	wantRefused(t, damage(t, file, func(b []byte) []byte {
		clear(pageAt(m.root, b))
		return b
	}), KindCorrupt, fmt.Sprintf("page %d", m.root))

	// One bad head is survived: that of the commit before counts, if it is the newer.
	for p := range 2 {
		s := openStore(t, damage(t, file, zero(p*page, (p+1)*page)))
		s.view(paths("/"), func(tx *ReadTx) {
			// Which of the two is the newer is bbolt's choice; 400 came with each commit.
			if n := len(list(t, tx, "/**")); n != len(want) && n != len(want)-400 {
				t.Errorf("%d of %d are there", n, len(want))
			}
		})
	}
}

func metaOf(t *testing.T, file string) boltMeta {
	t.Helper()
	f := openFile(t, file)
	info, err := f.Stat()
	must(t, err)
	m, err := readMeta(f, info.Size())
	must(t, err)
	return m
}

// STO-03: 100 bytes flipped anywhere. Whatever they hit, nothing panics, no wrong
// contents are given out, and what is not refused at once is found by Check or does no
// harm (it hit a free page, or the slack of one).
func TestFlippedBytes(t *testing.T) {
	file, want := good(t)
	size := int(metaOf(t, file).pages) * int(metaOf(t, file).pageSize)
	rounds := 40
	if testing.Short() {
		rounds = 40
	}
	refused, found := 0, 0
	for seed := range rounds {
		rnd := rand.New(rand.NewPCG(7, uint64(seed)))
		flips := 1 + seed%100
		bad := damage(t, file, func(b []byte) []byte {
			for range flips {
				b[8192+rnd.IntN(size-8192)] ^= byte(1 + rnd.IntN(255))
			}
			return b
		})
		s, err := open(t, bad, func(o *Options) {
			if seed%2 == 0 {
				o.CheckLimit = -1 // let the damage in, so that the second line is tried as well
			}
		})
		if err != nil {
			if k := KindOf(err); k != KindCorrupt && k != KindFormat {
				t.Errorf("seed %d: %v", seed, err)
			}
			refused++
			continue
		}
		wrong := 0
		err = s.View(t.Context(), paths("/"), func(tx *ReadTx) error {
			for id, contents := range want {
				got, err := tx.Load(id)
				switch {
				case err != nil:
					if k := KindOf(err); k != KindCorrupt && k != KindNotFound {
						t.Errorf("seed %d: %v", seed, err)
					}
					wrong++
				case !bytes.Equal(got, contents):
					t.Errorf("seed %d: contents that were never written were read", seed)
				}
			}
			return nil
		})
		must(t, err)
		check := s.Check(t.Context())
		if check != nil {
			found++
			wantKind(t, check, KindCorrupt)
		}
		if wrong > 0 && check == nil {
			t.Errorf("seed %d: %d are lost, and the check finds nothing", seed, wrong)
		}
		if check != nil && s.Failed() != nil {
			// A damaged store is not written to.
			_, err := s.Write(t.Context(), paths("/"))
			wantKind(t, err, KindFailed)
		}
		must(t, s.Close())
	}
	t.Logf("%d were refused when opened, %d found by the check, of %d", refused, found, rounds)
	if refused == 0 || found == 0 {
		t.Errorf("%d were refused, %d found: the test tries one of the two only", refused, found)
	}
}

// Check compares the buckets with each other.
func TestCheckFindsWhatDoesNotFit(t *testing.T) {
	u := newID().UUID()
	put := func(bucket string, key, payload []byte) func(*bolt.Tx) error {
		return func(tx *bolt.Tx) error {
			return tx.Bucket([]byte(bucket)).Put(key, seal(bucket, key, payload))
		}
	}
	for name, fault := range map[string]func(*bolt.Tx) error{
		"a resource without a path":       put(bucketResources, u[:], record{}.encode()),
		"a record that makes no sense":    put(bucketResources, u[:], []byte("x")),
		"a path to nowhere":               put(bucketPaths, []byte("x\x00"), u[:]),
		"a key that is no path":           put(bucketPaths, []byte("x"), u[:]),
		"a path that nobody has":          put(bucketReverse, joinKey(u[:], []byte("x\x00")), nil),
		"an alias that is none":           put(bucketAliases, []byte("a\x00"), u[:]),
		"a chunk of nobody":               put(bucketChunks, chunkKey(77, 0), []byte("x")),
		"a task of nobody":                put(bucketTasks, joinKey(u[:], u[:]), make([]byte, 8)),
		"a time of no task":               put(bucketDue, dueKey(5, u, u), nil),
		"a value without checksum":        func(tx *bolt.Tx) error { return tx.Bucket([]byte(bucketPaths)).Put([]byte("a\x00"), u[:]) },
		"a chunk that is missing":         func(tx *bolt.Tx) error { return tx.Bucket([]byte(bucketChunks)).Delete(chunkKey(1, 1)) },
		"a path of a resource is missing": func(tx *bolt.Tx) error { return tx.Bucket([]byte(bucketPaths)).Delete([]byte("a\x00")) },
	} {
		t.Run(name, func(t *testing.T) {
			s, err := open(t, filepath.Join(t.TempDir(), "store"))
			must(t, err)
			defer func() { must(t, s.Close()) }()
			err = s.Update(t.Context(), paths("/"), func(tx *WriteTx) error {
				return tx.Save(path("/a"), newID(), make([]byte, 3*chunkSize))
			})
			must(t, err)
			must(t, s.Check(t.Context()))
			must(t, s.db.Update(fault))
			err = s.Check(t.Context())
			wantKind(t, err, KindCorrupt)
			if err != nil && !strings.Contains(err.Error(), s.File()) {
				t.Errorf("the error does not name the file: %v", err)
			}
		})
	}
}

func TestPagesThatDoNotFit(t *testing.T) {
	file, _ := good(t)
	m := metaOf(t, file)
	page := int(m.pageSize)
	le := binary.LittleEndian
	// A branch page that is in use: the root of a bucket, which the root page names.
	b, err := os.ReadFile(file)
	must(t, err)
	at := func(id int, b []byte) []byte { return b[id*page:] }
	root, branch := at(int(m.root), b), 0
	for i := range int(le.Uint16(root[10:])) {
		e := root[pageHeader+i*leafEntry:]
		id := int(le.Uint64(e[le.Uint32(e[4:])+le.Uint32(e[8:]):]))
		if p := at(id, b); id > 0 && le.Uint16(p[8:]) == flagBranch && le.Uint16(p[10:]) > 2 {
			branch = id
		}
	}
	if branch == 0 {
		t.Fatal("no bucket of the file has a branch page")
	}
	for name, change := range map[string]func(b []byte){
		"its own number":   func(b []byte) { le.PutUint64(at(branch, b), 999) },
		"no entries":       func(b []byte) { le.PutUint16(at(branch, b)[10:], 0) },
		"too many entries": func(b []byte) { le.PutUint16(at(branch, b)[10:], 60000) },
		"its length":       func(b []byte) { le.PutUint32(at(branch, b)[12:], 1<<30) },
		"a page beyond":    func(b []byte) { le.PutUint64(at(branch, b)[pageHeader+8:], 1<<40) },
		"a page twice":     func(b []byte) { copy(at(branch, b)[pageHeader+8:][:8], at(branch, b)[pageHeader+branchEntry+8:]) },
		"itself":           func(b []byte) { le.PutUint64(at(branch, b)[pageHeader+8:], uint64(branch)) },
		"a key beyond":     func(b []byte) { le.PutUint32(at(branch, b)[pageHeader+4:], 1<<20) },
		"a key out of order": func(b []byte) {
			e := at(branch, b)[pageHeader+branchEntry:]
			clear(e[le.Uint32(e):][:le.Uint32(e[4:])])
		},
	} {
		bad := damage(t, file, func(b []byte) []byte { change(b); return b })
		f := openFile(t, bad)
		if err := checkFile(f, true); KindOf(err) != KindCorrupt {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// STO-07: a disk that is full, here by a limit on the file's size.
func TestFullStore(t *testing.T) {
	s := newStore(t, func(o *Options) { o.MaxSize = 24 << 20 })
	ids := s.add("/kept")
	var n int
	var err error
	for ; n < 100; n++ {
		err = s.Update(s.ctx, paths("/"), func(tx *WriteTx) error {
			return tx.Save(path(fmt.Sprintf("/big/%d", n)), newID(), make([]byte, 1<<20))
		})
		if err != nil {
			break
		}
	}
	wantKind(t, err, KindFull)
	s.view(paths("/"), func(tx *ReadTx) {
		wantContents(t, tx, ids["/kept"], []byte("/kept"))
		if got := len(list(t, tx, "/big/*")); got != n {
			t.Errorf("%d are there, %d were acknowledged", got, n)
		}
	})
	must(t, s.Check(s.ctx))
	s.update(paths("/big"), func(tx *WriteTx) { // there is room to make room
		if got := get(tx.RemoveMatching(path("/big/*"), 1000))(t); len(got) != n {
			t.Errorf("%d were removed", len(got))
		}
	})
	for i := range n - 2 { // and then what was given back is used again
		s.update(paths("/"), func(tx *WriteTx) {
			must(t, tx.Save(path(fmt.Sprintf("/again/%d", i)), newID(), make([]byte, 1<<20)))
		})
	}
}

// STO-07: and by one on the process's files, which the system answers as it does a
// full disk: the write itself fails.
func TestDiskFull(t *testing.T) {
	file := filepath.Join(t.TempDir(), "store")
	c := startChild(t, "full", file)
	c.wait(t)
	s := openStore(t, file)
	s.view(paths("/"), func(tx *ReadTx) {
		if len(list(t, tx, "/**")) == 0 {
			t.Error("nothing is there")
		}
	})
}

func TestReadOnlyFile(t *testing.T) {
	if os.Getuid() == 0 {
		// The system lets root write all files, so another user's process tries.
		dir, err := os.MkdirTemp("/tmp", "store-test-") //nolint:usetesting // t.TempDir is closed to other users
		must(t, err)
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		must(t, os.Chmod(dir, 0o755))
		file := filepath.Join(dir, "store")
		s, err := open(t, file)
		must(t, err)
		must(t, s.Close())
		must(t, os.Chmod(file, 0o444))
		startChild(t, "read-only", file).wait(t)
		return
	}
	s := newStore(t)
	must(t, s.Close())
	must(t, os.Chmod(s.File(), 0o444))
	wantRefused(t, s.File(), KindReadOnly, "")
	must(t, os.Chmod(s.File(), 0o644))
}

func TestStorageErrors(t *testing.T) {
	for err, kind := range map[error]Kind{
		&fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}:                 KindFull,
		&fs.PathError{Op: "write", Path: "x", Err: syscall.EDQUOT}:                 KindFull,
		fmt.Errorf("file resize error: %s", "truncate x: no space left on device"): KindFull,
		fmt.Errorf("file resize error: %s", "truncate x: file too large"):          KindFull,
		&fs.PathError{Op: "open", Path: "x", Err: syscall.EROFS}:                   KindReadOnly,
		&fs.PathError{Op: "write", Path: "x", Err: syscall.EIO}:                    KindFailed,
	} {
		if got := storageError("f", err); KindOf(got) != kind || !strings.Contains(got.Error(), "f: ") {
			t.Errorf("%v becomes %v, want %s", err, got, kind)
		}
	}
	if storageError("f", nil) != nil {
		t.Error("no error becomes one")
	}
	if !errors.Is(fail(KindFull, "f", "x"), &Error{Kind: KindFull}) || errors.Is(fail(KindFull, "f", "x"), &Error{Kind: KindFull, Subject: "g"}) {
		t.Error("errors.Is does not compare kind and subject")
	}
}
