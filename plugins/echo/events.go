package main

import (
	"cmp"
	"context"

	"github.com/elemental-conduit/conduit/pluginapi"
)

type eventItem struct {
	Name         string `json:"name"`
	Sequence     uint64 `json:"sequence"`
	Present      bool   `json:"present,omitempty"`
	Deployment   string `json:"deployment,omitempty"`
	DeploymentID string `json:"deployment_id,omitempty"`
	Element      string `json:"element,omitempty"`
	Version      string `json:"version,omitempty"`
	Generation   uint64 `json:"generation,omitempty"`
	State        string `json:"state,omitempty"`
}

// events passes on what the host tells, until the caller leaves.
func events(ctx context.Context, name string, send pluginapi.Sender[eventItem]) error {
	told := make(chan pluginapi.Event)
	unsubscribe, err := pluginapi.HostFrom(ctx).Subscribe(cmp.Or(name, pluginapi.AllEvents), func(e pluginapi.Event) {
		select {
		case told <- e:
		case <-ctx.Done():
		}
	})
	if err != nil {
		return err
	}
	defer unsubscribe()
	for {
		select {
		case e := <-told:
			if err := send(eventItem(e)); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
