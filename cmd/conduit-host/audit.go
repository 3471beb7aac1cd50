package main

import (
	"context"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/internal/builtin"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
)

const (
	// auditName is the name of the audit's logger, whatever the instance's is.
	auditName = "audit"
	// auditRefusals is how many refusals are written in a second, so that a flood of
	// them fills no disk; of the others it is written how many there were.
	auditRefusals = 20
	// auditKinds bounds the kinds of refusals that are counted apart.
	auditKinds = 64
	// auditText is how much of a name that a caller chose is written, in bytes.
	auditText = 128
	// auditFile is the most that commands write to a file before it becomes the old one.
	auditFile = 1 << 20

	auditOK = "ok"
)

// audit writes who did what, by which door, from where, and what came of it. It never
// writes a secret. The methods may be called concurrently; a nil *audit writes nothing.
type audit struct {
	log hclog.Logger

	mu      sync.Mutex
	begun   time.Time // of the second
	refused int       // in it
	missed  map[auditKind]int
	timer   *time.Timer // writes missed
	closed  bool
}

// auditKind is what refusals are counted by that are not written.
type auditKind struct{ what, door, result string }

// auditRecord is one record. What is empty is left out.
type auditRecord struct {
	what    string // such as login, or drain
	who     string // the user, as known; never a name that only somebody claims
	door    string
	from    string // an address
	whom    string // the user that it is done to
	session string // its id
	call    string // what was called
	result  string // ok, or the reason of the refusal
}

func newAudit(log hclog.Logger) *audit {
	return &audit{log: log.ResetNamed(auditName), missed: map[auditKind]int{}}
}

// auditResult is what of an error an audit says: its reason, which holds nothing that a
// caller sent.
func auditResult(err error) string {
	if err == nil {
		return auditOK
	}
	return conduit.AsError(err, conduit.Refused).Reason
}

// record writes a record, or counts it if it is one refusal too many.
func (a *audit) record(r auditRecord) {
	if a == nil {
		return
	}
	if r.result != auditOK && !a.room(auditKind{r.what, r.door, r.result}) {
		return
	}
	a.write(r)
}

func (a *audit) write(r auditRecord) {
	args := make([]any, 0, 16)
	for _, f := range [...][2]string{
		{"what", r.what}, {"who", r.who}, {"door", r.door}, {"from", r.from}, {"whom", r.whom}, {"session", r.session}, {"call", r.call}, {"result", r.result},
	} {
		if f[1] != "" {
			args = append(args, f[0], f[1])
		}
	}
	if r.result == auditOK {
		a.log.Info(r.what, args...)
	} else {
		a.log.Warn(r.what+" refused", args...)
	}
}

// room says whether one more refusal may be written in this second, and counts it if not.
func (a *audit) room(kind auditKind) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if now.Sub(a.begun) >= time.Second {
		a.begun, a.refused = now, 0
	}
	if a.refused < auditRefusals {
		a.refused++
		return true
	}
	if _, ok := a.missed[kind]; !ok && len(a.missed) >= auditKinds {
		kind = auditKind{what: "others"}
	}
	a.missed[kind]++
	if a.timer == nil && !a.closed {
		a.timer = time.AfterFunc(time.Second, a.tell)
	}
	return false
}

// tell writes how many refusals were not.
func (a *audit) tell() {
	a.mu.Lock()
	missed := a.missed
	a.missed, a.timer = map[auditKind]int{}, nil
	a.mu.Unlock()
	for kind, n := range missed {
		a.log.Warn("refusals that are not written one by one", "what", kind.what, "door", kind.door, "result", kind.result, "count", n)
	}
}

// close writes what is counted. What is counted later is not told.
func (a *audit) close() {
	a.mu.Lock()
	a.closed = true
	if a.timer != nil {
		a.timer.Stop()
	}
	a.mu.Unlock()
	a.tell()
}

// doorOf names the door that a link came in by.
func doorOf(p link.Peer) string {
	switch {
	case p.Name == operatorPeer:
		return "management"
	case p.Guest != nil && p.System:
		return "instance"
	case p.System: // this instance's own link, which its gateway calls on
		return "inner"
	default:
		return "cluster"
	}
}

// refusedCall writes that a call was refused for want of rights; all other errors are
// none of the audit's.
func (a *audit) refusedCall(p link.Peer, inv *frame.Invoke, who string, err *conduit.Error) {
	if err.Code != conduit.Unauthenticated && err.Code != conduit.PermissionDenied {
		return
	}
	a.record(auditRecord{what: "call", who: who, door: doorOf(p), from: p.From, call: called(inv), result: err.Reason})
}

func called(inv *frame.Invoke) string {
	cut := func(b []byte) string { return string(b[:min(len(b), auditText)]) }
	return cut(inv.Deployment) + "/" + cut(inv.Element) + "/" + cut(inv.Service) + " " + cut(inv.Method)
}

// onlyAsks says that a method of the built-in service for administrators changes nothing.
func onlyAsks(method []byte) bool {
	switch string(method) {
	case "Links", "Peers", "Explain", "Logs":
		return true
	}
	return false
}

// take is Services.Take, with a record of what administrators did and of who may not.
func (i *instance) take(at builtin.Door, c pending, inv *frame.Invoke, who string, level conduit.Level) bool {
	if string(inv.Service) != adminService {
		return i.builtins.Take(at, c, inv, who, level)
	}
	return i.builtins.Take(at, auditedCall{c, i.access.audit, inv, who}, inv, who, level)
}

// auditedCall is a call to the built-in service for administrators.
type auditedCall struct {
	pending
	audit *audit
	inv   *frame.Invoke
	who   string
}

// Refuse implements builtin.Call.
func (c auditedCall) Refuse(err *conduit.Error) {
	c.audit.refusedCall(c.Peer(), c.inv, c.who, err)
	c.pending.Refuse(err)
}

// Serve implements builtin.Call.
func (c auditedCall) Serve(fn link.ServeFunc) {
	if onlyAsks(c.inv.Method) {
		c.pending.Serve(fn)
		return
	}
	p := c.Peer()
	r := auditRecord{what: strings.ToLower(string(c.inv.Method)), who: c.who, door: doorOf(p), from: p.From, call: called(c.inv)}
	c.pending.Serve(func(ctx context.Context, s *link.ServerCall) error {
		err := fn(ctx, s)
		r.result = auditResult(err)
		c.audit.record(r)
		return err
	})
}

// auditCommand writes what a command did to an auth store into a file, since no instance
// takes part in that: see auditPath.
func auditCommand(path string, r auditRecord) error {
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && info.Size() >= auditFile {
		if err := os.Rename(path, path+".1"); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	w := &firstError{w: f}
	r.door, r.who = "command", "uid:"+strconv.Itoa(os.Getuid())
	newAudit(hclog.New(&hclog.LoggerOptions{Output: w, JSONFormat: true})).record(r)
	if err := f.Close(); w.err == nil {
		w.err = err
	}
	return w.err
}

// firstError keeps what a logger does not tell.
type firstError struct {
	w   io.Writer
	err error
}

// Write implements io.Writer.
func (f *firstError) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err != nil && f.err == nil {
		f.err = err
	}
	return n, err
}

// cleanName is a user's name as a record has it; "" for what is none.
func cleanName(name string) string {
	clean, err := auth.CleanName(name)
	if err != nil {
		return ""
	}
	return clean
}
