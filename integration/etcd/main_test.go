package etcd

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit/auth/etcdstore"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"
)

// patience ends a test that hangs.
const patience = time.Minute

// shared is a server of one, for tests that do it no harm; each has a prefix of its own.
var shared *server

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "conduit-etcd-")
	if err == nil {
		shared, err = start(embedded(dir, "one", "http"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	shared.Close()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// embedded is the configuration of a server that listens on free ports of loopback, with
// scheme for clients.
func embedded(dir, name, scheme string) *embed.Config {
	c := embed.NewConfig()
	c.Name, c.Dir = name, dir
	c.LogLevel, c.LogOutputs = "panic", []string{os.DevNull}
	c.UnsafeNoFsync = true // what a crash of the machine would lose is not what is tested
	free := func(scheme string) []url.URL { return []url.URL{{Scheme: scheme, Host: "127.0.0.1:0"}} }
	c.ListenPeerUrls, c.ListenClientUrls = free("http"), free(scheme)
	c.AdvertisePeerUrls, c.AdvertiseClientUrls = free("http"), free(scheme)
	c.InitialCluster = c.InitialClusterFromName(name)
	return c
}

// server is one that may be closed twice.
type server struct {
	*embed.Etcd

	once sync.Once
}

// Close ends the server.
func (s *server) Close() { s.once.Do(s.Etcd.Close) }

// start starts a server and waits until it answers.
func start(c *embed.Config) (*server, error) {
	e, err := embed.StartEtcd(c)
	if err != nil {
		return nil, err
	}
	s := &server{Etcd: e}
	select {
	case <-e.Server.ReadyNotify():
		return s, nil
	case <-time.After(patience):
		s.Close()
		return nil, fmt.Errorf("etcd %s is not ready after %s", c.Name, patience)
	}
}

// end of a server that clients reach.
func end(e *server) string { return e.Clients[0].Addr().String() }

// options are those of a store of this test's own on the shared server.
func options(tb testing.TB) etcdstore.Options {
	tb.Helper()
	return etcdstore.Options{Endpoints: []string{end(shared)}, Prefix: "test/" + url.PathEscape(tb.Name())}
}

func opened(tb testing.TB, o etcdstore.Options) *etcdstore.Store {
	tb.Helper()
	s, err := etcdstore.Open(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

// relay passes connections on to a server, until it is cut.
type relay struct {
	tb   testing.TB
	to   string
	addr string

	mu    sync.Mutex
	l     net.Listener
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

func newRelay(tb testing.TB, to string) *relay {
	tb.Helper()
	r := &relay{tb: tb, to: to, addr: "127.0.0.1:0"}
	r.mend()
	tb.Cleanup(r.cut)
	return r
}

// mend has it pass on connections, at the same address as before.
func (r *relay) mend() {
	l, err := net.Listen("tcp", r.addr)
	if err != nil {
		r.tb.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.l, r.addr, r.conns = l, l.Addr().String(), map[net.Conn]bool{}
	r.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.wg.Go(func() { r.pass(c) })
		}
	})
}

func (r *relay) pass(c net.Conn) {
	defer c.Close()
	s, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer s.Close()
	r.mu.Lock()
	if r.l == nil {
		r.mu.Unlock()
		return
	}
	r.conns[c] = true
	r.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(s, c)
		_ = s.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(c, s)
	_ = c.Close()
	<-done
	r.mu.Lock()
	delete(r.conns, c)
	r.mu.Unlock()
}

// cut ends all connections, and refuses others.
func (r *relay) cut() {
	r.mu.Lock()
	if r.l == nil {
		r.mu.Unlock()
		return
	}
	_ = r.l.Close()
	r.l = nil
	for c := range r.conns {
		_ = c.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
}
