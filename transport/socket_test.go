package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
)

const testToken = "CANARY-5f0c"

// socketInstance is a Server on a Unix socket.
type socketInstance struct {
	*Server
	echo *echo
	path string
	l    net.Listener
	over chan error
}

func serveSocket(tb testing.TB, o ServerOptions) *socketInstance {
	tb.Helper()
	in := &socketInstance{echo: newEcho(), path: filepath.Join(tb.TempDir(), "w.sock"), over: make(chan error, 1)}
	o.Handler = in.echo
	o.SocketToken = []byte(testToken)
	o.SocketPeer = link.Peer{Name: "operator", User: "operator:w", Level: conduit.Superuser}
	in.Server = NewServer(o)
	l, err := net.Listen("unix", in.path)
	if err != nil {
		tb.Fatal(err)
	}
	in.l = l
	go func() { in.over <- in.ServeSocket(l) }()
	tb.Cleanup(func() {
		_ = l.Close()
		if err := wait(tb, in.over, "the end of ServeSocket"); err != nil {
			tb.Error(err)
		}
		_ = in.Close()
	})
	return in
}

func dialSocket(ctx context.Context, tb testing.TB, path, token string) (*link.Conn, error) {
	tb.Helper()
	l, err := DialSocket(ctx, path, []byte(token), link.Options{})
	if err == nil {
		tb.Cleanup(func() {
			l.Close(link.CloseDone, "")
			<-l.Done()
		})
	}
	return l, err
}

// onSocket calls the test's element over a link.
type onSocket struct{ *link.Conn }

func (s onSocket) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	return s.Conn.Invoke(ctx, link.NewRoute(echoAddress), in)
}

func TestSocket(t *testing.T) {
	ctx := testContext(t)
	in := serveSocket(t, ServerOptions{})
	l, err := dialSocket(ctx, t, in.path, testToken)
	if err != nil {
		t.Fatal(err)
	}
	mustEcho(ctx, t, onSocket{l}, "hello")
	mustEcho(ctx, t, onSocket{l}, strings.Repeat("x", 1<<20))
	if who, err := call(ctx, onSocket{l}, "Who", ""); err != nil || who != "operator:w" {
		t.Errorf("%q, %v", who, err)
	}
	open := in.OpenLinks()
	if len(open) != 1 || open[0].Remote != "unix" || open[0].Peer.User != "operator:w" || in.Links() != 1 {
		t.Errorf("%+v", open)
	}
}

// Who says the wrong token, or none, gets no call through, and is told what to do.
func TestSocketToken(t *testing.T) {
	ctx := testContext(t)
	log := &logBuffer{}
	in := serveSocket(t, ServerOptions{Log: log.logger()})
	for name, tc := range map[string]struct{ token, want string }{
		"wrong":  {"something else", "the token is not this instance's"},
		"prefix": {testToken[:4], "the token is not this instance's"},
		"longer": {testToken + "0", "the token is not this instance's"},
		"none":   {"", "the token is empty"},
	} {
		_, err := dialSocket(ctx, t, in.path, tc.token)
		e := want(t, err, conduit.Unauthenticated, conduit.ReasonUnauthenticated, conduit.NotSent)
		if !strings.Contains(e.Message, tc.want) {
			t.Errorf("%s: %v", name, e)
		}
		if strings.Contains(err.Error()+log.String(), testToken) {
			t.Errorf("%s: the token is told: %v\n%s", name, err, log)
		}
	}
	// No token in the Hello at all, by a link that DialSocket would not make.
	conn, err := net.Dial("unix", in.path)
	if err != nil {
		t.Fatal(err)
	}
	l := link.New(newSocketCarrier(conn, 0, 0), link.Options{Dialer: true})
	_, err = call(ctx, onSocket{l}, "Echo", "x")
	if e, ok := errors.AsType[*conduit.Error](err); !ok || !strings.Contains(e.Message, "the Hello holds no token") {
		t.Errorf("no token: %v", err)
	}
	l.Close(link.CloseDone, "")
	wait(t, l.Done(), "the end of the link")
	if n := in.echo.served.Load(); n != 0 {
		t.Errorf("%d calls reached the handler", n)
	}
}

// What is no link costs its own connection, at once or with the Hello's time.
func TestSocketGarbage(t *testing.T) {
	ctx := testContext(t)
	in := serveSocket(t, ServerOptions{Link: link.Options{HelloTimeout: 100 * time.Millisecond}})
	for name, bytes := range map[string]string{
		"text": "GET /cluster/v1 HTTP/1.1\r\n\r\n", "garbage": "\x00\x00\x00\x04\xff\xff\xff\xff", "goodbye": "\x00\x00\x00\x00", "silence": "",
	} {
		conn, err := net.Dial("unix", in.path)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(limit))
		if _, err := io.WriteString(conn, bytes); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, conn); err != nil { // the instance hangs up
			t.Errorf("%s: %v", name, err)
		}
		_ = conn.Close()
	}
	l, err := dialSocket(ctx, t, in.path, testToken)
	if err != nil {
		t.Fatal(err)
	}
	mustEcho(ctx, t, onSocket{l}, "still here")
}

func TestSocketDrain(t *testing.T) {
	ctx := testContext(t)
	in := serveSocket(t, ServerOptions{})
	l, err := dialSocket(ctx, t, in.path, testToken)
	if err != nil {
		t.Fatal(err)
	}
	x := onSocket{l}.Invoke(ctx, &conduit.Invocation{Method: "Wait", Last: true})
	wait(t, in.echo.started, "the call")
	drained := make(chan error, 1)
	go func() { drained <- in.Drain(ctx) }()
	for l.Usable() { // until GoAway has come; the context ends it
		if err := ctx.Err(); err != nil {
			t.Fatal(err)
		}
	}
	_, err = dialSocket(ctx, t, in.path, testToken)
	want(t, err, conduit.Unavailable, conduit.ReasonDraining, conduit.NotSent)
	close(in.echo.release)
	if m, err := x.Recv(ctx); err != nil || string(m.Data) != "done" {
		t.Errorf("%q, %v", m.Data, err)
	}
	if err := wait(t, drained, "the drain"); err != nil {
		t.Error(err)
	}
	wait(t, l.Done(), "the end of the link")
	e, ok := errors.AsType[*link.CloseError](l.Err())
	if !ok || !e.Remote || e.Code != link.CloseDone {
		t.Errorf("the link ended with %v", l.Err())
	}
}

func TestSocketLimit(t *testing.T) {
	ctx := testContext(t)
	in := serveSocket(t, ServerOptions{MaxLinks: 1})
	if _, err := dialSocket(ctx, t, in.path, testToken); err != nil {
		t.Fatal(err)
	}
	_, err := dialSocket(ctx, t, in.path, testToken)
	want(t, err, conduit.Unavailable, conduit.ReasonOverloaded, conduit.NotSent)
}

// A Server that is closed hangs up; one without a token does not begin.
func TestSocketClosed(t *testing.T) {
	ctx := testContext(t)
	in := serveSocket(t, ServerOptions{})
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := dialSocket(ctx, t, in.path, testToken)
	want(t, err, conduit.Unavailable, conduit.ReasonPeerUnreachable, conduit.NotSent)
	if err := NewServer(ServerOptions{}).ServeSocket(in.l); err == nil {
		t.Error("served without a token")
	}
}

func TestDialSocketErrors(t *testing.T) {
	ctx := testContext(t)
	dir := t.TempDir()
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/stale.sock"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	_ = stale.Close()
	// One that listens and never accepts, as a stopped process does.
	mute, err := net.Listen("unix", dir+"/mute.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	if err := os.WriteFile(dir+"/file.sock", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"none.sock": "no instance runs here: there is no such socket", "stale.sock": "the one that made the socket is gone", "file.sock": "no instance runs here",
	} {
		_, err := dialSocket(ctx, t, dir+"/"+name, testToken)
		if e := want(t, err, conduit.Unavailable, conduit.ReasonPeerUnreachable, conduit.NotSent); !strings.Contains(e.Message, text) {
			t.Errorf("%s: %v", name, e)
		}
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = dialSocket(short, t, dir+"/mute.sock", testToken)
	if e := want(t, err, conduit.Unavailable, conduit.ReasonPeerUnreachable, conduit.NotSent); !strings.Contains(e.Message, "does not answer") {
		t.Errorf("mute: %v", e)
	}
}

// The address that DialSocket knocks at is one that can be called.
func TestKnockAddress(t *testing.T) {
	if _, err := address.Parse("*://conduit/conduit/conduit.v1.Door"); err != nil {
		t.Fatal(err)
	}
}
