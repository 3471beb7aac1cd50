package main

import (
	"context"
	"time"

	"github.com/elemental-conduit/conduit/pluginapi"
	"github.com/elemental-conduit/conduit/plugins/txpersist/api"
	"github.com/elemental-conduit/conduit/plugins/txpersist/store"
)

// maxLease bounds how long a watch may keep a task from the others.
const maxLease = 24 * time.Hour

// watch tells what a pattern matches and what becomes of it. A caller who is slow makes
// send wait, and not the store.
func (p *persist) watch(ctx context.Context, in api.WatchRequest, send pluginapi.Sender[api.Event]) error {
	for e, err := range p.store.WatchPaths(ctx, store.PathWatch{Pattern: in.Path, After: in.Revision, Owner: ownerOf(ctx)}) {
		if err != nil {
			return failure(err)
		}
		out := api.Event{Kind: string(e.Kind), Revision: e.Revision, Changes: make([]api.Change, len(e.Changes))}
		for i, c := range e.Changes {
			out.Changes[i] = api.Change{Path: c.Path, Removed: c.Removed}
			if id := c.ID; !c.Removed {
				out.Changes[i].ID = &id
			}
		}
		if err := send(out); err != nil {
			return err
		}
	}
	return nil
}

// watchTasks delivers tasks. When the call ends, by whatever, the caller has none of them
// any more.
func (p *persist) watchTasks(ctx context.Context, in api.TaskRequest, send pluginapi.Sender[api.Task]) error {
	if in.LeaseMS < 0 || in.LeaseMS > maxLease.Milliseconds() {
		return failure(&store.Error{Kind: store.KindArgument, Subject: "lease_ms", Why: "a lease is at most " + maxLease.String()})
	}
	o := store.TaskWatch{Window: in.Window, Lease: time.Duration(in.LeaseMS) * time.Millisecond, Owner: ownerOf(ctx)}
	if in.Path != nil {
		o.Pattern = *in.Path
	}
	for t, err := range p.store.WatchTasks(ctx, o) {
		if err != nil {
			return failure(err)
		}
		if err := send(api.Task{ID: t.ID, DueMS: t.Due.UnixMilli()}); err != nil {
			return err
		}
	}
	return nil
}
