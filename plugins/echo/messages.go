package main

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/elemental-conduit/conduit/pluginapi"
)

// maxBytes bounds what one message asks for, so that nobody takes the machine's
// memory by a slip; above any cap on messages, since tests want to meet that.
const maxBytes = 64 << 20

func echoBytes(_ context.Context, in []byte) ([]byte, error) { return in, nil }

func echoJSON(_ context.Context, in json.RawMessage) (json.RawMessage, error) { return in, nil }

func upper(_ context.Context, in string) (string, error) { return strings.ToUpper(in), nil }

func nothing(context.Context, struct{}) (struct{}, error) { return struct{}{}, nil }

type delayRequest struct {
	MS            int  `json:"ms"`
	IgnoreContext bool `json:"ignore_context,omitempty"`
}

type delayReply struct {
	WaitedMS int64 `json:"waited_ms"`
}

func delay(ctx context.Context, in delayRequest) (delayReply, error) {
	if in.IgnoreContext {
		ctx = context.WithoutCancel(ctx)
	}
	start := time.Now()
	if err := wait(ctx, time.Duration(in.MS)*time.Millisecond); err != nil {
		return delayReply{}, err
	}
	return delayReply{WaitedMS: time.Since(start).Milliseconds()}, nil
}

// wait waits for d, or until ctx is over.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func count(_ context.Context, n int, send pluginapi.Sender[int]) error {
	for i := range n {
		if err := send(i); err != nil {
			return err
		}
	}
	return nil
}

type countSlowRequest struct {
	N          int `json:"n"`
	IntervalMS int `json:"interval_ms"`
}

func countSlow(ctx context.Context, in countSlowRequest, send pluginapi.Sender[int]) error {
	for i := range in.N {
		if i > 0 {
			if err := wait(ctx, time.Duration(in.IntervalMS)*time.Millisecond); err != nil {
				return err
			}
		}
		if err := send(i); err != nil {
			return err
		}
	}
	return nil
}

type part struct {
	Part int `json:"part"`
	I    int `json:"i"`
}

func parts(ctx context.Context, n int) (int, error) {
	for i := range n {
		for p := 1; p <= 2; p++ {
			if err := pluginapi.SendPart(ctx, uint32(p), part{Part: p, I: i}); err != nil { //nolint:gosec // 1 or 2
				return 0, err
			}
		}
	}
	return n, nil
}

type bigRequest struct {
	Bytes int `json:"bytes"`
	Items int `json:"items,omitempty"`
}

func (r bigRequest) make() ([]byte, error) {
	if r.Bytes < 0 || r.Bytes > maxBytes {
		return nil, pluginapi.Errorf(pluginapi.InvalidArgument, "bytes must be between 0 and %d", maxBytes)
	}
	data := make([]byte, r.Bytes)
	for i := range data {
		data[i] = byte(i)
	}
	return data, nil
}

func big(_ context.Context, in bigRequest) ([]byte, error) { return in.make() }

func bigItems(_ context.Context, in bigRequest, send pluginapi.Sender[[]byte]) error {
	data, err := in.make()
	if err != nil {
		return err
	}
	for range in.Items {
		if err := send(data); err != nil {
			return err
		}
	}
	return nil
}

func sum(_ context.Context, items pluginapi.Receiver[int]) (int, error) {
	total := 0
	for n, err := range items {
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

type sizeReply struct {
	Items int   `json:"items"`
	Bytes int64 `json:"bytes"`
}

func size(_ context.Context, items pluginapi.Receiver[[]byte]) (sizeReply, error) {
	var out sizeReply
	for data, err := range items {
		if err != nil {
			return sizeReply{}, err
		}
		out.Items++
		out.Bytes += int64(len(data))
	}
	return out, nil
}

func chat(_ context.Context, items pluginapi.Receiver[json.RawMessage], send pluginapi.Sender[json.RawMessage]) error {
	for item, err := range items {
		if err != nil {
			return err
		}
		if err := send(item); err != nil {
			return err
		}
	}
	return nil
}
