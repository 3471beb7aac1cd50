package transport

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
)

// idleLinks is how many links BenchmarkIdleLinks holds at once; the first few are not
// counted, since they make what all share.
const idleLinks, idleFirst = 500, 20

// BenchmarkIdleLinks prints what a link costs that has made one call and does nothing
// since, at each of its ends: bytes of heap and of stacks, and goroutines. The other end
// is another process. What the kernel holds of a connection is not among it.
func BenchmarkIdleLinks(b *testing.B) {
	for _, scheme := range []string{"ws", "wss"} {
		b.Run(scheme+"/dialer", func(b *testing.B) {
			url := otherEnd(b, "serve", scheme)
			c := idleClient(b)
			measure(b, func(n int) { dialIdle(b, c, url, n) })
		})
		b.Run(scheme+"/acceptor", func(b *testing.B) {
			s, url := idleServer(b, scheme)
			measure(b, func(n int) {
				before := len(s.OpenLinks())
				otherEnd(b, "dial", url, itoa(n))
				if now := len(s.OpenLinks()); now != before+n {
					b.Fatalf("%d links, not %d", now, before+n)
				}
			})
		})
	}
}

// measure opens links and prints what each of them costs.
func measure(b *testing.B, open func(n int)) {
	b.Helper()
	open(idleFirst)
	before, goroutines := memory()
	open(idleLinks)
	after, now := memory()
	b.ReportMetric(float64(after-before)/idleLinks, "B/link")
	b.ReportMetric(float64(now-goroutines)/idleLinks, "goroutines/link")
	b.ReportMetric(0, "ns/op") // no operation is measured
}

// memory returns the bytes of live heap and of stacks, and how many goroutines there are.
func memory() (bytes int64, goroutines int) {
	var m runtime.MemStats
	for range 3 { // what pools keep is gone after two
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse), runtime.NumGoroutine()
}

func idleServer(tb testing.TB, scheme string) (s *Server, url string) {
	tb.Helper()
	s = NewServer(ServerOptions{Handler: newEcho(), Authenticate: anyone})
	h := httptest.NewUnstartedServer(s)
	h.Config.ErrorLog = s.HTTPServer(s).ErrorLog
	if scheme == "wss" {
		h.StartTLS()
	} else {
		h.Start()
	}
	tb.Cleanup(func() { h.Close(); _ = s.Close() })
	return s, scheme + "://" + h.Listener.Addr().String()
}

// idleClient trusts the servers of idleServer, in whichever process they are.
func idleClient(tb testing.TB) *Client {
	tb.Helper()
	h := httptest.NewTLSServer(nil)
	defer h.Close()
	roots := x509.NewCertPool()
	roots.AddCert(h.Certificate())
	return dialer(tb, ClientOptions{TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}})
}

func dialIdle(tb testing.TB, c *Client, url string, n int) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 4*limit)
	defer cancel()
	for range n {
		l, err := c.DialLink(ctx, url, LinkHooks{})
		if err != nil {
			tb.Fatal(err)
		}
		if err := l.Sync(ctx); err != nil { // both ends have read and written
			tb.Fatal(err)
		}
	}
}

// otherEnd starts the other end in a process of its own, which lives as long as the
// benchmark, and returns its first word.
func otherEnd(b *testing.B, args ...string) string {
	b.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestIdleOtherEnd$") //nolint:gosec // itself
	cmd.Env = append(os.Environ(), "IDLE_OTHER_END="+strings.Join(args, " "))
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	timer := time.AfterFunc(4*limit, func() { _ = cmd.Process.Kill() })
	b.Cleanup(func() {
		_ = in.Close() // its word to end
		_ = cmd.Wait()
		timer.Stop()
	})
	said := bufio.NewScanner(out)
	if !said.Scan() {
		b.Fatalf("%v: the other end says nothing", args)
	}
	go func() {
		for said.Scan() { // what is printed at the end is nobody's
		}
	}()
	return said.Text()
}

// TestIdleOtherEnd is the other process of BenchmarkIdleLinks.
func TestIdleOtherEnd(t *testing.T) {
	args := strings.Fields(os.Getenv("IDLE_OTHER_END"))
	if len(args) == 0 {
		return // it is a test like any other, and there is nothing to do
	}
	word := "ready"
	switch args[0] {
	case "serve":
		_, word = idleServer(t, args[1])
	case "dial":
		n := 0
		for _, digit := range args[2] {
			n = n*10 + int(digit-'0')
		}
		dialIdle(t, idleClient(t), args[1], n)
	}
	if _, err := os.Stdout.WriteString(word + "\n"); err != nil {
		t.Fatal(err)
	}
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // it ends with the other process
}
