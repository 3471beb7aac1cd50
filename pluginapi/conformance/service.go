// Package conformance has the service that plugintest.Conformance and `conduit-host
// plugin verify --full` call to see what a plugin does with calls. An element exports
// it for the time of its tests only: it crashes and logs for whoever asks.
//
//	services := []*pluginapi.Service{greeter}
//	if os.Getenv("GREETER_CONFORMANCE") != "" {
//		services = append(services, conformance.Service())
//	}
//
// docs/plugins.md says what each method does, for elements in other languages.
package conformance

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/elemental-conduit/conduit/pluginapi"
)

// maxBytes bounds what one message asks for; above the cap on messages, which a check
// wants to meet.
const maxBytes = 64 << 20

type (
	sleepRequest struct {
		MS int64 `json:"ms"`
	}
	failRequest struct {
		Code    pluginapi.Code `json:"code"`
		Reason  string         `json:"reason"`
		Message string         `json:"message"`
	}
	uploadReply struct {
		Items int64 `json:"items"`
		Bytes int64 `json:"bytes"`
	}
	logRequest struct {
		Level   slog.Level `json:"level"`
		Message string     `json:"message"`
	}
)

// service counts the handlers that are under way.
type service struct{ running atomic.Int64 }

// Service makes the service. Each has a state of its own.
func Service() *pluginapi.Service {
	c := &service{}
	s := pluginapi.NewService("conduit.conformance.v1.Conformance")
	remote := pluginapi.Remote()
	pluginapi.Handle(s, "Echo", func(_ context.Context, in []byte) ([]byte, error) { return in, nil }, remote)
	pluginapi.Handle(s, "Big", big, remote)
	pluginapi.Handle(s, "Sleep", c.sleep, remote)
	pluginapi.HandleStream(s, "Count", c.count, remote)
	pluginapi.HandleUpload(s, "Upload", c.upload, remote)
	pluginapi.Handle(s, "Running", func(context.Context, struct{}) (int64, error) { return c.running.Load(), nil }, remote)
	pluginapi.Handle(s, "Fail", func(_ context.Context, in failRequest) (struct{}, error) {
		return struct{}{}, &pluginapi.Error{Code: in.Code, Reason: in.Reason, Message: in.Message}
	}, remote)
	pluginapi.Handle(s, "Crash", func(context.Context, struct{}) (struct{}, error) {
		panic("Crash of the conformance service was called")
	}, remote)
	pluginapi.Handle(s, "Log", func(ctx context.Context, in logRequest) (struct{}, error) {
		pluginapi.HostFrom(ctx).Logger().Log(ctx, in.Level, in.Message) //nolint:sloglint // the caller's text is what is asked for
		return struct{}{}, nil
	}, remote)
	pluginapi.Handle(s, "Hidden", func(context.Context, struct{}) (struct{}, error) { return struct{}{}, nil })
	return s
}

func big(_ context.Context, n int) ([]byte, error) {
	if n < 0 || n > maxBytes {
		return nil, pluginapi.Errorf(pluginapi.InvalidArgument, "Big takes a number of bytes from 0 to %d", maxBytes)
	}
	return make([]byte, n), nil
}

// enter counts a handler in and returns what counts it out.
func (c *service) enter() (leave func()) {
	c.running.Add(1)
	return func() { c.running.Add(-1) }
}

func (c *service) sleep(ctx context.Context, in sleepRequest) (struct{}, error) {
	defer c.enter()()
	t := time.NewTimer(time.Duration(in.MS) * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return struct{}{}, nil
	case <-ctx.Done():
		return struct{}{}, fmt.Errorf("woken: %w", context.Cause(ctx))
	}
}

func (c *service) count(_ context.Context, n int, send pluginapi.Sender[int]) error {
	defer c.enter()()
	for i := range n {
		if err := send(i); err != nil {
			return err
		}
	}
	return nil
}

func (c *service) upload(_ context.Context, items pluginapi.Receiver[[]byte]) (uploadReply, error) {
	defer c.enter()()
	var out uploadReply
	for data, err := range items {
		if err != nil {
			return uploadReply{}, err
		}
		out.Items++
		out.Bytes += int64(len(data))
	}
	return out, nil
}
