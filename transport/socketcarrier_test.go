package transport

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit/internal/link"
)

// socketPair returns both ends of a Unix socket's connection.
func socketPair(tb testing.TB) (a, b net.Conn) {
	tb.Helper()
	l, err := net.Listen("unix", filepath.Join(tb.TempDir(), "s"))
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			c = nil
		}
		accepted <- c
	}()
	if a, err = net.Dial("unix", l.Addr().String()); err != nil {
		tb.Fatal(err)
	}
	if b = wait(tb, accepted, "the connection"); b == nil {
		tb.Fatal("no connection")
	}
	for _, c := range []net.Conn{a, b} {
		_ = c.SetDeadline(time.Now().Add(limit))
		tb.Cleanup(func() { _ = c.Close() })
	}
	return a, b
}

func record(p string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(p))), p...)
}

func TestSocketCarrier(t *testing.T) {
	x, y := socketPair(t)
	a, b := newSocketCarrier(x, 0, 0), newSocketCarrier(y, 0, 0)
	messages := []string{"a", strings.Repeat("b", 100), strings.Repeat("c", socketBuffer), strings.Repeat("d", link.DefaultMaxPacket), "e", ""}
	written := make(chan error, 1)
	go func() {
		for _, m := range messages {
			if err := a.WriteMessage([]byte(m)); err != nil {
				written <- err
				return
			}
		}
		written <- a.Close(link.CloseGoingAway, "draining")
	}()
	for _, m := range messages {
		if m == "" {
			continue // is no record: it would be a goodbye
		}
		got, err := b.ReadMessage()
		if err != nil || string(got) != m {
			t.Fatalf("%d bytes, %v; want %d", len(got), err, len(m))
		}
	}
	for range 2 {
		_, err := b.ReadMessage()
		e, ok := errors.AsType[*link.CloseError](err)
		if !ok || e.Code != link.CloseDone || !e.Remote {
			t.Fatalf("after the goodbye: %v", err)
		}
	}
	if err := b.Close(link.CloseAbnormal, ""); err != nil {
		t.Error(err)
	}
	if err := wait(t, written, "the writer"); err != nil {
		t.Error(err)
	}
	if err := a.WriteMessage([]byte("late")); err == nil {
		t.Error("written after Close")
	}
}

// What is no record ends the reading, and says what it was.
func TestSocketCarrierReads(t *testing.T) {
	for name, tc := range map[string]struct {
		bytes string
		want  string
		code  link.CloseCode // 0 = not a CloseError
	}{
		"nothing":        {"", "cut without a goodbye, after 0 bytes", 0},
		"half a header":  {"\x00\x00", "cut without a goodbye, after 2 bytes", 0},
		"half a record":  {"\x00\x00\x00\x05abc", "cut in a record of 5 bytes, after 3", 0},
		"goodbye":        {"\x00\x00\x00\x00", "the other end", link.CloseDone},
		"text":           {"GET / HTTP/1.1\r\n\r\n", "is it conduit.v1 at all?", link.CloseTooBig},
		"above the cap":  {"\x00\x10\x00\x00", "a record of 1048576 bytes, the cap is 262144", link.CloseTooBig},
		"longest length": {"\xff\xff\xff\xff", "a record of 4294967295 bytes", link.CloseTooBig},
	} {
		t.Run(name, func(t *testing.T) {
			x, y := socketPair(t)
			c := newSocketCarrier(y, 0, 0)
			if _, err := io.WriteString(x, tc.bytes); err != nil {
				t.Fatal(err)
			}
			if err := x.(*net.UnixConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			_, err := c.ReadMessage()
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("%v, want %q", err, tc.want)
			}
			e, _ := errors.AsType[*link.CloseError](err)
			if tc.code == 0 && (e != nil || !errors.Is(err, io.ErrUnexpectedEOF)) || tc.code != 0 && (e == nil || e.Code != tc.code) {
				t.Errorf("%#v", err)
			}
			if err := c.Close(link.CloseAbnormal, ""); err != nil {
				t.Error(err)
			}
		})
	}
}

// A peer that neither reads nor closes holds Close up for a second, and a write
// that is stuck in it no longer.
func TestSocketCarrierCloseIsBounded(t *testing.T) {
	_, y := socketPair(t)
	c := newSocketCarrier(y, 0, 0)
	stuck, read := make(chan error, 1), make(chan error, 1)
	filled := make(chan struct{}, 1)
	go func() {
		for {
			if err := c.WriteMessage(make([]byte, 64<<10)); err != nil {
				stuck <- err
				return
			}
			select {
			case filled <- struct{}{}:
			default:
			}
		}
	}()
	go func() {
		_, err := c.ReadMessage()
		read <- err
	}()
	wait(t, filled, "a write")
	begun := time.Now()
	_ = c.Close(link.CloseGoingAway, "draining")
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("Close took %v", took)
	}
	for _, ch := range []chan error{stuck, read} {
		if e, ok := errors.AsType[*link.CloseError](wait(t, ch, "the other two")); !ok || e.Code != link.CloseGoingAway || e.Remote {
			t.Errorf("%v", e)
		}
	}
}

// Both close at once, and both see an end in order.
func TestSocketCarrierBothClose(t *testing.T) {
	x, y := socketPair(t)
	a, b := newSocketCarrier(x, 0, 0), newSocketCarrier(y, 0, 0)
	done := make(chan struct{}, 2)
	for _, c := range []*socketCarrier{a, b} {
		go func() {
			_ = c.Close(link.CloseDone, "")
			done <- struct{}{}
		}()
	}
	wait(t, done, "one")
	wait(t, done, "the other")
}

// bytesConn is a connection from which some bytes come.
type bytesConn struct {
	net.Conn // nil: nothing else is called
	r        io.Reader
	w        bytes.Buffer
}

func (c *bytesConn) Read(p []byte) (int, error)         { return c.r.Read(p) }
func (c *bytesConn) Write(p []byte) (int, error)        { return c.w.Write(p) }
func (c *bytesConn) Close() error                       { return nil }
func (c *bytesConn) SetReadDeadline(_ time.Time) error  { return nil }
func (c *bytesConn) SetWriteDeadline(_ time.Time) error { return nil }

// Whatever bytes come: records up to the cap, then an error that stays. What was
// read and is written again is the same bytes.
func FuzzSocketCarrier(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Add(append(append(record("one"), record("two")...), record("")...))
	f.Add(record(strings.Repeat("x", 300)))
	f.Fuzz(func(t *testing.T, data []byte) {
		const most = 200
		in := newSocketCarrier(&bytesConn{r: bytes.NewReader(data)}, most, 0)
		in.limit = most
		back := &bytesConn{}
		out := newSocketCarrier(back, most, 0)
		for {
			p, err := in.ReadMessage()
			if err != nil {
				if _, again := in.ReadMessage(); !errors.Is(again, err) {
					t.Fatalf("%v, then %v", err, again)
				}
				break
			}
			if len(p) == 0 || len(p) > most {
				t.Fatalf("a record of %d bytes", len(p))
			}
			if err := out.WriteMessage(p); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.HasPrefix(data, back.w.Bytes()) {
			t.Fatalf("%x became %x", data, back.w.Bytes())
		}
		_ = in.Close(link.CloseDone, "")
	})
}
