package conduit

import (
	"context"
	"io"
	"iter"
	"reflect"
	"slices"
	"sync"
)

// gatherAtOnce is how many nodes one Gather calls side by side.
const gatherAtOnce = 128

// Node is one deployment on one instance, by their ids as text. Deployment is
// empty if the instance does not say what it hosts.
type Node struct {
	Instance   string
	Deployment string
}

// Member is one node of a [Group], and what calls it and no other.
type Member struct {
	Node    Node
	Invoker Invoker
}

// Group is all nodes that an address stands for. It is safe for concurrent use.
type Group interface {
	// Members returns the nodes as they are now, in the order of their ids: those
	// that cannot be reached are among them, and say so when they are called. The
	// error, an [*Error], says that there is none.
	Members(ctx context.Context) ([]Member, error)
}

// Gathered is one message of one node, or why the node's call ended: then Value is
// zero, and it is the last of that node.
type Gathered[T any] struct {
	Node Node
	// Part is the callback that the message belongs to: 0 = the return value or an
	// item, 1..n = a further result handler.
	Part  uint32
	Value T
	Err   error
}

// NodeError is how the call of one node failed.
type NodeError struct {
	Node Node
	Err  *Error
}

// Report says what became of each node that there was when a [Gathering] began.
// Each is in one of the three lists, in the order of their ids.
type Report struct {
	// Answered: the call came to its end, with messages or without.
	Answered []Node
	// Failed: the call reached the node, and ended with an error: its own, or one
	// that leaves open what became of the work, or one that refused it.
	Failed []NodeError
	// NotReached: the call never left for the node (outcome not_sent).
	NotReached []NodeError
	// Err is why there were no nodes; nil if there were.
	Err *Error
}

// Nodes returns how many nodes there were.
func (r Report) Nodes() int { return len(r.Answered) + len(r.Failed) + len(r.NotReached) }

// Gathering is a call of all nodes of a [Group]. One goroutine may use it.
type Gathering[T any] struct {
	ctx     context.Context //nolint:containedctx // the calls' own: each range makes them in it
	group   Group
	method  string
	request any
	opts    []CallOption
	report  Report
}

// Gather calls a method on every node of a group, full and draining ones too, and
// yields what they answer as it comes. Messages of all parts are decoded into T;
// with parts of several types let T be [Message]. The method may yield one
// message, many or none. [OnPart] has no place in it.
//
// Each node's call is one of its own: none is rerouted, and what one of them fails
// with is no failure of the others. A context without a deadline leaves each call
// the default one.
func Gather[T any](ctx context.Context, g Group, method string, request any, opts ...CallOption) *Gathering[T] {
	return &Gathering[T]{ctx: ctx, group: g, method: method, request: request, opts: opts}
}

// All makes the calls, and yields on the loop's goroutine. Leaving the loop
// cancels what is under way; it returns when all calls have ended.
func (g *Gathering[T]) All() iter.Seq[Gathered[T]] {
	return func(yield func(Gathered[T]) bool) {
		g.report = Report{}
		ctx, cancel := context.WithCancelCause(g.ctx)
		defer cancel(errLeft)
		members, err := g.members(ctx)
		if err != nil {
			g.report.Err = err
			yield(Gathered[T]{Err: err})
			return
		}
		ends := make([]*Error, len(members))
		out := outlet[T]{results: make(chan Gathered[T]), left: make(chan struct{})}
		var wg sync.WaitGroup
		slots := make(chan struct{}, gatherAtOnce)
		wg.Go(func() {
			for i, m := range members {
				slots <- struct{}{} // freed soon, since every call ends with ctx
				wg.Go(func() {
					ends[i] = g.one(ctx, m, out)
					<-slots
				})
			}
		})
		defer func() {
			cancel(errLeft)
			close(out.left)
			wg.Wait()
			g.report = newReport(members, ends)
		}()
		go func() {
			wg.Wait()
			close(out.results)
		}()
		for r := range out.results {
			if !yield(r) {
				return
			}
		}
	}
}

func (g *Gathering[T]) members(ctx context.Context) ([]Member, *Error) {
	if g.group == nil {
		return nil, &Error{Code: InvalidArgument, Reason: ReasonBadAddress, Outcome: NotSent, Method: g.method, Message: "there is no Group to call"}
	}
	members, err := g.group.Members(ctx)
	if err != nil {
		e := *AsError(err, NotSent)
		e.Method = g.method
		return nil, &e
	}
	return members, nil
}

// one calls one node, and returns what its call ended with.
func (g *Gathering[T]) one(ctx context.Context, m Member, out outlet[T]) *Error {
	err := g.receive(ctx, m, out)
	if err != nil {
		out.put(Gathered[T]{Node: m.Node, Err: err})
	}
	return err
}

// outlet is the way from the calls to the loop.
type outlet[T any] struct {
	results chan Gathered[T]
	left    chan struct{} // closed when nobody takes results any more
}

// put hands a result over; it reports false if the loop was left.
func (o outlet[T]) put(r Gathered[T]) bool {
	select {
	case o.results <- r:
		return true
	case <-o.left:
		return false
	}
}

func (g *Gathering[T]) receive(ctx context.Context, m Member, out outlet[T]) *Error {
	if ctx.Err() != nil { // the loop was left before this one's turn
		return FromContext(ctx, NotSent)
	}
	c, ctx, err := begin(ctx, m.Invoker, g.method, reflect.TypeFor[T](), g.request, false, g.opts)
	if err != nil {
		return AsError(err, NotSent)
	}
	defer c.leave()
	if len(c.set.parts) > 0 {
		return c.name(Errorf(InvalidArgument, ReasonWrongShape, NotSent, "OnPart has no place in Gather, which yields the messages of all parts"))
	}
	for {
		message, err := c.x.Recv(ctx)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return c.name(AsError(err, OutcomeUnknown))
		}
		v, err := Decode[T](message)
		if err != nil {
			return c.refuseReply(err, OutcomeUnknown)
		}
		if !out.put(Gathered[T]{Node: m.Node, Part: message.Part, Value: v}) {
			return c.name(FromContext(ctx, OutcomeUnknown))
		}
	}
}

func newReport(members []Member, ends []*Error) Report {
	var r Report
	for i, m := range members {
		switch e := ends[i]; {
		case e == nil:
			r.Answered = append(r.Answered, m.Node)
		case e.Outcome == NotSent:
			r.NotReached = append(r.NotReached, NodeError{m.Node, e})
		default:
			r.Failed = append(r.Failed, NodeError{m.Node, e})
		}
	}
	return r
}

// Report returns what became of each node in the last range over All, or Collect,
// once that is over.
func (g *Gathering[T]) Report() Report { return g.report }

// Collect makes the calls, waits for all of them, and returns the values of part 0
// in the order of the nodes. The error is the first that came; the values of the
// other nodes are returned with it, and the report says the rest.
func (g *Gathering[T]) Collect() ([]T, error) {
	var first error
	byNode := map[Node][]T{}
	var nodes []Node
	for r := range g.All() {
		switch {
		case r.Err != nil && first == nil:
			first = r.Err
		case r.Err == nil && r.Part == 0:
			if byNode[r.Node] == nil {
				nodes = append(nodes, r.Node)
			}
			byNode[r.Node] = append(byNode[r.Node], r.Value)
		}
	}
	slices.SortFunc(nodes, compareNodes)
	var all []T
	for _, n := range nodes {
		all = append(all, byNode[n]...)
	}
	return all, first
}

func compareNodes(a, b Node) int {
	switch {
	case a.Instance < b.Instance, a.Instance == b.Instance && a.Deployment < b.Deployment:
		return -1
	case a == b:
		return 0
	}
	return 1
}
