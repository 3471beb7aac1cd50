package client

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/plugins/txpersist/api"
	persistpb "github.com/elemental-conduit/conduit/proto/conduit/persist"
)

// Watch yields what a pattern matches, and then what becomes of it. Events of kind
// [api.EventState] have a part of what there is, one [api.EventSynced] says that it was
// all, and [api.EventChanges] are what has happened since, in order. At
// [api.EventResync] forget all that was told: some was missed, and the state follows.
// With a revision, which an earlier watch of the same pattern told, it goes on behind
// that one.
//
// A watch whose link or element is lost goes on by itself, behind the last revision that
// it told, with pauses of up to 5 s; a change may be told twice then. The loop ends with
// the error of a store that refuses it, or of ctx.
func (c *Client) Watch(ctx context.Context, pattern address.Path, revision string) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		in := api.WatchRequest{Path: pattern, Revision: revision}
		half := false // a state was begun that has no revision yet
		c.follow(ctx, subject{paths: []address.Path{pattern}}, func(inv conduit.Invoker) (came, left bool, err error) {
			if half {
				half = false
				if !yield(api.Event{Kind: api.EventResync}, nil) {
					return true, true, nil
				}
			}
			for m, err := range conduit.Stream[*persistpb.Event](ctx, inv, "Watch", in.Proto(), conduit.AsBackground()) {
				e, err := read(api.EventOf, m, err)
				if err != nil {
					return came, false, err
				}
				came = true
				switch {
				case e.Revision != "":
					in.Revision, half = e.Revision, false
				case e.Kind != api.EventChanges || in.Revision == "":
					in.Revision, half = "", true
				}
				if !yield(e, nil) {
					return came, true, nil
				}
			}
			return came, false, errEnded
		}, func(err error) { yield(api.Event{}, err) })
	}
}

// TaskOptions say which tasks a watch wants, and how.
type TaskOptions struct {
	// Pattern is what one of the paths of a task's resource must match. Without one
	// all are wanted; then Node says of which store, if there are several.
	Pattern address.Path
	// Window is how many tasks may be under way, at most 1000; 0 = 16.
	Window int
	// Lease is how long the watch has each to itself; 0 = 30 s, at most 24 h.
	Lease time.Duration
}

// WatchTasks yields tasks when they are due. Each is delivered at least once, and to one
// watch at a time, until [Client.Finish] or [Tx.Finish] ends it; it comes again, here or
// at another watch, when its lease is over or this loop ends. What cannot be done now
// gets another time with [Client.Reschedule]. The loop may hand tasks to goroutines.
//
// A watch whose link or element is lost goes on by itself, with pauses of up to 5 s; what
// was not finished is delivered again then. The loop ends with the error of a store that
// refuses it, or of ctx.
func (c *Client) WatchTasks(ctx context.Context, o TaskOptions) iter.Seq2[Task, error] {
	return func(yield func(Task, error) bool) {
		in := api.TaskRequest{Path: &o.Pattern, Window: o.Window, LeaseMS: o.Lease.Milliseconds()}
		c.follow(ctx, subject{paths: []address.Path{o.Pattern}}, func(inv conduit.Invoker) (came, left bool, err error) {
			for m, err := range conduit.Stream[*persistpb.Task](ctx, inv, "WatchTasks", in.Proto(), conduit.AsBackground()) {
				t, err := read(api.TaskOf, m, err)
				if err != nil {
					return came, false, err
				}
				came = true
				if !yield(taskOf(t), nil) {
					return came, true, nil
				}
			}
			return came, false, errEnded
		}, func(err error) { yield(Task{}, err) })
	}
}

// errEnded is a stream that ended though nothing ends one.
var errEnded error = conduit.Errorf(conduit.Unavailable, conduit.ReasonAborted, conduit.OutcomeUnknown, "the store ended the watch; watch again")

// follow runs a watch again and again until its loop is left, ctx ends or the store
// refuses it.
func (c *Client) follow(ctx context.Context, s subject, run func(conduit.Invoker) (came, left bool, err error), failed func(error)) {
	began := false
	for attempt := 0; ; attempt++ {
		inv, err := c.invoker(ctx, s)
		if err == nil {
			var came, left bool
			if came, left, err = run(inv); left {
				return
			}
			if came {
				began, attempt = true, 0
			}
		}
		// Until it has begun a watch is a call like any other, for who mistypes an address.
		if !lost(err, began) || !began && attempt+1 >= c.attempts || !pause(ctx, attempt) {
			if ctx.Err() != nil {
				err = conduit.FromContext(ctx, conduit.OutcomeUnknown)
			}
			failed(err)
			return
		}
	}
}

// lost reports whether a watch was not ended by the store, but by what is in between.
func lost(err error, began bool) bool {
	e, ok := errors.AsType[*conduit.Error](err)
	switch {
	case !ok || e.Outcome == conduit.Executed && e.Code != conduit.Unavailable:
		return false
	case e.Code == conduit.Unavailable || e.Retryable:
		return true
	}
	return began && e.Code == conduit.NotFound && e.Outcome != conduit.Executed // it is not back yet
}
