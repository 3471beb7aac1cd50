package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
)

// reasonPermissionDenied is the reason of a 403; docs/errors.md lists it.
const reasonPermissionDenied = "permission_denied"

// keepAlive is how often the kernel asks after a silent peer: it finds a peer that is gone while nothing is sent, should the link's
// own pings be off.
const keepAlive = 15 * time.Second

// dial makes a link: TCP, TLS, upgrade, and the other end's Hello, all within
// ctx. The error is complete but for the call's address and method. adapt changes
// what the template says of the link's hooks; within is what errors say of the time that
// ctx leaves.
func (c *Client) dial(ctx context.Context, k key, within time.Duration, adapt func(*link.Options)) (*link.Conn, *conduit.Error) {
	stop := func() bool { return true }
	connected := false
	dialer := *c.dialer
	if c.o.TLSOf != nil {
		dialer.TLSClientConfig = overHTTP1(c.o.TLSOf())
	}
	dialer.NetDialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := c.dialer.NetDialContext(ctx, network, addr)
		if err == nil {
			connected = true
			conn = &handshake{Conn: conn, left: maxHandshake}
			// gorilla minds the context's deadline, but not its cancellation.
			stop = context.AfterFunc(ctx, func() { _ = conn.Close() })
		}
		return conn, err
	}
	ws, resp, err := dialer.DialContext(ctx, k.url, credential(k.session)) //nolint:bodyclose // gorilla has replaced the body by a copy
	stop()
	// gorilla takes up permessage-deflate unasked, and says nothing of any other.
	if resp != nil && resp.StatusCode == http.StatusSwitchingProtocols && resp.Header.Get("Sec-Websocket-Extensions") != "" {
		if ws != nil {
			_ = ws.Close() // as below
		}
		return nil, k.scrub(answerError(k.url, conduit.Unavailable, conduit.ReasonProtocol, true,
			"the answer to the upgrade names the extension %.64q, which nobody asked for: something else than an instance, or a proxy that is at fault, is served at this URL",
			resp.Header.Get("Sec-Websocket-Extensions")))
	}
	if err != nil {
		// A cause that the context was cancelled with says more than "cancelled".
		if e, ok := errors.AsType[*conduit.Error](context.Cause(ctx)); ok {
			return nil, e
		}
		if resp != nil {
			return nil, k.scrub(c.explainAnswer(k, resp, err))
		}
		return nil, k.scrub(explainDial(ctx, k.url, connected, within, err))
	}
	if h, ok := bare(ws.NetConn()).(*handshake); ok {
		h.over.Store(true)
	}
	if p := ws.Subprotocol(); p != SubProtocol {
		_ = ws.Close() // it is of no use, whatever its closing says
		return nil, k.scrub(answerError(k.url, conduit.Unavailable, conduit.ReasonProtocol, true,
			"the answer to the upgrade names the sub-protocol %.256q, not %q: something else than an instance is served at this URL", p, SubProtocol))
	}
	// gorilla would inflate what an answer says is compressed, though nobody offered it.
	if extensions := resp.Header.Values("Sec-Websocket-Extensions"); len(extensions) > 0 {
		_ = ws.Close() // as above
		return nil, k.scrub(answerError(k.url, conduit.Unavailable, conduit.ReasonProtocol, true,
			"the answer to the upgrade uses %.256q, which was not offered: something else than an instance, or a proxy that compresses, is served at this URL", strings.Join(extensions, ", ")))
	}
	userTimeout, err := tune(ws.NetConn(), c.o.UserTimeout)
	if err != nil {
		c.log.DebugContext(ctx, "TCP options not set", "peer", k.url, "error", err)
	}

	o := c.o.Link
	o.Dialer, o.Duplex, o.Handler = true, false, nil
	o.Peer = link.Peer{Name: k.url}
	adapt(&o)
	if o.Op == "" {
		o.Op = "cluster"
	}
	if o.Log == nil {
		o.Log = c.log
	}
	var made atomic.Pointer[link.Conn] // the link may end before New has returned it
	owners := o.OnClose
	o.OnClose = func(err error) {
		logClosed(c.log, made.Load(), err, "peer", k.url)
		if owners != nil {
			owners(err)
		}
	}
	carrier := newCarrier(ws, o.Hello.MaxPacket, c.o.WriteTimeout)
	carrier.userTimeout = userTimeout
	l := link.New(carrier, o)
	made.Store(l)
	if err := l.Ready(ctx); err != nil {
		l.Close(link.CloseDone, "no Hello")
		c.dials.Go(func() { <-l.Done() }) // the dial counts itself, so Close is not past waiting
		e := *conduit.AsError(err, conduit.NotSent)
		e.Peer = k.url
		if e.Code == conduit.DeadlineExceeded || e.Code == conduit.Canceled {
			// The dial's time, not the call's: said so, and another peer may do better.
			return nil, unreachable(k.url, fmt.Sprintf("no Hello within %v", within), err)
		}
		return nil, k.scrub(&e)
	}
	return l, nil
}

// maxHandshake is how much of an answer to an upgrade is read, certificates and all: who
// sends headers without an end shall not fill the memory.
const maxHandshake = 256 << 10

var errLongHandshake = fmt.Errorf("the answer to the upgrade has more than %d KiB: it is no instance's", maxHandshake>>10)

// handshake bounds what is read from a connection until the upgrade is over.
type handshake struct {
	net.Conn

	left int // bytes; used by the reader only
	over atomic.Bool
}

func (h *handshake) Read(p []byte) (int, error) {
	if h.over.Load() {
		return h.Conn.Read(p)
	}
	if h.left <= 0 {
		return 0, errLongHandshake
	}
	n, err := h.Conn.Read(p[:min(len(p), h.left)])
	h.left -= n
	return n, err
}

// scrub takes the session out of an error: whoever is dialled may send back what it got.
func (k key) scrub(e *conduit.Error) *conduit.Error {
	if k.session == "" {
		return e
	}
	clean := func(s string) string { return strings.ReplaceAll(s, k.session, "[session]") }
	c := *e
	c.Message, c.Reason = clean(e.Message), clean(e.Reason)
	if e.Err != nil && strings.Contains(e.Err.Error(), k.session) {
		c.Err = errors.New(clean(e.Err.Error()))
	}
	return &c
}

// credential puts the session where proxies and logs expect a secret.
func credential(session string) http.Header {
	h := http.Header{}
	if session != "" {
		h.Set("Authorization", "Bearer "+session)
	}
	return h
}

// unreachable is the error of a peer to which there is no link.
func unreachable(url, why string, cause error) *conduit.Error {
	return &conduit.Error{
		Code: conduit.Unavailable, Reason: conduit.ReasonPeerUnreachable, Outcome: conduit.NotSent, Retryable: true,
		Message: url + ": " + why, Op: "transport.dial", Peer: url, Err: cause,
	}
}

// answerError is the error of a peer that answered, but not with a link.
func answerError(url string, code conduit.Code, reason string, retryable bool, format string, args ...any) *conduit.Error {
	return &conduit.Error{
		Code: code, Reason: reason, Outcome: conduit.NotSent, Retryable: retryable,
		Message: url + ": " + fmt.Sprintf(format, args...), Op: "transport.dial", Peer: url,
	}
}

// explainDial says why no answer came, to a connection that was made or was not, in the
// time that there was.
func explainDial(ctx context.Context, url string, connected bool, within time.Duration, err error) *conduit.Error {
	why := err.Error()
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Err != nil {
		why = e.Err.Error()
	}
	dns, isDNS := errors.AsType[*net.DNSError](err)
	unknown, isUnknown := errors.AsType[x509.UnknownAuthorityError](err)
	_, notTLS := errors.AsType[tls.RecordHeaderError](err)
	switch {
	case isDNS && !dns.IsTimeout:
		why = "the host's name does not resolve: " + dns.Err
	case ctx.Err() != nil || isTimeout(err): // then the connection was closed by this end
		why = fmt.Sprintf("no answer within %v: nothing takes the connection; is the host down, or does a firewall drop it?", within)
		if connected {
			why = fmt.Sprintf("no answer within %v: it takes the connection, and then answers nothing: is it an instance, and does it run or hang?", within)
		}
	case errors.Is(err, syscall.ECONNREFUSED):
		why = "connection refused: nothing listens there"
	case notTLS:
		why = "the other end does not speak TLS: should the URL begin with ws://?"
	case isUnknown:
		why = unknown.Error() + ": name the authority in cluster.tls.ca (--cluster-tls-ca; in Go, client.Options.TLS)"
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET):
		why = "the other end closed the connection instead of answering: does it speak TLS (wss://)?"
	case errors.Is(err, errLongHandshake):
		why = errLongHandshake.Error()
	}
	return unreachable(url, why, err)
}

func isTimeout(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}

// explainAnswer says what an HTTP answer other than an upgrade means.
func (c *Client) explainAnswer(k key, resp *http.Response, cause error) *conduit.Error {
	// Before anything is cut: of a secret that was cut the rest would stay.
	clean := func(s string) string { return s }
	if k.session != "" {
		clean = func(s string) string { return strings.ReplaceAll(s, k.session, "[session]") }
	}
	url, said := k.url, firstLine(resp.Body, clean)
	if said != "" {
		said = ": " + said
	}
	var e *conduit.Error
	switch resp.StatusCode {
	case http.StatusUnauthorized:
		e = answerError(url, conduit.Unauthenticated, conduit.ReasonUnauthenticated, false, "the session is not accepted (401)%s", said)
		if resp.Header.Get(HeaderReason) == conduit.ReasonSessionExpired {
			e.Reason = conduit.ReasonSessionExpired
		}
		if theirs, ours := resp.Header.Get(HeaderAuthStore), c.o.Link.Hello.AuthStore; theirs != "" && ours != "" && theirs != ours {
			e.Message = fmt.Sprintf("%s: two auth stores: %s here, and %.64q there: instances that call each other share one; give both the same auth.store (--auth-store, or --data-dir); the session is not accepted (401)%s", url, ours, clean(theirs), said)
		}
	case http.StatusForbidden:
		e = answerError(url, conduit.PermissionDenied, reasonPermissionDenied, false, "the peer forbids the link (403)%s", said)
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		e = answerError(url, conduit.Unavailable, conduit.ReasonPeerUnreachable, true, "there is no service (%d)%s", resp.StatusCode, said)
		switch resp.Header.Get(HeaderReason) { // absent when a proxy answers
		case conduit.ReasonDraining:
			e.Reason = conduit.ReasonDraining
		case conduit.ReasonOverloaded:
			e.Code, e.Reason = conduit.ResourceExhausted, conduit.ReasonOverloaded
		case conduit.ReasonTooManyAttempts:
			e.Code, e.Reason = conduit.ResourceExhausted, conduit.ReasonTooManyAttempts
		case conduit.ReasonStoreUnavailable:
			e.Reason = conduit.ReasonStoreUnavailable
		}
		if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
			e.RetryAfter = min(time.Duration(s)*time.Second, time.Hour)
		}
	case http.StatusNotFound:
		if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/problem+json") { // as a gateway answers
			e = answerError(url, conduit.Unavailable, conduit.ReasonPeerUnreachable, true,
				"no instance serves links there: it answers as the gateway of one does; links are at its cluster.listen (port 7400 by default)")
			break
		}
		fallthrough
	default:
		e = answerError(url, conduit.Unavailable, conduit.ReasonPeerUnreachable, true,
			"no instance serves links there: %s answered %.64s instead of an upgrade%s", server(resp, clean), clean(resp.Status), said)
		if resp.StatusCode == http.StatusBadRequest && resp.TLS == nil && strings.Contains(said, "HTTPS") {
			e.Message = strings.TrimSuffix(e.Message, ".") + "; should the URL begin with wss://?"
		}
	}
	e.Err = cause
	return e
}

// server names who answered, by its own word.
func server(resp *http.Response, clean func(string) string) string {
	if s := clean(resp.Header.Get("Server")); s != "" {
		return fmt.Sprintf("%.64q", s)
	}
	return "the server"
}

// firstLine returns the beginning of an answer's text, which gorilla has cut to
// 1 KiB, if it is fit to print.
func firstLine(r io.Reader, clean func(string) string) string {
	b, err := io.ReadAll(io.LimitReader(r, 1024))
	if err != nil {
		return ""
	}
	b, _, _ = bytes.Cut(bytes.TrimSpace([]byte(clean(string(b)))), []byte("\n"))
	if len(b) > 200 {
		b = b[:200]
	}
	if bytes.HasPrefix(b, []byte("<")) { // a page for people
		return ""
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0xfffd {
			return -1
		}
		return r
	}, string(b))
}
