package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/elemental-conduit/conduit"
)

const (
	versionPrefix = "/v1/"
	eventsPath    = versionPrefix + "events"
	openAPIPath   = versionPrefix + "openapi.json"

	// makers is how many lists and documents are made at once: each may be some MB
	// before it is text.
	makers = 4
)

// lists are the paths below /v1/ at which there is a list.
//
//nolint:gochecknoglobals // a constant
var lists = []string{"instances", "deployments", "elements", "services", "methods", "links"}

// Directory says what there is. Its methods are called from many goroutines at once;
// as says who asks, as [Options.Authenticate] did. Their errors should be
// *conduit.Error, whose message the client gets to see.
type Directory interface {
	// List returns what there is of a kind, one of "instances", "deployments",
	// "elements", "services", "methods" and "links": a value for encoding/json. With
	// cluster it tells of what other instances host, too, which is asked of neither
	// instances nor links.
	List(ctx context.Context, as conduit.AsWhom, what string, cluster bool) (any, error)
	// Events calls send with what holds now, and then with each change, one after the
	// other. send may wait for a slow client: what comes meanwhile is kept within
	// bounds. It returns when ctx ends, when send fails, or with the error of why there
	// is no more to tell.
	Events(ctx context.Context, as conduit.AsWhom, send func(Event) error) error
	// Methods returns what whoever asks may call through the gateway, in any order; the
	// document at /v1/openapi.json is made of it.
	Methods(ctx context.Context, as conduit.AsWhom) ([]Method, error)
}

// Event is one change of what there is.
type Event struct {
	Name string // one word
	Data any    // for encoding/json
}

// listOf is the kind of list at a path, "" if there is none at it.
func listOf(path string) string {
	what, ok := strings.CutPrefix(path, versionPrefix)
	if !ok || !slices.Contains(lists, what) {
		return ""
	}
	return what
}

// isDirectory reports whether a path is the directory's.
func isDirectory(path string) bool {
	return path == eventsPath || path == openAPIPath || listOf(path) != ""
}

// directory answers a request that asks what there is.
func (q *request) directory(ctx context.Context, path string) *fault {
	want := conduit.ContentJSON
	if path == eventsPath {
		want = typeEvents
	}
	if !accepts(q.r.Header.Values("Accept"), want) {
		return refuse(http.StatusNotAcceptable, conduit.InvalidArgument, reasonAccept, "the answer is %s", want)
	}
	what := listOf(path)
	cluster, f := clusterOf(q.r.URL.RawQuery, what)
	if f != nil {
		return f
	}
	as, f := q.whom(ctx)
	if f != nil {
		return f
	}
	switch path {
	case eventsPath:
		return q.changes(ctx, as)
	case openAPIPath:
		return q.made(ctx, func(ctx context.Context) (any, error) {
			methods, err := q.g.o.Directory.Methods(ctx, as)
			if err != nil {
				return nil, err
			}
			return Document(methods, q.g.o.Sessions != nil), nil
		})
	}
	return q.made(ctx, func(ctx context.Context) (any, error) {
		return q.g.o.Directory.List(ctx, as, what, cluster)
	})
}

// clusterOf reads the query of a list.
func clusterOf(raw, what string) (cluster bool, _ *fault) {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return false, badRequest("the query is not well encoded")
	}
	for name, values := range query {
		if name != "cluster" || what == "" || what == "instances" || what == "links" {
			return false, badRequest("the query has a name that is not known here")
		}
		if cluster, err = strconv.ParseBool(values[0]); err != nil || len(values) > 1 {
			return false, badRequest("cluster is 1 or 0")
		}
	}
	return cluster, nil
}

// made answers with what find returns. At most [makers] requests of the gateway make
// something at a time, and all that is written counts as held.
func (q *request) made(ctx context.Context, find func(ctx context.Context) (any, error)) *fault {
	if q.g.o.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, q.g.o.Timeout)
		defer cancel()
	}
	select {
	case q.g.makers <- struct{}{}:
	case <-ctx.Done():
		return overloaded("%d others are being told what there is, as many as may at once", makers)
	}
	text, err := func() ([]byte, error) {
		defer func() { <-q.g.makers }()
		v, err := find(ctx)
		if err != nil {
			return nil, err
		}
		return json.Marshal(v)
	}()
	if err != nil {
		return q.foreign(ctx, "what there is could not be told", err, conduit.Refused)
	}
	defer func() { q.g.memory.Add(-q.held) }()
	if !q.hold(int64(len(text))) {
		return overloaded("the answers under way hold %d bytes, the gateway's limit", q.g.o.Memory)
	}
	return wrote(q.reply.answer(http.StatusOK, conduit.ContentJSON, append(text, '\n'), q.zip()))
}

// changes tells of what changes, as server-sent events, for as long as the client
// reads and may know.
func (q *request) changes(ctx context.Context, as conduit.AsWhom) *fault {
	if q.g.watchers.Add(1) > int64(q.g.o.Watchers) {
		q.g.watchers.Add(-1)
		return overloaded("%d clients are told of events, as many as may", q.g.o.Watchers)
	}
	defer q.g.watchers.Add(-1)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if q.g.o.Watch != nil {
		defer q.g.o.Watch(as, func(why *conduit.Error) { cancel(why) })()
	}
	stop := q.keepAlive(cancel)
	seq, gone := 0, false
	err := q.g.o.Directory.Events(ctx, as, func(e Event) error {
		seq++
		err := q.reply.start(typeEvents)
		if err == nil {
			err = q.reply.item(event(e.Name, seq, line(e.Data)))
		}
		gone = err != nil
		return err
	})
	stop()
	if gone || q.r.Context().Err() != nil {
		return wrote(err)
	}
	if why, ok := context.Cause(ctx).(*conduit.Error); ok && why != nil { //nolint:errorlint // it is what was given to cancel
		err = why
	}
	f := q.foreign(ctx, "events have ended in an unforeseen way", err, conduit.Executed)
	if q.reply.started() {
		_ = q.reply.write(event("error", 0, line(f.problem()))) // the fault says more than one of writing it
	}
	return f
}

// accepts reports whether a client reads a type; one that says nothing reads all.
func accepts(headers []string, name string) bool {
	said, good, best := false, false, -1
	for _, h := range headers {
		for r := range strings.SplitSeq(h, ",") {
			pattern, quality, ok := rangeOf(r)
			if !ok {
				continue
			}
			said = true
			// The most specific range that fits says it.
			if n := fits(pattern, name); n > best {
				good, best = quality > 0, n
			}
		}
	}
	return good || !said
}
