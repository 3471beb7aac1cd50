package transport

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1" //nolint:gosec // RFC 6455 says so; it protects nothing
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// The first byte of a frame: the end of a message, and what it is.
const (
	opMore   = 0x0
	opText   = 0x1
	opBinary = 0x2
	opClose  = 0x8
	opPing   = 0x9
	opPong   = 0xa
	final    = 0x80
)

// wire is the other end of a WebSocket, played byte by byte: a client's against our
// Server, or a server's against our Client. What it sends may be as wrong as a test
// likes; of what it gets, it takes nothing that RFC 6455 does not allow.
type wire struct {
	t testing.TB
	net.Conn
	r      *bufio.Reader
	client bool                        // it plays the client: masks, and is not masked to
	open   bool                        // a message of several frames is being read
	masks  map[[4]byte]struct{}        // that the client under test has used
	rest   []*conduitv1.Frame          // of the last packet, not looked at yet
	id     uint64                      // of the next call of a client's
	seen   map[byte]int                // frames by opcode
	link   func() (over bool, _ error) // the end under test
	alive  func()                      // makes a call over the link, which must work
}

// frame encodes one frame as this end has to: masked if it is a client's, the length
// in its shortest form.
func (w *wire) frame(first byte, payload []byte) []byte {
	form := 0
	switch n := len(payload); {
	case n >= 1<<16:
		form = 127
	case n >= 126:
		form = 126
	}
	return encodeFrame(first, w.client, form, payload)
}

// encodeFrame encodes one frame: form is 0, 126 or 127, for a length of 7, 16 or 64
// bits.
func encodeFrame(first byte, masked bool, form int, payload []byte) []byte {
	second := byte(form)
	if form == 0 {
		second = byte(len(payload))
	}
	if masked {
		second |= 0x80
	}
	b := []byte{first, second}
	switch form {
	case 126:
		b = binary.BigEndian.AppendUint16(b, uint16(len(payload)))
	case 127:
		b = binary.BigEndian.AppendUint64(b, uint64(len(payload)))
	}
	if !masked {
		return append(b, payload...)
	}
	mask := [4]byte{0x37, 0xfa, 0x21, 0x3d}
	b = append(b, mask[:]...)
	for i, c := range payload {
		b = append(b, c^mask[i%4])
	}
	return b
}

// send writes bytes. An error is not looked at: the end under test may have closed,
// and what it said then is what counts.
func (w *wire) send(b ...[]byte) { _, _ = w.Write(bytes.Join(b, nil)) }

// packet writes one packet in one frame.
func (w *wire) packet(frames ...*conduitv1.Frame) {
	w.t.Helper()
	p, err := proto.Marshal(&conduitv1.Packet{Frames: frames})
	if err != nil {
		w.t.Fatal(err)
	}
	w.send(w.frame(final|opBinary, p))
}

// next reads one frame, and fails the test if RFC 6455 does not allow it.
func (w *wire) next() (first byte, payload []byte, err error) {
	w.t.Helper()
	var h [2]byte
	if _, err := io.ReadFull(w.r, h[:]); err != nil {
		return 0, nil, err
	}
	first = h[0]
	n, least := uint64(h[1]&0x7f), uint64(0)
	var long [8]byte
	switch n {
	case 126:
		if _, err := io.ReadFull(w.r, long[:2]); err != nil {
			return 0, nil, err
		}
		n, least = uint64(binary.BigEndian.Uint16(long[:])), 126
	case 127:
		if _, err := io.ReadFull(w.r, long[:]); err != nil {
			return 0, nil, err
		}
		n, least = binary.BigEndian.Uint64(long[:]), 1<<16
	}
	if n < least || n > 1<<20 {
		w.t.Fatalf("a length of %d in the form for %d and above", n, least)
	}
	masked := h[1]&0x80 != 0
	if masked == w.client {
		w.t.Fatalf("a frame is masked: %v", masked)
	}
	var mask [4]byte
	if masked {
		if _, err := io.ReadFull(w.r, mask[:]); err != nil {
			return 0, nil, err
		}
		w.masks[mask] = struct{}{}
	}
	payload = make([]byte, n)
	if _, err := io.ReadFull(w.r, payload); err != nil {
		return 0, nil, err
	}
	for i := range payload {
		payload[i] ^= mask[i%4]
	}
	op, fin := first&0xf, first&final != 0
	w.seen[op]++
	switch {
	case first&0x70 != 0:
		w.t.Fatalf("reserved bits in %#x", first)
	case op == opClose || op == opPing || op == opPong:
		if !fin || n > 125 {
			w.t.Fatalf("a control frame %#x of %d bytes", first, n)
		}
	case op == opBinary && !w.open, op == opMore && w.open:
		w.open = !fin
	default:
		w.t.Fatalf("a frame %#x, within a message: %v", first, w.open)
	}
	return first, payload, nil
}

// message reads to the end of the next message or control frame.
func (w *wire) message() (op byte, payload []byte, err error) {
	w.t.Helper()
	for {
		first, p, err := w.next()
		if err != nil {
			return 0, nil, err
		}
		if first&0x8 != 0 {
			return first & 0xf, p, nil
		}
		if payload = append(payload, p...); first&final != 0 {
			return opBinary, payload, nil
		}
	}
}

// until reads frames of packets until is says that it was the one. Credit is returned
// for all of it, pings are answered.
func (w *wire) until(what string, is func(*conduitv1.Frame) bool) {
	w.t.Helper()
	for {
		for len(w.rest) > 0 {
			f := w.rest[0]
			w.rest = w.rest[1:]
			if n := f.GetPing(); n != nil && !n.Ack {
				w.packet(&conduitv1.Frame{Kind: &conduitv1.Frame_Ping{Ping: &conduitv1.Ping{Nonce: n.Nonce, Ack: true}}})
			}
			if f.GetData() != nil || f.GetInvoke() != nil {
				w.packet(&conduitv1.Frame{Kind: &conduitv1.Frame_Credit{Credit: &conduitv1.Credit{Bytes: uint64(proto.Size(f))}}})
			}
			if is(f) {
				return
			}
		}
		op, payload, err := w.message()
		if err != nil || op == opClose {
			w.t.Fatalf("no %s, but %q, %v", what, payload, err)
		}
		if op != opBinary {
			continue
		}
		var p conduitv1.Packet
		if err := proto.Unmarshal(payload, &p); err != nil {
			w.t.Fatal(err)
		}
		w.rest = p.Frames
	}
}

// wantPong reads to the answer to a ping.
func (w *wire) wantPong(payload string) {
	w.t.Helper()
	for {
		op, p, err := w.message()
		if err != nil || op == opClose {
			w.t.Fatalf("no pong, but %q, %v", p, err)
		}
		if op == opPong && string(p) == payload {
			return
		}
	}
}

// wantClose reads to the close frame, answers it as a close is answered, and reads to
// the end of the connection. Code 1005 stands for a close without a code.
func (w *wire) wantClose(code int) (reason string) {
	w.t.Helper()
	for {
		op, payload, err := w.message()
		if err != nil {
			w.t.Fatalf("the connection ended without a close frame: %v", err)
		}
		if op != opClose {
			continue
		}
		got := 1005
		if len(payload) > 0 {
			got, reason = int(binary.BigEndian.Uint16(payload)), string(payload[2:])
		}
		if got != code {
			w.t.Fatalf("closed with %d %q, want %d", got, reason, code)
		}
		w.send(w.frame(final|opClose, payload))
		break
	}
	w.wantEnd()
	return reason
}

// wantEnd reads to the end of the connection, and waits for the link's own.
func (w *wire) wantEnd() {
	w.t.Helper()
	if n, err := w.r.Read(make([]byte, 1)); n > 0 || isTimeout(err) {
		w.t.Fatalf("the connection lives on behind the close: %d bytes, %v", n, err)
	}
	poll(w.t, "the link's end", func() bool { over, _ := w.link(); return over })
}

// pad is a valid packet of n bytes, with nothing in it that a receiver knows.
func pad(n int) []byte {
	if n == 0 {
		return nil
	}
	for head := 1; ; head++ { // bytes of the length
		b := binary.AppendUvarint([]byte{15<<3 | 2}, uint64(n-1-head))
		if len(b) == 1+head {
			return append(b, make([]byte, n-len(b))...)
		}
	}
}

var hello = &conduitv1.Frame{Kind: &conduitv1.Frame_Hello{Hello: &conduitv1.Hello{VersionMin: 1, VersionMax: 1}}}

// againstServer opens a link to a Server of ours, as far as both Hellos.
func againstServer(tb testing.TB, in *instance, ended <-chan error) *wire {
	tb.Helper()
	c := rawDial(tb, in.addr)
	c.upgrade()
	w := &wire{t: tb, Conn: c.Conn, r: c.r, client: true, seen: map[byte]int{}}
	var err error
	w.link = func() (bool, error) {
		select {
		case err = <-ended:
			return true, err
		default:
			return err != nil, err
		}
	}
	w.until("Hello", func(f *conduitv1.Frame) bool { return f.GetHello() != nil })
	w.packet(hello)
	w.alive = func() {
		tb.Helper()
		f := w.invoke("Echo", []byte("hello"))
		w.packet(f)
		id := f.Call
		var got []byte
		w.until("answer", func(f *conduitv1.Frame) bool {
			got = append(got, f.GetData().GetBytes()...)
			return f.Call == id && (f.GetData().GetLast() || f.GetFailure() != nil)
		})
		if string(got) != "hello" {
			tb.Errorf("the call brought %q", got)
		}
	}
	return w
}

// invoke is the first frame of another call of a client's, with its whole request.
func (w *wire) invoke(method string, request []byte) *conduitv1.Frame {
	w.id += 2
	return &conduitv1.Frame{Call: w.id - 1, Kind: &conduitv1.Frame_Invoke{Invoke: &conduitv1.Invoke{
		Instance: "*", Deployment: "echo", Element: "echo", Service: "test.Echo", Method: method, ReplyCredit: 65536,
		Data: &conduitv1.Data{Total: new(uint64(len(request))), Bytes: request, Last: true},
	}}}
}

// accepted is the answer to the upgrade that a request asks for.
func accepted(r *http.Request) string {
	sum := sha1.Sum([]byte(r.Header.Get("Sec-Websocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // as above
	return "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Protocol: " + SubProtocol +
		"\r\nSec-WebSocket-Accept: " + base64.StdEncoding.EncodeToString(sum[:]) + "\r\n"
}

// accept takes one connection and answers its upgrade.
func accept(tb testing.TB, l net.Listener, answer func(*http.Request) string) *wire {
	tb.Helper()
	conn, err := l.Accept()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(limit))
	w := &wire{t: tb, Conn: conn, r: bufio.NewReader(conn), masks: map[[4]byte]struct{}{}, seen: map[byte]int{}}
	r, err := http.ReadRequest(w.r)
	if err != nil {
		tb.Fatal(err)
	}
	w.send([]byte(answer(r) + "\r\n"))
	return w
}

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = l.Close() })
	return l
}

// againstClient has a Client of ours open a link to the test, as far as both Hellos.
func againstClient(ctx context.Context, tb testing.TB, c *Client) *wire {
	tb.Helper()
	l := listen(tb)
	type dialled struct {
		*link.Conn
		err error
	}
	made := make(chan dialled, 1)
	go func() {
		conn, err := c.DialLink(ctx, "ws://"+l.Addr().String(), LinkHooks{})
		made <- dialled{conn, err}
	}()
	w := accept(tb, l, accepted)
	w.packet(hello)
	w.until("Hello", func(f *conduitv1.Frame) bool { return f.GetHello() != nil })
	d := wait(tb, made, "the link")
	if d.err != nil {
		tb.Fatal(d.err)
	}
	tb.Cleanup(func() {
		_ = w.Close() // else its end would be waited for
		d.Close(link.CloseDone, "")
		<-d.Done()
	})
	w.link = func() (bool, error) {
		select {
		case <-d.Done():
			return true, d.Err()
		default:
			return false, nil
		}
	}
	w.alive = func() {
		tb.Helper()
		result := make(chan error, 1)
		go func() {
			got, err := call(ctx, onSocket{d.Conn}, "Echo", "hello")
			if err == nil && got != "hello" {
				err = fmt.Errorf("the call brought %q", got)
			}
			result <- err
		}()
		w.until("Invoke", func(f *conduitv1.Frame) bool {
			if f.GetInvoke() != nil {
				w.packet(&conduitv1.Frame{Call: f.Call, Kind: &conduitv1.Frame_Data{Data: &conduitv1.Data{
					Total: new(uint64(5)), Bytes: f.GetInvoke().GetData().GetBytes(), Last: true,
				}}})
			}
			return f.GetInvoke() != nil
		})
		if err := wait(tb, result, "the call"); err != nil {
			tb.Error(err)
		}
	}
	return w
}

// TestWebSocketConformance is our own table of the Autobahn suite's families of cases,
// by its numbers where there is one, against both ends of ours. Its family 6 (UTF-8 of
// text) is not ours, since text is refused, nor are 12 and 13 (compression, which is
// not negotiated) and 9 (what large messages cost: that is measured).
func TestWebSocketConformance(t *testing.T) {
	t.Parallel()
	type row struct {
		name string
		// do sends what the row is about, and reads what must come before the end.
		do func(*wire)
		// code is what the link is closed with, 0 = it lives on, and a call works.
		code int
		// by is the code that the end under test gives as that of the other end's
		// close; 0 = it is its own close.
		by link.CloseCode
		// only the end that plays "server" or "client"; "" = both.
		only string
	}
	var rows []row
	bytesOf := func(b ...[]byte) func(*wire) { return func(w *wire) { w.send(b...) } }
	frames := func(f func(w *wire) [][]byte) func(*wire) { return func(w *wire) { w.send(f(w)...) } }
	add := func(r row) { rows = append(rows, r) }

	// 1: framing.
	for _, n := range []int{0, 2, 125, 126, 127, 128, 65535, 65536, link.DefaultMaxPacket} {
		add(row{name: fmt.Sprintf("1.2 a packet of %d bytes", n), do: frames(func(w *wire) [][]byte { return [][]byte{w.frame(final|opBinary, pad(n))} })})
	}
	add(row{name: "1.2 a packet of 1 byte, which is no protobuf", do: frames(func(w *wire) [][]byte { return [][]byte{w.frame(final|opBinary, []byte{0x7a})} }), code: 1002})
	add(row{name: "1.2.8 byte by byte", do: func(w *wire) {
		for _, b := range w.frame(final|opBinary, pad(300)) {
			w.send([]byte{b})
		}
	}})
	// RFC 6455 (5.2) has lengths in the shortest form only. gorilla takes the longer ones,
	// too; they mean one thing and cost 8 bytes, so we leave it.
	for _, form := range []int{126, 127} {
		add(row{name: fmt.Sprintf("a length of 5 in the form %d", form), do: func(w *wire) { w.send(encodeFrame(final|opBinary, w.client, form, pad(5))) }})
	}
	// 1002 would do as well; gorilla sees a length above any cap.
	add(row{name: "a length with its highest bit", do: func(w *wire) {
		w.send([]byte{final | opBinary, 127 | maskBit(w), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4})
	}, code: 1009})
	for name, payload := range map[string]string{"empty": "", "of one byte": "x", "that is no UTF-8": "\xff\xfe"} {
		add(row{name: "1.1 text " + name, do: frames(func(w *wire) [][]byte { return [][]byte{w.frame(final|opText, []byte(payload))} }), code: 1003})
	}

	// 2: pings and pongs.
	for name, payload := range map[string]string{"2.1 without payload": "", "2.2 with payload": "ping", "2.3 that is no UTF-8": "\x00\xff\xfe\xfd", "2.4 of 125 bytes": strings.Repeat("\xfe", 125)} {
		add(row{name: name + ": a ping", do: func(w *wire) {
			w.send(w.frame(final|opPing, []byte(payload)))
			w.wantPong(payload)
		}})
		add(row{name: name + ": a pong that nobody asked for", do: frames(func(w *wire) [][]byte { return [][]byte{w.frame(final|opPong, []byte(payload))} })})
	}
	add(row{name: "2.6 a ping byte by byte", do: func(w *wire) {
		for _, b := range w.frame(final|opPing, []byte("slowly")) {
			w.send([]byte{b})
		}
		w.wantPong("slowly")
	}})
	// Of pings that come together only the last must be answered (5.5.3).
	add(row{name: "2.10 ten pings", do: func(w *wire) {
		for i := range 10 {
			w.send(w.frame(final|opPing, fmt.Appendf(nil, "ping %d", i)))
		}
		w.wantPong("ping 9")
	}})
	for name, op := range map[string]byte{"ping": opPing, "pong": opPong, "close": opClose} {
		big := append([]byte{0x03, 0xe8}, strings.Repeat("x", 124)...)
		add(row{name: "2.5 a " + name + " of 126 bytes", do: frames(func(w *wire) [][]byte { return [][]byte{w.frame(final|op, big)} }), code: 1002})
		add(row{name: "5.1 a " + name + " in fragments", do: frames(func(w *wire) [][]byte {
			return [][]byte{w.frame(op, big[:2]), w.frame(final|opMore, []byte("x"))}
		}), code: 1002})
	}

	// 3: reserved bits.
	for _, bits := range []byte{0x40, 0x20, 0x10, 0x70} {
		for name, first := range map[string]byte{"a message": final | opBinary, "a fragment": opBinary, "a ping": final | opPing, "a close": final | opClose} {
			payload := pad(5)
			if first == final|opClose {
				payload = []byte{0x03, 0xe8}
			}
			add(row{name: fmt.Sprintf("3 reserved bits %#x in %s", bits, name), do: frames(func(w *wire) [][]byte { return [][]byte{w.frame(first|bits, payload)} }), code: 1002})
		}
		add(row{name: fmt.Sprintf("3 reserved bits %#x in a continuation", bits), do: frames(func(w *wire) [][]byte {
			return [][]byte{w.frame(opBinary, nil), w.frame(final|opMore|bits, pad(5))}
		}), code: 1002})
	}

	// 4: reserved opcodes.
	for _, op := range []byte{3, 4, 5, 6, 7, 11, 12, 13, 14, 15} {
		add(row{name: fmt.Sprintf("4 opcode %d", op), do: frames(func(w *wire) [][]byte { return [][]byte{w.frame(final|op, nil)} }), code: 1002})
		add(row{name: fmt.Sprintf("4 opcode %d behind a packet, with payload", op), do: frames(func(w *wire) [][]byte {
			return [][]byte{w.frame(final|opBinary, pad(5)), w.frame(final|op, []byte("x")), w.frame(final|opPing, nil)}
		}), code: 1002})
	}

	// 5: fragments.
	fragments := func(w *wire, size int, between ...byte) (all [][]byte) {
		p := pad(300)
		for first := byte(opBinary); ; first = opMore {
			n := min(size, len(p))
			if n == len(p) {
				return append(all, w.frame(final|first, p))
			}
			all = append(all, w.frame(first, p[:n]))
			for _, op := range between {
				all = append(all, w.frame(final|op, []byte("between")))
			}
			p = p[n:]
		}
	}
	add(row{name: "5.3 two fragments", do: frames(func(w *wire) [][]byte { return fragments(w, 200) })})
	add(row{name: "5.8 fragments of 1 byte", do: frames(func(w *wire) [][]byte { return fragments(w, 1) })})
	add(row{name: "5.6 pings between fragments", do: func(w *wire) {
		w.send(fragments(w, 100, opPing)...)
		w.wantPong("between")
	}})
	add(row{name: "5.19 pings and pongs between fragments of 1 byte", do: func(w *wire) {
		w.send(fragments(w, 1, opPong, opPing)...)
		w.wantPong("between")
	}})
	add(row{name: "5.6 a ping is answered within a message", do: func(w *wire) {
		p := pad(300)
		w.send(w.frame(opBinary, p[:100]), w.frame(final|opPing, []byte("now")))
		w.wantPong("now")
		w.send(w.frame(final|opMore, p[100:]))
	}})
	add(row{name: "6.1 empty fragments", do: frames(func(w *wire) [][]byte {
		return [][]byte{w.frame(opBinary, nil), w.frame(opMore, nil), w.frame(opMore, pad(50)), w.frame(opMore, nil), w.frame(final|opMore, nil)}
	})})
	for name, first := range map[string]byte{"the last": final | opMore, "not the last": opMore} {
		add(row{name: "5.9 a continuation of nothing, " + name, do: frames(func(w *wire) [][]byte { return [][]byte{w.frame(first, pad(5))} }), code: 1002})
		add(row{name: "5.14 a continuation of a message that is whole, " + name, do: frames(func(w *wire) [][]byte {
			return append(fragments(w, 200), w.frame(first, pad(5)))
		}), code: 1002})
	}
	for name, first := range map[string]byte{"a packet": final | opBinary, "a fragment": opBinary, "text": final | opText} {
		add(row{name: "5.18 " + name + " within a message", do: frames(func(w *wire) [][]byte {
			return [][]byte{w.frame(opBinary, pad(5)), w.frame(first, pad(5))}
		}), code: 1002})
	}
	add(row{name: "text in fragments", do: frames(func(w *wire) [][]byte {
		return [][]byte{w.frame(opText, []byte("x")), w.frame(final|opMore, []byte("y"))}
	}), code: 1003})

	// 7: closes.
	closing := func(code int, reason string) []byte {
		return append(binary.BigEndian.AppendUint16(nil, uint16(code)), reason...)
	}
	for _, code := range []int{1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 3000, 3999, 4000, 4999} {
		add(row{name: fmt.Sprintf("7.7 close %d", code), do: frames(func(w *wire) [][]byte {
			return [][]byte{w.frame(final|opClose, closing(code, "bye"))}
		}), code: code, by: link.CloseCode(code)})
	}
	// 1014 is not in the RFC, but registered since, for gateways; gorilla does not know it.
	// The link is lost either way, and its error names the code.
	for _, code := range []int{0, 999, 1004, 1005, 1006, 1014, 1015, 1016, 1100, 2000, 2999, 5000, 65535} {
		add(row{name: fmt.Sprintf("7.9 close %d", code), do: frames(func(w *wire) [][]byte {
			return [][]byte{w.frame(final|opClose, closing(code, ""))}
		}), code: 1002})
	}
	add(row{name: "7.3.1 a close without a code", do: frames(func(w *wire) [][]byte { return [][]byte{w.frame(final|opClose, nil)} }), code: 1005, by: link.CloseDone})
	// RFC 6455 (5.5.1) allows no such payload; gorilla takes it for a close without a code
	// and does not say that it did. What follows is the same: the link is closed, in order.
	add(row{name: "7.3.2 a close with a payload of 1 byte", do: frames(func(w *wire) [][]byte { return [][]byte{w.frame(final|opClose, []byte{3})} }), code: 1005, by: link.CloseDone})
	add(row{name: "7.3.5 a close with the longest reason", do: frames(func(w *wire) [][]byte {
		return [][]byte{w.frame(final|opClose, closing(1000, strings.Repeat("é", 61)+"!"))}
	}), code: 1000, by: 1000})
	// 1007 would do as well.
	add(row{name: "7.5.1 a close with a reason that is no UTF-8", do: frames(func(w *wire) [][]byte {
		return [][]byte{w.frame(final|opClose, closing(1000, "bye \xce\xba\xff"))}
	}), code: 1002})
	add(row{name: "7.1.6 a close within a message", do: frames(func(w *wire) [][]byte {
		return [][]byte{w.frame(opBinary, pad(5)), w.frame(final|opClose, closing(1001, "bye"))}
	}), code: 1001, by: 1001})
	add(row{name: "7.1.3 what comes behind a close is not answered", do: func(w *wire) {
		w.send(w.frame(final|opClose, closing(1000, "bye")), w.frame(final|opPing, []byte("late")), w.frame(final|opText, []byte("late")), w.frame(final|opClose, closing(1001, "")))
	}, code: 1000, by: 1000})

	// Masks.
	add(row{name: "a frame that is not masked", do: bytesOf(encodeFrame(final|opBinary, false, 0, pad(5))), code: 1002, only: "server"})
	add(row{name: "a ping that is not masked", do: bytesOf(encodeFrame(final|opPing, false, 0, nil)), code: 1002, only: "server"})
	add(row{name: "a mask of zeros", do: bytesOf(append([]byte{final | opBinary, 0x80 | 50, 0, 0, 0, 0}, pad(50)...)), only: "server"})
	add(row{name: "a frame that is masked", do: bytesOf(encodeFrame(final|opBinary, true, 0, pad(5))), code: 1002, only: "client"})
	add(row{name: "a close that is masked", do: bytesOf(encodeFrame(final|opClose, true, 0, closing(1000, ""))), code: 1002, only: "client"})

	// Sizes: of packets, however they are cut. A packet just above the cap is read, and
	// refused by the link; of a longer one no more is held than packetSlack beyond the cap.
	const most = link.DefaultMaxPacket
	for _, over := range []int{1, packetSlack, packetSlack + 1, 1 << 20} {
		add(row{name: fmt.Sprintf("a packet of %d bytes more than the cap", over), do: frames(func(w *wire) [][]byte { return [][]byte{w.frame(final|opBinary, pad(most+over))} }), code: 1009})
		add(row{name: fmt.Sprintf("a packet of %d bytes more than the cap, in fragments", over), do: frames(func(w *wire) [][]byte {
			p := pad(most + over)
			return [][]byte{w.frame(opBinary, p[:most]), w.frame(final|opMore, p[most:])}
		}), code: 1009})
	}
	// What is said to follow does not; so the echo of the close is taken for some of it,
	// and the end comes when it has been waited for.
	add(row{name: "a packet that is said to have 4 EiB", do: func(w *wire) {
		w.send([]byte{final | opBinary, 127 | maskBit(w), 0x40, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4}, make([]byte, most+packetSlack+1))
	}, code: 1009})

	ended := make(chan chan error, 1) // where the next link of the server is told of
	for _, role := range []string{"server", "client"} {
		t.Run("our "+role, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			var in *instance
			var end chan error
			if role == "server" {
				in = serve(t, "", ServerOptions{Link: link.Options{OnClose: func(err error) { (<-ended) <- err }}})
			}
			c := dialer(t, ClientOptions{})
			for _, r := range rows {
				if r.only != "" && r.only != role {
					continue
				}
				t.Run(r.name, func(t *testing.T) {
					var w *wire
					if role == "server" {
						end = make(chan error, 1)
						ended <- end
						w = againstServer(t, in, end)
						t.Cleanup(func() { // before the next one's begins
							_ = w.Close()
							poll(t, "the link's end", func() bool { return in.Links() == 0 && len(ended) == 0 })
						})
					} else {
						w = againstClient(ctx, t, c)
					}
					r.do(w)
					if r.code == 0 {
						w.alive()
						if over, err := w.link(); over {
							t.Errorf("the link is over: %v", err)
						}
						return
					}
					reason := w.wantClose(r.code)
					_, err := w.link()
					e, ok := errors.AsType[*link.CloseError](err)
					if !ok || e.Remote != (r.by != 0) || r.by != 0 && e.Code != r.by || r.by == 0 && e.Code != link.CloseCode(r.code) {
						t.Errorf("the link ended with %v", err)
					}
					if r.by == 0 && reason == "" {
						t.Error("the close does not say why")
					}
				})
			}
		})
	}
}

func maskBit(w *wire) byte {
	if w.client {
		return 0x80
	}
	return 0
}

// TestWhatWeWrite: the other direction of the table. Whatever our ends send is read by
// wire.next, which allows nothing that RFC 6455 does not.
func TestWhatWeWrite(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"server", "client"} {
		t.Run("our "+role, func(t *testing.T) {
			t.Parallel()
			c := dialer(t, ClientOptions{})
			// A carrier alone, since a link cuts its packets as it likes.
			l := listen(t)
			var w *wire
			var ours *carrier
			made := make(chan *carrier, 1)
			if role == "server" {
				s := NewServer(ServerOptions{})
				h := &http.Server{ReadHeaderTimeout: limit, Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					ws, err := s.upgrader.Upgrade(rw, r, nil)
					if err != nil {
						t.Error(err)
						return
					}
					made <- newCarrier(ws, 0, 0)
				})}
				t.Cleanup(func() { _ = h.Close() })
				go func() { _ = h.Serve(l) }()
				raw := rawDial(t, l.Addr().String())
				raw.upgrade()
				w = &wire{t: t, Conn: raw.Conn, r: raw.r, client: true, seen: map[byte]int{}}
			} else {
				ctx := testContext(t)
				go func() {
					ws, _, err := c.dialer.DialContext(ctx, "ws://"+l.Addr().String()+Path, nil) //nolint:bodyclose // gorilla has replaced the body by a copy
					if err != nil {
						t.Error(err)
						return
					}
					made <- newCarrier(ws, 0, 0)
				}()
				w = accept(t, l, accepted)
			}
			ours = wait(t, made, "the upgrade")
			t.Cleanup(func() { _ = ours.Close(link.CloseAbnormal, "") })
			over := read(ours)
			for _, n := range []int{0, 1, 125, 126, 127, 65535, 65536, link.DefaultMaxPacket} {
				p := bytes.Repeat([]byte{byte(n)}, n)
				sent := make(chan error, 1)
				go func() { sent <- ours.WriteMessage(p) }()
				op, got, err := w.message()
				if err != nil || op != opBinary || !bytes.Equal(got, p) {
					t.Fatalf("%d bytes: opcode %d, %d bytes, %v", n, op, len(got), err)
				}
				if err := wait(t, sent, "the write"); err != nil {
					t.Fatal(err)
				}
			}
			if !w.client && len(w.masks) < 8 {
				t.Errorf("%d frames have %d masks", w.seen[opBinary], len(w.masks))
			}
			closed := make(chan error, 1)
			go func() { closed <- ours.Close(link.CloseGoingAway, strings.Repeat("é", 100)) }()
			op, got, err := w.message()
			if err != nil || op != opClose || len(got) != 124 || binary.BigEndian.Uint16(got) != 1001 {
				t.Errorf("the close: opcode %d, %d bytes, %v", op, len(got), err)
			}
			w.send(w.frame(final|opClose, got))
			if _, err := w.r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("behind the close: %v", err)
			}
			if err := wait(t, closed, "Close"); err != nil {
				t.Error(err)
			}
			wait(t, over, "the reader")
		})
	}
}

// TestAnswersToAnUpgrade: what a server may not answer.
func TestAnswersToAnUpgrade(t *testing.T) {
	t.Parallel()
	without := func(name string) func(string) string {
		return func(s string) string {
			var kept []string
			for line := range strings.Lines(s) {
				if !strings.HasPrefix(line, name+":") {
					kept = append(kept, line)
				}
			}
			return strings.Join(kept, "")
		}
	}
	plus := func(line string) func(string) string { return func(s string) string { return s + line + "\r\n" } }
	instead := func(name, line string) func(string) string {
		return func(s string) string { return plus(line)(without(name)(s)) }
	}
	for _, test := range []struct {
		name   string
		change func(string) string
		reason string
		text   string
	}{
		{"no key's answer", without("Sec-WebSocket-Accept"), conduit.ReasonPeerUnreachable, "instead of an upgrade"},
		{"another key's answer", instead("Sec-WebSocket-Accept", "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), conduit.ReasonPeerUnreachable, "instead of an upgrade"},
		{"no Upgrade", without("Upgrade"), conduit.ReasonPeerUnreachable, "instead of an upgrade"},
		{"another Upgrade", instead("Upgrade", "Upgrade: h2c"), conduit.ReasonPeerUnreachable, "instead of an upgrade"},
		{"no Connection", without("Connection"), conduit.ReasonPeerUnreachable, "instead of an upgrade"},
		{"no sub-protocol", without("Sec-WebSocket-Protocol"), conduit.ReasonProtocol, "sub-protocol"},
		{"another sub-protocol", instead("Sec-WebSocket-Protocol", "Sec-WebSocket-Protocol: chat"), conduit.ReasonProtocol, "sub-protocol"},
		{"compression", plus("Sec-WebSocket-Extensions: permessage-deflate"), conduit.ReasonProtocol, "extension"},
		{"compression as gorilla takes it", plus("Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; client_no_context_takeover"), conduit.ReasonProtocol, "extension"},
		{"another extension", plus("Sec-WebSocket-Extensions: bbf-usp-protocol"), conduit.ReasonProtocol, "extension"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			l := listen(t)
			dialled := make(chan error, 1)
			c := dialer(t, ClientOptions{DialTimeout: limit})
			go func() {
				_, err := c.DialLink(ctx, "ws://"+l.Addr().String(), LinkHooks{})
				dialled <- err
			}()
			w := accept(t, l, func(r *http.Request) string { return test.change(accepted(r)) })
			_ = w.Conn.(*net.TCPConn).CloseWrite() // gorilla reads some of an answer that it refuses
			e := want(t, wait(t, dialled, "the dial"), conduit.Unavailable, test.reason, conduit.NotSent)
			if !strings.Contains(e.Message, test.text) || !e.Retryable {
				t.Errorf("retryable %v: %s", e.Retryable, e.Message)
			}
			if _, err := w.r.Read(make([]byte, 1)); err == nil || isTimeout(err) {
				t.Errorf("the connection lives on: %v", err)
			}
		})
	}
}
