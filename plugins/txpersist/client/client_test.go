package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"go.uber.org/goleak"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/pluginapi/plugintest"
	"github.com/elemental-conduit/conduit/plugins/txpersist/api"
	"github.com/elemental-conduit/conduit/plugins/txpersist/client"
)

// binary is the element, built once.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "txpersist-client-")
	if err == nil {
		binary = filepath.Join(dir, "txpersist")
		var out []byte
		if out, err = exec.Command("go", "build", "-o", binary, "..").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%s", out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// store is one element, in a process of its own.
type store struct {
	*plugintest.Client
	t   *testing.T
	ctx context.Context //nolint:containedctx // the test's own, with a deadline
}

func start(t *testing.T) *store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return &store{plugintest.StartBinary(t, binary), t, ctx}
}

// only calls the store and no other, and says nothing of an address.
func (s *store) only() conduit.Invoker { return struct{ conduit.Invoker }{s.Service(api.Service)} }

// cluster has a member for each of the nodes.
type cluster []conduit.Member

// All implements client.Cluster.
func (c cluster) All(string) conduit.Group { return c }

// Members implements conduit.Group.
func (c cluster) Members(context.Context) ([]conduit.Member, error) {
	if len(c) == 0 {
		return nil, conduit.Errorf(conduit.NotFound, conduit.ReasonElementNotFound, conduit.NotSent, "nobody has it")
	}
	return c, nil
}

func member(node address.NodeID, inv conduit.Invoker) conduit.Member {
	return conduit.Member{Node: conduit.Node{Instance: node.Instance().String(), Deployment: node.Deployment().String()}, Invoker: inv}
}

func p(s string) address.Path { return address.MustParsePath(s) }

// get is what a call gives; the func fails the test if it gave an error.
func get[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		must(t, err)
		return v
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantIs(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("the error is %v, want %v", err, want)
	}
}

func TestOneShot(t *testing.T) {
	s := start(t)
	c := client.New(s.only(), client.Options{})
	ctx := s.ctx
	id := get(c.Put(ctx, p("/a"), []byte("1")))(t)
	if again := get(c.Put(ctx, p("/a"), []byte("2")))(t); again != id {
		t.Errorf("it is %s, then %s", id, again)
	}
	if data := get(c.Get(ctx, p("/a")))(t); string(data) != "2" {
		t.Errorf("it has %q", data)
	}
	must(t, c.Replace(ctx, id, []byte("3")))
	if data := get(c.Load(ctx, id))(t); string(data) != "3" {
		t.Errorf("it has %q", data)
	}
	must(t, c.Link(ctx, id, p("/b")))
	if paths := get(c.Paths(ctx, id))(t); len(paths) != 2 {
		t.Errorf("it is at %v", paths)
	}
	if found := get(c.Lookup(ctx, p("/b")))(t); found != id {
		t.Errorf("at /b is %s", found)
	}
	if removed := get(c.Delete(ctx, p("/b")))(t); removed {
		t.Error("one of two paths takes it away")
	}
	_, err := c.Save(ctx, p("/a"), nil)
	wantIs(t, err, client.ErrDuplicate)
	_, err = c.Get(ctx, p("/none"))
	wantIs(t, err, client.ErrNotFound)
	_, err = c.Save(ctx, p("/*"), nil)
	wantIs(t, err, client.ErrBadArgument)
	get(c.Save(ctx, p("/c"), nil))(t)
	if ids := get(c.RemoveMatching(ctx, p("/c"), 10))(t); len(ids) != 1 {
		t.Errorf("%v were removed", ids)
	}
	task := get(c.CreateTask(ctx, id, time.UnixMilli(5)))(t)
	must(t, c.Reschedule(ctx, task.ID, time.UnixMilli(6)))
	if finished := get(c.Finish(ctx, task))(t); finished {
		t.Error("it was finished with the time that it had")
	}
	tasks := get(c.Tasks(ctx, id))(t)
	if len(tasks) != 1 || !get(c.Finish(ctx, tasks[0]))(t) {
		t.Errorf("the tasks are %v", tasks)
	}
	must(t, c.Remove(ctx, id))
	if there := get(c.Exists(ctx, id))(t); there {
		t.Error("it is there after its end")
	}
}

func TestBatchAndTransaction(t *testing.T) {
	s := start(t)
	c := client.New(s.only(), client.Options{})
	ctx := s.ctx
	sc := client.Scope{Paths: []address.Path{p("/t")}}
	path := p("/t/1")
	results := get(c.Batch(ctx, sc, api.Operation{Op: api.OpExpect, Path: &path, Absent: true}, api.Operation{Op: api.OpSave, Path: &path, Data: []byte("1")}))(t)
	if len(results) != 2 {
		t.Errorf("the results are %v", results)
	}
	_, err := c.Batch(ctx, sc, api.Operation{Op: api.OpUpdate, Path: &path}, api.Operation{Op: api.OpExpect, Path: &path, Absent: true})
	wantIs(t, err, client.ErrPrecondition)
	if i, ok := client.Operation(err); !ok || i != 1 {
		t.Errorf("operation %d failed, %t", i, ok)
	}
	if _, ok := client.Operation(errors.New("another")); ok {
		t.Error("an error of something else is of an operation")
	}

	id := *results[1].ID
	task := get(c.CreateTask(ctx, id, time.UnixMilli(1)))(t)
	must(t, c.Update(ctx, sc, func(tx *client.Tx) error {
		before := get(tx.Get(path))(t)
		get(tx.Put(path, append(before, '!')))(t)
		get(tx.Put(p("/t/2"), nil))(t)
		must(t, tx.Link(id, p("/t/3")))
		if removed := get(tx.Delete(p("/t/3")))(t); removed {
			t.Error("one of two paths takes it away")
		}
		if found, next, err := tx.List(p("/t/*"), ""); err != nil || len(found) != 2 || next != "" {
			t.Errorf("it lists %v, %q, %v", found, next, err)
		}
		if !get(tx.Finish(task))(t) {
			t.Error("the task is not finished")
		}
		get(tx.CreateTask(id, time.UnixMilli(2)))(t)
		return tx.Remove(get(tx.Lookup(p("/t/2")))(t))
	}))
	enough := errors.New("enough")
	err = c.Update(ctx, sc, func(tx *client.Tx) error {
		get(tx.Put(path, nil))(t)
		return enough
	})
	wantIs(t, err, enough)
	err = c.Update(ctx, sc, func(tx *client.Tx) error {
		_, err := tx.Put(p("/elsewhere"), nil)
		wantIs(t, err, client.ErrNotDeclared)
		_, again := tx.Put(path, nil) // it is over
		wantIs(t, again, client.ErrNotDeclared)
		return nil
	})
	wantIs(t, err, client.ErrNotDeclared)
	must(t, c.View(ctx, sc, func(tx *client.Tx) error {
		if data := get(tx.Get(path))(t); string(data) != "1!" {
			t.Errorf("it has %q", data)
		}
		return nil
	}))
	err = c.View(ctx, sc, func(tx *client.Tx) error {
		_, err := tx.Put(path, nil)
		return err
	})
	wantIs(t, err, client.ErrBadArgument)
}

// A path without a node is one node's, or nobody's.
func TestNodes(t *testing.T) {
	s := start(t)
	ctx := s.ctx
	mine := get(client.New(s.only(), client.Options{}).Put(ctx, p("/a"), []byte("x")))(t)
	node := mine.Node()
	other := address.NewNodeID(address.RandomInstanceID(), address.RandomDeploymentID())
	var asked atomic.Int32
	counted := invoker(func(context.Context, *conduit.Invocation) conduit.Exchange {
		asked.Add(1)
		return conduit.FailedExchange(conduit.Errorf(conduit.Internal, conduit.ReasonInternal, conduit.Executed, "the other one"))
	})
	both := cluster{member(other, counted), member(node, s.only())}

	c := client.Open(both, client.Options{})
	_, err := c.Get(ctx, p("/a"))
	wantIs(t, err, client.ErrAmbiguous)
	if text := fmt.Sprint(err); !strings.Contains(text, node.String()) || !strings.Contains(text, other.String()) {
		t.Errorf("it does not name the nodes: %s", text)
	}
	for name, call := range map[string]func() error{
		"put":   func() error { _, err := c.Put(ctx, p("/a"), nil); return err },
		"batch": func() error { _, err := c.Batch(ctx, client.Scope{Paths: []address.Path{p("/a")}}); return err },
		"update": func() error {
			return c.Update(ctx, client.Scope{Paths: []address.Path{p("/a")}}, func(*client.Tx) error { return nil })
		},
		"list":  func() error { return last(c.List(ctx, p("/a"))) },
		"watch": func() error { return last(c.Watch(ctx, p("/a"), "")) },
		"tasks": func() error { return last(c.WatchTasks(ctx, client.TaskOptions{})) },
	} {
		if err := call(); !errors.Is(err, client.ErrAmbiguous) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if asked.Load() > 0 {
		t.Error("a node was asked by guess")
	}
	// What names its node finds it.
	if data := get(c.Load(ctx, mine))(t); string(data) != "x" {
		t.Errorf("it has %q", data)
	}
	named := get(p("/a").WithContext(node.String()))(t)
	get(c.Get(ctx, named))(t)
	get(client.Open(both, client.Options{Node: node}).Get(ctx, p("/a")))(t)
	get(client.Open(both[1:], client.Options{}).Get(ctx, p("/a")))(t)
	elsewhere := address.RandomResourceID(other)
	_, err = c.Load(ctx, elsewhere)
	if asked.Load() != 1 || err == nil {
		t.Errorf("the other node was not asked: %v", err)
	}
	_, err = c.Batch(ctx, client.Scope{IDs: []address.ResourceID{mine, elsewhere}})
	wantIs(t, err, client.ErrOtherNode)
	_, err = client.Open(both[1:], client.Options{}).Load(ctx, elsewhere)
	wantIs(t, err, &conduit.Error{Code: conduit.NotFound, Reason: conduit.ReasonInstanceNotFound})
	_, err = client.Open(cluster{}, client.Options{}).Get(ctx, p("/a"))
	wantIs(t, err, &conduit.Error{Code: conduit.NotFound})
	_, err = c.Get(ctx, get(p("/a").WithContext("none"))(t))
	wantIs(t, err, client.ErrBadArgument)

	// An Invoker of anybody is none of one node.
	_, err = client.New(anybody{s.only()}, client.Options{}).Get(ctx, p("/a"))
	wantIs(t, err, client.ErrAmbiguous)
}

type invoker func(context.Context, *conduit.Invocation) conduit.Exchange

// Invoke implements conduit.Invoker.
func (i invoker) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	return i(ctx, in)
}

type anybody struct{ conduit.Invoker }

// Address implements conduit.Target.
func (anybody) Address() address.Address {
	return address.MustParse("*://txpersist/txpersist/" + api.Service)
}

func last[T any](seq func(func(T, error) bool)) (err error) {
	seq(func(_ T, e error) bool {
		err = e
		return e == nil
	})
	return err
}

// losing does what it is asked, and then loses the answers, as often as it says.
type losing struct {
	conduit.Invoker

	left *atomic.Int32
}

// Invoke implements conduit.Invoker.
func (l losing) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	return lossy{l.Invoker.Invoke(ctx, in), l.left}
}

type lossy struct {
	conduit.Exchange

	left *atomic.Int32
}

// Recv implements conduit.Exchange.
func (l lossy) Recv(ctx context.Context) (conduit.Message, error) {
	m, err := l.Exchange.Recv(ctx)
	if err == nil && l.left.Add(-1) >= 0 {
		l.Cancel(errors.New("lost"))
		return conduit.Message{}, conduit.Errorf(conduit.Unavailable, conduit.ReasonPeerLost, conduit.OutcomeUnknown, "lost")
	}
	return m, err
}

// What is written once is there once, however often the answer is lost.
func TestLostAnswers(t *testing.T) {
	s := start(t)
	ctx := s.ctx
	var left atomic.Int32
	c := client.New(losing{s.only(), &left}, client.Options{})
	id := get(c.Put(ctx, p("/a"), nil))(t)
	for range 3 {
		left.Store(2)
		get(c.Do(ctx, "Append", api.Operation{ID: &id, Data: []byte("x")}))(t)
		left.Store(2)
		get(c.Batch(ctx, client.Scope{IDs: []address.ResourceID{id}}, api.Operation{Op: api.OpAppend, ID: &id, Data: []byte("y")}))(t)
	}
	if data := get(c.Get(ctx, p("/a")))(t); string(data) != "xyxyxy" {
		t.Errorf("it has %q", data)
	}
	left.Store(3) // more often than it is tried
	_, err := c.Save(ctx, p("/b"), nil)
	wantIs(t, err, &conduit.Error{Code: conduit.Unavailable, Reason: conduit.ReasonPeerLost})
	left.Store(1) // a transaction is not tried again
	err = c.Update(ctx, client.Scope{Paths: []address.Path{p("/a")}}, func(*client.Tx) error { return nil })
	wantIs(t, err, &conduit.Error{Code: conduit.Unavailable})
	// A listing goes on where it was.
	for i := range 5 {
		get(c.Put(ctx, p(fmt.Sprintf("/l/%d", i)), nil))(t)
	}
	var found []string
	for l, err := range c.List(ctx, p("/l/*")) {
		must(t, err)
		found = append(found, l.Path.WithoutContext().String())
		left.Store(1)
		if len(found) == 5 {
			left.Store(0)
		}
	}
	if want := []string{"/l/0", "/l/1", "/l/2", "/l/3", "/l/4"}; !slices.Equal(found, want) {
		t.Errorf("it lists %v", found)
	}
}

// A watch goes on by itself, and says what is void.
func TestWatch(t *testing.T) {
	s := start(t)
	var left atomic.Int32
	c := client.New(losing{s.only(), &left}, client.Options{})
	get(c.Put(s.ctx, p("/a"), nil))(t)
	var got []string
	for e, err := range c.Watch(s.ctx, p("/**"), "") {
		must(t, err)
		line := []string{e.Kind}
		for _, c := range e.Changes {
			line = append(line, c.Path.WithoutContext().String())
		}
		got = append(got, strings.Join(line, " "))
		switch len(got) {
		case 1:
			left.Store(1) // between the state and its end
		case 4:
			get(c.Put(s.ctx, p("/b"), nil))(t)
			left.Store(1) // and between two changes, of which none is lost
			if e.Revision == "" {
				t.Error("there is no revision")
			}
		case 6:
			get(c.Put(s.ctx, p("/c"), nil))(t)
		}
		if len(got) == 7 {
			break
		}
	}
	want := []string{"state /a", "resync", "state /a", "synced", "synced", "changes /b", "changes /c"}
	if !slices.Equal(got, want) {
		t.Errorf("it is told %q, want %q", got, want)
	}
	err := last(c.Watch(s.ctx, p("/**"), "none"))
	wantIs(t, err, client.ErrBadArgument)
	ctx, cancel := context.WithCancel(s.ctx)
	for e, err := range c.Watch(ctx, p("/**"), "") {
		if err != nil {
			wantIs(t, err, context.Canceled)
		}
		if e.Kind == api.EventSynced {
			cancel()
		}
	}
	cancel()
}

func TestWatchTasks(t *testing.T) {
	s := start(t)
	var left atomic.Int32
	c := client.New(losing{s.only(), &left}, client.Options{})
	id := get(c.Put(s.ctx, p("/a"), nil))(t)
	first := get(c.CreateTask(s.ctx, id, time.UnixMilli(1)))(t)
	second := get(c.CreateTask(s.ctx, id, time.UnixMilli(2)))(t)
	got := 0
	for task, err := range c.WatchTasks(s.ctx, client.TaskOptions{Pattern: p("/*"), Window: 1, Lease: time.Hour}) {
		must(t, err)
		want := first
		switch got++; got {
		case 1:
			left.Store(1)
			get(c.Finish(s.ctx, task))(t) // lost, and asked again
			left.Store(1)                 // the second one is lost on its way, and comes again
		case 2:
			want = second
		}
		if task != want {
			t.Errorf("%v comes, want %v", task, want)
		}
		if got == 2 {
			break
		}
	}
	if tasks := get(c.Tasks(s.ctx, id))(t); len(tasks) != 1 || tasks[0] != second {
		t.Errorf("there are %v", tasks)
	}
}

func TestReadAndWrite(t *testing.T) {
	s := start(t)
	c := client.New(s.only(), client.Options{})
	for _, size := range []int{0, 1, 256 << 10, 1<<20 + 7} {
		data := bytes.Repeat([]byte("x"), size)
		_, n, err := c.Write(s.ctx, p("/big"), bytes.NewReader(data))
		if err != nil || n != int64(size) {
			t.Errorf("%d bytes of %d were written, %v", n, size, err)
		}
		var got bytes.Buffer
		n, err = c.Read(s.ctx, p("/big"), &got)
		if err != nil || n != int64(size) || !bytes.Equal(got.Bytes(), data) {
			t.Errorf("%d bytes of %d were read, %v", n, size, err)
		}
	}
	broken := errors.New("broken")
	_, _, err := c.Write(s.ctx, p("/half"), io.MultiReader(bytes.NewReader(make([]byte, 1<<20)), iotest.ErrReader(broken)))
	wantIs(t, err, broken)
	_, err = c.Read(s.ctx, p("/half"), io.Discard)
	wantIs(t, err, client.ErrNotFound)
	_, err = c.Read(s.ctx, p("/big"), failing{broken})
	wantIs(t, err, broken)
}

type failing struct{ err error }

// Write implements io.Writer.
func (f failing) Write([]byte) (int, error) { return 0, f.err }
