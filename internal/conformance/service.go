package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
)

// ServiceName is the service that those checks call that are not generic. Its methods
// are part of the contract with plugins in other languages: docs/plugins.md says what
// each does. None may be renamed.
const ServiceName = "conduit.conformance.v1.Conformance"

// The messages of the service. All are JSON but those of Echo, Big and Upload's items,
// which are bytes.
type (
	sleepRequest struct {
		MS int64 `json:"ms"`
	}
	failRequest struct {
		Code    string `json:"code"`
		Reason  string `json:"reason"`
		Message string `json:"message"`
	}
	uploadReply struct {
		Items int64 `json:"items"`
		Bytes int64 `json:"bytes"`
	}
	logRequest struct {
		Level   string `json:"level"`
		Message string `json:"message"`
	}
)

// long is how long a Sleep goes on that is not meant to end by itself.
const long = int64(10 * time.Minute / time.Millisecond)

func (f *front) conformance() conduit.Invoker { return f.service(ServiceName) }

func (f *front) echo(ctx context.Context, data []byte) error {
	got, err := conduit.Call[[]byte](ctx, f.conformance(), "Echo", data)
	if err != nil {
		return fmt.Errorf("echo of %d bytes: %w", len(data), err)
	}
	if !bytes.Equal(got, data) {
		return fmt.Errorf("echo of %d bytes gives %d others", len(data), len(got))
	}
	return nil
}

// awaitRunning waits until so many handlers of Sleep, Count and Upload are under way.
func (f *front) awaitRunning(ctx context.Context, want int, what string) error {
	for {
		n, err := conduit.Call[int](ctx, f.conformance(), "Running", nil)
		if err != nil {
			return fmt.Errorf("Running, %s: %w", what, err)
		}
		if n == want {
			return nil
		}
		select {
		case <-time.After(healthPause):
		case <-ctx.Done():
			return fmt.Errorf("%s: %d handlers of Sleep, Count and Upload are under way, and should be %d", what, n, want)
		}
	}
}

// sleeper is a call of Sleep that is under way.
type sleeper struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // once done is closed
}

// sleep starts a Sleep and does not wait.
func (f *front) sleep(ctx context.Context, ms int64) *sleeper {
	ctx, cancel := context.WithCancel(ctx)
	s := &sleeper{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		defer cancel()
		_, s.err = conduit.Call[struct{}](ctx, f.conformance(), "Sleep", sleepRequest{MS: ms})
	}()
	return s
}

func echoes(ctx context.Context, t *trial) error {
	f, err := t.start(ctx)
	if err != nil {
		return err
	}
	for _, data := range [][]byte{{}, []byte("hello"), {0, 1, 2, 0xff, 0xfe, '\n'}, bytes.Repeat([]byte{7}, 100<<10)} {
		if err := f.echo(ctx, data); err != nil {
			return err
		}
	}
	return nil
}

// pattern is so many bytes that are not alike.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return b
}

func carriesLarge(ctx context.Context, t *trial) error {
	f, err := t.start(ctx)
	if err != nil {
		return err
	}
	return f.echo(ctx, pattern(link.DefaultMaxMessage))
}

func refusesTooLarge(ctx context.Context, t *trial) error {
	f, err := t.start(ctx)
	if err != nil {
		return err
	}
	const n = link.DefaultMaxMessage + 1
	_, err = conduit.Call[[]byte](ctx, f.conformance(), "Echo", make([]byte, n))
	if e, ok := failure(err); !ok || e.Reason != conduit.ReasonPayloadTooLarge {
		return fmt.Errorf("a request of %d bytes ends with %s, and should with %s", n, describeError(err), conduit.ReasonPayloadTooLarge)
	}
	_, err = conduit.Call[[]byte](ctx, f.conformance(), "Big", n)
	if e, ok := failure(err); !ok || e.Reason != conduit.ReasonPayloadTooLarge {
		return fmt.Errorf("a reply of %d bytes ends with %s, and should with %s", n, describeError(err), conduit.ReasonPayloadTooLarge)
	}
	if err := f.echo(ctx, []byte("still there")); err != nil {
		return fmt.Errorf("after messages that were too large: %w", err)
	}
	return nil
}

func refusesHidden(ctx context.Context, t *trial) error {
	f, err := t.start(ctx)
	if err != nil {
		return err
	}
	_, err = conduit.Call[struct{}](ctx, f.conformance(), "Hidden", nil)
	return wantRefused(err, conduit.PermissionDenied, conduit.ReasonNotRemote)
}

func carriesErrors(ctx context.Context, t *trial) error {
	f, err := t.start(ctx)
	if err != nil {
		return err
	}
	_, err = conduit.Call[struct{}](ctx, f.conformance(), "Fail", failRequest{Code: "failed_precondition", Reason: "not_today", Message: "the shop is closed"})
	e, ok := failure(err)
	if !ok || e.Code != conduit.FailedPrecondition || e.Reason != "not_today" || e.Message != "the shop is closed" || e.Outcome != conduit.Executed {
		return fmt.Errorf("the error arrives as %v; want failed_precondition, not_today, \"the shop is closed\", executed", describeError(err))
	}
	return nil
}

func describeError(err error) string {
	if err == nil {
		return "success"
	}
	e, ok := failure(err)
	if !ok {
		return fmt.Sprint(err)
	}
	return fmt.Sprintf("%s, %s, %q, %s", e.Code, e.Reason, e.Message, e.Outcome)
}

func survivesCrash(ctx context.Context, t *trial) error {
	f, err := t.start(ctx)
	if err != nil {
		return err
	}
	other := f.sleep(ctx, long)
	defer other.cancel()
	if err := f.awaitRunning(ctx, 1, "before the crash"); err != nil {
		return err
	}
	_, err = conduit.Call[struct{}](ctx, f.conformance(), "Crash", nil)
	if e, ok := failure(err); !ok || e.Outcome != conduit.Executed {
		return fmt.Errorf("the call that crashed ends with %s; want an error that is executed", describeError(err))
	}
	if err := f.awaitRunning(ctx, 1, "another call, after the crash"); err != nil {
		return err
	}
	return t.alive(ctx)
}

func streams(ctx context.Context, t *trial) error {
	f, err := t.start(ctx)
	if err != nil {
		return err
	}
	const n = 5000
	next := 0
	for i, err := range conduit.Stream[int](ctx, f.conformance(), "Count", n) {
		if err != nil {
			return fmt.Errorf("after %d items of %d: %w", next, n, err)
		}
		if i != next {
			return fmt.Errorf("item %d comes where %d should", i, next)
		}
		next++
	}
	if next != n {
		return fmt.Errorf("%d items come, and should be %d", next, n)
	}
	return nil
}

func leavesStream(ctx context.Context, t *trial) error {
	f, err := t.start(ctx)
	if err != nil {
		return err
	}
	for i, err := range conduit.Stream[int](ctx, f.conformance(), "Count", 1<<30) {
		if err != nil {
			return err
		}
		if i == 10 {
			break
		}
	}
	return f.awaitRunning(ctx, 0, "after the caller left the stream")
}

func uploads(ctx context.Context, t *trial) error {
	f, err := t.start(ctx)
	if err != nil {
		return err
	}
	items := slices.Repeat([][]byte{[]byte("a"), make([]byte, 1000), make([]byte, 300<<10)}, 10)
	want := uploadReply{Items: int64(len(items)), Bytes: 10 * (1 + 1000 + 300<<10)}
	got, err := conduit.Upload[uploadReply](ctx, f.conformance(), "Upload", slices.Values(items))
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("it counts %+v, and should %+v", got, want)
	}
	return nil
}

func cancels(ctx context.Context, t *trial) error {
	f, err := t.start(ctx)
	if err != nil {
		return err
	}
	s := f.sleep(ctx, long)
	if err := f.awaitRunning(ctx, 1, "before the cancel"); err != nil {
		return err
	}
	s.cancel()
	<-s.done
	return f.awaitRunning(ctx, 0, "after the cancel")
}

func meetsDeadline(ctx context.Context, t *trial) error {
	f, err := t.start(ctx)
	if err != nil {
		return err
	}
	_, err = conduit.Call[struct{}](ctx, f.conformance(), "Sleep", sleepRequest{MS: long}, conduit.WithTimeout(200*time.Millisecond))
	if e, ok := failure(err); !ok || e.Code != conduit.DeadlineExceeded {
		return fmt.Errorf("the call ends with %s; want deadline_exceeded", describeError(err))
	}
	return f.awaitRunning(ctx, 0, "after the deadline")
}

func runsParallel(ctx context.Context, t *trial) error {
	f, err := t.start(ctx)
	if err != nil {
		return err
	}
	const n = 64
	var all []*sleeper
	for range n {
		s := f.sleep(ctx, long)
		defer s.cancel()
		all = append(all, s)
	}
	if err := f.awaitRunning(ctx, n, "with 64 calls of Sleep"); err != nil {
		return err
	}
	if err := f.echo(ctx, pattern(1<<20)); err != nil {
		return fmt.Errorf("beside 64 calls of Sleep: %w", err)
	}
	for _, s := range all {
		s.cancel()
		<-s.done
	}
	return f.awaitRunning(ctx, 0, "after 64 cancels")
}

// drainFor is how long the call goes on that a drain has to wait for, in milliseconds.
const drainFor = 500

// busyFor starts a Sleep and returns while it is under way: on a machine that is slow to
// see that, with a longer one.
func (f *front) busyFor(ctx context.Context, ms int64) (*sleeper, error) {
	for ; ; ms *= 2 {
		s := f.sleep(ctx, ms)
		seen := make(chan error, 1)
		looking, stop := context.WithCancel(ctx)
		go func() { seen <- f.awaitRunning(looking, 1, "before SIGTERM") }()
		select {
		case err := <-seen:
			stop()
			return s, err
		case <-s.done:
			stop()
			if err := <-seen; err == nil || s.err != nil || ctx.Err() != nil {
				return s, errors.Join(ctx.Err(), s.err)
			}
		}
	}
}

func drains(ctx context.Context, t *trial) error {
	f, err := t.start(ctx)
	if err != nil {
		return err
	}
	s, err := f.busyFor(ctx, drainFor)
	defer s.cancel()
	if err != nil {
		return err
	}
	t.running.Terminate()
	// Once it says GoAway, or has left, the link is of no use for more.
	for f.plugin.Usable() {
		select {
		case <-time.After(healthPause):
		case <-ctx.Done():
			return fmt.Errorf("after SIGTERM it takes new calls: it should say GoAway: %w", ctx.Err())
		}
	}
	if err := f.echo(ctx, []byte("too late")); err == nil {
		return errors.New("a call that came after SIGTERM was served")
	} else if e, ok := failure(err); !ok || e.Outcome == conduit.Executed {
		return fmt.Errorf("a call that came after SIGTERM ends with %s; want refused", describeError(err))
	}
	<-s.done
	if s.err != nil {
		return fmt.Errorf("the call that was under way ends with %s; want it finished before the process leaves", describeError(s.err))
	}
	return t.exit(ctx, "SIGTERM")
}

func stopsBusy(ctx context.Context, t *trial) error {
	f, err := t.start(ctx)
	if err != nil {
		return err
	}
	const n = 8
	var all []*sleeper
	for range n {
		s := f.sleep(ctx, long)
		defer s.cancel()
		all = append(all, s)
	}
	if err := f.awaitRunning(ctx, n, "before the stop"); err != nil {
		return err
	}
	if err := t.running.Stop(ctx); err != nil {
		return err
	}
	if err := t.running.Kill(endGrace); err != nil { //nolint:contextcheck // it is bounded by itself
		return err
	}
	for _, s := range all {
		select {
		case <-s.done:
		case <-ctx.Done():
			return fmt.Errorf("a call of a process that has ended does not end: %w", ctx.Err())
		}
		if _, ok := failure(s.err); !ok {
			return fmt.Errorf("a call that was under way when the process was stopped ends with %s; want an error", describeError(s.err))
		}
	}
	return nil
}

func logsRecords(ctx context.Context, t *trial) error {
	f, err := t.start(ctx)
	if err != nil {
		return err
	}
	for _, r := range []record{{"warn", "the disk is nearly full"}, {"error", "the disk is full"}, {"info", "a disk was added"}} {
		if _, err := conduit.Call[struct{}](ctx, f.conformance(), "Log", logRequest{Level: r.level, Message: r.message}); err != nil {
			return err
		}
		if err := t.sink.await(ctx, r); err != nil {
			return err
		}
	}
	return nil
}
