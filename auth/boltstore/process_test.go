package boltstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/auth"
)

// The tests here run this test's binary again, as another process on the same file.
const (
	childEnv     = "CONDUIT_TEST_BOLTSTORE_CHILD"
	childPathEnv = "CONDUIT_TEST_BOLTSTORE_PATH"
	rounds       = 150
)

// child is another process. It ends with its standard input at the latest.
func child(what, path string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	in := bufio.NewScanner(os.Stdin)
	err := func() error {
		if what == "hold" {
			db, err := bbolt.Open(path, fileMode, nil)
			if err != nil {
				return err
			}
			fmt.Println("ready")
			in.Scan()
			return db.Close()
		}
		s, err := Open(ctx, path, Options{})
		if err != nil {
			return err
		}
		fmt.Println("ready")
		switch what {
		case "turns": // for each line: one change that counts, one that does not, and the generation
			for in.Scan() {
				if err := step(ctx, s, "child", in.Text() == "count"); err != nil {
					return err
				}
				g, err := s.Generation(ctx)
				if err != nil {
					return err
				}
				fmt.Println(g)
			}
		case "run": // as many as the parent, at the same time
			for i := range rounds {
				if err := step(ctx, s, "child", i%2 == 0); err != nil {
					return err
				}
			}
			fmt.Println("done")
		case "forever":
			for ctx.Err() == nil {
				if err := step(ctx, s, "child", true); err != nil {
					return err
				}
			}
		}
		return nil
	}()
	if err != nil {
		fmt.Println("failed:", err)
		return 1
	}
	return 0
}

// step mints a session for a user, and if it is to count ends it again.
func step(ctx context.Context, s *Store, name string, count bool) error {
	u, err := s.User(ctx, name)
	if err != nil {
		return err
	}
	secret := auth.NewSecret(u.ID)
	now := time.Now()
	id := auth.SessionIDOf(u.Stamp.Reveal(), secret)
	err = s.AddSession(ctx, auth.Session{ID: id, User: u.ID, UserName: name, Created: now, Seen: now, Expires: now.Add(time.Hour)}, u.Stamp)
	if err == nil && count {
		err = s.RemoveSession(ctx, id)
	}
	return err
}

type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
}

func startChild(t *testing.T, what, path string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+what, childPathEnv+"="+path)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t, cmd, in, make(chan string, 16)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(p.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		_ = in.Close()
		for range p.lines {
		}
		<-read
		_ = cmd.Wait()
		cancel()
	})
	if line := p.line(); line != "ready" {
		t.Fatalf("the other process says %q", line)
	}
	return p
}

func (p *process) line() string {
	p.t.Helper()
	select {
	case line := <-p.lines:
		return line
	case <-time.After(time.Minute):
		p.t.Fatal("the other process says nothing")
		return ""
	}
}

func withUsers(t *testing.T) (string, *Store) {
	t.Helper()
	path := place(t)
	s := opened(t, path)
	for _, name := range []string{"child", "parent"} {
		u := auth.User{ID: auth.NewUserID(), Name: name, Level: conduit.User, Stamp: auth.Seal([]byte("stamp")), Created: time.Now()}
		if err := s.AddUser(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	return path, s
}

// TestGenerationOfAnotherProcess: what another process has finished writing shows
// in the very next Generation, every time.
func TestGenerationOfAnotherProcess(t *testing.T) {
	path, s := withUsers(t)
	p := startChild(t, "turns", path)
	var want uint64
	for i := range rounds {
		count := rand.IntN(3) > 0
		say := "no"
		if count {
			say, want = "count", want+1
		}
		if rand.IntN(2) == 0 { // with and without a look since the last write
			if _, err := s.Generation(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := fmt.Fprintln(p.in, say); err != nil {
			t.Fatal(err)
		}
		told, err := strconv.ParseUint(p.line(), 10, 64)
		if err != nil || told != want {
			t.Fatalf("round %d: the other process is at %d, %v; want %d", i, told, err, want)
		}
		if g, err := s.Generation(t.Context()); err != nil || g != want {
			t.Fatalf("round %d: generation %d, %v; want %d", i, g, err, want)
		}
	}
}

// TestTwoWriters: two processes write at once and a third party looks on. No
// change is lost, no look goes back, and the last look sees the last change.
func TestTwoWriters(t *testing.T) {
	path, s := withUsers(t)
	p := startChild(t, "run", path)
	looker := opened(t, path)
	stop, looked := make(chan struct{}), make(chan error, 1)
	go func() {
		var last uint64
		for {
			g, err := looker.Generation(context.Background())
			if err == nil && g < last {
				err = fmt.Errorf("the generation goes from %d to %d", last, g)
			}
			if err != nil {
				looked <- err
				return
			}
			last = g
			select {
			case <-stop:
				looked <- nil
				return
			default:
			}
		}
	}()
	for i := range rounds {
		if err := step(t.Context(), s, "parent", i%2 == 0); err != nil {
			t.Fatal(err)
		}
	}
	if line := p.line(); line != "done" {
		t.Errorf("the other process says %q", line)
	}
	close(stop)
	if err := <-looked; err != nil {
		t.Error(err)
	}
	for _, s := range []*Store{s, looker, opened(t, path)} {
		if g, err := s.Generation(t.Context()); err != nil || g != rounds {
			t.Errorf("generation %d, %v; want %d", g, err, rounds)
		}
	}
	if all, err := s.Sessions(t.Context(), auth.SessionsOf{}); err != nil || len(all) != rounds {
		t.Errorf("%d sessions, %v; want %d", len(all), err, rounds)
	}
}

// TestKilledWriter: a process that dies in the middle of writing leaves a whole
// store and no lock.
func TestKilledWriter(t *testing.T) {
	path, s := withUsers(t)
	var last uint64
	for range 8 {
		p := startChild(t, "forever", path)
		deadline := time.Now().Add(time.Minute)
		start, err := s.Generation(t.Context())
		for g := start; g < start+2 && err == nil; { // it is in the middle of it now
			if time.Now().After(deadline) {
				t.Fatal("the other process writes nothing")
			}
			g, err = s.Generation(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		after := opened(t, path) // reads all of it
		g, err := after.Generation(t.Context())
		if err != nil || g < last {
			t.Fatalf("generation %d, %v; it was %d", g, err, last)
		}
		last = g
		if err := step(t.Context(), after, "parent", true); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLocked: a process that holds the file keeps others waiting, not forever;
// what is known needs no lock.
func TestLocked(t *testing.T) {
	path, s := withUsers(t)
	if _, err := s.Generation(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := startChild(t, "hold", path)
	s.o.LockTimeout = 50 * time.Millisecond
	_, err := s.User(t.Context(), "child")
	e, ok := errors.AsType[*conduit.Error](err)
	if !ok || e.Reason != conduit.ReasonStoreUnavailable || !strings.Contains(e.Message, "stayed locked") {
		t.Errorf("%v, want that it stayed locked", err)
	}
	if err := step(t.Context(), s, "child", true); err == nil {
		t.Error("a locked store was written")
	}
	if g, err := s.Generation(t.Context()); g != 0 || err != nil {
		t.Errorf("generation %d, %v", g, err)
	}
	s.o.LockTimeout = time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.User(ctx, "child"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want the context's end", err)
	}
	// It waits, and goes on when the lock is free.
	done := make(chan error, 1)
	go func() { done <- step(context.Background(), s, "child", true) }()
	_ = p.in.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
