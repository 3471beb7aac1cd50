package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/elemental-conduit/conduit"
)

// errLeft is why a call is cancelled that the gateway leaves before its end.
var errLeft = &conduit.Error{Code: conduit.Canceled, Reason: conduit.ReasonCanceled, Message: "the client of the gateway left"}

// invoke makes the call.
func (q *request) invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	return q.g.o.Locate(q.route.addr.String()).Invoke(ctx, in)
}

// callLines makes a call that sends the lines of the body as they come.
func (q *request) callLines(ctx context.Context, in *conduit.Invocation, accept form) *fault {
	x := q.invoke(ctx, in)
	up := q.startUpload(ctx, x)
	defer up.finish()
	f := q.call(ctx, x, up, accept)
	if f != nil && !q.reply.started() {
		q.reply.problem(f) // now: finish may wait for the client
	}
	return f
}

// call writes what comes of a call, and ends it; up is nil if it sends one message.
func (q *request) call(ctx context.Context, x conduit.Exchange, up *upload, accept form) *fault {
	defer x.Cancel(errLeft)
	c := &receiver{q: q, x: x, up: up}

	if accept == formEvents {
		return c.events(ctx)
	}
	var held []conduit.Message
	if !accept.streams() {
		// Whether there is one result or many is known with the second, or the end.
		first, err := c.next(ctx, false)
		if err == io.EOF {
			q.reply.begin(http.StatusNoContent)
			return nil
		}
		if err != nil {
			return c.failed(ctx, err)
		}
		second, err := c.next(ctx, false)
		if err == io.EOF {
			return c.single(ctx, first)
		}
		if err != nil {
			return c.failed(ctx, err)
		}
		held = []conduit.Message{first, second}
	}
	return c.lines(ctx, held...)
}

// receiver takes the messages of one call.
type receiver struct {
	q  *request
	x  conduit.Exchange
	up *upload // nil = one message was sent
}

// next returns the next message that the client wants to see, io.EOF, or the
// call's error.
func (c *receiver) next(ctx context.Context, parts bool) (conduit.Message, error) {
	for {
		m, err := c.x.Recv(ctx)
		if err != nil {
			return conduit.Message{}, err
		}
		if m.Part == 0 || parts {
			return m, nil
		}
	}
}

// failed makes a fault of what Recv returned.
func (c *receiver) failed(ctx context.Context, err error) *fault {
	f := c.q.foreign(ctx, "the call failed in an unforeseen way", err, conduit.OutcomeUnknown)
	status := 0
	if c.up != nil {
		if bad := c.up.bad.Load(); bad != nil { // which is why it failed
			f, status = bad, bad.status
		}
	}
	if f.err.Address != "" && f.err.Method != "" {
		return f
	}
	e := *f.err // errors may be shared
	if e.Address == "" {
		e.Address = c.q.route.addr.String()
	}
	if e.Method == "" {
		e.Method = c.q.route.method
	}
	return &fault{err: &e, status: status}
}

// single writes the one result of a call as it is.
func (c *receiver) single(ctx context.Context, m conduit.Message) *fault {
	defer c.hold(m)()
	content, original := safeContent(m.ContentType)
	data := m.Data
	var zip *zipper
	if content == conduit.ContentJSON {
		switch {
		case len(data) == 0:
			data = []byte("null")
		case !json.Valid(data):
			return c.failed(ctx, errNotJSON)
		}
		if data[len(data)-1] != '\n' { // a terminal's prompt would run into it
			data = append(slices.Clip(data), '\n') // the message is not ours alone
		}
		zip = c.q.zip()
	}
	if original != "" {
		c.q.reply.w.Header().Set(headerContentType, original)
	}
	return wrote(c.q.reply.answer(http.StatusOK, content, data, zip))
}

// lines writes the results as lines until the call ends, held first.
func (c *receiver) lines(ctx context.Context, held ...conduit.Message) *fault {
	for _, m := range held {
		if f := c.line(ctx, m); f != nil {
			return f
		}
	}
	for {
		m, err := c.next(ctx, c.q.route.parts)
		if err == io.EOF {
			return wrote(c.q.reply.start(typeNDJSON)) // if there was none
		}
		if err != nil {
			return c.lastLine(c.failed(ctx, err))
		}
		if f := c.line(ctx, m); f != nil {
			return f
		}
	}
}

// line writes one result.
func (c *receiver) line(ctx context.Context, m conduit.Message) *fault {
	defer c.hold(m)()
	text, err := asJSON(m)
	if err != nil {
		return c.lastLine(c.failed(ctx, err))
	}
	if c.q.route.parts {
		text = wrap(m.Part, text)
	}
	if err := c.q.reply.start(typeNDJSON); err != nil {
		return wrote(err)
	}
	return wrote(c.q.reply.item(append(text, '\n')))
}

// lastLine tells of the end of a call whose answer has begun.
func (c *receiver) lastLine(f *fault) *fault {
	if c.q.reply.started() {
		_ = c.q.reply.write(append(line(map[string]any{"error": f.problem()}), '\n')) // the fault says more than one of writing it
	}
	return f
}

// hold counts a message while it is written.
func (c *receiver) hold(m conduit.Message) (release func()) {
	n := int64(len(m.Data))
	c.q.g.memory.Add(n)
	return func() { c.q.g.memory.Add(-n) }
}

// wrote makes a fault of an error of writing: the client is gone, or reads no more.
func wrote(err error) *fault {
	if err == nil {
		return nil
	}
	e := *errLeft
	e.Err = err
	return &fault{err: &e}
}

var errNotJSON = conduit.Errorf(conduit.DataLoss, conduit.ReasonBadContent, conduit.OutcomeUnknown, "a result says that it is JSON and is not")

// asJSON is a result as one line of JSON, whatever it is made of: what is not JSON
// becomes a string in base64, as Go writes bytes. There is room behind it.
func asJSON(m conduit.Message) ([]byte, error) {
	if content, _ := safeContent(m.ContentType); content != conduit.ContentJSON {
		return line(m.Data), nil
	}
	if len(m.Data) == 0 {
		return []byte("null"), nil
	}
	if !bytes.ContainsAny(m.Data, "\r\n") && json.Valid(m.Data) {
		return m.Data, nil
	}
	var b bytes.Buffer
	if err := json.Compact(&b, m.Data); err != nil {
		return nil, errNotJSON
	}
	return b.Bytes(), nil
}

// wrap says the part of a result.
func wrap(part uint32, text []byte) []byte {
	return line(struct {
		Part  uint32          `json:"part"`
		Value json.RawMessage `json:"value"`
	}{part, text})
}

// safeContent is the content type that a result is answered with, and the one it
// had if that is another: an element may say anything, but no browser shall take
// what it returns for a page or a script of this origin.
func safeContent(said string) (content, original string) {
	bare, params, err := mime.ParseMediaType(said)
	switch {
	case said == "":
		return conduit.ContentJSON, ""
	case err != nil:
		return conduit.ContentBytes, ""
	case bare == conduit.ContentJSON, bare == conduit.ContentBytes, bare == conduit.ContentProto:
		return bare, ""
	}
	if original = mime.FormatMediaType(bare, params); strings.ContainsFunc(original, func(r rune) bool { return r < ' ' || r > '~' }) {
		original = ""
	}
	return conduit.ContentBytes, original
}
