package transport

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
)

func TestCalls(t *testing.T) {
	ctx := testContext(t)
	in := serve(t, "", ServerOptions{})
	at := dialer(t, ClientOptions{}).Peer(in.url).At(echoAddress)
	if at.Address() != echoAddress {
		t.Errorf("address %v", at.Address())
	}
	for _, n := range []int{0, 1, 1 << 10, 64 << 10, 1 << 20, 10 << 20} {
		mustEcho(ctx, t, at, strings.Repeat("x", n))
	}
	_, err := call(ctx, at, "Nothing", "")
	want(t, err, conduit.NotFound, conduit.ReasonMethodNotFound, conduit.Refused)
	_, err = call(ctx, at, "Echo", strings.Repeat("x", 10<<20+1))
	if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Reason != conduit.ReasonPayloadTooLarge {
		t.Errorf("over the cap: %v", err)
	}
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			for j := range 20 {
				what := strings.Repeat(itoa(i), 1+j*100)
				if got, err := call(ctx, at, "Echo", what); err != nil || got != what {
					t.Errorf("%.20q, %v", got, err)
				}
			}
		})
	}
	all.Wait()
	if n := in.Links(); n != 1 {
		t.Errorf("%d links, want one for all calls", n)
	}
}

func TestTLS(t *testing.T) {
	ctx := testContext(t)
	s := NewServer(ServerOptions{Handler: newEcho(), Authenticate: anyone})
	h := httptest.NewUnstartedServer(s)
	h.Config.ErrorLog = s.HTTPServer(s).ErrorLog
	h.StartTLS()
	t.Cleanup(func() { h.Close(); _ = s.Close() })
	url := "wss://" + h.Listener.Addr().String()
	roots := x509.NewCertPool()
	roots.AddCert(h.Certificate())
	c := dialer(t, ClientOptions{TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}})
	at := c.Peer(url).At(echoAddress)
	mustEcho(ctx, t, at, "hello")
	mustEcho(ctx, t, at, strings.Repeat("x", 1<<20))
	if err := s.Drain(ctx); err != nil {
		t.Error(err)
	}

	_, err := call(ctx, dialer(t, ClientOptions{}).Peer(url).At(echoAddress), "Echo", "")
	e := want(t, err, conduit.Unavailable, conduit.ReasonPeerUnreachable, conduit.NotSent)
	if !strings.Contains(e.Message, "authority") {
		t.Errorf("unknown authority: %v", err)
	}
	plain := serve(t, "", ServerOptions{})
	_, err = call(ctx, dialer(t, ClientOptions{}).Peer("wss://"+plain.addr).At(echoAddress), "Echo", "")
	if e := want(t, err, conduit.Unavailable, conduit.ReasonPeerUnreachable, conduit.NotSent); !strings.Contains(e.Message, "does not speak TLS") {
		t.Errorf("TLS to a plain port: %v", err)
	}
	_, err = call(ctx, dialer(t, ClientOptions{}).Peer("ws://"+h.Listener.Addr().String()).At(echoAddress), "Echo", "")
	if e := want(t, err, conduit.Unavailable, conduit.ReasonPeerUnreachable, conduit.NotSent); !strings.Contains(e.Message, "wss://") {
		t.Errorf("plain to a TLS port: %v", err)
	}
}

// TestPeerRestart is FRM-07.
func TestPeerRestart(t *testing.T) {
	ctx := testContext(t)
	in := serve(t, "", ServerOptions{})
	c := dialer(t, ClientOptions{})
	at := c.Peer(in.url).At(echoAddress)
	mustEcho(ctx, t, at, "before")
	in.stop()
	again := serve(t, in.addr, ServerOptions{})
	failures := 0
	for failures < 2 {
		_, err := call(ctx, at, "Echo", "after")
		if err == nil {
			break
		}
		failures++
		e, ok := errors.AsType[*conduit.Error](err)
		if !ok || !e.Retryable {
			t.Fatalf("a call after the restart: %v", err)
		}
	}
	if failures > 1 {
		t.Errorf("%d calls failed, at most one may by the race", failures)
	}
	if n := again.Links(); n != 1 {
		t.Errorf("%d links", n)
	}
}

// TestLinkLost: what dies without a word fails its calls at once, as unknown.
func TestLinkLost(t *testing.T) {
	ctx := testContext(t)
	in := serve(t, "", ServerOptions{})
	p := newProxy(t, in.addr)
	at := dialer(t, ClientOptions{}).Peer(p.url()).At(echoAddress)
	result := make(chan error, 1)
	go func() {
		_, err := call(ctx, at, "Wait", "")
		result <- err
	}()
	wait(t, in.echo.started, "the call")
	p.cut()
	want(t, wait(t, result, "the call's end"), conduit.Unavailable, conduit.ReasonPeerLost, conduit.OutcomeUnknown)
	wait(t, in.echo.ended, "the handler's end")
	for range 2 { // the cut may still be on its way when the next call looks
		if _, err := call(ctx, at, "Echo", "x"); err == nil {
			return
		}
	}
	t.Error("the next call does not dial anew")
}

// TestFailedDial is FRM-09: one dial serves all who wait, and the next call
// dials anew.
func TestFailedDial(t *testing.T) {
	const callers = 10
	// all makes ten calls at once and returns their errors.
	all := func(ctx context.Context, at conduit.Invoker) []error {
		errs := make([]error, callers)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { _, errs[i] = call(ctx, at, "Echo", "x") })
		}
		wg.Wait()
		return errs
	}
	t.Run("401", func(t *testing.T) {
		ctx := testContext(t)
		var asked atomic.Int32
		var refuse atomic.Bool
		refuse.Store(true)
		hold := make(chan struct{})
		in := serve(t, "", ServerOptions{Authenticate: func(r *http.Request) (link.Peer, error) {
			asked.Add(1)
			<-hold
			if refuse.Load() {
				return link.Peer{}, errors.New("the session is unknown")
			}
			return anyone(r)
		}})
		c := dialer(t, ClientOptions{Session: "s3cr3t-CANARY-91"})
		p := c.Peer(in.url)
		at := p.At(echoAddress)
		var errs []error
		done := make(chan struct{})
		go func() { errs = all(ctx, at); close(done) }()
		// One caller more, whose cancellation must not end the dial of the others.
		hasty, cancel := context.WithCancel(ctx)
		gone := make(chan error, 1)
		go func() { _, err := call(hasty, at, "Echo", "x"); gone <- err }()
		cancel()
		want(t, wait(t, gone, "the hasty caller"), conduit.Canceled, conduit.ReasonCanceled, conduit.NotSent)
		close(hold)
		wait(t, done, "the ten")
		for _, err := range errs {
			e := want(t, err, conduit.Unauthenticated, conduit.ReasonUnauthenticated, conduit.NotSent)
			if e.Retryable || e.Method != "Echo" || e.Address != echoAddress.String() || strings.Contains(err.Error(), "CANARY") {
				t.Errorf("%+v", e)
			}
		}
		// Callers that came after the first dial had failed made another: few, not ten.
		if n := asked.Load(); n > 3 {
			t.Errorf("%d dials for %d callers", n, callers)
		}
		refuse.Store(false)
		mustEcho(ctx, t, c.PeerAs(in.url, "good").At(echoAddress), "mended")
	})
	t.Run("refused", func(t *testing.T) {
		ctx := testContext(t)
		in := serve(t, "", ServerOptions{})
		in.stop()
		at := dialer(t, ClientOptions{}).Peer(in.url).At(echoAddress)
		_, err := call(ctx, at, "Echo", "x")
		e := want(t, err, conduit.Unavailable, conduit.ReasonPeerUnreachable, conduit.NotSent)
		if !e.Retryable || !strings.Contains(e.Message, in.addr) || !strings.Contains(e.Message, "refused") {
			t.Errorf("%+v", e)
		}
		serve(t, in.addr, ServerOptions{})
		mustEcho(ctx, t, at, "at once")
	})
	t.Run("mute", func(t *testing.T) {
		ctx := testContext(t)
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		at := dialer(t, ClientOptions{DialTimeout: 300 * time.Millisecond}).Peer("ws://" + l.Addr().String()).At(echoAddress)
		for _, err := range all(ctx, at) {
			if e := want(t, err, conduit.Unavailable, conduit.ReasonPeerUnreachable, conduit.NotSent); !strings.Contains(e.Message, "no answer within 300ms") {
				t.Errorf("%v", err)
			}
		}
	})
	t.Run("no Hello", func(t *testing.T) {
		ctx := testContext(t)
		mute := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s := NewServer(ServerOptions{Authenticate: anyone})
			ws, err := s.upgrader.Upgrade(w, r, nil)
			if err != nil {
				return
			}
			defer ws.Close()
			_, _, _ = ws.ReadMessage() // to the close
		}))
		defer mute.Close()
		at := dialer(t, ClientOptions{DialTimeout: 300 * time.Millisecond}).Peer("ws" + strings.TrimPrefix(mute.URL, "http")).At(echoAddress)
		_, err := call(ctx, at, "Echo", "x")
		if e := want(t, err, conduit.Unavailable, conduit.ReasonPeerUnreachable, conduit.NotSent); !strings.Contains(e.Message, "no Hello within 300ms") {
			t.Errorf("%v", err)
		}
	})
}

// TestPauses: calls to a dead peer do not become as many dials, and a pause says
// how long it lasts.
func TestPauses(t *testing.T) {
	ctx := testContext(t)
	var dials atomic.Int32
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		dials.Add(1)
		w.WriteHeader(http.StatusNotFound)
	}))
	defer h.Close()
	at := dialer(t, ClientOptions{}).Peer("ws" + strings.TrimPrefix(h.URL, "http")).At(echoAddress)
	paused := 0
	begin := time.Now()
	for range 1000 {
		_, err := call(ctx, at, "Echo", "x")
		if e := want(t, err, conduit.Unavailable, conduit.ReasonPeerUnreachable, conduit.NotSent); e.RetryAfter > 0 {
			paused++
		}
	}
	most := 3 + int32(time.Since(begin)/(firstPause/2))
	if n := dials.Load(); n < 2 || n > most {
		t.Errorf("%d dials for 1000 calls, want 2 to %d", n, most)
	}
	if paused < 500 {
		t.Errorf("only %d calls were told to wait", paused)
	}
}

func TestWrongEndpoint(t *testing.T) {
	ctx := testContext(t)
	for _, test := range []struct {
		name    string
		status  int
		header  map[string]string
		body    string
		code    conduit.Code
		reason  string
		text    string
		retry   bool
		retryIn time.Duration
	}{
		{name: "404", status: 404, body: "nothing here", code: conduit.Unavailable, reason: conduit.ReasonPeerUnreachable, text: "404 Not Found", retry: true},
		{name: "404 of a gateway", status: 404, header: map[string]string{"Content-Type": "application/problem+json"}, body: `{"title":"Not Found"}`, code: conduit.Unavailable, reason: conduit.ReasonPeerUnreachable, text: "it answers as the gateway of one does; links are at its cluster.listen", retry: true},
		{name: "200", status: 200, header: map[string]string{"Server": "some-proxy"}, body: "<html>", code: conduit.Unavailable, reason: conduit.ReasonPeerUnreachable, text: "some-proxy", retry: true},
		{name: "302", status: 302, header: map[string]string{"Location": "http://elsewhere/"}, code: conduit.Unavailable, reason: conduit.ReasonPeerUnreachable, text: "302", retry: true},
		{name: "401", status: 401, header: map[string]string{HeaderAuthStore: "theirs"}, body: "unknown", code: conduit.Unauthenticated, reason: conduit.ReasonUnauthenticated, text: `two auth stores: ours here, and "theirs" there: instances that call each other share one`},
		{name: "401 of an expired session", status: 401, header: map[string]string{HeaderReason: "session_expired"}, body: "over", code: conduit.Unauthenticated, reason: conduit.ReasonSessionExpired, text: "over"},
		{name: "401 of another reason", status: 401, header: map[string]string{HeaderReason: "made_up"}, code: conduit.Unauthenticated, reason: conduit.ReasonUnauthenticated},
		{name: "403", status: 403, body: "no", code: conduit.PermissionDenied, reason: "permission_denied", text: "forbids"},
		{name: "503 of an instance", status: 503, header: map[string]string{HeaderReason: "draining", "Retry-After": "7"}, code: conduit.Unavailable, reason: conduit.ReasonDraining, retry: true, retryIn: 7 * time.Second},
		{name: "503 of a proxy", status: 503, code: conduit.Unavailable, reason: conduit.ReasonPeerUnreachable, retry: true},
		{name: "an echoed secret", status: 500, body: "you sent Bearer s3cr3t-CANARY-91", code: conduit.Unavailable, reason: conduit.ReasonPeerUnreachable, text: "[session]", retry: true},
		{name: "a secret where texts are cut", status: 500, body: strings.Repeat("x", 190) + "s3cr3t-CANARY-91", header: map[string]string{"Server": strings.Repeat("y", 52) + "s3cr3t-CANARY-91"}, code: conduit.Unavailable, reason: conduit.ReasonPeerUnreachable, text: "[session", retry: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for k, v := range test.header {
					w.Header().Set(k, v)
				}
				w.WriteHeader(test.status)
				_, _ = io.WriteString(w, test.body)
			}))
			defer h.Close()
			url := "ws" + strings.TrimPrefix(h.URL, "http")
			c := dialer(t, ClientOptions{Session: "s3cr3t-CANARY-91", Link: link.Options{Hello: link.Hello{AuthStore: "ours"}}})
			_, err := call(ctx, c.Peer(url).At(echoAddress), "Echo", "")
			e := want(t, err, test.code, test.reason, conduit.NotSent)
			if !strings.Contains(e.Message, url+Path) || !strings.Contains(e.Message, test.text) || strings.Contains(err.Error(), "CANARY") {
				t.Errorf("message %q, want URL and %q in it", e.Message, test.text)
			}
			if e.Retryable != test.retry || e.RetryAfter != test.retryIn || e.Peer != url+Path {
				t.Errorf("%+v", e)
			}
		})
	}
}

// TestStrangersAnswer: what is no HTTP, or has no end, costs neither memory nor a secret.
func TestStrangersAnswer(t *testing.T) {
	const secret = "s3cr3t-CANARY-91"
	ctx := testContext(t)
	for _, test := range []struct {
		name, answer, more string // more is sent until the other end has enough
		text               string
	}{
		{name: "headers without end", answer: "HTTP/1.1 200 OK\r\n", more: "X-A: " + strings.Repeat("a", 1000) + "\r\n", text: "more than 256 KiB"},
		{name: "a line without end", more: strings.Repeat("a", 1000), text: "more than 256 KiB"},
		{name: "an echo in the header", answer: "HTTP/1.1 200 OK\r\n\x1b" + secret + "\r\n\r\n", text: "[session]"},
		{name: "an echo in the first line", answer: secret + "\r\n\r\n", text: "[session]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var strangers sync.WaitGroup
			defer strangers.Wait()
			defer l.Close()
			strangers.Go(func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					strangers.Go(func() {
						defer conn.Close()
						if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
							return
						}
						_, err := io.WriteString(conn, test.answer)
						for err == nil && test.more != "" {
							_, err = io.WriteString(conn, test.more)
						}
					})
				}
			})
			c := dialer(t, ClientOptions{Session: secret, DialTimeout: 20 * time.Second})
			_, err = call(ctx, c.Peer("ws://"+l.Addr().String()).At(echoAddress), "Echo", "")
			e := want(t, err, conduit.Unavailable, conduit.ReasonPeerUnreachable, conduit.NotSent)
			if !strings.Contains(e.Message, test.text) {
				t.Errorf("message %.300q, want %q in it", e.Message, test.text)
			}
			if all := fmt.Sprintf("%v %+v %v", err, e, errors.Unwrap(e)); strings.Contains(all, "CANARY") {
				t.Errorf("the secret is in %.500q", all)
			}
		})
	}
}

// TestCancelDoesNotWait is CAN-05: the peer is frozen.
func TestCancelDoesNotWait(t *testing.T) {
	ctx := testContext(t)
	in := serve(t, "", ServerOptions{})
	p := newProxy(t, in.addr)
	at := dialer(t, ClientOptions{}).Peer(p.url()).At(echoAddress)
	mustEcho(ctx, t, at, "x")
	p.freeze()
	short, cancel := context.WithCancel(ctx)
	result := make(chan error, 1)
	go func() {
		// More than the kernel's buffers hold, so that the write is stuck as well.
		_, err := call(short, at, "Echo", strings.Repeat("x", 9<<20))
		result <- err
	}()
	runtime.Gosched()
	cancel()
	begin := time.Now()
	err := wait(t, result, "the cancelled call")
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("the cancelled call took %v", took)
	}
	if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Code != conduit.Canceled {
		t.Errorf("%v", err)
	}
}

// TestIdle: an idle link is closed by the dialer, and the next call dials anew.
func TestIdle(t *testing.T) {
	ctx := testContext(t)
	gone := make(chan error, 10)
	in := serve(t, "", ServerOptions{Link: link.Options{OnClose: func(err error) { gone <- err }}})
	p := dialer(t, ClientOptions{IdleTimeout: 20 * time.Millisecond}).Peer(in.url)
	at := p.At(echoAddress)
	for range 2 {
		mustEcho(ctx, t, at, "x")
		e, ok := errors.AsType[*link.CloseError](wait(t, gone, "the idle close"))
		if !ok || e.Code != link.CloseDone || !e.Remote {
			t.Errorf("closed with %v", e)
		}
	}
	// A call under way keeps its link.
	result := make(chan error, 1)
	go func() { _, err := call(ctx, at, "Wait", ""); result <- err }()
	wait(t, in.echo.started, "the call")
	select {
	case err := <-gone:
		t.Fatalf("closed under a call: %v", err)
	case <-time.After(100 * time.Millisecond): // five idle timeouts
	}
	close(in.echo.release)
	if err := wait(t, result, "the call"); err != nil {
		t.Error(err)
	}
	wait(t, gone, "the idle close")
}

// TestIdleLosesNoCall: calls that begin while the idle timeout strikes succeed.
func TestIdleLosesNoCall(t *testing.T) {
	ctx := testContext(t)
	gone := make(chan error, 1000)
	in := serve(t, "", ServerOptions{Link: link.Options{OnClose: func(err error) {
		select {
		case gone <- err:
		default:
		}
	}}})
	at := dialer(t, ClientOptions{IdleTimeout: time.Millisecond}).Peer(in.url).At(echoAddress)
	closes := 0
	tick := time.NewTicker(900 * time.Microsecond)
	defer tick.Stop()
	for range 600 {
		mustEcho(ctx, t, at, "x")
		<-tick.C
		select {
		case <-gone:
			closes++
		default:
		}
	}
	if closes == 0 {
		t.Error("the idle timeout never struck: the test shows nothing")
	}
}

// TestCutCycles is FRM-11, smaller: nothing is left after links that are cut at
// any moment; goleak looks at the end.
func TestCutCycles(t *testing.T) {
	ctx := testContext(t)
	in := serve(t, "", ServerOptions{})
	cycles := 100
	if testing.Short() {
		cycles = 10
	}
	for i := range cycles {
		p := newProxy(t, in.addr)
		c := NewClient(ClientOptions{})
		at := c.Peer(p.url()).At(echoAddress)
		var calls sync.WaitGroup
		for j := range 5 {
			calls.Go(func() {
				method := "Echo"
				if j == 0 {
					method = "Wait"
				}
				_, _ = call(ctx, at, method, strings.Repeat("x", j*i*100)) // any end will do
			})
		}
		if i%2 == 0 {
			wait(t, in.echo.started, "the call")
		}
		p.cut()
		if i%2 == 1 {
			_ = c.Close() // the Wait may have begun on a link dialled after the cut
		}
		calls.Wait()
		_ = c.Close()
		for len(in.echo.started) > 0 {
			<-in.echo.started
		}
	}
	for in.Links() > 0 { // links whose cut has not been noticed yet
		if ctx.Err() != nil {
			t.Fatalf("%d links are left", in.Links())
		}
		runtime.Gosched()
	}
}

func TestClientClose(t *testing.T) {
	ctx := testContext(t)
	in := serve(t, "", ServerOptions{})
	c := NewClient(ClientOptions{})
	at := c.Peer(in.url).At(echoAddress)
	result := make(chan error, 1)
	go func() { _, err := call(ctx, at, "Wait", ""); result <- err }()
	wait(t, in.echo.started, "the call")
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := wait(t, result, "the call"); err == nil {
		t.Error("the call outlived its client")
	}
	_, err := call(ctx, at, "Echo", "x")
	want(t, err, conduit.Canceled, conduit.ReasonAborted, conduit.NotSent)

	// Close does not wait for a peer that is mute.
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c = NewClient(ClientOptions{DialTimeout: limit})
	go func() {
		_, err := call(ctx, c.Peer("ws://"+l.Addr().String()).At(echoAddress), "Echo", "x")
		result <- err
	}()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	begin := time.Now()
	_ = c.Close()
	want(t, wait(t, result, "the call"), conduit.Canceled, conduit.ReasonAborted, conduit.NotSent)
	if took := time.Since(begin); took > limit/2 {
		t.Errorf("Close took %v", took)
	}
}

func TestPerCall(t *testing.T) {
	ctx := testContext(t)
	gone := make(chan error, 10)
	in := serve(t, "", ServerOptions{Link: link.Options{OnClose: func(err error) { gone <- err }}})
	c := dialer(t, ClientOptions{PerCall: true})
	at := c.Peer(in.url).At(echoAddress)
	for range 3 {
		mustEcho(ctx, t, at, "x")
		wait(t, gone, "the close after the call")
	}
	// A cancelled call ends its link as well.
	short, cancel := context.WithCancel(ctx)
	x := at.Invoke(short, &conduit.Invocation{Method: "Wait", Last: true})
	wait(t, in.echo.started, "the call")
	cancel()
	if _, err := x.Recv(short); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	wait(t, gone, "the close after the cancel")
	in.stop()
	_, err := call(ctx, at, "Echo", "x")
	want(t, err, conduit.Unavailable, conduit.ReasonPeerUnreachable, conduit.NotSent)
}

func TestSessionsShareNoLink(t *testing.T) {
	ctx := testContext(t)
	in := serve(t, "", ServerOptions{Authenticate: func(r *http.Request) (link.Peer, error) {
		return link.Peer{User: strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), Level: conduit.User}, nil
	}})
	c := dialer(t, ClientOptions{Session: "ada"})
	for range 2 {
		for _, user := range []string{"ada", "bob"} {
			got, err := call(ctx, c.PeerAs(in.url, user).At(echoAddress), "Who", "")
			if err != nil || got != user {
				t.Errorf("%s runs as %q, %v", user, got, err)
			}
		}
	}
	if c.Peer(in.url) != c.PeerAs(in.url+"", "ada") || in.Links() != 2 {
		t.Errorf("%d links for two sessions", in.Links())
	}
	for _, k := range []string{"%v", "%+v", "%#v", "%s"} {
		if s := fmt.Sprintf(k, c.Peer(in.url).k); strings.Contains(s, "ada") {
			t.Errorf("%s prints the session: %s", k, s)
		}
	}
}

// TestNoSecretInLogs is AUT-03 for what this package logs and returns.
func TestNoSecretInLogs(t *testing.T) {
	const canary = "s3cr3t-CANARY-91"
	ctx := testContext(t)
	logs := &logBuffer{}
	in := serve(t, "", ServerOptions{Log: logs.logger()})
	gone := serve(t, "", ServerOptions{})
	gone.stop()
	var said []string
	for _, o := range []struct{ url, session string }{
		{in.url, canary},
		{in.url, "bad-" + canary},
		{in.url, canary + "\nX-Injected: 1"},
		{in.url, canary + " u1"},
		{gone.url, canary},
		{"ws://user:" + canary + "@127.0.0.1:1", ""},
		{"ws://user:" + canary + "@127.0.0.1:bad", ""},
		{in.url + "?session=" + canary, ""},
		{in.url + "#" + canary, ""},
		{"wss://" + in.addr, canary},
	} {
		c := dialer(t, ClientOptions{Session: o.session, Log: logs.logger()})
		p := c.Peer(o.url)
		_, err := call(ctx, p.At(echoAddress), "Echo", "x")
		if err != nil {
			said = append(said, err.Error(), fmt.Sprintf("%+v %#v", err, err), fmt.Sprint(errors.Unwrap(err)))
		}
		said = append(said, p.URL(), fmt.Sprintf("%v", p.k))
	}
	said = append(said, logs.String())
	for _, s := range said {
		if strings.Contains(s, "CANARY") {
			t.Errorf("the secret is in %q", s)
		}
	}
	if !strings.Contains(logs.String(), "link opened") {
		t.Error("nothing was logged: the test shows nothing")
	}
}

func TestCheckURL(t *testing.T) {
	for _, test := range []struct {
		in, want string
		insecure bool
	}{
		{in: "ws://127.0.0.1:7400", want: "ws://127.0.0.1:7400/cluster/v1"},
		{in: "ws://LOCALHOST:7400/cluster/v1", want: "ws://localhost:7400/cluster/v1"},
		{in: "ws://[::1]:7400/", want: "ws://[::1]:7400/cluster/v1"},
		{in: "wss://Host", want: "wss://host:443/cluster/v1"},
		{in: "ws://host:7400", insecure: true, want: "ws://host:7400/cluster/v1"},
		{in: "ws://host:7400"},
		{in: "ws://10.0.0.1:7400"},
		{in: "ws://127.0.0.1.evil.example:7400"},
		{in: "ws://localhost.evil.example:7400"},
		{in: "http://127.0.0.1:7400"},
		{in: "127.0.0.1:7400"},
		{in: "ws:///cluster/v1"},
		{in: "ws://127.0.0.1:7400/other"},
		{in: "ws://127.0.0.1:7400?x=y"},
		{in: "ws://127.0.0.1:7400?"},
		{in: "ws://127.0.0.1:7400#"},
		{in: "ws://u@127.0.0.1:7400"},
		{in: "ws://127.0.0.1:http"},
		{in: "://"},
		{in: ""},
	} {
		got, err := checkURL(test.in, test.insecure)
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("checkURL(%q) = %q, %v; want %q", test.in, got, err, test.want)
		}
		if err != nil && (err.Code != conduit.InvalidArgument || err.Reason != conduit.ReasonBadAddress || err.Outcome != conduit.NotSent) {
			t.Errorf("%q: %+v", test.in, err)
		}
	}
	ctx := testContext(t)
	_, err := call(ctx, dialer(t, ClientOptions{}).Peer("ws://192.0.2.1:7400").At(echoAddress), "Echo", "")
	if e := want(t, err, conduit.InvalidArgument, conduit.ReasonBadAddress, conduit.NotSent); !strings.Contains(e.Message, "cluster.insecure") || !strings.Contains(e.Message, "option Insecure") {
		t.Errorf("%v", err)
	}
}

func FuzzCheckURL(f *testing.F) {
	for _, s := range []string{"ws://127.0.0.1:7400", "wss://h", "ws://u:p@h:1", "ws://[::1%25a]:1", "ws://h?x#y", "x"} {
		f.Add(s, true)
	}
	f.Fuzz(func(t *testing.T, s string, insecure bool) {
		got, bad := checkURL(s, insecure)
		if bad != nil {
			return
		}
		again, bad := checkURL(got, insecure)
		if bad != nil || again != got {
			t.Fatalf("%q gives %q, which gives %q, %v", s, got, again, bad)
		}
	})
}
