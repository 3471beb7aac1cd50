package link

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

func (h Hello) withDefaults() Hello {
	if h.VersionMin == 0 {
		h.VersionMin = Version
	}
	if h.VersionMax == 0 {
		h.VersionMax = Version
	}
	if h.MaxMessage == 0 {
		h.MaxMessage = DefaultMaxMessage
	}
	if h.MaxPacket == 0 {
		h.MaxPacket = DefaultMaxPacket
	}
	h.Instance, h.AuthStore, h.Build = text(h.Instance), text(h.AuthStore), text(h.Build)
	if h.MaxCalls == 0 {
		h.MaxCalls = DefaultMaxCalls
	}
	if h.LinkCredit == 0 {
		h.LinkCredit = DefaultLinkCredit
	}
	if h.CallCredit == 0 {
		h.CallCredit = DefaultRequestCredit
	}
	return h
}

// ours is what this end says of itself: nothing below what the protocol asks for.
func (h Hello) ours() Hello {
	h = h.withDefaults()
	h.MaxPacket, h.LinkCredit, h.CallCredit = max(h.MaxPacket, minPacket), max(h.LinkCredit, minLinkCredit), max(h.CallCredit, minCallCredit)
	return h
}

// text makes a string fit for a packet: one that is not UTF-8 costs the link.
func text(s string) string { return strings.ToValidUTF8(s, "?") }

func (h Hello) encode() []byte {
	body, err := proto.Marshal(&conduitv1.Hello{
		VersionMin: h.VersionMin, VersionMax: h.VersionMax, Required: h.Required, Supported: h.Supported,
		Instance: h.Instance, Epoch: h.Epoch, MaxMessage: uint64(h.MaxMessage), MaxPacket: uint32(h.MaxPacket),
		MaxCalls: h.MaxCalls, LinkCredit: h.LinkCredit, CallCredit: h.CallCredit, AuthStore: h.AuthStore,
		Build: h.Build, Token: h.Token, Simple: h.Simple,
	})
	if err != nil { // only a feature's name that is not UTF-8, which is a constant
		panic("link: this end's Hello does not encode: " + err.Error())
	}
	return body
}

func decodeHello(body []byte) (Hello, error) {
	var m conduitv1.Hello
	if err := proto.Unmarshal(body, &m); err != nil {
		return Hello{}, err
	}
	const most = 1 << 40
	return Hello{
		VersionMin: m.VersionMin, VersionMax: m.VersionMax, Required: m.Required, Supported: m.Supported,
		Instance: m.Instance, Epoch: m.Epoch, MaxMessage: int64(min(m.MaxMessage, most)), MaxPacket: int(min(m.MaxPacket, 1<<30)),
		MaxCalls: m.MaxCalls, LinkCredit: m.LinkCredit, CallCredit: m.CallCredit, AuthStore: m.AuthStore,
		Build: m.Build, Token: m.Token, Simple: m.Simple,
	}.withDefaults(), nil
}

// encodeGoAway tells that no call above one is served.
func encodeGoAway(last uint64, reason, message string, retryAfter time.Duration) []byte {
	body, err := proto.Marshal(&conduitv1.GoAway{
		LastCall: last, Reason: text(cut(reason, maxReason)), Message: text(cut(message, 512)),
		RetryAfterMicros: uint64(max(0, retryAfter.Microseconds())),
	})
	if err != nil {
		return nil // an empty one says the most important: no calls at all
	}
	return body
}

// sayHello puts this end's Hello, its first frame, into the next packet. c.mu is
// held.
func (c *Conn) sayHello() {
	c.wbuf = frame.AppendBody(c.wbuf, 0, frame.KindHello, c.o.Hello.encode())
	c.report.behind = len(c.wbuf)
}

// takeHello takes the other end's Hello, or refuses it. It runs on the reader.
func (c *Conn) takeHello(body []byte) error {
	h, err := decodeHello(body)
	if err != nil {
		return c.broken("its Hello does not decode: %v", err)
	}
	why := c.helloFault(h)
	if why == "" && c.o.Check != nil {
		if err := c.o.Check(h); err != nil {
			why = err.Error()
		}
	}
	c.mu.Lock()
	if why != "" {
		// Also instead of a Hello: so the other end can say why.
		c.ctrl = frame.AppendBody(c.ctrl, 0, frame.KindGoAway, encodeGoAway(0, conduit.ReasonProtocol, why, 0))
		c.failLocked(&CloseError{Code: CloseProtocol, Reason: cut(why, 120)})
		c.unlock()
		return errStop
	}
	c.theirs = h
	if h.Simple {
		c.becomeSimple() // and says so in its own Hello
	}
	if c.o.Dialer && h.Instance != "" {
		c.o.Peer.Name = h.Instance // who it is says more than where it was dialled
	}
	c.linkCredit = int64(h.LinkCredit)
	if c.simple {
		c.linkCredit = noCredit
	}
	c.ready = c.err == nil
	c.greeted = true
	if c.o.Dialer {
		// Not with control: the packet that is begun now goes before that, and
		// from now on it may hold Invokes.
		c.sayHello()
		if c.heldAway != nil {
			c.wbuf = frame.AppendBody(c.wbuf, 0, frame.KindGoAway, c.heldAway)
			c.heldAway = nil
		}
	}
	if !c.o.Dialer { // its answer to this end's Hello goes before all that could be in the way
		c.roundTrip(max(c.now.Sub(c.grow.began), 1))
	}
	if !c.simple {
		c.sample() // behind this end's Hello, and before anything that it would wait for
	}
	c.closeReady()
	c.beginLiveness()
	c.unlock()
	return nil
}

// helloFault says why this end cannot go on with the other, naming both.
func (c *Conn) helloFault(h Hello) string {
	mine := c.o.Hello
	if h.VersionMax < mine.VersionMin || h.VersionMin > mine.VersionMax {
		return fmt.Sprintf("no common protocol version: this end speaks %d to %d, the other %d to %d",
			mine.VersionMin, mine.VersionMax, h.VersionMin, h.VersionMax)
	}
	for _, f := range h.Required {
		if !slices.Contains(mine.Supported, f) {
			return fmt.Sprintf("the other end requires the feature %q, which this end (protocol %d) does not have", cut(f, 40), Version)
		}
	}
	for _, f := range mine.Required {
		if !slices.Contains(h.Supported, f) {
			return fmt.Sprintf("this end requires the feature %q, which the other does not have", cut(f, 40))
		}
	}
	switch {
	case h.Simple && !mine.Simple && !c.o.Simple:
		return "the other end asks for the simple profile, which this end serves to plugins only"
	case mine.Simple && !h.Simple:
		return "this end has the simple profile alone, and the other has not said that it serves that"
	case h.Simple:
		return "" // the other limits are of what the profile does without
	}
	if h.MaxPacket < minPacket || h.LinkCredit < minLinkCredit || h.CallCredit < minCallCredit {
		return fmt.Sprintf("the other end's limits are too small: packet %d, link credit %d, call credit %d; the least are %d, %d and %d",
			h.MaxPacket, h.LinkCredit, h.CallCredit, minPacket, minLinkCredit, minCallCredit)
	}
	return ""
}

// takeGoAway notes that the other end serves no calls above one. It runs on the
// reader.
func (c *Conn) takeGoAway(body []byte) error {
	var m conduitv1.GoAway
	if err := proto.Unmarshal(body, &m); err != nil {
		return c.broken("its GoAway does not decode: %v", err)
	}
	after := time.Duration(min(m.RetryAfterMicros, uint64(time.Hour/time.Microsecond))) * time.Microsecond
	e := &conduit.Error{
		Code: conduit.Unavailable, Reason: m.Reason, Outcome: conduit.Refused, Retryable: true, RetryAfter: after,
		Message: "the peer takes no new calls: " + m.Reason, Op: c.o.Op, Peer: c.o.Peer.Name,
	}
	if e.Reason == "" {
		e.Reason = conduit.ReasonDraining
	}
	if m.Message != "" {
		e.Message = m.Message
	}
	if e.Reason == conduit.ReasonProtocol {
		e.Code, e.Retryable = conduit.FailedPrecondition, false
	}
	c.mu.Lock()
	if c.goneAway != nil || c.err != nil {
		c.unlock()
		return nil //nolint:nilerr // a link that is over ends by itself
	}
	c.goneAway, c.goneLast = e, m.LastCall
	c.off.Store(true)
	c.settleGone()
	for id, k := range c.calls {
		if k.ours && id > m.LastCall {
			c.ended(k, e, nil)
		}
	}
	for _, l := range []*callList{&c.small, &c.bulk} {
		for k := l.head; k != nil; {
			next := k.next
			if k.ours && k.id == 0 {
				unsent := *e
				unsent.Outcome = conduit.NotSent
				c.ended(k, &unsent, nil)
			}
			k = next
		}
	}
	c.unlock()
	if c.o.OnGoAway != nil {
		c.o.OnGoAway(e.Reason, after)
	}
	return nil
}
