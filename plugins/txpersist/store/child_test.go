package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit/address"
)

// childJob makes the test binary do one of these jobs with the file of its argument.
const (
	childJob  = "STORE_TEST_JOB"
	childFile = "STORE_TEST_FILE"
)

func child(job string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	jobs := map[string]func(context.Context, string) error{
		"hold": childHolds, "full": childFillsDisk, "read-only": childReadsOnly, "load": childLoads, "deliver": childDelivers,
		"compact": childCompacts, "small-disk": childFillsSmallDisk,
	}
	if err := jobs[job](ctx, os.Getenv(childFile)); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// process is a child of the test.
type process struct {
	cmd *exec.Cmd
	out *bufio.Scanner
	raw io.Reader
}

func childCommand(ctx context.Context, job, file string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childJob+"="+job, childFile+"="+file)
	return cmd
}

func startChild(t *testing.T, job, file string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd := childCommand(ctx, job, file)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return &process{cmd, bufio.NewScanner(out), out}
}

func (p *process) line(t *testing.T) string {
	t.Helper()
	if !p.out.Scan() {
		t.Fatalf("the child ended: %v", p.out.Err())
	}
	return p.out.Text()
}

func (p *process) kill(t *testing.T) {
	t.Helper()
	must(t, p.cmd.Process.Kill())
	_ = p.cmd.Wait() // it says that it was killed
}

// wait fails the test unless the child was content.
func (p *process) wait(t *testing.T) {
	t.Helper()
	var said []string
	for p.out.Scan() {
		said = append(said, p.out.Text())
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the child: %v: %s", err, strings.Join(said, "; "))
	}
}

// childHolds has the file until it is killed.
func childHolds(ctx context.Context, file string) error {
	s, err := Open(ctx, Options{File: file, Node: testNode})
	if err != nil {
		return err
	}
	fmt.Println("mine")
	<-ctx.Done()
	return s.Close()
}

// childFillsDisk runs into a limit of the system on the size of files.
func childFillsDisk(ctx context.Context, file string) error {
	signal.Ignore(syscall.SIGXFSZ) // so that the write fails, as it does on a full disk
	s, err := Open(ctx, Options{File: file, Node: testNode})
	if err != nil {
		return err
	}
	limit := syscall.Rlimit{Cur: 40 << 20, Max: syscall.RLIM_INFINITY & (1<<63 - 1)}
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	before := limit.Cur
	limit.Cur = 40 << 20
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	save := func(i int) error {
		return s.Update(ctx, paths("/"), func(tx *WriteTx) error {
			return tx.Save(path(fmt.Sprintf("/%d", i)), newID(), make([]byte, 1<<20))
		})
	}
	n := 0
	for err == nil && n < 100 {
		if err = save(n); err == nil {
			n++
		}
	}
	if KindOf(err) != KindFull {
		return fmt.Errorf("after %d it is %w, want a full store", n, err)
	}
	if err := s.Check(ctx); err != nil {
		return err
	}
	kept := 0
	err = s.View(ctx, paths("/"), func(tx *ReadTx) error {
		for l, err := range tx.List(path("/*")) {
			if err != nil {
				return err
			}
			if _, err := tx.Load(l.ID); err != nil {
				return err
			}
			kept++
		}
		return nil
	})
	if err != nil || kept != n {
		return fmt.Errorf("%d of %d can be read: %w", kept, n, err)
	}
	// With room again it works again, without being opened anew.
	limit.Cur = before
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	for i := range 10 {
		if err := save(1000 + i); err != nil {
			return fmt.Errorf("with room again: %w", err)
		}
	}
	return errors.Join(s.Check(ctx), s.Close())
}

// childReadsOnly opens a file as a user who may not write it.
func childReadsOnly(ctx context.Context, file string) error {
	if err := syscall.Setuid(65534); err != nil {
		return err
	}
	s, err := Open(ctx, Options{File: file, Node: testNode})
	if err == nil {
		return errors.Join(errors.New("it was opened"), s.Close())
	}
	if KindOf(err) != KindReadOnly {
		return fmt.Errorf("it is %w, want a read-only file", err)
	}
	return nil
}

const crashWriters = 8

// childLoads writes until it is killed, and prints what was acknowledged, a line each:
// the writer and its round. In a round a writer moves its resource from one path to
// another, gives it and a second one the round as contents, one of them a large one that
// goes into the file ahead of its commit, and sets a task to it.
func childLoads(ctx context.Context, file string) error {
	s, err := Open(ctx, Options{File: file, Node: testNode, stage: chunkSize})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	var wg sync.WaitGroup
	errs := make(chan error, crashWriters)
	for w := range crashWriters {
		wg.Go(func() {
			for {
				var round int
				err := s.Update(ctx, crashScope(w), func(tx *WriteTx) (err error) {
					round, err = crashRound(tx, w)
					return err
				})
				if err != nil {
					errs <- err
					return
				}
				fmt.Printf("%d %d\n", w, round)
			}
		})
	}
	wg.Wait()
	return <-errs
}

func crashScope(w int) Scope { return paths(fmt.Sprintf("/w/%d", w)) }

// crashState reads what a writer has; round 0 is nothing.
func crashState(tx *ReadTx, w int) (round int, found []Listing, err error) {
	for l, err := range tx.List(path(fmt.Sprintf("/w/%d/**", w))) {
		if err != nil {
			return 0, nil, err
		}
		found = append(found, l)
	}
	if len(found) == 0 {
		return 0, nil, nil
	}
	if len(found) != 2 {
		return 0, nil, fmt.Errorf("writer %d has %d paths, want two", w, len(found))
	}
	for i, l := range found {
		data, err := tx.Load(l.ID)
		if err != nil {
			return 0, nil, err
		}
		var n int
		if _, err := fmt.Sscanf(string(data[:min(len(data), 20)]), "%d ", &n); err != nil {
			return 0, nil, fmt.Errorf("writer %d has contents %q", w, brief(data))
		}
		if i == 1 && n != round {
			return 0, nil, fmt.Errorf("writer %d has half of a commit: rounds %d and %d", w, round, n)
		}
		round = n
	}
	if want := fmt.Sprintf("/w/%d/at/%d", w, round%7); found[0].Path.WithoutContext().String() != want {
		return 0, nil, fmt.Errorf("writer %d is at %s in round %d", w, found[0].Path, round)
	}
	tasks, err := tx.Tasks(found[0].ID)
	if err != nil {
		return 0, nil, err
	}
	if len(tasks) != 1 || tasks[0].Due.UnixMilli() != int64(round) {
		return 0, nil, fmt.Errorf("writer %d has tasks %v in round %d", w, tasks, round)
	}
	return round, found, nil
}

// crashStream gives a resource contents that are in the file, for the most part, before
// their commit.
func crashStream(tx *WriteTx, id address.ResourceID, data []byte) error {
	w, err := tx.Replace(id)
	for piece := range slices.Chunk(data, chunkSize/2) {
		if err == nil {
			_, err = w.Write(piece)
		}
	}
	return err
}

func crashRound(tx *WriteTx, w int) (round int, err error) {
	round, found, err := crashState(tx.ReadTx, w)
	if err != nil {
		return 0, err
	}
	round++
	small := fmt.Appendf(nil, "%d ", round)
	large := slices.Concat(small, make([]byte, rand.IntN(3*chunkSize)))
	at := path(fmt.Sprintf("/w/%d/at/%d", w, round%7))
	if len(found) == 0 {
		id := newID()
		task := taskOf(id)
		return round, errors.Join(tx.Save(at, id, small), tx.Save(path(fmt.Sprintf("/w/%d/large", w)), newID(), large),
			tx.CreateTask(task, time.UnixMilli(int64(round))))
	}
	id := found[0].ID
	return round, errors.Join(tx.Link(id, at), second(tx.Unlink(found[0].Path)), tx.Update(id, small), crashStream(tx, found[1].ID, large),
		tx.CreateTask(taskOf(id), time.UnixMilli(int64(round))))
}
