package main

import (
	"context"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/pluginapi"
	"github.com/elemental-conduit/conduit/pluginapi/plugintest"
	"github.com/elemental-conduit/conduit/plugins/txpersist/api"
	persistpb "github.com/elemental-conduit/conduit/proto/conduit/persist"
)

// pull reads a stream message by message; end leaves it.
func pull[T any](f *fixture, method string, in any) (next func() (T, error), end func()) {
	f.t.Helper()
	read, stop := iter.Pull2(conduit.Stream[T](f.ctx, f.Service(serviceName), method, in))
	f.t.Cleanup(stop)
	return func() (T, error) {
		v, err, ok := read()
		if !ok {
			f.t.Fatalf("%s ended", method)
		}
		return v, err
	}, stop
}

func TestWatchOverTheWire(t *testing.T) {
	f := start(t)
	f.do("Save", operation{Path: p("/a/1")})
	next, _ := pull[api.Event](f, "Watch", api.WatchRequest{Path: *p("/a/*")})
	want := func(next func() (api.Event, error), want string) string {
		t.Helper()
		e, err := next()
		if err != nil {
			t.Fatal(err)
		}
		got := []string{e.Kind}
		for _, c := range e.Changes {
			sign := "+"
			if c.Removed {
				sign = "-"
			}
			if c.Removed == (c.ID != nil) {
				t.Errorf("%v has the id %v", c.Path, c.ID)
			}
			got = append(got, sign+c.Path.WithoutContext().String())
		}
		if text := strings.Join(got, " "); text != want {
			t.Fatalf("the event is %q, want %q", text, want)
		}
		return e.Revision
	}
	want(next, "state +/a/1")
	revision := want(next, "synced")
	f.do("Put", operation{Path: p("/a/2")})
	want(next, "changes +/a/2")
	f.do("Unlink", operation{Path: p("/a/1")})
	want(next, "changes -/a/1")
	next, _ = pull[api.Event](f, "Watch", api.WatchRequest{Path: *p("/a/*"), Revision: revision})
	want(next, "synced")
	want(next, "changes +/a/2")
	want(next, "changes -/a/1")
	next, _ = pull[api.Event](f, "Watch", api.WatchRequest{Path: *p("/a/*"), Revision: "0123456789abcdef-9"})
	want(next, "resync")
	next, _ = pull[api.Event](f, "Watch", api.WatchRequest{Revision: "none"})
	_, err := next()
	wantReason(t, err, conduit.InvalidArgument, api.ReasonBadArgument)
}

func TestTasksOverTheWire(t *testing.T) {
	f := start(t)
	id := f.do("Save", operation{Path: p("/a")}).ID
	task := f.do("CreateTask", operation{ID: id, DueMS: 7}).Tasks[0]
	next, end := pull[api.Task](f, "WatchTasks", api.TaskRequest{Path: p("/a"), Window: 1})
	want := func(next func() (api.Task, error), want api.Task) {
		t.Helper()
		if got, err := next(); err != nil || got != want {
			t.Fatalf("%v comes, %v, want %v", got, err, want)
		}
	}
	want(next, task)
	other, _ := pull[api.Task](f, "WatchTasks", api.TaskRequest{})
	end() // its watcher goes without having done it
	want(other, task)
	// The end of it goes with the work, all or nothing.
	finish := operation{Op: api.OpFinishTask, Task: &task.ID, DueMS: 7}
	sc := scope{IDs: []address.ResourceID{*id}}
	out, err := call[transactReply](f, "Transact", transactRequest{Scope: sc, Operations: []operation{{Op: api.OpUpdate, ID: id, Data: []byte("done")}, finish}})
	if err != nil || !*out.Results[1].Removed {
		t.Fatalf("%+v, %v", out, err)
	}
	if r := f.do("FinishTask", operation{Task: &task.ID, DueMS: 7}); *r.Removed {
		t.Error("it was finished twice")
	}
	next, _ = pull[api.Task](f, "WatchTasks", api.TaskRequest{LeaseMS: maxLease.Milliseconds() + 1})
	_, err = next()
	wantReason(t, err, conduit.InvalidArgument, api.ReasonBadArgument)
}

// A call that is made again with its key is not done again.
func TestKeys(t *testing.T) {
	f := start(t)
	first := f.do("Save", operation{Path: p("/a"), Key: "k1", Data: []byte("x")})
	if again := f.do("Save", operation{Path: p("/a"), Key: "k1", Data: []byte("x")}); *again.ID != *first.ID {
		t.Errorf("the answers are %s and %s", first.ID, again.ID)
	}
	for range 3 {
		f.do("Append", operation{Path: p("/a"), Data: []byte("!"), Key: "k2"})
	}
	if r := f.do("Load", operation{Path: p("/a")}); string(r.Data) != "x!" {
		t.Errorf("the contents are %q", r.Data)
	}
	_, err := call[result](f, "Append", operation{Path: p("/a"), Data: []byte("?"), Key: "k2"})
	wantReason(t, err, conduit.FailedPrecondition, api.ReasonKeyReused)
	_, err = call[result](f, "Update", operation{Path: p("/a"), Data: []byte("!"), Key: "k2"}) // another method
	wantReason(t, err, conduit.FailedPrecondition, api.ReasonKeyReused)
	batch := transactRequest{Scope: scope{Paths: []address.Path{*p("/b")}}, Key: "k3", Operations: []operation{
		{Op: api.OpSave, Path: p("/b")}, {Op: api.OpPage, Path: p("/b/**")},
	}}
	a, err := call[transactReply](f, "Transact", batch)
	if err != nil {
		t.Fatal(err)
	}
	b, err := call[transactReply](f, "Transact", batch)
	if err != nil || len(b.Results) != 2 || *a.Results[0].ID != *b.Results[0].ID || len(b.Results[1].Listings) != 1 {
		t.Errorf("the batch gives %+v, then %+v, %v", a, b, err)
	}
	// Keys are each user's own.
	other := *f
	other.Client = f.As("bob", pluginapi.User)
	other.do("Append", operation{Path: p("/a"), Data: []byte("?"), Key: "k2"})
	// What failed is tried anew.
	_, err = call[result](f, "Save", operation{Path: p("/a"), Key: "k4"})
	wantReason(t, err, conduit.AlreadyExists, api.ReasonDuplicate)
	f.do("Unlink", operation{Path: p("/a")})
	f.do("Save", operation{Path: p("/a"), Key: "k4"})

	// And where a key does nothing it is refused.
	_, err = call[result](f, "Load", operation{Path: p("/a"), Key: "k"})
	wantReason(t, err, conduit.InvalidArgument, api.ReasonBadArgument)
	batch.Key, batch.Operations[0].Key = "", "k"
	_, err = call[transactReply](f, "Transact", batch)
	wantReason(t, err, conduit.InvalidArgument, api.ReasonBadArgument)
	_, err = conduit.Upload[writeReply](f.ctx, f.Service(serviceName), "Write", func(yield func(operation) bool) { yield(operation{Path: p("/w"), Key: "k"}) })
	wantReason(t, err, conduit.InvalidArgument, api.ReasonBadArgument)
	d := conduit.Duplex[operation, result](f.ctx, f.Service(serviceName), "Transaction")
	defer d.Close()
	if err := d.Send(operation{Scope: &scope{}, Key: "k"}); err != nil {
		t.Fatal(err)
	}
	_, err = d.Recv()
	wantReason(t, err, conduit.InvalidArgument, api.ReasonBadArgument)
}

func TestPut(t *testing.T) {
	f := start(t)
	first := f.do("Put", operation{Path: p("/a"), Data: []byte("1")})
	second := f.do("Put", operation{Path: p("/a"), Data: []byte("2")})
	if !*first.Created || *second.Created || *first.ID != *second.ID {
		t.Errorf("%+v, then %+v", first, second)
	}
	if r := f.do("Load", operation{Path: p("/a")}); string(r.Data) != "2" {
		t.Errorf("the contents are %q", r.Data)
	}
	id := address.RandomResourceID(first.ID.Node())
	_, err := call[result](f, "Put", operation{Path: p("/a"), ID: &id})
	wantReason(t, err, conduit.AlreadyExists, api.ReasonDuplicate)
	if r := f.do("Put", operation{Path: p("/b"), ID: &id}); *r.ID != id {
		t.Errorf("the id is %s", r.ID)
	}
}

// A transaction that reads sees one moment, waits for nobody and writes nothing.
func TestReadOnlyTransaction(t *testing.T) {
	f := start(t)
	f.do("Save", operation{Path: p("/a"), Data: []byte("1")})
	w := f.transaction("/a")
	d := conduit.Duplex[operation, result](f.ctx, f.Service(serviceName), "Transaction")
	defer d.Close()
	f.step(d, operation{Scope: &scope{Paths: []address.Path{*p("/a")}}, ReadOnly: true})
	f.step(w, operation{Op: api.OpUpdate, Path: p("/a"), Data: []byte("2")})
	f.step(w, operation{Op: api.OpCommit})
	if r := f.step(d, operation{Op: api.OpLoad, Path: p("/a")}); string(r.Data) != "1" {
		t.Errorf("it reads %q", r.Data)
	}
	if err := d.Send(operation{Op: api.OpUpdate, Path: p("/a")}); err != nil {
		t.Fatal(err)
	}
	_, err := d.Recv()
	wantReason(t, err, conduit.InvalidArgument, api.ReasonBadArgument)
}

// What is watched ends with the element, and nothing is left of it.
func TestWatchesEndWithTheirCaller(t *testing.T) {
	f := start(t)
	ctx, cancel := context.WithCancel(f.ctx)
	ended := make(chan error, 2)
	began := make(chan struct{})
	go func() {
		var end error
		for _, err := range conduit.Stream[api.Event](ctx, f.Service(serviceName), "Watch", api.WatchRequest{}) {
			if end = err; err == nil {
				close(began)
			}
		}
		ended <- end
	}()
	go func() {
		var end error
		for _, err := range conduit.Stream[api.Task](ctx, f.Service(serviceName), "WatchTasks", api.TaskRequest{}) {
			end = err
		}
		ended <- end
	}()
	select {
	case <-began:
	case <-time.After(time.Minute):
		t.Fatal("the watch does not begin")
	}
	cancel()
	for range 2 {
		if err := <-ended; conduit.AsError(err, conduit.OutcomeUnknown).Code != conduit.Canceled {
			t.Errorf("it ends with %v", err)
		}
	}
}

// One user's watches leave room for those of others.
func TestWatchesOfOneCaller(t *testing.T) {
	f := start(t, plugintest.Attributes(map[string]string{"max_watches": "3", "max_watches_per_caller": "1"}))
	other := *f
	other.Client = f.As("other", pluginapi.User)
	begin := func(f *fixture) context.CancelFunc {
		t.Helper()
		ctx, cancel := context.WithCancel(f.ctx)
		t.Cleanup(cancel)
		next, stop := iter.Pull2(conduit.Stream[*persistpb.Event](ctx, f.Service(serviceName), "Watch", &persistpb.WatchRequest{Path: "/**"}))
		t.Cleanup(stop)
		if e, err, ok := next(); !ok || err != nil || e.GetKind() != api.EventSynced {
			t.Fatalf("the watch begins with %v, %v", e, err)
		}
		return cancel
	}
	refused := func(f *fixture, limit string) {
		t.Helper()
		for _, method := range []string{"Watch", "WatchTasks"} {
			for _, err := range conduit.Stream[conduit.Message](f.ctx, f.Service(serviceName), method, map[string]string{"path": "/**"}) {
				if e := wantReason(t, err, conduit.ResourceExhausted, "limit"); e.Details["limit"] != limit {
					t.Errorf("%s: the error names %v", method, e.Details)
				}
			}
		}
	}
	end := begin(f)
	refused(f, "max_watches_per_caller")
	begin(&other)
	refused(&other, "max_watches_per_caller")
	end()
	for { // its place is free once the store has seen it
		if f.ctx.Err() != nil {
			t.Fatal("the place of a watch that ended is not given back")
		}
		var refusal error
		for e, err := range conduit.Stream[*persistpb.Event](f.ctx, f.Service(serviceName), "Watch", &persistpb.WatchRequest{Path: "/**"}) {
			if refusal = err; err == nil && e.GetKind() == api.EventSynced {
				break
			}
		}
		if refusal == nil {
			return
		}
	}
}
