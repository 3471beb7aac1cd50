package conduit

import (
	"context"
	"errors"
	"io"
	"iter"
	"reflect"
	"sync"
	"sync/atomic"
	"time"
)

// CallOption changes how one call is made. Options may be kept and used again;
// they are safe for concurrent use unless what they were given is not.
type CallOption func(*callSettings)

type callSettings struct {
	units      uint32
	background bool
	timeout    time.Duration
	hasTimeout bool
	as         AsWhom
	parts      map[uint32]func(Message)
}

// WithUnits asks for n units of capacity; the larger of n and the method's own
// counts. A peer without room refuses with no_capacity.
func WithUnits(n uint32) CallOption { return func(s *callSettings) { s.units = n } }

// WithTimeout ends the call after d, like a context with that deadline. It also
// bounds a stream, which has no deadline of its own.
func WithTimeout(d time.Duration) CallOption {
	return func(s *callSettings) { s.timeout, s.hasTimeout = d, true }
}

// AsBackground marks a watch: a call that waits long for little. It does not keep
// its link from being closed for idleness, has no deadline of its own, and ends
// at once, unavailable, when its peer drains.
func AsBackground() CallOption { return func(s *callSettings) { s.background = true } }

// WithAs says on whose behalf the call runs; without it, it is the caller's link
// or, in a plugin, the caller of the call that this one is made in.
func WithAs(as AsWhom) CallOption { return func(s *callSettings) { s.as = as } }

// OnPart hands the messages of result handler part (1..n) to fn, in the order in
// which they were sent and before the return value, on the goroutine that
// receives. Read them with [Decode]. Messages of parts without an OnPart are
// dropped. Part 0 is the return value and cannot be had this way.
func OnPart(part uint32, fn func(Message)) CallOption {
	return func(s *callSettings) {
		if s.parts == nil {
			s.parts = map[uint32]func(Message){}
		}
		s.parts[part] = fn
	}
}

// Call calls a method that takes one message and returns one, and waits for it.
// The request is encoded by its Go type, the reply decoded into Reply: JSON by
// default, raw for []byte, protobuf for a proto.Message; [Encode] and [Decode] do
// that. A nil or struct{} request sends no message; a Reply of struct{} wants
// none.
//
// The error is the call's one [*Error], with Method filled in. A call whose
// context has no deadline ends after [DefaultCallTimeout], or what its link is set
// to. When ctx ends, the call is cancelled and Call returns.
func Call[Reply any](ctx context.Context, inv Invoker, method string, request any, opts ...CallOption) (Reply, error) {
	var zero Reply
	c, ctx, err := begin(ctx, inv, method, reflect.TypeFor[Reply](), request, false, opts)
	if err != nil {
		return zero, err
	}
	defer c.leave()
	return single[Reply](ctx, c)
}

// Stream calls a method that yields many messages. Each range over the result is
// one call, started by the loop and received on the loop's goroutine; leaving the
// loop cancels it. A call that fails yields its one [*Error], with a zero T, and
// nothing after it.
//
// A stream has no deadline but that of ctx or [WithTimeout].
func Stream[T any](ctx context.Context, inv Invoker, method string, request any, opts ...CallOption) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		c, ctx, err := begin(ctx, inv, method, reflect.TypeFor[T](), request, true, opts)
		if err != nil {
			yield(zero, err)
			return
		}
		defer c.leave()
		for {
			v, err := next[T](ctx, c)
			if err == io.EOF {
				return
			}
			if !yield(v, err) || err != nil {
				return
			}
		}
	}
}

// Upload calls a method that takes many messages and returns one. The items are
// taken from seq on the caller's goroutine, as fast as the other end reads them;
// handlers set by [OnPart] run on another goroutine meanwhile. When the call ends
// before the items do, seq is left at its next item: one that waits should watch
// ctx.
//
// An upload has no deadline but that of ctx or [WithTimeout].
func Upload[Reply, Item any](ctx context.Context, inv Invoker, method string, seq iter.Seq[Item], opts ...CallOption) (Reply, error) {
	var zero Reply
	c, ctx, err := begin(ctx, inv, method, reflect.TypeFor[Reply](), upload{reflect.TypeFor[Item]()}, true, opts)
	if err != nil {
		return zero, err
	}
	defer c.leave()

	// The receiver runs beside the sender, since an element that reports parts
	// while it reads would otherwise wait for us to take them, and we for it.
	var reply Reply
	var replyErr error
	var wg sync.WaitGroup
	wg.Go(func() { reply, replyErr = single[Reply](ctx, c) })
	defer wg.Wait()
	defer c.leave() // first, so that the receiver ends even if seq panics

	sendErr := sendAll(ctx, c, seq)
	if sendErr != nil {
		c.x.Cancel(sendErr)
	}
	wg.Wait()
	switch {
	case sendErr == nil:
		return reply, replyErr
	case ctx.Err() != nil && replyErr != nil:
		return zero, replyErr
	}
	// Ours says why the call ended, the call's own end what became of the work.
	failed := *AsError(sendErr, OutcomeUnknown)
	failed.Outcome = Executed
	if e, ok := errors.AsType[*Error](replyErr); ok {
		failed.Outcome = e.Outcome
	}
	return zero, c.name(&failed)
}

// sendAll sends the items of seq. A nil error says that all were handed over, or
// that the call ended meanwhile.
func sendAll[Item any](ctx context.Context, c *call, seq iter.Seq[Item]) error {
	for item := range seq {
		data, err := c.encode(item)
		if err != nil {
			return err
		}
		switch err := c.x.Send(ctx, data); {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
	if err := c.x.CloseSend(); err != nil && err != io.EOF {
		return err
	}
	return nil
}

// DuplexCall is a call with messages both ways under way. One goroutine may send
// while another receives. It must be ended: by receiving until an error, or by
// Close.
type DuplexCall[Up, Down any] struct {
	c     *call
	ctx   context.Context //nolint:containedctx // the call's own: it is over when the call is
	began error           // why there is no call
	ended error           // what Recv said last
}

// Duplex calls a method that takes and yields many messages. Whatever is wrong
// with the call surfaces at its Recv. The call ends when ctx does.
func Duplex[Up, Down any](ctx context.Context, inv Invoker, method string, opts ...CallOption) *DuplexCall[Up, Down] {
	c, ctx, err := begin(ctx, inv, method, reflect.TypeFor[Down](), upload{reflect.TypeFor[Up]()}, true, opts)
	return &DuplexCall[Up, Down]{c: c, ctx: ctx, began: err}
}

// Send sends v up and returns when it has been handed to the link, which waits
// for room at the other end. It returns io.EOF when the call has ended (Recv
// tells how), and an [*Error] when v cannot be sent; the call goes on then.
func (d *DuplexCall[Up, Down]) Send(v Up) error {
	if d.began != nil {
		return io.EOF
	}
	data, err := d.c.encode(v)
	if err != nil {
		return d.c.name(AsError(err, NotSent))
	}
	err = d.c.x.Send(d.ctx, data)
	if err != nil && err != io.EOF {
		err = d.c.name(AsError(err, NotSent))
	}
	return err
}

// CloseSend says that no more messages go up.
func (d *DuplexCall[Up, Down]) CloseSend() error {
	if d.began != nil {
		return io.EOF
	}
	return d.c.x.CloseSend()
}

// Recv returns the next message down, then io.EOF or the call's one [*Error],
// again and again.
func (d *DuplexCall[Up, Down]) Recv() (Down, error) {
	var zero Down
	if d.began != nil {
		return zero, d.began
	}
	if d.ended != nil {
		return zero, d.ended
	}
	v, err := next[Down](d.ctx, d.c)
	if err != nil {
		d.ended = err
		d.c.leave()
	}
	return v, err
}

// All yields the messages down as [Stream] does; leaving the loop ends the call.
func (d *DuplexCall[Up, Down]) All() iter.Seq2[Down, error] {
	return func(yield func(Down, error) bool) {
		defer d.Close()
		for {
			v, err := d.Recv()
			if err == io.EOF {
				return
			}
			if !yield(v, err) || err != nil {
				return
			}
		}
	}
}

// Close ends the call if it is under way; it never waits. It may be called from
// any goroutine, and more than once.
func (d *DuplexCall[Up, Down]) Close() {
	if d.began == nil {
		d.c.leave()
	}
}

// upload stands in for the request of a call whose messages come one by one.
type upload struct{ item reflect.Type }

// call is the caller's side of one call: what Call, Stream, Upload and DuplexCall
// have in common.
type call struct {
	x           Exchange
	set         callSettings
	in          Invocation // as Invokers were given it
	method      string
	target      Target // nil if the Invoker has no address to tell
	contentType string // of what goes up
	cancel      context.CancelFunc
	over        atomic.Bool // the Exchange has ended: there is nothing to cancel
}

// begin encodes the request and starts the call, of which every failure of the
// callers' making is an *Error of outcome not_sent.
func begin(ctx context.Context, inv Invoker, method string, reply reflect.Type, request any, streaming bool, opts []CallOption) (*call, context.Context, error) {
	// One allocation: what is handed on by its address is within the call.
	c := &call{method: method, cancel: func() {}}
	s, in := &c.set, &c.in
	for _, o := range opts {
		o(s)
	}
	if t, ok := inv.(Target); ok {
		c.target = t
	}
	switch {
	case inv == nil:
		return nil, nil, c.name(Errorf(InvalidArgument, ReasonBadAddress, NotSent, "there is no Invoker to call with"))
	case s.parts[0] != nil:
		return nil, nil, c.name(Errorf(InvalidArgument, ReasonWrongShape, NotSent, "OnPart(0): part 0 is the return value; handlers have 1 and up"))
	}

	*in = Invocation{
		Method:     method,
		Accept:     formOf(reply).accept(),
		Units:      s.units,
		Background: s.background,
		Streaming:  streaming,
		As:         s.as,
	}
	switch r := request.(type) {
	case upload:
		in.ContentType = formOf(r.item).own()
	case nil, struct{}:
		in.Last = true
	default:
		ct, data, err := Encode(request)
		if err != nil {
			return nil, nil, c.name(AsError(err, NotSent))
		}
		in.ContentType, in.Request, in.HasRequest, in.Last = ct, data, true, true
	}
	c.contentType = in.ContentType
	if s.hasTimeout {
		ctx, c.cancel = context.WithTimeout(ctx, s.timeout)
	}
	c.x = inv.Invoke(ctx, in)
	return c, ctx, nil
}

// encode encodes one of many messages up, which all have the call's content type.
func (c *call) encode(v any) ([]byte, error) {
	ct, data, err := EncodeFor(c.contentType, v)
	if err == nil && ct != c.contentType && c.contentType != "" {
		err = Errorf(InvalidArgument, ReasonBadContent, NotSent, "a %T travels as %s, and this call sends %s", v, ct, c.contentType)
	}
	return data, err
}

// leave cancels the call if it is still under way; it never waits.
func (c *call) leave() {
	if !c.over.Load() {
		c.x.Cancel(errLeft)
	}
	c.cancel()
}

// errLeft is the cause of a call that its caller left before the end.
var errLeft = &Error{Code: Canceled, Reason: ReasonCanceled, Message: "the caller left"}

// recv returns the next message of part 0; it hands all others to their handlers.
func (c *call) recv(ctx context.Context) (Message, error) {
	for {
		m, err := c.x.Recv(ctx)
		if err != nil || m.Last {
			c.over.Store(true)
		}
		switch {
		case err == io.EOF:
			return Message{}, err
		case err != nil:
			return Message{}, c.name(AsError(err, OutcomeUnknown))
		case m.Part == 0:
			return m, nil
		}
		if fn := c.set.parts[m.Part]; fn != nil {
			fn(m)
		}
	}
}

// next returns the next item of a stream, io.EOF, or the call's one error.
func next[T any](ctx context.Context, c *call) (T, error) {
	var zero T
	m, err := c.recv(ctx)
	if err != nil {
		return zero, err
	}
	v, err := Decode[T](m)
	if err != nil {
		// We end a call that goes on over there.
		return zero, c.refuseReply(err, OutcomeUnknown)
	}
	return v, nil
}

// single returns the one message of a call that has one, after its end.
func single[T any](ctx context.Context, c *call) (T, error) {
	var zero T
	m, err := c.recv(ctx)
	if err == io.EOF {
		if reflect.TypeFor[T]() == typeNone {
			return zero, nil
		}
		return zero, c.name(Errorf(InvalidArgument, ReasonBadContent, Executed,
			"the method returned no value, and a %s was asked for; ask for struct{}", reflect.TypeFor[T]()))
	}
	if err != nil {
		return zero, err
	}
	if !m.Last {
		switch _, err := c.recv(ctx); {
		case err == nil:
			c.x.Cancel(errLeft)
			return zero, c.name(Errorf(InvalidArgument, ReasonWrongShape, OutcomeUnknown,
				"the method yields many results, and one was asked for; call it with Stream"))
		case err != io.EOF:
			return zero, err
		}
	}
	if reflect.TypeFor[T]() == typeNone {
		return zero, nil
	}
	v, err := Decode[T](m)
	if err != nil {
		return zero, c.refuseReply(err, Executed)
	}
	return v, nil
}

// refuseReply ends the call, since its answer cannot be read.
func (c *call) refuseReply(err error, outcome Outcome) *Error {
	e := *AsError(err, outcome)
	e.Outcome = outcome
	e.Message = "the answer: " + e.Message
	c.x.Cancel(&e)
	return c.name(&e)
}

// name fills in what was called, where the error does not say it.
func (c *call) name(e *Error) *Error {
	if e.Method != "" && (e.Address != "" || c.target == nil) {
		return e
	}
	named := *e // errors may be shared
	if named.Method == "" {
		named.Method = c.method
	}
	if named.Address == "" && c.target != nil {
		named.Address = c.target.Address().String()
	}
	return &named
}
