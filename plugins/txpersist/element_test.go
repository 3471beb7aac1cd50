package main

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
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/pluginapi"
	"github.com/elemental-conduit/conduit/pluginapi/plugintest"
	"github.com/elemental-conduit/conduit/plugins/txpersist/api"
	"github.com/elemental-conduit/conduit/plugins/txpersist/store"
	persistpb "github.com/elemental-conduit/conduit/proto/conduit/persist"
)

// asPlugin makes the test binary run the program's func main.
const asPlugin = "TXPERSIST_TEST_RUN_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asPlugin) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

func TestBinary(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "describe")
	cmd.Env = append(os.Environ(), asPlugin+"=1")
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), `"name": "`+serviceName+`"`) || !strings.Contains(string(out), `"exclusive": true`) {
		t.Errorf("describe says %v: %s", err, out)
	}
}

type fixture struct {
	*plugintest.Client
	t   *testing.T
	ctx context.Context //nolint:containedctx // the test's own, with a deadline
}

func start(t *testing.T, opts ...plugintest.Option) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return &fixture{Client: plugintest.Start(t, element(), opts...), t: t, ctx: ctx}
}

func call[T any](f *fixture, method string, in any) (T, error) {
	return conduit.Call[T](f.ctx, f.Service(serviceName), method, in)
}

func (f *fixture) do(method string, in operation) result {
	f.t.Helper()
	r, err := call[result](f, method, in)
	if err != nil {
		f.t.Fatalf("%s: %v", method, err)
	}
	return r
}

func p(s string) *address.Path {
	path := address.MustParsePath(s)
	return &path
}

func wantReason(t *testing.T, err error, code conduit.Code, reason string) *conduit.Error {
	t.Helper()
	e, ok := errors.AsType[*conduit.Error](err)
	if !ok || e.Code != code || e.Reason != reason {
		t.Fatalf("the error is %v, want %s (%s)", err, code, reason)
	}
	return e
}

func TestOneShotOperations(t *testing.T) {
	f := start(t)
	id := f.do("Save", operation{Path: p("/a"), Data: []byte("one")}).ID
	if id == nil {
		t.Fatal("a new resource has no id")
	}
	if r := f.do("Load", operation{Path: p("/a")}); string(r.Data) != "one" || *r.ID != *id {
		t.Errorf("load by path: %+v", r)
	}
	f.do("Update", operation{Path: p("/a"), Data: []byte("two")})
	f.do("Append", operation{ID: id, Data: []byte("!")})
	f.do("WriteAt", operation{ID: id, Data: []byte("T"), Offset: 0})
	if r := f.do("Load", operation{ID: id}); string(r.Data) != "Two!" {
		t.Errorf("load by id: %q", r.Data)
	}
	f.do("Link", operation{ID: id, Path: p("/b/alias")})
	if r := f.do("Paths", operation{ID: id}); len(r.Paths) != 2 {
		t.Errorf("paths: %v", r.Paths)
	}
	if r := f.do("Lookup", operation{Path: p("/b/alias")}); *r.ID != *id {
		t.Errorf("lookup: %v", r.ID)
	}
	tasks := f.do("CreateTask", operation{ID: id, DueMS: 1234}).Tasks
	if got := f.do("Tasks", operation{ID: id}).Tasks; !slices.Equal(got, tasks) || got[0].DueMS != 1234 {
		t.Errorf("tasks: %v, want %v", got, tasks)
	}
	f.do("DeleteTask", operation{Task: &tasks[0].ID})
	_, err := call[result](f, "DeleteTask", operation{Task: &tasks[0].ID})
	wantReason(t, err, conduit.NotFound, "no_such_task")
	if r := f.do("Unlink", operation{Path: p("/b/alias")}); *r.Removed {
		t.Error("one of two paths removes the resource")
	}
	bare := f.do("LinkNew", operation{Path: p("/bare")}).ID
	_, err = call[result](f, "Load", operation{ID: bare})
	wantReason(t, err, conduit.FailedPrecondition, "no_contents")
	f.do("Remove", operation{ID: bare})
	if r := f.do("Exists", operation{ID: bare}); *r.Exists {
		t.Error("what was removed exists")
	}
	_, err = call[result](f, "Save", operation{Path: p("/a")})
	wantReason(t, err, conduit.AlreadyExists, "duplicate")
	_, err = call[result](f, "Load", operation{Path: p("/none")})
	wantReason(t, err, conduit.NotFound, "resource_not_found")
	_, err = call[result](f, "Load", operation{})
	wantReason(t, err, conduit.InvalidArgument, "bad_argument")
	_, err = call[result](f, "Save", operation{Path: p("/w/*")})
	wantReason(t, err, conduit.InvalidArgument, "bad_argument")
	foreign := address.RandomResourceID(address.NewNodeID(address.RandomInstanceID(), address.RandomDeploymentID()))
	_, err = call[result](f, "Exists", operation{ID: &foreign})
	wantReason(t, err, conduit.InvalidArgument, "other_node")
	if r := f.do("RemoveMatching", operation{Path: p("/**")}); len(r.IDs) != 1 || r.IDs[0] != *id {
		t.Errorf("removed: %v", r.IDs)
	}
}

// Every method that works on one of path, id or task says so when there is none.
func TestOperationsThatLackSomething(t *testing.T) {
	f := start(t)
	for _, method := range []string{
		"Exists", "Lookup", "Paths", "Load", "Tasks", "Page", "Save", "Put", "Update", "Append", "WriteAt", "LinkNew", "Link", "Unlink", "Remove",
		"RemoveMatching", "CreateTask", "DeleteTask", "FinishTask",
	} {
		_, err := call[result](f, method, operation{})
		wantReason(t, err, conduit.InvalidArgument, "bad_argument")
	}
	_, err := call[result](f, "Link", operation{Path: p("/a")})
	wantReason(t, err, conduit.InvalidArgument, "bad_argument")
}

func TestTransactIsAllOrNothing(t *testing.T) {
	f := start(t)
	sc := scope{Paths: []address.Path{*p("/t")}}
	out, err := call[transactReply](f, "Transact", transactRequest{Scope: sc, Operations: []operation{
		{Op: api.OpExpect, Path: p("/t/1"), Absent: true},
		{Op: api.OpSave, Path: p("/t/1"), Data: []byte("1")},
		{Op: api.OpSave, Path: p("/t/2"), Data: []byte("2")},
		{Op: api.OpExpect, Path: p("/t/1"), Data: []byte("1")},
		{Op: api.OpPage, Path: p("/t/*")},
	}})
	if err != nil || len(out.Results) != 5 || len(out.Results[4].Listings) != 2 {
		t.Fatalf("results: %+v, %v", out, err)
	}
	for name, row := range map[string]struct {
		last   operation
		code   conduit.Code
		reason string
	}{
		"contents": {operation{Op: api.OpExpect, Path: p("/t/2"), Data: []byte("other")}, conduit.FailedPrecondition, "precondition_failed"},
		"absent":   {operation{Op: api.OpExpect, Path: p("/t/2"), Absent: true}, conduit.FailedPrecondition, "precondition_failed"},
		"there":    {operation{Op: api.OpExpect, Path: p("/t/9")}, conduit.FailedPrecondition, "precondition_failed"},
		"scope":    {operation{Op: api.OpSave, Path: p("/u")}, conduit.FailedPrecondition, "not_declared"},
		"unknown":  {operation{Op: "commit"}, conduit.InvalidArgument, "bad_argument"},
	} {
		_, err := call[transactReply](f, "Transact", transactRequest{Scope: sc, Operations: []operation{
			{Op: api.OpUpdate, Path: p("/t/1"), Data: []byte("changed")}, row.last,
		}})
		if e := wantReason(t, err, row.code, row.reason); e.Details["operation"] != "1" || e.Outcome != conduit.Executed {
			t.Errorf("%s: operation %q, %s", name, e.Details["operation"], e.Outcome)
		}
		if r := f.do("Load", operation{Path: p("/t/1")}); string(r.Data) != "1" {
			t.Errorf("%s: half of a batch is there: %q", name, r.Data)
		}
	}
}

func TestListIsStreamed(t *testing.T) {
	f := start(t)
	const n = 2500
	ops := make([]operation, n)
	for i := range ops {
		ops[i] = operation{Op: api.OpSave, Path: p(fmt.Sprintf("/l/%04d", i))}
	}
	if _, err := call[transactReply](f, "Transact", transactRequest{Scope: scope{Paths: []address.Path{*p("/l")}}, Operations: ops}); err != nil {
		t.Fatal(err)
	}
	got, cursor := 0, ""
	for l, err := range conduit.Stream[listing](f.ctx, f.Service(serviceName), "List", operation{Path: p("/l/*")}) {
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("/l/%04d", got); l.Path.WithoutContext().String() != want {
			t.Fatalf("%s comes where %s should", l.Path, want)
		}
		if got++; got == 1200 {
			cursor = l.Cursor
			break
		}
	}
	for _, err := range conduit.Stream[listing](f.ctx, f.Service(serviceName), "List", operation{Path: p("/l/*"), Cursor: cursor}) {
		if err != nil {
			t.Fatal(err)
		}
		got++
	}
	if got != n {
		t.Errorf("%d were listed in two parts, want %d", got, n)
	}
}

// Who asks for several entries in a message gets so many, of which the last one has the
// cursor to go on behind; messages stay small, whatever is asked for.
func TestListIsStreamedInMessages(t *testing.T) {
	f := start(t, plugintest.Attributes(map[string]string{"max_page": "50"}))
	const n = 120
	ops := make([]operation, n)
	long := strings.Repeat("x", 900)
	for i := range ops {
		ops[i] = operation{Op: api.OpSave, Path: p(fmt.Sprintf("/l/%04d", i))}
		ops = append(ops, operation{Op: api.OpSave, Path: p(fmt.Sprintf("/m/%04d%s/%s", i, long[:100], long[:800]))})
	}
	if _, err := call[transactReply](f, "Transact", transactRequest{Scope: scope{Paths: []address.Path{*p("/")}}, Operations: ops}); err != nil {
		t.Fatal(err)
	}
	list := func(in operation) (sizes []int, cursors []string) {
		t.Helper()
		at := 0
		for l, err := range conduit.Stream[*persistpb.Listing](f.ctx, f.Service(serviceName), "List", in.Proto()) {
			if err != nil {
				t.Fatal(err)
			}
			all := append([]*persistpb.Listing{l}, l.GetMore()...)
			for i, e := range all {
				if want := fmt.Sprintf("/%s/%04d", in.Path.Components()[0], at); !strings.Contains(e.GetPath(), want[1:]) || e.GetId() == "" {
					t.Fatalf("%s comes where %s should", e.GetPath(), want)
				}
				if (e.GetCursor() != "") != (i == len(all)-1) {
					t.Errorf("entry %d of %d has the cursor %q", i, len(all), e.GetCursor())
				}
				at++
			}
			sizes, cursors = append(sizes, len(all)), append(cursors, all[len(all)-1].GetCursor())
		}
		if at != n && in.Cursor == "" {
			t.Errorf("%d were listed, want %d", at, n)
		}
		return sizes, cursors
	}
	for limit, want := range map[int][]int{0: slices.Repeat([]int{1}, n), 1: slices.Repeat([]int{1}, n), -3: slices.Repeat([]int{1}, n), 40: {40, 10, 40, 10, 20}, 1000: {50, 50, 20}} {
		if got, _ := list(operation{Path: p("/l/*"), Limit: limit}); !slices.Equal(got, want) {
			t.Errorf("limit %d gives messages of %v, want %v", limit, got, want)
		}
	}
	_, cursors := list(operation{Path: p("/l/*"), Limit: 40})
	rest := 0
	for l, err := range conduit.Stream[listing](f.ctx, f.Service(serviceName), "List", operation{Path: p("/l/*"), Limit: 40, Cursor: cursors[1]}) {
		if err != nil {
			t.Fatal(err)
		}
		rest += 1 + len(l.More)
	}
	if rest != n-50 {
		t.Errorf("behind the second message come %d, want %d", rest, n-50)
	}
	list(operation{Path: p("/m/**"), Limit: 1000})
	entries := make([]store.Listing, 1000)
	for i := range entries {
		entries[i] = store.Listing{Path: *p("/" + strings.Repeat("x", 8000)), ID: address.RandomResourceID(address.NodeID{})}
	}
	if l, rest := together(entries, 1000); len(l.More) > 40 || len(rest) != 999-len(l.More) {
		t.Errorf("a message has %d entries of 8,000 bytes each, and %d are left", 1+len(l.More), len(rest))
	}
}

func TestContentsAboveOneMessage(t *testing.T) {
	f := start(t)
	data := bytes.Repeat([]byte("0123456789abcdef"), 3<<18) // 12 MiB; a message has at most 10
	s := f.Service(serviceName)
	for range 2 { // new, then in place of it
		out, err := conduit.Upload[*persistpb.WriteReply](f.ctx, s, "Write", func(yield func(*persistpb.Operation) bool) {
			if !yield(&persistpb.Operation{Path: new("/big")}) {
				return
			}
			for c := range slices.Chunk(data, 1<<20) {
				if !yield(&persistpb.Operation{Data: c}) {
					return
				}
			}
		})
		if err != nil || out.GetSize() != int64(len(data)) {
			t.Fatalf("written: %+v, %v", out, err)
		}
	}
	var got []byte
	for piece, err := range conduit.Stream[*persistpb.Piece](f.ctx, s, "Read", &persistpb.Operation{Path: new("/big")}) {
		if err != nil {
			t.Fatal(err)
		}
		if piece.GetSize() != int64(len(data)) {
			t.Fatalf("a piece says that there are %d bytes", piece.GetSize())
		}
		got = append(got, piece.GetData()...)
	}
	if !bytes.Equal(got, data) {
		t.Errorf("%d bytes come back, not the %d that were written", len(got), len(data))
	}
	f.do("Save", operation{Path: p("/empty")})
	pieces := 0
	for piece, err := range conduit.Stream[piece](f.ctx, s, "Read", operation{Path: p("/empty")}) {
		if err != nil || piece.Size != 0 {
			t.Errorf("contents of no bytes: %+v, %v", piece, err)
		}
		pieces++
	}
	if pieces != 1 {
		t.Errorf("contents of no bytes come in %d pieces", pieces)
	}
}

// An upload that is given up leaves nothing.
func TestWriteIsRolledBack(t *testing.T) {
	f := start(t)
	ctx, cancel := context.WithCancel(f.ctx)
	_, err := conduit.Upload[writeReply](ctx, f.Service(serviceName), "Write", func(yield func(operation) bool) {
		yield(operation{Path: p("/half"), Data: make([]byte, 1<<20)})
		cancel()
	})
	if err == nil {
		t.Error("an upload that was cancelled was taken")
	}
	_, err = call[result](f, "Load", operation{Path: p("/half")}) // waits for the lock, so for the rollback
	wantReason(t, err, conduit.NotFound, "resource_not_found")
}

func (f *fixture) transaction(sc ...string) *conduit.DuplexCall[operation, result] {
	f.t.Helper()
	d := conduit.Duplex[operation, result](f.ctx, f.Service(serviceName), "Transaction")
	f.t.Cleanup(d.Close)
	declared := &scope{}
	for _, s := range sc {
		declared.Paths = append(declared.Paths, *p(s))
	}
	f.step(d, operation{Scope: declared})
	return d
}

func (f *fixture) step(d *conduit.DuplexCall[operation, result], o operation) result {
	f.t.Helper()
	if err := d.Send(o); err != nil {
		f.t.Fatal(err)
	}
	r, err := d.Recv()
	if err != nil {
		f.t.Fatalf("%s: %v", o.Op, err)
	}
	return r
}

func TestInteractiveTransaction(t *testing.T) {
	f := start(t)
	d := f.transaction("/i")
	id := f.step(d, operation{Op: api.OpSave, Path: p("/i/1"), Data: []byte("x")}).ID
	if r := f.step(d, operation{Op: api.OpLoad, ID: id}); string(r.Data) != "x" {
		t.Errorf("it does not read what it wrote: %q", r.Data)
	}
	_, err := call[result](f, "Lookup", operation{Path: p("/i/1")})
	wantReason(t, err, conduit.NotFound, "resource_not_found")
	f.step(d, operation{Op: api.OpCommit})
	if _, err := d.Recv(); err != io.EOF {
		t.Errorf("behind the commit comes %v", err)
	}
	f.do("Lookup", operation{Path: p("/i/1")})

	// Whatever else ends it is a rollback, and frees the locks.
	for name, end := range map[string]func(*conduit.DuplexCall[operation, result]){
		"close": func(d *conduit.DuplexCall[operation, result]) { d.Close() },
		"end of upload": func(d *conduit.DuplexCall[operation, result]) {
			if err := d.CloseSend(); err != nil {
				t.Fatal(err)
			}
			if _, err := d.Recv(); err != io.EOF {
				t.Errorf("the end without commit: %v", err)
			}
		},
		"error": func(d *conduit.DuplexCall[operation, result]) {
			if err := d.Send(operation{Op: api.OpLoad, Path: p("/i/none")}); err != nil {
				t.Fatal(err)
			}
			_, err := d.Recv()
			wantReason(t, err, conduit.NotFound, "resource_not_found")
		},
	} {
		d := f.transaction("/i")
		f.step(d, operation{Op: api.OpUpdate, ID: id, Data: []byte(name)})
		end(d)
		f.do("Append", operation{ID: id}) // needs the lock
		if r := f.do("Load", operation{ID: id}); string(r.Data) != "x" {
			t.Errorf("%s: it was not rolled back: %q", name, r.Data)
		}
	}
	d = conduit.Duplex[operation, result](f.ctx, f.Service(serviceName), "Transaction")
	defer d.Close()
	if err := d.Send(operation{Op: api.OpCommit}); err != nil {
		t.Fatal(err)
	}
	_, err = d.Recv()
	wantReason(t, err, conduit.InvalidArgument, "bad_argument")
}

func TestIdleTransactionIsRolledBack(t *testing.T) {
	f := start(t, plugintest.Attributes(map[string]string{"idle": "50ms"}))
	d := f.transaction("/i")
	f.do("Save", operation{Path: p("/i/1")}) // gets the lock once the other has lost it
	_, err := d.Recv()
	wantReason(t, err, conduit.Aborted, "transaction_idle")
}

func TestAdministration(t *testing.T) {
	f := start(t)
	f.do("Save", operation{Path: p("/a"), Data: []byte("kept")})
	for _, method := range []string{"Check", "Stats"} {
		_, err := call[conduit.Message](f, method, struct{}{})
		wantReason(t, err, conduit.PermissionDenied, conduit.ReasonLevelTooLow)
	}
	admin := *f
	admin.Client = f.As("root", pluginapi.Superuser)
	if _, err := call[struct{}](&admin, "Check", struct{}{}); err != nil {
		t.Error(err)
	}
	if st, err := call[*persistpb.StatsReply](&admin, "Stats", struct{}{}); err != nil || st.GetCommits() != 1 || st.GetFailed() != "" || st.GetMaxBytes() != 64<<30 {
		t.Errorf("stats: %+v, %v", st, err)
	}
	var backup bytes.Buffer
	for b, err := range conduit.Stream[[]byte](f.ctx, admin.Service(serviceName), "Backup", struct{}{}) {
		if err != nil {
			t.Fatal(err)
		}
		backup.Write(b)
	}
	id := f.do("Lookup", operation{Path: p("/a")}).ID
	opts := store.Options{File: filepath.Join(t.TempDir(), "restored"), Node: id.Node()}
	if err := store.Restore(f.ctx, &backup, opts); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(f.ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	err = s.View(f.ctx, store.Scope{IDs: []address.ResourceID{*id}}, func(tx *store.ReadTx) error {
		data, err := tx.Load(*id)
		if string(data) != "kept" {
			t.Errorf("the backup has %q", data)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// Each kind of the store's errors has a code and a reason of its own.
func TestFailures(t *testing.T) {
	seen := map[string]store.Kind{}
	for _, kind := range []store.Kind{
		store.KindArgument, store.KindNode, store.KindScope, store.KindNotFound, store.KindNoContents, store.KindDuplicate, store.KindNoTask,
		store.KindState, store.KindExpired, store.KindReused, store.KindLimit, store.KindFull, store.KindReadOnly, store.KindCorrupt, store.KindFailed,
	} {
		e, ok := errors.AsType[*pluginapi.Error](failure(&store.Error{Kind: kind, Subject: "x"}))
		if !ok || e.Reason == conduit.ReasonUnspecified || e.Details["subject"] != "x" {
			t.Errorf("%s becomes %+v", kind, e)
			continue
		}
		if other, twice := seen[e.Reason]; twice {
			t.Errorf("%s and %s have one reason", kind, other)
		}
		seen[e.Reason] = kind
	}
	wantReason(t, failure(&store.Error{Kind: store.KindFailed, Unknown: true}), conduit.Unknown, "outcome_unknown")
	if failure(nil) != nil || failure(io.EOF) != io.EOF {
		t.Error("what is no error of the store is changed")
	}
}

func TestAttributes(t *testing.T) {
	for _, row := range []struct {
		name, text string
		good       bool
	}{
		{"idle", "10s", true},
		{"idle", "0s", false},
		{"idle", "-1s", false},
		{"idle", "5", false},
		{"idle", "", false},
		{"max_path", "2000", true},
		{"max_path", "0", false},
		{"max_path", "8193", false},
		{"max_path", "1KiB", false},
		{"max_page", "1000", true},
		{"max_page", "1001", false},
		{"max_size", "1GiB", true},
		{"max_size", "1GB", false},
		{"max_size", "0GiB", false},
		{"max_size", "1000", false},
		{"max_open_per_caller", "x", false},
		{"another", "x", true},
	} {
		_, err := (&persist{}).configure(t.Context(), pluginapi.Configuration{
			Instance: address.RandomInstanceID().String(), Deployment: "d", Attributes: map[string]string{row.name: row.text},
		})
		if (err == nil) != row.good || err != nil && !strings.Contains(err.Error(), row.name) {
			t.Errorf("%s %q: %v", row.name, row.text, err)
		}
	}
	if _, err := (&persist{}).configure(t.Context(), pluginapi.Configuration{Instance: "none"}); err == nil {
		t.Error("an instance that is none was taken")
	}
	// Every option of the store that refuses with its name is one that an attribute sets.
	for _, option := range []string{"MaxOpen", "MaxOpenEach", "MaxPath", "MaxContents", "MaxWrites", "MaxWatches", "MaxWatchesEach", "MaxSize", "MaxScope"} {
		if attributeOf(option) == option {
			t.Errorf("no attribute sets %s", option)
		}
	}
}

// Each limit is refused with its name, and its value, and leaves nothing behind.
func TestLimits(t *testing.T) {
	f := start(t, plugintest.Attributes(map[string]string{
		"max_path": "20", "max_contents": "4KiB", "max_transaction": "8KiB", "max_operations": "3", "max_page": "2", "max_answer": "1KiB",
		"max_open_per_caller": "1",
	}))
	exceeded := func(err error, limit, most string) {
		t.Helper()
		e := wantReason(t, err, conduit.ResourceExhausted, "limit")
		if e.Details["limit"] != limit || e.Details["max"] != most || !strings.Contains(e.Message, limit) {
			t.Errorf("the error names %q, of %q: %s", e.Details["limit"], e.Details["max"], e.Message)
		}
	}
	_, err := call[result](f, "Save", operation{Path: p("/" + strings.Repeat("x", 20))})
	exceeded(err, "max_path", "20")
	_, err = call[result](f, "Save", operation{Path: p("/a"), Data: make([]byte, 4<<10+1)})
	exceeded(err, "max_contents", "4096")
	all := scope{Paths: []address.Path{*p("/")}}
	save := func(path string, n int) operation {
		return operation{Op: api.OpSave, Path: p(path), Data: make([]byte, n)}
	}
	_, err = call[transactReply](f, "Transact", transactRequest{Scope: all, Operations: []operation{save("/a", 4000), save("/b", 4000), save("/c", 4000)}})
	exceeded(err, "max_transaction", "8192")
	_, err = call[transactReply](f, "Transact", transactRequest{Scope: all, Operations: make([]operation, 4)})
	exceeded(err, "max_operations", "3")
	_, err = call[transactReply](f, "Transact", transactRequest{Scope: all, Operations: []operation{
		save("/a", 600), {Op: api.OpLoad, Path: p("/a")}, {Op: api.OpLoad, Path: p("/a")},
	}})
	exceeded(err, "max_answer", "1024")
	if r := f.do("Page", operation{Path: p("/**")}); len(r.Listings) > 0 {
		t.Errorf("what was refused has left %v", r.Listings)
	}
	for _, path := range []string{"/a", "/b", "/c"} {
		f.do("Save", operation{Path: p(path), Data: make([]byte, 2000)})
	}
	_, err = call[result](f, "Load", operation{Path: p("/a")})
	exceeded(err, "max_answer", "1024")
	if r := f.do("Page", operation{Path: p("/*"), Limit: 9}); len(r.Listings) != 2 || r.Next == "" {
		t.Errorf("a page has %v", r.Listings)
	}
	if r := f.do("RemoveMatching", operation{Path: p("/*"), Limit: 9}); len(r.IDs) != 2 {
		t.Errorf("removed: %v", r.IDs)
	}
	// One interactive transaction is open: the user may have no other one.
	d := conduit.Duplex[operation, result](f.ctx, f.Service(serviceName), "Transaction")
	defer d.Close()
	send := func(o operation) error {
		if err := d.Send(o); err != nil {
			return err
		}
		_, err := d.Recv()
		return err
	}
	if err := send(operation{Scope: &all}); err != nil {
		t.Fatal(err)
	}
	_, err = call[result](f, "Exists", operation{Path: p("/c")})
	exceeded(err, "max_open_per_caller", "1")
	for range 3 {
		if err := send(operation{Op: api.OpLookup, Path: p("/c")}); err != nil {
			t.Fatal(err)
		}
	}
	exceeded(send(operation{Op: api.OpLookup, Path: p("/c")}), "max_operations", "3")
}

// Contents that no transaction could hold in memory go up and down in one call, and in an
// interactive transaction piece by piece; more than max_contents is refused by its name.
func TestContentsAboveATransaction(t *testing.T) {
	f := start(t, plugintest.Attributes(map[string]string{"max_transaction": "1MiB", "max_contents": "6MiB"}))
	s := f.Service(serviceName)
	piece := bytes.Repeat([]byte("0123456789abcdef"), 1<<15) // 512 KiB
	upload := func(path string, pieces int) (*persistpb.WriteReply, error) {
		return conduit.Upload[*persistpb.WriteReply](f.ctx, s, "Write", func(yield func(*persistpb.Operation) bool) {
			for i := range pieces {
				o := &persistpb.Operation{Data: piece}
				if i == 0 {
					o.Path = &path
				}
				if !yield(o) {
					return
				}
			}
		})
	}
	wantPieces := func(path string, n int) {
		t.Helper()
		var got []byte
		for m, err := range conduit.Stream[*persistpb.Piece](f.ctx, s, "Read", &persistpb.Operation{Path: &path}) {
			if err != nil || m.GetSize() != int64(n*len(piece)) {
				t.Fatalf("%s: of %d bytes, %v", path, m.GetSize(), err)
			}
			got = append(got, m.GetData()...)
		}
		if !bytes.Equal(got, bytes.Repeat(piece, n)) {
			t.Errorf("%s: %d bytes come back, and not those that were written", path, len(got))
		}
	}
	if out, err := upload("/up", 12); err != nil || out.GetSize() != 6<<20 {
		t.Fatalf("written: %+v, %v", out, err)
	}
	wantPieces("/up", 12)
	for _, path := range []string{"/up", "/other"} {
		_, err := upload(path, 13)
		if e := wantReason(t, err, conduit.ResourceExhausted, "limit"); e.Details["limit"] != "max_contents" || e.Details["max"] != "6291456" {
			t.Errorf("%s: the error names %v", path, e.Details)
		}
	}
	wantPieces("/up", 12)
	_, err := call[result](f, "Lookup", operation{Path: p("/other")})
	wantReason(t, err, conduit.NotFound, "resource_not_found")

	d := f.transaction("/i")
	id := f.step(d, operation{Op: api.OpSave, Path: p("/i")}).ID
	for range 10 {
		f.step(d, operation{Op: api.OpAppend, ID: id, Data: piece})
	}
	f.step(d, operation{Op: api.OpCommit})
	wantPieces("/i", 10)
}
