package main

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/pluginapi"
)

type whoReply struct {
	User    string          `json:"user"`
	Level   pluginapi.Level `json:"level"`
	Chain   []string        `json:"chain"`
	Peer    string          `json:"peer"`
	Attempt uint32          `json:"attempt"`
	// TimeoutMS is what the call had left, 0 = it has no deadline.
	TimeoutMS int64 `json:"timeout_ms"`
}

func whoAmI(ctx context.Context, _ struct{}) (whoReply, error) {
	c := pluginapi.CallerFrom(ctx)
	out := whoReply{User: c.User, Level: c.Level, Chain: c.Chain, Peer: c.Peer, Attempt: c.Attempt}
	if out.Chain == nil {
		out.Chain = []string{}
	}
	if deadline, ok := ctx.Deadline(); ok {
		out.TimeoutMS = untilMS(deadline)
	}
	return out, nil
}

type whereRequest struct {
	MS int64 `json:"ms,omitempty"`
}

type whereReply struct {
	PID int `json:"pid"`
}

// where tells which process answers, after a while.
func where(ctx context.Context, in whereRequest) (whereReply, error) {
	if err := wait(ctx, time.Duration(in.MS)*time.Millisecond); err != nil {
		return whereReply{}, err
	}
	return whereReply{PID: os.Getpid()}, nil
}

func callersLevel(ctx context.Context, _ struct{}) (pluginapi.Level, error) {
	return pluginapi.CallerFrom(ctx).Level, nil
}

type chainRequest struct {
	Address string          `json:"address"`
	Method  string          `json:"method"`
	Request json.RawMessage `json:"request,omitempty"`
	AsSelf  bool            `json:"as_self,omitempty"`
	AfterMS int             `json:"after_ms,omitempty"`
}

// chain calls another element, as the caller of this one or as itself, at once or after
// some time. What goes wrong there is the answer here.
func chain(ctx context.Context, in chainRequest) (json.RawMessage, error) {
	if err := wait(ctx, time.Duration(in.AfterMS)*time.Millisecond); err != nil {
		return nil, err
	}
	if in.AsSelf {
		ctx = pluginapi.AsSelf(ctx)
	}
	var request any
	if in.Request != nil {
		request = in.Request
	}
	return conduit.Call[json.RawMessage](ctx, pluginapi.HostFrom(ctx).At(in.Address), in.Method, request)
}
