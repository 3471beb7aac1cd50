package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/elemental-conduit/conduit/pluginapi"
)

const (
	elementName = "matches"
	serviceName = "conduit.example.Matches"

	minSize = 2
	maxSize = 64
	// maxUnits of a player: that of a match is far below what a claim can hold.
	maxUnits = 1_000_000
	// maxName is the longest name of a player in bytes.
	maxName = 64
)

// element puts the element together. Each has its own state, so that a test may run
// several in one process.
func element() pluginapi.Element { return newHall().element() }

func (h *hall) element() pluginapi.Element {
	return pluginapi.Element{
		Name:     elementName,
		Version:  "1.0.0",
		Services: []*pluginapi.Service{h.service()},
		Attributes: []pluginapi.Attribute{
			{Name: "units_per_player", Default: "1", Description: "units that a match claims for each player it has room for"},
			{Name: "longest", Default: "1h", Description: "the longest time of a match, and that of one for which none is given"},
			{Name: "empty", Default: "30s", Description: "how long a match goes on with nobody in it"},
		},
		Configure: h.configure,
		Start:     h.start,
		Stop:      h.stop,
	}
}

func (h *hall) service() *pluginapi.Service {
	s := pluginapi.NewService(serviceName)
	remote := pluginapi.Remote()
	// What the smallest match needs: a pick does not fall on an instance that has not
	// even this, though the caller says nothing of units.
	pluginapi.Handle(s, "Create", h.create, remote, pluginapi.Units(minSize))
	pluginapi.Handle(s, "Join", h.join, remote)
	pluginapi.Handle(s, "Leave", h.leave, remote)
	pluginapi.HandleStream(s, "Watch", h.watch, remote, pluginapi.Idempotent())
	pluginapi.Handle(s, "End", h.end, remote)
	pluginapi.Handle(s, "List", h.list, remote, pluginapi.Idempotent())
	pluginapi.HandleDuplex(s, "Adopt", h.adopt, remote)
	return s
}

func (h *hall) configure(_ context.Context, c pluginapi.Configuration) ([]string, error) {
	units, err := strconv.ParseUint(c.Attributes["units_per_player"], 10, 32)
	if err != nil || units < 1 || units > maxUnits {
		return nil, fmt.Errorf("the attribute units_per_player must be a number from 1 to %d, not %q", maxUnits, c.Attributes["units_per_player"])
	}
	h.perPlayer = uint32(units)
	for name, d := range map[string]*time.Duration{"longest": &h.longest, "empty": &h.empty} {
		if *d, err = time.ParseDuration(c.Attributes[name]); err != nil || *d <= 0 {
			return nil, fmt.Errorf("the attribute %s must be a time such as 30s, not %q", name, c.Attributes[name])
		}
	}
	h.deployment = c.Deployment
	h.address = c.Instance + "://" + c.Deployment + "/" + elementName + "/" + serviceName
	return nil, nil
}

func (h *hall) start(_ context.Context, host pluginapi.Host) error {
	return h.kin.start(h, host) //nolint:contextcheck // its calls outlive Start
}

// stop ends all matches and waits until nothing of them is left.
func (h *hall) stop(ctx context.Context) error {
	h.kin.stop()
	for _, m := range h.all() {
		h.finish(m, endedStopped)
	}
	done := make(chan struct{})
	go func() {
		h.tasks.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
