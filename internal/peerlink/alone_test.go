package peerlink

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
)

// alone connects to an instance with a link for each call, and returns a channel of
// these.
func alone(t *testing.T, i *instance) (*Link, heard, <-chan *link.Conn) {
	t.Helper()
	h, opened := heard{make(chan any, 1000)}, make(chan *link.Conn, 100)
	l, err := New(client(t, "good"), Options{PerCall: true, Alone: func(conn *link.Conn, url, instance string) {
		if url != i.url || instance != i.id.String() {
			t.Errorf("a link to %s at %s", instance, url)
		}
		opened <- conn
	}}).Connect(testContext(t), i.url, h.hooks())
	if err != nil {
		t.Fatal(err)
	}
	return l.(*Link), h, opened
}

// Each call has a link of its own, which ends with it however it ends; nothing of it
// goes over the registry's link.
func TestEachCallHasALink(t *testing.T) {
	ctx := testContext(t)
	i := start(t, 100)
	l, _, opened := alone(t, i)

	m, err := l.Invoke(ctx, link.NewRoute(workAddress), &conduit.Invocation{Method: "Work", Last: true}).Recv(ctx)
	if err != nil || string(m.Data) != "done" {
		t.Errorf("%q, %v", m.Data, err)
	}
	<-wait(t, opened, "its link").Done()

	answered, cancelled, watch := begin(ctx, l, "Wait", 0, false), begin(ctx, l, "Wait", 0, false), begin(ctx, l, "Watch", 0, true)
	var conns []*link.Conn
	for range 3 {
		wait(t, i.begun, "a call")
		conns = append(conns, wait(t, opened, "its link"))
	}
	if n := l.Outstanding(); n != 2 {
		t.Errorf("%d calls are outstanding, and two are that are no watch", n)
	}
	if n := l.conn.Outstanding(); n != 0 {
		t.Errorf("%d calls are on the registry's link", n)
	}
	if n := len(i.OpenLinks()); n != 4 {
		t.Errorf("%d links, not one for each call and the registry's", n)
	}
	cancelled.Cancel(nil)
	<-conns[1].Done()
	watch.Cancel(nil)
	<-conns[2].Done()
	close(i.release)
	if m, err := answered.Recv(ctx); err != nil || string(m.Data) != "done" {
		t.Errorf("%q, %v", m.Data, err)
	}
	if _, err := answered.Recv(ctx); !errors.Is(err, io.EOF) {
		t.Errorf("behind the last message: %v", err)
	}
	<-conns[0].Done()
	poll(t, "no call to be outstanding", func() bool { return l.Outstanding() == 0 })
	if !l.Usable() {
		t.Error("the registry's link ended, too")
	}
}

// What calls cost is off the sum of what was sent once the peer has judged it, or
// nobody ever will.
func TestUnitsOfLinksForOneCall(t *testing.T) {
	ctx := testContext(t)
	i := start(t, 100)
	l, h, _ := alone(t, i)
	if s := h.status(t); s.GetAvailable() != 100 {
		t.Fatalf("the first Status: %v", s)
	}
	x := begin(ctx, l, "Wait", 30, false)
	wait(t, i.begun, "the call")
	// While it runs: what it holds is in what the peer says is available.
	poll(t, "30 units to be judged", func() bool { return l.Unsent() == 30 })
	i.StatusChanged()
	poll(t, "the peer to say so", func() bool {
		s := h.status(t)
		if s.GetJudged() != 0 {
			t.Fatalf("judged on the registry's link: %v", s)
		}
		return s.GetAvailable() == 70
	})
	x.Cancel(nil)

	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := begin(gone, l, "Wait", 5, false).Recv(ctx); conduit.AsError(err, 0).Outcome != conduit.NotSent {
		t.Errorf("a call that was cancelled before: %v", err)
	}
	poll(t, "5 units to be off", func() bool { return l.Unsent() == 35 && l.Outstanding() == 0 })

	// One that nobody answers any more at all.
	_ = i.Close()
	<-l.Done()
	_, err := begin(ctx, l, "Wait", 7, false).Recv(ctx)
	if e := conduit.AsError(err, 0); e.Outcome != conduit.NotSent || !e.Retryable || e.Method != "Wait" || e.Address == "" {
		t.Errorf("a call that nobody can be dialled for: %+v", e)
	}
	if n := l.Unsent(); n != 42 {
		t.Errorf("%d units are off, not 42", n)
	}
}

// What a unary call without a deadline has begins when it is made, and not when its link
// is there.
func TestDialIsChargedToTheCall(t *testing.T) {
	i := start(t, 100)
	left := make(chan time.Duration, 1)
	i.behavior = func(in *link.Incoming) bool {
		left <- time.Duration(in.Invoke.TimeoutMicros) * time.Microsecond
		in.Refuse(conduit.Errorf(conduit.PermissionDenied, conduit.ReasonLevelTooLow, conduit.Refused, "no"))
		return true
	}
	var took time.Duration // at least so long the call had no link
	l, err := New(client(t, "good"), Options{PerCall: true, Alone: func(*link.Conn, string, string) {
		begun := time.Now()
		poll(t, "some time to pass", func() bool { took = time.Since(begun); return took > 3*time.Millisecond })
	}}).Connect(testContext(t), i.url, heard{make(chan any, 1000)}.hooks())
	if err != nil {
		t.Fatal(err)
	}
	x := l.Invoke(context.Background(), link.NewRoute(address.MustParse("*://conduit/conduit/conduit.v1.Instance")), &conduit.Invocation{Method: "WhoAreYou", Last: true})
	if _, err := x.Recv(testContext(t)); !errors.Is(err, &conduit.Error{Code: conduit.PermissionDenied}) {
		t.Fatal(err)
	}
	if got := wait(t, left, "the call"); got == 0 || got > conduit.DefaultCallTimeout-took {
		t.Errorf("after %s without a link the call has %s", took, got)
	}
}
