package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/transport"
)

// seen is an instance as far as doctor looks at one: it answers nothing.
type seen struct{ id, addr string }

// Handle implements link.Handler.
func (seen) Handle(in *link.Incoming) {
	in.Refuse(conduit.Errorf(conduit.Unimplemented, "none", conduit.Refused, "doctor asks nothing"))
}

// startSeen starts an instance with an id and an epoch, whose clock is off by that.
func startSeen(t *testing.T, id string, epoch uint64, skew time.Duration) seen {
	t.Helper()
	s := transport.NewServer(transport.ServerOptions{
		Handler: seen{},
		Link:    link.Options{Hello: link.Hello{Instance: id, Epoch: epoch}},
		Authenticate: func(r *http.Request) (link.Peer, error) {
			if r.Header.Get("Authorization") != "" {
				return link.Peer{}, errors.New("doctor has no session to give")
			}
			return link.Peer{Name: "client"}, nil
		},
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := s.HTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			w.Header().Set("Date", time.Now().Add(skew).UTC().Format(http.TimeFormat))
		}
		s.ServeHTTP(w, r)
	}))
	go func() { _ = h.Serve(l) }()
	t.Cleanup(func() {
		_ = h.Close()
		_ = s.Close()
	})
	return seen{id: id, addr: l.Addr().String()}
}

// between passes connections on to each of backends in turn; each is cut once it has
// carried nothing for idle, if that is not 0, behind the second thing that who dialled
// has sent: the upgrade comes first, and may take its time.
func between(t *testing.T, idle time.Duration, backends ...string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
		all.Wait()
	})
	all.Go(func() {
		for n := 0; ; n++ {
			in, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { carry(ctx, in, backends[n%len(backends)], idle) })
		}
	})
	return l.Addr().String()
}

func carry(ctx context.Context, in net.Conn, backend string, idle time.Duration) {
	defer in.Close()
	out, err := new(net.Dialer).DialContext(ctx, "tcp", backend)
	if err != nil {
		return
	}
	defer out.Close()
	stop := func() { _, _ = in.Close(), out.Close() }
	defer context.AfterFunc(ctx, stop)()
	cut := time.AfterFunc(time.Hour, stop)
	defer cut.Stop()
	var sent atomic.Int32
	var both sync.WaitGroup
	for way, pair := range [][2]net.Conn{{in, out}, {out, in}} {
		both.Go(func() {
			defer stop()
			buf := make([]byte, 32<<10)
			for {
				n, err := pair[0].Read(buf)
				if n > 0 {
					if way == 0 {
						sent.Add(1)
					}
					if idle > 0 && sent.Load() >= 2 {
						cut.Reset(idle)
					}
					if _, err := pair[1].Write(buf[:n]); err != nil {
						return
					}
				}
				if err != nil {
					return
				}
			}
		})
	}
	both.Wait()
}

// What doctor sees of peers by linking to them, though no instance runs here.
func TestDoctorOnLinks(t *testing.T) {
	id := func() string { return address.RandomInstanceID().String() }
	a, b := startSeen(t, id(), 1, 0), startSeen(t, id(), 2, time.Hour)
	copied := startSeen(t, a.id, 3, 0)
	doctor := func(want int, idle string, peers ...string) string {
		t.Helper()
		var out, errs strings.Builder
		app := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, dial: dialPeers}
		args := []string{
			"doctor", "--mode", "worker", "--name", "d", "--data-dir", t.TempDir() + "/data", "--cluster-insecure",
			"--cluster-listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--discovery-static", strings.Join(peers, ","), "--idle", idle,
		}
		if code := app.run(args); code != want {
			t.Errorf("%v: exit %d, want %d: %s%s", peers, code, want, &out, &errs)
		}
		return out.String()
	}
	wants := func(got string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !strings.Contains(strings.Join(strings.Fields(got), " "), part) {
				t.Errorf("no %q in\n%s", part, got)
			}
		}
	}
	url := func(addr string) string { return "ws://" + addr + transport.Path }
	not := func(got string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if strings.Contains(got, part) {
				t.Errorf("%q in\n%s", part, got)
			}
		}
	}

	got := doctor(0, "0s", a.addr)
	wants(got, "ok links "+url(a.addr)+" leads to one instance", "skipped idle ")
	not(got, "clock", "problem", "warning")
	got = doctor(0, "0s", b.addr)
	wants(got, "warning clock the clock of "+url(b.addr)+" is ", "ahead of this machine's")

	// One address for two, two for one, and two with one id.
	shared := between(t, 0, a.addr, b.addr)
	wants(doctor(1, "0s", shared), "problem links "+url(shared)+" leads to 2 instances", "clusterIP: None")
	other := between(t, 0, a.addr)
	wants(doctor(0, "0s", a.addr, other), "are one instance, which does no harm")
	wants(doctor(1, "0s", a.addr, copied.addr), "problem links ", "are two processes that both say that they are the instance "+a.id, "conduit-host id reset")

	// Nobody is there, or something else.
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := nobody.Addr().String()
	_ = nobody.Close()
	wants(doctor(1, "0s", a.addr, gone), "ok links "+url(a.addr)+" leads to one instance", "problem links "+url(gone)+": connection refused: nothing listens there")

	// The way to a peer cuts what is silent; the peer itself does not.
	cuts := between(t, 200*time.Millisecond, a.addr)
	wants(doctor(1, "1m", cuts), "problem idle a silent link to "+url(cuts)+" was cut after ", "set cluster.ping_interval to ")
	wants(doctor(0, "50ms", a.addr), "ok idle a silent link to "+url(a.addr)+" was not cut in ")
}

// A running instance tells of conflicts and of those that it cannot reach itself.
func TestDoctorOnWhatItsInstanceTells(t *testing.T) {
	one, two := link.Hello{Instance: "i", Epoch: 1}, link.Hello{Instance: "i", Epoch: 2}
	all := []met{{url: "ws://a", who: []link.Hello{one}}, {url: "ws://b", who: []link.Hello{two}}, {url: "ws://c", why: "ws://c: connection refused"}}
	var f findings
	for i := range all {
		all[i].judge(&f, runner{self: "i", lost: []string{"ws://c"}}, time.Second)
	}
	judgeDoubles(&f, all, "i")
	if len(f) != 2 || f[0].Status != findingOK || !strings.Contains(f[0].Text, "ws://a is this instance itself") {
		t.Errorf("%+v", f)
	}
	// One that the instance was not told of, or reaches, is doctor's to tell.
	f = nil
	if all[2].judge(&f, runner{self: "i"}, time.Second); len(f) != 1 || f[0].Status != findingProblem || !strings.Contains(f[0].Text, "ws://c: connection refused") {
		t.Errorf("%+v", f)
	}
}

func TestSkew(t *testing.T) {
	at := func(seconds float64) time.Time {
		return time.Unix(1000, 0).Add(time.Duration(seconds * float64(time.Second)))
	}
	for _, c := range []struct{ date, asked, answered, want float64 }{
		{10, 10.2, 10.3, 0},
		{10, 10.9, 11.1, 0}, // the second in which it was asked
		{11, 10.9, 11.1, 0},
		{14, 10.2, 10.5, 3.5},
		{5, 10.2, 10.5, -4.2},
	} {
		if got := skewOf(at(c.date), at(c.asked), at(c.answered)); got.Round(time.Millisecond) != time.Duration(c.want*float64(time.Second)) {
			t.Errorf("%+v: %v", c, got)
		}
	}
	for lasted, want := range map[time.Duration]string{10 * time.Second: findingProblem, 39 * time.Second: findingProblem, time.Minute: findingOK} {
		var f findings
		if (&quietTime{lasted: lasted, cut: true}).judge(&f, "ws://a", 20*time.Second); f[0].Status != want {
			t.Errorf("cut after %v: %+v", lasted, f)
		}
	}
}
