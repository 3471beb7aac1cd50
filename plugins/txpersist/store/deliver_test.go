package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit/address"
)

// receiver is a watch of tasks that a test reads task by task.
type receiver struct {
	s      *testStore
	tasks  chan Task
	ended  chan error
	cancel context.CancelFunc
	over   sync.WaitGroup
}

func (s *testStore) receive(o TaskWatch) *receiver {
	ctx, cancel := context.WithCancel(s.ctx)
	r := &receiver{s: s, tasks: make(chan Task), ended: make(chan error, 1), cancel: cancel}
	r.over.Go(func() {
		var end error
		for task, err := range s.WatchTasks(ctx, o) {
			if end = err; err != nil {
				break
			}
			select {
			case r.tasks <- task:
			case <-ctx.Done():
			}
		}
		r.ended <- end
	})
	s.t.Cleanup(r.die)
	return r
}

// die ends the watch as the end of its process would.
func (r *receiver) die() {
	r.cancel()
	r.over.Wait()
}

func (r *receiver) next() Task {
	r.s.t.Helper()
	select {
	case task := <-r.tasks:
		return task
	case err := <-r.ended:
		r.s.t.Fatalf("the watch ended: %v", err)
	case <-r.s.ctx.Done():
		r.s.t.Fatal("no task comes")
	}
	return Task{}
}

func (r *receiver) want(ids ...address.TaskID) {
	r.s.t.Helper()
	for _, id := range ids {
		if got := r.next(); got.ID != id {
			r.s.t.Fatalf("the task is %s, want %s", got.ID, id)
		}
	}
}

// none looks whether the store has nothing to deliver: in a bubble, once all wait.
func (r *receiver) none() {
	r.s.t.Helper()
	synctest.Wait()
	select {
	case task := <-r.tasks:
		r.s.t.Fatalf("%s comes, and should not", task.ID)
	default:
	}
}

// addTasks gives a resource a task for each of the times.
func (s *testStore) addTasks(id address.ResourceID, dues ...time.Time) (out []address.TaskID) {
	s.t.Helper()
	s.update(Scope{IDs: []address.ResourceID{id}}, func(tx *WriteTx) {
		for _, due := range dues {
			task := address.RandomTaskID(id)
			out = append(out, task)
			must(s.t, tx.CreateTask(task, due))
		}
	})
	return out
}

func (s *testStore) finish(task Task) bool {
	s.t.Helper()
	var done bool
	s.update(Scope{IDs: []address.ResourceID{task.ID.Resource()}}, func(tx *WriteTx) {
		var err error
		done, err = tx.FinishTask(task.ID, task.Due)
		must(s.t, err)
	})
	return done
}

// bubble runs a test in which time costs nothing. The store's context has a deadline of
// an hour of it.
func bubble(t *testing.T, fn func(s *testStore)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Hour)
		defer cancel()
		s, err := Open(ctx, Options{File: filepath.Join(dir, "store"), Node: testNode, noSync: true})
		must(t, err)
		ts := &testStore{Store: s, t: t, ctx: ctx}
		t.Cleanup(func() { ts.verify() })
		fn(ts)
	})
}

func TestTasksComeWhenDue(t *testing.T) {
	bubble(t, func(s *testStore) {
		t := s.t
		ids := s.add("/a", "/b")
		now := time.Now()
		late := s.addTasks(ids["/a"], now.Add(time.Hour))
		past := s.addTasks(ids["/b"], now.Add(-time.Hour), now.Add(-2*time.Hour))
		r := s.receive(TaskWatch{Lease: 50 * time.Hour})
		r.want(past[1], past[0])
		r.none()
		soon := s.addTasks(ids["/a"], now.Add(time.Minute)) // while it waits for later
		r.want(soon...)
		if d := time.Since(now); d < time.Minute || d > time.Minute+clockCheck {
			t.Errorf("what was due in a minute came after %s", d)
		}
		r.want(late...)
		if d := time.Since(now); d < time.Hour || d > time.Hour+clockCheck {
			t.Errorf("what was due in an hour came after %s", d)
		}
		// Another time is another delivery; a time that passes without a watch is none lost.
		again := now.Add(2 * time.Hour)
		s.update(paths("/a"), func(tx *WriteTx) { must(t, tx.CreateTask(late[0], again)) })
		r.die()
		time.Sleep(3 * time.Hour)
		r = s.receive(TaskWatch{Pattern: path("/a")})
		if task := r.next(); task.ID != soon[0] {
			t.Errorf("first comes %v", task)
		}
		if task := r.next(); task.ID != late[0] || !task.Due.Equal(again.Truncate(time.Millisecond)) {
			t.Errorf("then comes %v", task)
		}
	})
}

func TestTasksAreAtOneWatch(t *testing.T) {
	bubble(t, func(s *testStore) {
		t := s.t
		ids := s.add("/a")
		tasks := s.addTasks(ids["/a"], time.UnixMilli(1), time.UnixMilli(2), time.UnixMilli(3))
		first := s.receive(TaskWatch{Window: 2, Lease: time.Hour})
		first.want(tasks[0], tasks[1])
		first.none()
		second := s.receive(TaskWatch{Window: 2, Lease: time.Hour})
		second.want(tasks[2])
		second.none()
		first.die() // and with it goes what it had, to who has room
		second.want(tasks[0])
		second.none()
		if !s.finish(Task{tasks[2], time.UnixMilli(3)}) || s.finish(Task{tasks[2], time.UnixMilli(3)}) {
			t.Error("a task is finished once")
		}
		second.want(tasks[1])
		// The end of it may be one of many things that a transaction does.
		s.update(paths("/a"), func(tx *WriteTx) { must(t, tx.DeleteTask(tasks[0])) })
		s.update(paths("/a"), func(tx *WriteTx) { must(t, tx.Remove(ids["/a"])) })
		third := s.receive(TaskWatch{})
		third.none()
		second.none()
		if s.finish(Task{tasks[1], time.UnixMilli(2)}) {
			t.Error("what went with its resource was finished")
		}
	})
}

func TestTaskLease(t *testing.T) {
	bubble(t, func(s *testStore) {
		t := s.t
		ids := s.add("/a")
		task := s.addTasks(ids["/a"], time.UnixMilli(1))[0]
		hangs := s.receive(TaskWatch{Lease: time.Minute, Window: 1})
		hangs.want(task)
		other := s.receive(TaskWatch{Lease: time.Minute})
		other.none()
		began := time.Now()
		select { // to either, once its time is over
		case got := <-other.tasks:
			if got.ID != task {
				t.Errorf("%s comes", got.ID)
			}
		case <-hangs.tasks:
		}
		if d := time.Since(began); d != time.Minute {
			t.Errorf("it came again after %s", d)
		}
		if !s.finish(Task{task, time.UnixMilli(1)}) { // by whoever had it
			t.Error("it cannot be finished")
		}
		time.Sleep(time.Hour)
		hangs.none()
		other.none()
	})
}

// A task that was given another time while it was being done is not finished with the
// old one, and comes again.
func TestTaskWithAnotherTime(t *testing.T) {
	bubble(t, func(s *testStore) {
		t := s.t
		ids := s.add("/a")
		task := s.addTasks(ids["/a"], time.UnixMilli(1))[0]
		r := s.receive(TaskWatch{Lease: 50 * time.Hour})
		got := r.next()
		s.update(paths("/a"), func(tx *WriteTx) { must(t, tx.CreateTask(task, time.Now().Add(time.Hour))) })
		r.none()
		if s.finish(got) {
			t.Error("the new one was finished with the old one")
		}
		r.want(task)
	})
}

func TestTasksByPattern(t *testing.T) {
	bubble(t, func(s *testStore) {
		t := s.t
		ids := s.add("/mail/1", "/mail/2", "/other")
		r := s.receive(TaskWatch{Pattern: path("/mail/*"), Lease: 50 * time.Hour})
		s.addTasks(ids["/other"], time.UnixMilli(1))
		two := s.addTasks(ids["/mail/2"], time.UnixMilli(2))
		r.want(two...)
		r.none()
		// A task that was not wanted is, once its resource is at a path that matches.
		s.update(paths("/"), func(tx *WriteTx) { must(t, tx.Link(ids["/other"], path("/mail/3"))) })
		if got := r.next(); got.ID.Resource() != ids["/other"] {
			t.Errorf("%s comes", got.ID)
		}
	})
}

// However many are due at once, a watch gets what its window has room for.
func TestManyTasks(t *testing.T) {
	bubble(t, func(s *testStore) {
		t := s.t
		const n = 3*dueBatch + 5
		ids := s.add("/a")
		dues := make([]time.Time, n)
		for i := range dues {
			dues[i] = time.UnixMilli(int64(i))
		}
		want := s.addTasks(ids["/a"], dues...)
		r := s.receive(TaskWatch{Window: 5, Lease: time.Hour})
		var got []Task
		for range 5 {
			got = append(got, r.next())
		}
		r.none()
		for i := range n {
			s.finish(got[i])
			if len(got) < n {
				got = append(got, r.next())
			}
		}
		for i, task := range got {
			if task.ID != want[i] {
				t.Fatalf("the task %d comes as number %d", slices.Index(want, task.ID), i)
			}
		}
		r.none()
		if left, err := s.Due(s.ctx, time.Now(), n); len(left) > 0 || err != nil {
			t.Errorf("%d are left, %v", len(left), err)
		}
	})
}

func TestTaskWatchRefuses(t *testing.T) {
	s := newStore(t)
	for _, o := range []TaskWatch{{Window: -1}, {Window: maxWindow + 1}, {Lease: -1}} {
		for _, err := range s.WatchTasks(s.ctx, o) {
			wantKind(t, err, KindArgument)
		}
	}
	foreign, err := path("/a").WithContext(otherNode.String())
	must(t, err)
	for _, err := range s.WatchTasks(s.ctx, TaskWatch{Pattern: foreign}) {
		wantKind(t, err, KindNode)
	}
	r := s.receive(TaskWatch{})
	must(t, s.Close())
	select {
	case err := <-r.ended:
		wantKind(t, err, KindState)
	case <-s.ctx.Done():
		t.Error("it goes on after the end of the store")
	}
}

// Many watches that come, go and finish at random, with tasks added meanwhile: each task
// is finished once, none is lost, and in the end no watch has any.
func TestTasksAtRandom(t *testing.T) {
	s := newStore(t)
	const resources, each, workers = 4, 30, 5
	ids := s.add("/0", "/1", "/2", "/3")
	var mu sync.Mutex
	finished := map[address.TaskID]int{}
	done := make(chan struct{})
	var wg sync.WaitGroup
	for n := range workers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(n), 2))
			for {
				ctx, cancel := context.WithCancel(s.ctx)
				go func() {
					select {
					case <-done:
						cancel()
					case <-ctx.Done():
					}
				}()
				for task, err := range s.WatchTasks(ctx, TaskWatch{Window: 1 + rnd.IntN(4)}) {
					if err != nil || rnd.IntN(4) == 0 { // it dies with the task
						break
					}
					err := s.Update(s.ctx, Scope{IDs: []address.ResourceID{task.ID.Resource()}}, func(tx *WriteTx) error {
						ok, err := tx.FinishTask(task.ID, task.Due)
						if ok {
							mu.Lock()
							finished[task.ID]++
							if len(finished) == resources*each {
								close(done)
							}
							mu.Unlock()
						}
						return err
					})
					if err != nil {
						t.Error(err)
					}
				}
				cancel()
				select {
				case <-done:
					return
				case <-s.ctx.Done():
					t.Error("not all tasks were finished in time")
					return
				default:
				}
			}
		})
	}
	for i := range each {
		for n := range resources {
			s.addTasks(ids[fmt.Sprintf("/%d", n)], time.Now().Add(time.Duration(i-each/2)*time.Millisecond))
		}
	}
	wg.Wait()
	for task, n := range finished {
		if n != 1 {
			t.Errorf("%s was finished %d times", task, n)
		}
	}
	s.tasks.mu.Lock()
	defer s.tasks.mu.Unlock()
	if len(s.tasks.claims) > 0 || len(s.tasks.watches) > 0 {
		t.Errorf("claims %v, watches %v are left", s.tasks.claims, s.tasks.watches)
	}
}

// A process that delivers tasks is killed, again and again: what it had not finished
// comes again, and what it had finished does not.
func TestCrashKeepsTasks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "store")
	s := openStore(t, file)
	ids := s.add("/a")
	const n = 30
	all := map[string]bool{}
	for _, id := range s.addTasks(ids["/a"], slices.Repeat([]time.Time{time.UnixMilli(1)}, n)...) {
		all[id.String()] = true
	}
	must(t, s.Close())
	finished := map[string]bool{}
	for round := range 3 {
		c := startChild(t, "deliver", file)
		for told := 0; told < 5; {
			what, id, ok := strings.Cut(c.line(t), " ")
			if !ok || !all[id] {
				t.Fatalf("the child says %q", id)
			}
			if finished[id] {
				t.Fatalf("round %d: %s comes again after it was finished", round, id)
			}
			if what == "finished" {
				finished[id] = true
				told++
			}
		}
		c.kill(t)
	}
	// The last one of each round may have been finished before it could be said.
	s = openStore(t, file)
	left := n - len(finished)
	r := s.receive(TaskWatch{Window: n})
	pending, err := s.Due(s.ctx, time.Now(), n)
	must(t, err)
	if len(pending) > left || len(pending) < left-6 {
		t.Errorf("%d tasks are left, %d were finished of %d", len(pending), len(finished), n)
	}
	for _, task := range pending {
		if finished[task.ID.String()] {
			t.Errorf("%s was finished and is there", task.ID)
		}
		r.want(task.ID)
	}
	r.die()
}

// childDelivers finishes tasks one by one, and says so.
func childDelivers(ctx context.Context, file string) error {
	s, err := Open(ctx, Options{File: file, Node: testNode})
	if err != nil {
		return err
	}
	for task, err := range s.WatchTasks(ctx, TaskWatch{}) {
		if err != nil {
			return err
		}
		fmt.Println("has", task.ID)
		err := s.Update(ctx, Scope{IDs: []address.ResourceID{task.ID.Resource()}}, func(tx *WriteTx) error {
			return second(tx.FinishTask(task.ID, task.Due))
		})
		if err != nil {
			return err
		}
		fmt.Println("finished", task.ID)
	}
	return nil
}
