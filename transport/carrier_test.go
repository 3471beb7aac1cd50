package transport

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elemental-conduit/conduit/internal/link"
)

// carriers returns two carriers joined by a socket on loopback: the accepting
// and the dialling one.
func carriers(tb testing.TB, maxPacket int, writeTimeout time.Duration) (server, client *carrier) {
	tb.Helper()
	return carriersOf(tb, readBuffer, maxPacket, writeTimeout)
}

func carriersOf(tb testing.TB, read, maxPacket int, writeTimeout time.Duration) (server, client *carrier) {
	tb.Helper()
	s := NewServer(ServerOptions{})
	s.upgrader.ReadBufferSize = read
	made := make(chan *carrier, 1)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := s.upgrader.Upgrade(w, r, nil)
		if err != nil {
			tb.Error(err)
			return
		}
		made <- newCarrier(ws, maxPacket, writeTimeout)
	}))
	tb.Cleanup(h.Close)
	c := NewClient(ClientOptions{})
	d := *c.dialer
	d.ReadBufferSize = read
	ws, _, err := d.DialContext(testContext(tb), "ws"+strings.TrimPrefix(h.URL, "http")+Path, nil) //nolint:bodyclose // gorilla has replaced the body by a copy
	if err != nil {
		tb.Fatal(err)
	}
	client = newCarrier(ws, maxPacket, writeTimeout)
	server = wait(tb, made, "the upgrade")
	tb.Cleanup(func() {
		_ = client.Close(link.CloseAbnormal, "")
		_ = server.Close(link.CloseAbnormal, "")
	})
	return server, client
}

// read starts reading a carrier to its end.
func read(c *carrier) <-chan error {
	end := make(chan error, 1)
	go func() {
		for {
			if _, err := c.ReadMessage(); err != nil {
				end <- err
				return
			}
		}
	}()
	return end
}

func TestCarrierMessages(t *testing.T) {
	server, client := carriers(t, 256<<10, 0)
	for _, dir := range []struct {
		name     string
		from, to *carrier
	}{{"up", client, server}, {"down", server, client}} {
		t.Run(dir.name, func(t *testing.T) {
			for _, n := range []int{0, 1, 125, 126, 4096, 65535, 65536, 65537, 200 << 10, 256 << 10, 256<<10 + packetSlack} {
				p := bytes.Repeat([]byte{byte(n)}, n)
				sent := make(chan error, 1)
				go func() { sent <- dir.from.WriteMessage(p) }()
				got, err := dir.to.ReadMessage()
				if err != nil || !bytes.Equal(got, p) {
					t.Fatalf("%d bytes: got %d, %v", n, len(got), err)
				}
				if err := wait(t, sent, "the write"); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestCarrierCap(t *testing.T) {
	server, client := carriers(t, 100<<10, 0)
	end := read(client)
	_ = client.WriteMessage(make([]byte, 100<<10+packetSlack)) // just fits
	if got, err := server.ReadMessage(); err != nil || len(got) != 100<<10+packetSlack {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	_ = client.WriteMessage(make([]byte, 100<<10+packetSlack+1)) // the reader says what becomes of it
	_, err := server.ReadMessage()
	e, ok := errors.AsType[*link.CloseError](err)
	if !ok || e.Code != link.CloseTooBig || e.Remote || !strings.Contains(e.Reason, "102400") {
		t.Errorf("the reader: %v", err)
	}
	if again, err := server.ReadMessage(); again != nil || !errors.Is(err, error(e)) {
		t.Errorf("again: %v", err)
	}
	e, ok = errors.AsType[*link.CloseError](wait(t, end, "the close"))
	if !ok || e.Code != link.CloseTooBig || !e.Remote {
		t.Errorf("the writer: %v", e)
	}
	if err := client.WriteMessage([]byte("x")); err == nil {
		t.Error("a write after the close succeeds")
	}
}

// TestCarrierClose: whoever closes, from whatever goroutine, both ends hear code
// and reason, and nobody waits for the whole second.
func TestCarrierClose(t *testing.T) {
	for _, who := range []string{"server", "client"} {
		t.Run(who, func(t *testing.T) {
			server, client := carriers(t, 0, 0)
			ours, theirs := server, client
			if who == "client" {
				ours, theirs = client, server
			}
			there, here := read(theirs), read(ours)
			begin := time.Now()
			reason := strings.Repeat("é", 100) // 200 bytes: cut at a rune's edge
			closed := make(chan error, 2)
			for range 2 {
				go func() { closed <- ours.Close(link.CloseGoingAway, reason) }()
			}
			for range 2 {
				if err := wait(t, closed, "Close"); err != nil {
					t.Error(err)
				}
			}
			e, ok := errors.AsType[*link.CloseError](wait(t, there, "the other end"))
			if !ok || e.Code != link.CloseGoingAway || e.Reason != reason[:122] || !e.Remote {
				t.Errorf("the other end: %v", e)
			}
			e, ok = errors.AsType[*link.CloseError](wait(t, here, "this end"))
			if !ok || e.Code != link.CloseGoingAway || e.Remote {
				t.Errorf("this end: %v", e)
			}
			if took := time.Since(begin); took >= closeTimeout {
				t.Errorf("took %v", took)
			}
		})
	}
	t.Run("by the reader", func(t *testing.T) {
		server, client := carriers(t, 0, 0)
		there := read(client)
		begin := time.Now()
		if err := server.Close(link.CloseProtocol, "nonsense"); err != nil { // nobody else reads
			t.Error(err)
		}
		if e, ok := errors.AsType[*link.CloseError](wait(t, there, "the other end")); !ok || e.Code != link.CloseProtocol {
			t.Errorf("the other end: %v", e)
		}
		if took := time.Since(begin); took >= closeTimeout {
			t.Errorf("took %v", took)
		}
	})
	t.Run("what was sent before arrives", func(t *testing.T) {
		server, client := carriers(t, 0, 0)
		// The client has sent what the server never reads: a bare close would
		// make the kernel reset the connection and drop the last answer.
		if err := client.WriteMessage(make([]byte, 32<<10)); err != nil {
			t.Fatal(err)
		}
		if err := server.WriteMessage([]byte("the last answer")); err != nil {
			t.Fatal(err)
		}
		closed := make(chan error, 1)
		go func() { closed <- server.Close(link.CloseDone, "") }()
		if got, err := client.ReadMessage(); err != nil || string(got) != "the last answer" {
			t.Errorf("%q, %v", got, err)
		}
		if _, err := client.ReadMessage(); err == nil {
			t.Error("no close")
		}
		if err := wait(t, closed, "Close"); err != nil {
			t.Error(err)
		}
	})
	t.Run("a peer that does not answer", func(t *testing.T) {
		server, client := carriers(t, 0, 0)
		_ = client // reads nothing
		begin := time.Now()
		_ = server.Close(link.CloseGoingAway, "") // the error is the cut connection's
		if took := time.Since(begin); took < closeTimeout || took > 5*closeTimeout {
			t.Errorf("took %v", took)
		}
	})
	t.Run("cut", func(t *testing.T) {
		server, client := carriers(t, 0, 0)
		_ = client.ws.NetConn().Close()
		_, err := server.ReadMessage()
		if _, ok := errors.AsType[*link.CloseError](err); ok || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("a cut is taken for a close in order: %v", err)
		}
	})
	t.Run("without a code", func(t *testing.T) {
		server, client := carriers(t, 0, 0)
		_ = client.ws.WriteControl(websocket.CloseMessage, nil, time.Now().Add(time.Second))
		_, err := server.ReadMessage()
		if e, ok := errors.AsType[*link.CloseError](err); !ok || e.Code != link.CloseDone || !e.Remote {
			t.Errorf("%v", err)
		}
	})
}

// TestWriteBehindClose: gorilla closes within a read, before that read returns. A write that
// comes in between ends with what the read is going to say, not with "close sent".
func TestWriteBehindClose(t *testing.T) {
	server, _ := carriers(t, 0, 0)
	server.reading.Lock() // the reader, when gorilla has just found a pong that is too long
	if err := server.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseProtocolError, ""), time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() { written <- server.WriteMessage([]byte("x")) }()
	why := &link.CloseError{Code: link.CloseProtocol, Reason: "a pong that is too long"}
	server.readErr = why
	server.reading.Unlock()
	if err := wait(t, written, "the write"); !errors.Is(err, why) {
		t.Errorf("the write ended with %v", err)
	}
}

// TestCarrierStalled: a peer that reads nothing ends the write at its deadline,
// Close does not wait for the writer, and pings do not hold up the reader.
func TestCarrierStalled(t *testing.T) {
	fill := func(c *carrier) <-chan error {
		end := make(chan error, 1)
		go func() {
			p := make([]byte, 256<<10)
			for {
				if err := c.WriteMessage(p); err != nil {
					end <- err
					return
				}
			}
		}()
		return end
	}
	t.Run("deadline", func(t *testing.T) {
		server, _ := carriers(t, 0, 100*time.Millisecond)
		if err := wait(t, fill(server), "the write"); !errors.Is(err, errStalled) {
			t.Errorf("%v", err)
		}
	})
	t.Run("close", func(t *testing.T) {
		server, client := carriers(t, 0, limit)
		_ = client
		end, reader := fill(server), read(server)
		begin := time.Now()
		_ = server.Close(link.CloseGoingAway, "") // the error is the cut connection's
		if took := time.Since(begin); took > 5*closeTimeout {
			t.Errorf("took %v", took)
		}
		wait(t, end, "the writer")
		wait(t, reader, "the reader")
	})
	t.Run("pings", func(t *testing.T) { // WSP-07
		server, client := carriers(t, 0, limit)
		end := fill(server)
		messages := make(chan string)
		go func() {
			defer close(messages)
			for {
				p, err := server.ReadMessage()
				if err != nil {
					return
				}
				messages <- string(p)
			}
		}()
		// The server's writer is stuck or will be; its reader must go on all the same.
		for range 100 {
			if err := client.ws.WriteControl(websocket.PingMessage, []byte("ping"), time.Now().Add(limit)); err != nil {
				t.Fatal(err)
			}
			if err := client.WriteMessage([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			if got := wait(t, messages, "the message behind the ping"); got != "hello" {
				t.Fatalf("%q", got)
			}
		}
		_ = server.Close(link.CloseAbnormal, "")
		wait(t, end, "the writer")
		for range messages { // to its end
		}
	})
}

// TestIdleCarrierHoldsNoBuffer: buffers go back while the reader waits.
func TestIdleCarrierHoldsNoBuffer(t *testing.T) {
	server, client := carriers(t, 0, 0)
	if err := client.WriteMessage(make([]byte, 200<<10)); err != nil {
		t.Fatal(err)
	}
	if _, err := server.ReadMessage(); err != nil {
		t.Fatal(err)
	}
	if server.buf == nil {
		t.Fatal("the message lies nowhere")
	}
	end := read(server)
	if err := client.WriteMessage([]byte("x")); err != nil { // read, then the reader waits anew
		t.Fatal(err)
	}
	_ = client.Close(link.CloseDone, "")
	wait(t, end, "the close")
	if server.buf != nil {
		t.Error("a carrier without a message holds a buffer")
	}
}

// BenchmarkCarrier is what the sizes of the buffers come from: the size of
// gorilla's read buffer, against the size of packets.
func BenchmarkCarrier(b *testing.B) {
	for _, buffer := range []int{4 << 10, 16 << 10, 64 << 10} {
		for _, size := range []int{100, 4 << 10, 16 << 10, 64 << 10, 256 << 10} {
			for _, dir := range []string{"up", "down"} {
				b.Run("read="+itoa(buffer>>10)+"K/packet="+itoa(size)+"/"+dir, func(b *testing.B) {
					server, client := carriersOf(b, buffer, 0, 0)
					from, to := client, server
					if dir == "down" {
						from, to = server, client
					}
					done := make(chan struct{})
					go func() {
						defer close(done)
						for {
							if _, err := to.ReadMessage(); err != nil {
								return
							}
						}
					}()
					p := make([]byte, size)
					b.SetBytes(int64(size))
					b.ReportAllocs()
					for b.Loop() {
						if err := from.WriteMessage(p); err != nil {
							b.Fatal(err)
						}
					}
					_ = from.Close(link.CloseDone, "")
					<-done
				})
			}
		}
	}
}
