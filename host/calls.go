package host

import (
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/tracecontext"
)

// CallRecord is one call to an element that has ended, or was refused.
type CallRecord struct {
	// Deployment, Element, Service and Method are as the call had them: those of one
	// that was refused are what the caller made up, and cut after 128 bytes.
	Deployment, Element, Service, Method string
	// User is as whom it ran; empty for anonymous.
	User string
	// Peer is the instance that it came from; empty if it came from none.
	Peer string
	// TraceID is that of the trace that it is part of; empty if it is part of none.
	TraceID string
	Attempt uint32
	// Code is 0 for success. Reason is known of refusals alone.
	Code    conduit.Code
	Reason  string
	Outcome conduit.Outcome
	// Took is 0 for a refusal.
	Took time.Duration
}

// maxRecorded is how much of a name is kept in a record, in bytes.
const maxRecorded = 128

// recordOf begins the record of a call.
func recordOf(inv *frame.Invoke, p Principal, peer string) CallRecord {
	return CallRecord{
		Deployment: cutName(inv.Deployment), Element: cutName(inv.Element), Service: cutName(inv.Service), Method: cutName(inv.Method),
		User: p.User, Peer: peer, TraceID: tracecontext.ID(inv.TraceParent), Attempt: inv.Attempt,
	}
}

func cutName(b []byte) string { return string(b[:min(len(b), maxRecorded)]) }

// underWay is the record of a call that is not over.
type underWay struct {
	CallRecord

	begun time.Time
}

// note keeps a record with a call that was added and has not been passed on yet.
func (cs *callers) note(tag uint64, r *underWay) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.slots[uint32(tag)].c.record = r
}

// tell gives the record of a call that is over.
func (r *underWay) tell(to func(CallRecord), code conduit.Code, outcome conduit.Outcome) {
	r.Code, r.Outcome, r.Took = code, outcome, time.Since(r.begun)
	to(r.CallRecord)
}
