package client

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/plugins/txpersist/api"
	persistpb "github.com/elemental-conduit/conduit/proto/conduit/persist"
)

// Cluster knows the nodes that an address stands for; a *client.Client of this module is
// one.
type Cluster interface {
	// All returns every node that has the element of an address.
	All(addr string) conduit.Group
}

// Options say which stores are meant. The zero value is every txpersist of the cluster.
type Options struct {
	// Deployment is the name or id of the deployment; "" = any.
	Deployment string
	// Element is the name of the element; "" = txpersist.
	Element string
	// Node is the node of paths that name none; zero = the only one that there is.
	Node address.NodeID
	// Attempts is how often a call is made, at most; 0 = 3.
	Attempts int
}

// Client calls stores. It is safe for concurrent use and needs no closing.
type Client struct {
	nodes    func(context.Context) ([]conduit.Member, error)
	node     address.NodeID
	attempts int
}

const (
	defaultAttempts = 3
	firstPause      = 50 * time.Millisecond // before a second attempt; it doubles
	longestPause    = 5 * time.Second
)

// Open returns a Client of the stores of a cluster. Whether there are any shows at the
// calls.
func Open(c Cluster, o Options) *Client {
	if o.Deployment == "" {
		o.Deployment = "*"
	}
	if o.Element == "" {
		o.Element = api.Element
	}
	group := c.All("*://" + o.Deployment + "/" + o.Element + "/" + api.Service)
	return newClient(group.Members, o)
}

// New returns a Client of one store: the one that inv calls. inv must call one node and
// no other; if it tells its address, and that names no instance or no deployment, calls
// fail with [ErrAmbiguous]. Of the options Attempts counts, and Node, if it is given.
func New(inv conduit.Invoker, o Options) *Client {
	members := func(context.Context) ([]conduit.Member, error) {
		if t, ok := inv.(conduit.Target); ok {
			a := t.Address()
			_, anyInstance := a.Instance()
			if _, anyDeployment := a.Deployment(); anyInstance || anyDeployment {
				return nil, ambiguous("the address " + a.String() + " may be one of several nodes; name the instance and the deployment in it")
			}
		}
		return []conduit.Member{{Invoker: inv}}, nil
	}
	return newClient(members, o)
}

func newClient(nodes func(context.Context) ([]conduit.Member, error), o Options) *Client {
	if o.Attempts < 1 {
		o.Attempts = defaultAttempts
	}
	return &Client{nodes: nodes, node: o.Node, attempts: o.Attempts}
}

func ambiguous(message string) *conduit.Error {
	return conduit.Errorf(conduit.InvalidArgument, ReasonAmbiguous, conduit.NotSent, "%s", message)
}

// subject is what a call is about, for finding its node.
type subject struct {
	paths []address.Path
	ids   []address.ResourceID
}

func about(o api.Operation) subject {
	var s subject
	if o.Path != nil {
		s.paths = append(s.paths, *o.Path)
	}
	if o.ID != nil {
		s.ids = append(s.ids, *o.ID)
	}
	if o.Task != nil {
		s.ids = append(s.ids, o.Task.Resource())
	}
	return s
}

// node returns the node that a subject names; ok is false if it names none.
func (s subject) node() (node address.NodeID, ok bool, err error) {
	found := func(n address.NodeID) error {
		if ok && n != node {
			return conduit.Errorf(conduit.InvalidArgument, api.ReasonOtherNode, conduit.NotSent, "a call is of one node, and this one is of %s and of %s", node, n)
		}
		node, ok = n, true
		return nil
	}
	for _, p := range s.paths {
		n, has, err := p.NodeID()
		if err != nil {
			return node, ok, conduit.Errorf(conduit.InvalidArgument, api.ReasonBadArgument, conduit.NotSent, "the context of %s is no node: %v", p, err)
		}
		if !has {
			continue
		}
		if err := found(n); err != nil {
			return node, ok, err
		}
	}
	for _, id := range s.ids {
		if err := found(id.Node()); err != nil {
			return node, ok, err
		}
	}
	return node, ok, nil
}

// invoker finds what calls the store of a subject.
func (c *Client) invoker(ctx context.Context, s subject) (conduit.Invoker, error) {
	node, named, err := s.node()
	if err != nil {
		return nil, err
	}
	if !named && !c.node.IsZero() {
		node, named = c.node, true
	}
	members, err := c.nodes(ctx)
	if err != nil {
		return nil, err
	}
	if named {
		i := slices.IndexFunc(members, func(m conduit.Member) bool { return m.Node == conduit.Node{} || is(m.Node, node) })
		if i < 0 {
			return nil, conduit.Errorf(conduit.NotFound, conduit.ReasonInstanceNotFound, conduit.NotSent, "no store of the node %s is known here; there is %s", node, listed(members))
		}
		return members[i].Invoker, nil
	}
	if len(members) != 1 {
		e := ambiguous("several nodes have a store, and the path names none of them: " + listed(members) + "; give the path the node as its context, or set Options.Node")
		e.Details = map[string]string{"nodes": listed(members)}
		return nil, e
	}
	return members[0].Invoker, nil
}

func is(n conduit.Node, id address.NodeID) bool {
	return n.Instance == id.Instance().String() && (n.Deployment == "" || n.Deployment == id.Deployment().String())
}

// listed names nodes as they stand in a path's context, where that is known.
func listed(members []conduit.Member) string {
	var names []string
	for _, m := range members {
		name := m.Node.Instance
		instance, errInstance := address.ParseInstanceID(m.Node.Instance)
		deployment, errDeployment := address.ParseDeploymentID(m.Node.Deployment)
		if errInstance == nil && errDeployment == nil {
			name = address.NewNodeID(instance, deployment).String()
		}
		names = append(names, name)
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, ", ")
}

// again reports whether a call that failed may be made again. keyed says that it is not
// done again by that.
func again(err error, keyed bool) bool {
	e, ok := errors.AsType[*conduit.Error](err)
	if !ok {
		return false
	}
	switch e.Outcome {
	case conduit.NotSent, conduit.Refused:
		return e.Retryable
	case conduit.OutcomeUnknown:
		return keyed && e.Code == conduit.Unavailable
	case conduit.Executed:
	}
	return false
}

// pause waits before another attempt; false if ctx ends first.
func pause(ctx context.Context, attempt int) bool {
	d := min(firstPause<<min(attempt, 10), longestPause)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// read reads what a store has sent. What cannot be read comes of another version.
func read[M, T any](of func(M) (T, error), m M, err error) (v T, _ error) {
	if err != nil {
		return v, err
	}
	v, err = of(m)
	if err != nil {
		return v, conduit.Errorf(conduit.Internal, conduit.ReasonBadContent, conduit.Executed, "the store's answer cannot be read: %v", err)
	}
	return v, nil
}

// call makes a call, and makes it again where that is safe.
func call[M, Reply any](ctx context.Context, c *Client, s subject, method string, request any, of func(M) (Reply, error), keyed bool) (reply Reply, err error) {
	for attempt := 1; ; attempt++ {
		var inv conduit.Invoker
		if inv, err = c.invoker(ctx, s); err == nil {
			var m M
			m, err = conduit.Call[M](ctx, inv, method, request)
			reply, err = read(of, m, err)
		}
		if err == nil || attempt >= c.attempts || !again(err, keyed) || !pause(ctx, attempt-1) {
			return reply, err
		}
	}
}

// reads reports whether a method changes nothing.
func reads(method string) bool {
	switch method {
	case "Exists", "Lookup", "Paths", "Load", "Tasks", "Page":
		return true
	}
	return false
}

// Do calls a method of the service that takes an [api.Operation] and gives an
// [api.Result]: those of the first group in plugins/txpersist/doc.go. One that writes
// gets a key, unless it has one. The methods of Client are shorter.
func (c *Client) Do(ctx context.Context, method string, o api.Operation) (api.Result, error) {
	if !reads(method) && o.Key == "" {
		o.Key = newKey()
	}
	return call(ctx, c, about(o), method, o.Proto(), api.ResultOf, true)
}

func newKey() string { return rand.Text() }

// Get returns the contents of the resource at a path. Errors: [ErrNotFound],
// [ErrNoContents].
func (c *Client) Get(ctx context.Context, p address.Path) ([]byte, error) {
	r, err := c.Do(ctx, "Load", api.Operation{Path: &p})
	return r.Data, err
}

// Load returns the contents of a resource. Errors: [ErrNotFound], [ErrNoContents].
func (c *Client) Load(ctx context.Context, id address.ResourceID) ([]byte, error) {
	r, err := c.Do(ctx, "Load", api.Operation{ID: &id})
	return r.Data, err
}

// Exists reports whether there is such a resource.
func (c *Client) Exists(ctx context.Context, id address.ResourceID) (bool, error) {
	r, err := c.Do(ctx, "Exists", api.Operation{ID: &id})
	return r.Exists != nil && *r.Exists, err
}

// Lookup returns the resource at a path. Error: [ErrNotFound].
func (c *Client) Lookup(ctx context.Context, p address.Path) (address.ResourceID, error) {
	return idOf(c.Do(ctx, "Lookup", api.Operation{Path: &p}))
}

// Paths lists the paths of a resource. Error: [ErrNotFound].
func (c *Client) Paths(ctx context.Context, id address.ResourceID) ([]address.Path, error) {
	r, err := c.Do(ctx, "Paths", api.Operation{ID: &id})
	return r.Paths, err
}

// Put gives the resource at a path these contents; if there is none it makes one.
func (c *Client) Put(ctx context.Context, p address.Path, data []byte) (address.ResourceID, error) {
	return idOf(c.Do(ctx, "Put", api.Operation{Path: &p, Data: data}))
}

// Save makes a resource at a path. Error: [ErrDuplicate] if one is there.
func (c *Client) Save(ctx context.Context, p address.Path, data []byte) (address.ResourceID, error) {
	return idOf(c.Do(ctx, "Save", api.Operation{Path: &p, Data: data}))
}

// Replace gives a resource other contents. Error: [ErrNotFound].
func (c *Client) Replace(ctx context.Context, id address.ResourceID, data []byte) error {
	_, err := c.Do(ctx, "Update", api.Operation{ID: &id, Data: data})
	return err
}

// Link adds a path to a resource. Errors: [ErrNotFound], [ErrDuplicate].
func (c *Client) Link(ctx context.Context, id address.ResourceID, p address.Path) error {
	_, err := c.Do(ctx, "Link", api.Operation{ID: &id, Path: &p})
	return err
}

// Delete removes a path, and with the last one the resource; removed says that it was
// that. Error: [ErrNotFound].
func (c *Client) Delete(ctx context.Context, p address.Path) (removed bool, err error) {
	r, err := c.Do(ctx, "Unlink", api.Operation{Path: &p})
	return r.Removed != nil && *r.Removed, err
}

// Remove removes a resource with all its paths. Error: [ErrNotFound].
func (c *Client) Remove(ctx context.Context, id address.ResourceID) error {
	_, err := c.Do(ctx, "Remove", api.Operation{ID: &id})
	return err
}

// RemoveMatching removes up to limit resources, at most 1000, that the pattern matches,
// and returns them; there may be more.
func (c *Client) RemoveMatching(ctx context.Context, pattern address.Path, limit int) ([]address.ResourceID, error) {
	r, err := c.Do(ctx, "RemoveMatching", api.Operation{Path: &pattern, Limit: limit})
	return r.IDs, err
}

// Tasks lists the tasks of a resource. Error: [ErrNotFound].
func (c *Client) Tasks(ctx context.Context, id address.ResourceID) ([]Task, error) {
	r, err := c.Do(ctx, "Tasks", api.Operation{ID: &id})
	out := make([]Task, len(r.Tasks))
	for i, t := range r.Tasks {
		out[i] = taskOf(t)
	}
	return out, err
}

// CreateTask gives a resource a task that is due at a time, to the millisecond. Error:
// [ErrNotFound].
func (c *Client) CreateTask(ctx context.Context, id address.ResourceID, due time.Time) (Task, error) {
	r, err := c.Do(ctx, "CreateTask", api.Operation{ID: &id, DueMS: due.UnixMilli()})
	if err != nil || len(r.Tasks) != 1 {
		return Task{}, err
	}
	return taskOf(r.Tasks[0]), nil
}

// Reschedule gives a task another time, also one that is being done. Error:
// [ErrNotFound] for its resource.
func (c *Client) Reschedule(ctx context.Context, task address.TaskID, due time.Time) error {
	id := task.Resource()
	_, err := c.Do(ctx, "CreateTask", api.Operation{ID: &id, Task: &task, DueMS: due.UnixMilli()})
	return err
}

// Finish ends a task that was delivered; finished is false if somebody has ended it
// before, or has given it another time.
func (c *Client) Finish(ctx context.Context, t Task) (finished bool, err error) {
	r, err := c.Do(ctx, "FinishTask", api.Operation{Task: &t.ID, DueMS: t.Due.UnixMilli()})
	return r.Removed != nil && *r.Removed, err
}

// Task is something to do for a resource, at a time.
type Task struct {
	ID  address.TaskID
	Due time.Time // in whole milliseconds
}

func taskOf(t api.Task) Task { return Task{t.ID, time.UnixMilli(t.DueMS)} }

func idOf(r api.Result, err error) (address.ResourceID, error) {
	if err != nil || r.ID == nil {
		return address.ResourceID{}, err
	}
	return *r.ID, nil
}

// Stats says what a store is doing: the one of the options' node, or the only one. It
// asks for a superuser.
func (c *Client) Stats(ctx context.Context) (*persistpb.StatsReply, error) {
	return call(ctx, c, subject{}, "Stats", struct{}{}, func(m *persistpb.StatsReply) (*persistpb.StatsReply, error) { return m, nil }, true)
}

// Scope is what a batch or a transaction may touch: paths, with what lies below them,
// and resources.
type Scope = api.Scope

// Batch does all of the operations or none, and returns a result for each. Errors are
// those of the operations; [Operation] tells of which one.
func (c *Client) Batch(ctx context.Context, scope Scope, ops ...api.Operation) ([]api.Result, error) {
	b := api.Batch{Scope: scope, Operations: ops, Key: newKey()}
	r, err := call(ctx, c, subject{scope.Paths, scope.IDs}, "Transact", b.Proto(), api.BatchReplyOf, true)
	return r.Results, err
}

// List yields what a pattern matches, in the order of paths, read page by page; only some
// have a cursor. The loop ends with the first error; one that is lost midway goes on behind the last entry, as
// long as each attempt brings some.
func (c *Client) List(ctx context.Context, pattern address.Path) iter.Seq2[api.Listing, error] {
	return func(yield func(api.Listing, error) bool) {
		in := api.Operation{Path: &pattern, Limit: api.MaxPage} // as many in a message as it likes
		for attempt := 1; ; attempt++ {
			inv, err := c.invoker(ctx, about(in))
			if err == nil {
				for m, failed := range conduit.Stream[*persistpb.Listing](ctx, inv, "List", in.Proto()) {
					var l api.Listing
					if l, err = read(api.ListingOf, m, failed); err != nil {
						break
					}
					attempt, in.Cursor = 1, lastOf(l).Cursor
					if !yieldAll(l, yield) {
						return
					}
				}
			}
			if err == nil {
				return
			}
			if attempt >= c.attempts || !again(err, true) || !pause(ctx, attempt-1) {
				yield(api.Listing{}, err)
				return
			}
		}
	}
}

// lastOf is the last entry of a message.
func lastOf(l api.Listing) api.Listing {
	if n := len(l.More); n > 0 {
		return l.More[n-1]
	}
	return l
}

// yieldAll yields all entries of a message.
func yieldAll(l api.Listing, yield func(api.Listing, error) bool) bool {
	more := l.More
	l.More = nil
	if !yield(l, nil) {
		return false
	}
	for _, l := range more {
		if !yield(l, nil) {
			return false
		}
	}
	return true
}

// writeChunk is how many bytes of contents go into a message.
const writeChunk = 256 << 10

// Read writes the contents of the resource at a path to w, as they are at one moment,
// however large they are. Errors: [ErrNotFound], [ErrNoContents], and w's; what came
// before an error is written.
func (c *Client) Read(ctx context.Context, p address.Path, w io.Writer) (n int64, err error) {
	in := api.Operation{Path: &p}
	inv, err := c.invoker(ctx, about(in))
	if err != nil {
		return 0, err
	}
	for piece, err := range conduit.Stream[*persistpb.Piece](ctx, inv, "Read", in.Proto()) {
		if err != nil {
			return n, err
		}
		m, err := w.Write(piece.GetData())
		n += int64(m)
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Write is [Client.Put] of what r has, in one transaction and piece by piece: as much as
// the element's attribute max_contents lets it, 1 GiB. It is never tried again. When r fails
// nothing has happened, and the error is r's.
func (c *Client) Write(ctx context.Context, p address.Path, r io.Reader) (id address.ResourceID, n int64, err error) {
	first := api.Operation{Path: &p}
	inv, err := c.invoker(ctx, about(first))
	if err != nil {
		return id, 0, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var failed error
	m, err := conduit.Upload[*persistpb.WriteReply](ctx, inv, "Write", func(yield func(*persistpb.Operation) bool) {
		buf := make([]byte, writeChunk)
		for next := first; ; next = (api.Operation{}) {
			n, err := io.ReadFull(r, buf)
			next.Data = buf[:n]
			switch {
			case err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF):
				yield(next.Proto())
				return
			case err != nil:
				failed = err
				cancel(err) // before the end is said, which would be a commit
				return
			}
			if !yield(next.Proto()) {
				return
			}
		}
	})
	if failed != nil {
		return id, 0, failed
	}
	reply, err := read(api.WriteReplyOf, m, err)
	return reply.ID, reply.Size, err
}
