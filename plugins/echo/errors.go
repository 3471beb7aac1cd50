package main

import (
	"context"
	"time"

	"github.com/elemental-conduit/conduit/pluginapi"
)

type failRequest struct {
	Code    pluginapi.Code    `json:"code"`
	Reason  string            `json:"reason,omitempty"`
	Message string            `json:"message,omitempty"`
	Details map[string]string `json:"details,omitempty"`
	After   int               `json:"after,omitempty"`
}

func fail(ctx context.Context, in failRequest, send pluginapi.Sender[int]) error {
	if err := count(ctx, in.After, send); err != nil {
		return err
	}
	return &pluginapi.Error{Code: in.Code, Reason: in.Reason, Message: in.Message, Details: in.Details}
}

type refuseRequest struct {
	Reason       string `json:"reason,omitempty"`
	RetryAfterMS int    `json:"retry_after_ms,omitempty"`
	After        int    `json:"after,omitempty"`
}

func refuseMe(ctx context.Context, in refuseRequest, send pluginapi.Sender[int]) error {
	if err := count(ctx, in.After, send); err != nil {
		return err
	}
	return pluginapi.RefuseFor(in.Reason, time.Duration(in.RetryAfterMS)*time.Millisecond)
}

func panics(_ context.Context, text string) (struct{}, error) { panic(text) }

func panicsBeside(ctx context.Context, text string) (struct{}, error) {
	go func() { panic(text) }()
	<-ctx.Done()
	return struct{}{}, ctx.Err()
}
