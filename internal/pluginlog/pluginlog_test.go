package pluginlog

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
)

// What is written comes back as it was, and each part of a query counts.
func TestQueries(t *testing.T) {
	dir := t.TempDir()
	l := New(Options{Dir: dir, MaxSize: 1 << 20, Keep: 3})
	begun := time.Now().Add(-time.Hour)
	var want []Record
	for i := range 100 {
		r := numbered(i)
		r.Time = begun.Add(time.Duration(i) * time.Second).UTC()
		r.Level = []hclog.Level{hclog.Trace, hclog.Debug, hclog.Info, hclog.Warn, hclog.Error}[i%5]
		r.Element = []string{"a", "b"}[i%2]
		r.Message = "<a> & \u2028 \"quoted\" \x1b[2J"
		r.Fields["stack"] = "one\ntwo"
		l.Append(r)
		want = append(want, r)
	}
	if got := read(t, l, Query{Tail: -1}); !reflect.DeepEqual(got, want) {
		t.Fatalf("%d records, such as %+v; want %+v", len(got), got[:1], want[0])
	}
	for _, q := range []Query{
		{Tail: 0},
		{Tail: 1},
		{Tail: 7},
		{Tail: 1000},
		{Tail: -1, Element: "a"},
		{Tail: 3, Element: "b"},
		{Tail: 3, Element: "none"},
		{Tail: -1, MinLevel: hclog.Warn},
		{Tail: 5, MinLevel: hclog.Error, Element: "a"},
		{Tail: -1, Since: begun.Add(90 * time.Second)},
		{Tail: 2, Since: begun.Add(50 * time.Second)},
		{Tail: -1, Since: time.Now()},
	} {
		var all []Record
		for _, r := range want {
			if q.match(&r) {
				all = append(all, r)
			}
		}
		if q.Tail >= 0 {
			all = all[max(0, len(all)-q.Tail):]
		}
		if got := read(t, l, q); !slices.EqualFunc(got, all, func(a, b Record) bool { return reflect.DeepEqual(a, b) }) {
			t.Errorf("%+v: %d records, want %d", q, len(got), len(all))
		}
	}
	if err := l.Read(t.Context(), "echo", Query{Tail: -1}, func(Record) error { return errors.ErrUnsupported }); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("what yield says comes back as %v", err)
	}
}

// Old files are bounded in number and size, private, and read as one log, also by the
// next host.
func TestRotation(t *testing.T) {
	dir := t.TempDir()
	o := Options{Dir: dir, MaxSize: 4 << 10, Keep: 2}
	l := New(o)
	for i := range 200 {
		l.Append(numbered(i))
		flush(t, l)
	}
	sizes := files(t, dir)
	if got := slices.Sorted(maps.Keys(sizes)); !slices.Equal(got, []string{"echo.log", "echo.log.1", "echo.log.2"}) {
		t.Errorf("there are %v", got)
	}
	for name, size := range sizes {
		if size > o.MaxSize {
			t.Errorf("%s has %d bytes", name, size)
		}
	}
	all := read(t, l, Query{Tail: -1})
	if first, last := running(t, all); last != 199 || first > 199-20 {
		t.Errorf("numbers %d to %d are kept", first, last)
	}
	if first, last := running(t, read(t, New(o), Query{Tail: 30})); first != 170 || last != 199 {
		t.Errorf("the tail has the numbers %d to %d", first, last)
	}
	// One that is larger than a file may be has one of its own; fewer files may be kept.
	o.Keep = 1
	l = New(o)
	big := numbered(200)
	big.Message = strings.Repeat("y", 64<<10)
	l.Append(big)
	l.Append(numbered(201))
	flush(t, l)
	if sizes := files(t, dir); len(sizes) != 2 {
		t.Errorf("there are %v", sizes)
	}
	if first, last := running(t, read(t, l, Query{Tail: -1})); first > 200 || last != 201 {
		t.Errorf("numbers %d to %d are kept", first, last)
	}
}

// Who follows gets each record once, from whenever it begins, over every rotation.
func TestFollow(t *testing.T) {
	const all = 4000
	l := New(Options{Dir: t.TempDir(), MaxSize: 32 << 10, Keep: 100})
	ctx := testContext(t)
	var writer, readers sync.WaitGroup
	read := make(chan int, all) // a token for each that the first reader has got
	writer.Go(func() {
		for n := range all {
			if n >= 1000 {
				<-read // no faster than it reads, so that nothing is too much
			}
			l.Append(numbered(n))
		}
	})
	for i := range 3 {
		readers.Go(func() {
			if i > 0 {
				for !l.Has("echo") && ctx.Err() == nil {
					runtime.Gosched() // until the writer is under way
				}
			}
			next := 0
			done := errors.New("done")
			err := l.Read(ctx, "echo", Query{Tail: -1, Follow: true}, func(r Record) error {
				switch {
				case r.Dropped > 0 && i > 0:
					next += int(r.Dropped) // another may be slower
				case number(r) != next:
					t.Errorf("reader %d: %v instead of number %d", i, r, next)
					return done
				default:
					next++
				}
				if i == 0 {
					read <- 1
				}
				if next == all {
					return done
				}
				return nil
			})
			if !errors.Is(err, done) {
				t.Errorf("reader %d has seen %d records: %v", i, next, err)
			}
		})
	}
	writer.Wait()
	readers.Wait()
}

// The end of the context ends a follower, with its cause.
func TestFollowEnds(t *testing.T) {
	l := New(Options{Dir: t.TempDir(), MaxSize: 32 << 10})
	ctx, cancel := context.WithCancelCause(testContext(t))
	began := make(chan struct{})
	done := make(chan error, 1)
	l.Append(numbered(0))
	go func() {
		done <- l.Read(ctx, "echo", Query{Tail: -1, Follow: true}, func(Record) error { close(began); return nil })
	}()
	<-began
	cancel(fs.ErrClosed)
	if err := <-done; !errors.Is(err, fs.ErrClosed) {
		t.Errorf("it ended with %v", err)
	}
}

// A follower that does not read delays nobody, and is told how much it has lost, and where.
func TestSlowFollower(t *testing.T) {
	l := New(Options{Dir: t.TempDir(), MaxSize: 64 << 20})
	l.Append(numbered(0))
	const all = maxBehind + 1000
	ctx := testContext(t)
	stuck, goOn := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	var got []Record
	over := errors.New("over")
	go func() {
		done <- l.Read(ctx, "echo", Query{Tail: -1, Follow: true}, func(r Record) error {
			if len(got) == 0 {
				close(stuck)
				<-goOn
			}
			if got = append(got, r); number(r) == all {
				return over
			}
			return nil
		})
	}()
	<-stuck
	for n := 1; n < all; n++ {
		l.Append(numbered(n))
	}
	flush(t, l) // the file has it, whatever becomes of who follows
	close(goOn)
	for l.behind() > 0 { // what comes once it has read on is seen again
		if ctx.Err() != nil {
			t.Fatal("it never read on")
		}
		runtime.Gosched()
	}
	l.Append(numbered(all))
	if err := <-done; !errors.Is(err, over) {
		t.Fatal(err)
	}
	if n := len(got); n != 1+maxBehind+1+1 {
		t.Errorf("%d records", n)
	}
	running(t, got[:1+maxBehind])
	if gap := got[1+maxBehind]; gap.Dropped != all-1-maxBehind || gap.Level != hclog.Warn {
		t.Errorf("the gap is told as %+v", gap)
	}
}

// behind counts what waits for those who follow.
func (l *Logs) behind() (n int) {
	s := l.stream("echo")
	s.hold <- struct{}{}
	defer func() { <-s.hold }()
	for one := range s.subs {
		one.mu.Lock()
		n += len(one.queue) + int(one.dropped)
		one.mu.Unlock()
	}
	return n
}

// Only so many may follow.
func TestFollowers(t *testing.T) {
	l := New(Options{Dir: t.TempDir(), MaxSize: 64 << 20})
	for range maxFollowers {
		if err := l.enter(); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Read(t.Context(), "echo", Query{Follow: true}, nil); !errors.Is(err, ErrFollowers) {
		t.Errorf("one more: %v", err)
	}
	l.leave()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Read(ctx, "echo", Query{Follow: true}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("after one has left: %v", err)
	}
}

// disk is a place for one file that can fail.
type disk struct {
	mu   sync.Mutex
	full bool
	part int           // of a write gets through when it is full
	gate chan struct{} // if set, each open waits for it
}

func (d *disk) set(full bool, part int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full, d.part = full, part
}

func (d *disk) create(path string) (file, error) {
	if d.gate != nil {
		<-d.gate
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	return &diskFile{f, d}, err
}

type diskFile struct {
	*os.File
	d *disk
}

func (f *diskFile) Write(p []byte) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.d.full {
		n, _ := f.File.Write(p[:f.d.part])
		return n, syscall.ENOSPC
	}
	return f.File.Write(p)
}

// A full disk costs the records and nothing else: it is said once, counted, told in the
// file when there is room again, and leaves no half line. Those who follow lose nothing.
func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type told struct {
			lost uint64
			err  error
		}
		var tellings []told
		d := &disk{}
		l := New(Options{Dir: t.TempDir(), MaxSize: 1 << 20, Trouble: func(deployment string, lost uint64, err error) {
			if deployment != "echo" {
				t.Errorf("told of %q", deployment)
			}
			tellings = append(tellings, told{lost, err})
		}})
		l.create = d.create
		var followed []Record
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- l.Read(ctx, "echo", Query{Follow: true}, func(r Record) error { followed = append(followed, r); return nil })
		}()
		synctest.Wait()
		add := func(from, to int) {
			for n := from; n < to; n++ {
				l.Append(numbered(n))
				synctest.Wait()
			}
		}
		add(0, 10)
		d.set(true, 33)
		add(10, 20)
		time.Sleep(2 * retryAfter)
		add(20, 30)
		d.set(false, 0)
		add(30, 40) // too soon
		time.Sleep(2 * retryAfter)
		add(40, 50)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if len(tellings) != 2 || !errors.Is(tellings[0].err, syscall.ENOSPC) || tellings[1] != (told{30, nil}) {
			t.Errorf("told %v", tellings)
		}
		if first, last := running(t, followed); first != 0 || last != 49 {
			t.Errorf("followed %d to %d", first, last)
		}
		text, err := os.ReadFile(filepath.Join(l.o.Dir, "echo.log"))
		if err != nil {
			t.Fatal(err)
		}
		for one := range bytes.Lines(text) {
			if _, ok := parseLine(one); !ok {
				t.Errorf("a broken line: %q", one)
			}
		}
		all := read(t, l, Query{Tail: -1})
		if len(all) != 21 || all[10].Fields["lost"] != "30" || all[10].Source != sourceHost || !strings.Contains(all[10].Message, "no space") {
			t.Fatalf("%d records", len(all))
		}
		running(t, all[:10])
		running(t, all[11:])
	})
}

// While the file cannot be reached at all, who writes is not kept waiting; what is too
// much is counted.
func TestHangingDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{gate: make(chan struct{})}
		l := New(Options{Dir: t.TempDir(), MaxSize: 64 << 20})
		l.create = d.create
		r := numbered(0)
		r.Message = strings.Repeat("x", 16<<10)
		l.Append(r) // hangs
		synctest.Wait()
		n := maxQueue / r.size()
		for range n + 5 {
			l.Append(r)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Flush: %v", err)
		}
		if err := l.Read(ctx, "echo", Query{Follow: true}, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Read: %v", err)
		}
		close(d.gate)
		flush(t, l)
		all := read(t, l, Query{Tail: -1})
		if len(all) != 1+n+1 || all[1+n].Fields["lost"] != "5" {
			t.Errorf("%d records, the last one %v", len(all), all[len(all)-1])
		}
	})
}

// What stands in the place of a file is neither written nor read, and nobody waits for it.
func TestInTheWay(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.WriteFile(elsewhere, []byte("mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func(path string) error{
		"a directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"a link":      func(path string) error { return os.Symlink(elsewhere, path) },
		"a pipe":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
	} {
		dir := t.TempDir()
		if err := make(filepath.Join(dir, "echo.log")); err != nil {
			t.Fatal(err)
		}
		trouble := error(nil)
		l := New(Options{Dir: dir, MaxSize: 1 << 20, Trouble: func(_ string, _ uint64, err error) { trouble = err }})
		if l.Has("echo") {
			t.Errorf("%s is taken for a log", name)
		}
		l.Append(numbered(0))
		flush(t, l)
		if trouble == nil {
			t.Errorf("nothing is said of %s", name)
		}
		if err := l.Read(testContext(t), "echo", Query{Tail: -1}, func(Record) error { return nil }); err == nil {
			t.Errorf("%s can be read", name)
		}
	}
	if text, err := os.ReadFile(elsewhere); err != nil || string(text) != "mine\n" {
		t.Errorf("%q, %v", text, err)
	}
	refused := errors.New("refused")
	l := New(Options{Dir: t.TempDir(), MaxSize: 1 << 20, Check: func(string) error { return refused }})
	l.Append(numbered(0))
	flush(t, l)
	if n := len(files(t, l.o.Dir)); n != 0 {
		t.Errorf("%d files were made where none may be", n)
	}
	if err := l.Read(testContext(t), "echo", Query{Tail: -1}, nil); !errors.Is(err, refused) {
		t.Errorf("read: %v", err)
	}
}

// Only a deployment's name becomes that of a file.
func TestNames(t *testing.T) {
	dir := t.TempDir()
	l := New(Options{Dir: dir, MaxSize: 1 << 20})
	for _, name := range []string{"", ".", "..", "../up", "a/b", "a\x00b", "conduit", "-a"} {
		r := numbered(0)
		r.Deployment = name
		l.Append(r)
		if l.Has(name) {
			t.Errorf("%q has a log", name)
		}
		if err := l.Read(t.Context(), name, Query{Tail: -1}, func(Record) error { return errors.New("a record") }); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	flush(t, l)
	if n := len(files(t, dir)); n != 0 {
		t.Errorf("%d files", n)
	}
	if l.Has("echo") {
		t.Error("there is a log of nothing")
	}
	l.Append(numbered(0))
	flush(t, l)
	if !l.Has("echo") || !New(l.o).Has("echo") {
		t.Error("there is no log of what was written")
	}
}

// A line that was cut, and what is no record at all, is skipped; the next record has a
// line of its own.
func TestCutLine(t *testing.T) {
	dir := t.TempDir()
	o := Options{Dir: dir, MaxSize: 1 << 20}
	l := New(o)
	l.Append(numbered(0))
	flush(t, l)
	path := filepath.Join(dir, "echo.log")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, rest := range []string{string(whole[:len(whole)-1]), string(whole[:50]), "\x00\x00\x00", "{", "not a record\n{}\n[]\n" + strings.Repeat("z", maxLine+10)} {
		if err := os.WriteFile(path, append(slices.Clone(whole), rest...), 0o600); err != nil {
			t.Fatal(err)
		}
		n := 1
		if len(rest) == len(whole)-1 {
			n = 2 // it lacks but its end
		}
		for _, tail := range []int{-1, 5} {
			if got := read(t, New(o), Query{Tail: tail}); len(got) != n {
				t.Errorf("with %.20q at the end there are %d records", rest, len(got))
			}
		}
		next := New(o)
		next.Append(numbered(1))
		flush(t, next)
		for _, tail := range []int{-1, 5} {
			if got := read(t, New(o), Query{Tail: tail}); len(got) != n+1 || number(got[n]) != 1 {
				t.Errorf("after %.20q the next record is not to be seen: %v", rest, got)
			}
		}
	}
}

// A host that is killed while it writes costs what it had not written, and no line that
// it had: the next reads and writes on.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	ctx := testContext(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Dir: dir, MaxSize: 256 << 10, Keep: 2}
	for range 3 {
		cmd := exec.CommandContext(ctx, self)
		cmd.Env = append(os.Environ(), writerVar+"="+dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for begun := false; !begun; {
			select {
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
				t.Fatal("it never wrote enough")
			}
			_, err := os.Stat(filepath.Join(dir, "echo.log.2"))
			begun = err == nil
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		l := New(o)
		before := read(t, l, Query{Tail: -1})
		running(t, before)
		l.Append(numbered(1 << 30))
		flush(t, l)
		if last := read(t, New(o), Query{Tail: 1}); len(last) != 1 || number(last[0]) != 1<<30 {
			t.Errorf("after it: %v", last)
		}
		for _, name := range []string{"echo.log", "echo.log.1", "echo.log.2"} {
			_ = os.Remove(filepath.Join(dir, name))
		}
	}
}

// FuzzFile: whatever stands in a file, it is read without harm, forwards and backwards
// alike, and what is a record can be written again.
func FuzzFile(f *testing.F) {
	var one bytes.Buffer
	r := numbered(1)
	appendLine(&one, &r)
	for _, s := range []string{"", "\n", one.String(), one.String() + one.String()[:70], "{}\n[]\n\x00\n", `{"time":1}` + "\n", strings.Repeat("x", readBlock-3) + "\n" + one.String(), `{"time":"2026-01-01T00:00:00Z","level":"info","fields":{"a":5}}` + "\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "echo.log")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		l := New(Options{Dir: filepath.Dir(path), MaxSize: 1 << 30})
		all := read(t, l, Query{Tail: -1})
		if tail := read(t, l, Query{Tail: len(all) + 1}); !reflect.DeepEqual(tail, all) {
			t.Errorf("backwards %v, forwards %v", tail, all)
		}
		for _, r := range all {
			var text bytes.Buffer
			appendLine(&text, &r)
			if again, ok := parseLine(text.Bytes()); !ok || bytes.Count(text.Bytes(), []byte("\n")) != 1 || again.Message != r.Message {
				t.Errorf("%+v is written as %q", r, text.Bytes())
			}
		}
		l.Append(numbered(5))
		flush(t, l)
		if after := read(t, l, Query{Tail: -1}); len(after) != len(all)+1 {
			t.Errorf("%d records, and %d after one was written", len(all), len(after))
		}
	})
}

// lastLines finds the lines that there are, wherever the blocks end.
func TestLastLines(t *testing.T) {
	for _, n := range []int{0, 1, readBlock - 2, readBlock - 1, readBlock, readBlock + 1, 3 * readBlock, maxLine, maxLine + 1} {
		text := "first\n\n" + strings.Repeat("x", n) + "\nlast"
		var got []int
		err := lastLines(strings.NewReader(text), int64(len(text)), func(b []byte, offset int64) bool {
			if !strings.HasPrefix(text[offset:], string(b)) {
				t.Errorf("%d: a line is not where it was said to be", n)
			}
			got = append(got, len(b))
			return true
		})
		want := []int{4, n, 5}
		if n == 0 || n > maxLine {
			want = []int{4, 5}
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%d: lines of %v bytes, %v", n, got, err)
		}
	}
}
