package registry

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/discovery"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// An address that names an instance is answered with what that one lacks, whatever
// others have, and also while others have not answered yet.
func TestWhyNotOnThatInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		a := w.host("a", 10, "app")
		w.host("b", 10, "echo")
		slow := w.host("slow", 10, "app")
		slow.slow = time.Second / 2
		title := "a (" + a.id.String() + ")"
		try := func(when, addr, reason, message string) {
			t.Helper()
			_, err := w.r.TryPick(w.place(addr), Query{})
			wantError(t, err, conduit.NotFound, reason)
			check(t, when, err.Message, message)
		}
		ofA := func(path string) string { return a.id.String() + "://" + path }
		w.list("a", "b", "slow")
		for _, when := range []string{"one has not answered", "all have answered"} {
			try(when, ofA("echo/echo/S"), conduit.ReasonDeploymentNotFound, "instance "+title+" has no deployment echo")
			try(when, ofA("app/other/S"), conduit.ReasonElementNotFound, "instance "+title+" has no element "+ofA("app/other/S"))
			try(when, ofA("app/app/T"), conduit.ReasonServiceNotFound, "element app of instance "+title+" exports no service T")
			time.Sleep(time.Second)
			synctest.Wait()
		}
		try("any", "*://none/none/S", conduit.ReasonDeploymentNotFound, "none of 3 instances has deployment none")
		a.change(func(i *conduitv1.InstanceInfo) { i.Name = "" })
		a.link().status()
		synctest.Wait()
		try("without a name", ofA("echo/echo/S"), conduit.ReasonDeploymentNotFound, "instance "+a.id.String()+" has no deployment echo")
	})
}

// Who knows nobody says so, and does not count to nought.
func TestWhyWithoutPeers(t *testing.T) {
	for _, test := range []struct {
		name, who, has string
		self           address.InstanceID
		listed         []string
	}{
		{"a client", "the client", "", address.InstanceID{}, nil},
		{"an instance", "this instance", " does not have it and", address.UniqueInstanceID("me"), nil},
		{"an instance that is listed itself", "this instance", " does not have it and", address.UniqueInstanceID("me"), []string{"me"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Options{Self: test.self})
				w.host("me", 10, "app")
				gone := w.host("gone", 10, "app")
				w.list(test.listed...)
				<-w.r.Settled()
				for addr, reason := range map[string]string{
					in("app"): conduit.ReasonDeploymentNotFound, gone.on("app"): conduit.ReasonInstanceNotFound,
				} {
					_, err := w.pick(addr, Query{})
					wantError(t, err, conduit.NotFound, reason)
					says := test.who
					if reason == conduit.ReasonDeploymentNotFound {
						says += test.has
					}
					check(t, addr, err.Message, says+" knows no peers: discovery names none")
				}
				// A URL that nobody answers at is another matter.
				w.list(append([]string{"nobody"}, test.listed...)...)
				_, err := w.pick(in("app"), Query{})
				wantError(t, err, conduit.Unavailable, conduit.ReasonPeerUnreachable)
				if !strings.Contains(err.Message, "can be reached") {
					t.Error(err.Message)
				}
			})
		})
	}
}

// Where discovery names nobody since something is wrong with it, the caller is told what.
func TestWhyNamesWhatDiscoveryLacks(t *testing.T) {
	for _, test := range []struct {
		name, says string
		problems   []discovery.Problem
	}{
		{"none", "the client knows no peers: discovery names none", nil},
		{"one", "the client knows no peers: discovery names none: _c._tcp.x: NXDOMAIN", []discovery.Problem{{Entry: "_c._tcp.x", Err: errors.New("NXDOMAIN")}}},
		{"two", "the client knows no peers: discovery names none: a:1: no address (and 1 more)", []discovery.Problem{{Entry: "a:1", Err: errors.New("no address")}, {Entry: "b:1", Err: errors.New("none")}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Options{})
				r := New(Options{Source: source{Problems: test.problems}, Dialer: w})
				ctx, cancel := context.WithCancel(t.Context())
				over := make(chan error, 1)
				go func() { over <- r.Run(ctx) }()
				<-r.Settled()
				_, err := r.TryPick(r.Place(address.MustParse(in("app"))), Query{})
				wantError(t, err, conduit.NotFound, conduit.ReasonDeploymentNotFound)
				check(t, "the message", err.Message, test.says)
				cancel()
				if err := <-over; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// source is a discovery.Source that knows one thing.
type source discovery.Snapshot

func (s source) Run(ctx context.Context, publish func(discovery.Snapshot)) error {
	publish(discovery.Snapshot(s))
	<-ctx.Done()
	return nil
}
