package conformance

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

func describes(ctx context.Context, t *trial) error {
	d, err := Describe(ctx, t.o.Path)
	if err != nil {
		return err
	}
	if _, err := address.FromParts("*", "*", d.GetElement(), 0, false, "a.B"); err != nil {
		return fmt.Errorf("the element's name %q cannot stand in an address: %w", d.GetElement(), err)
	}
	for _, s := range d.GetServices() {
		if _, err := address.ParseServiceKey(s.GetName()); err != nil {
			return fmt.Errorf("service %q: %w", s.GetName(), err)
		}
	}
	return nil
}

const exitUsage = 64

func explainsItself(ctx context.Context, t *trial) error {
	ran := RunByHand(ctx, t.o.Path, DescribeTimeout)
	switch {
	case ran.TimedOut:
		return fmt.Errorf("it did not end within %v: who runs it by hand must be told what it is", DescribeTimeout)
	case len(ran.Stdout) == 0 && ran.Stderr == "":
		return errors.New("it said nothing: who runs it by hand must be told what it is")
	case ran.Err == nil:
		return errors.New("it exited with status 0: it must exit with another, 64 (EX_USAGE) if it can, since nothing was served")
	case ran.Code() < 0:
		return fmt.Errorf("it ended with %w: it must exit by itself, with status 64 (EX_USAGE) if it can", ran.Err)
	case ran.Code() != exitUsage && usesPluginapi(t.o.Path):
		return fmt.Errorf("it exited with %d; pluginapi.Main exits with %d: call it first in main", ran.Code(), exitUsage)
	}
	return nil
}

// usesPluginapi reports whether a binary was built with our Go module, as far as it
// tells.
func usesPluginapi(path string) bool {
	const module = "github.com/elemental-conduit/conduit"
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return false
	}
	for _, d := range info.Deps {
		if d.Path == module {
			return true
		}
	}
	return info.Main.Path == module
}

func handshakes(ctx context.Context, t *trial) error {
	printed, err := Describe(ctx, t.o.Path)
	if err != nil {
		return err
	}
	if err := t.launch(ctx, nil); err != nil {
		return err
	}
	if !proto.Equal(printed, t.running.Description) {
		return fmt.Errorf("it says another thing to a host than `describe` prints:\n%s\n%s", compact(t.running.Description), compact(printed))
	}
	return nil
}

func compact(d *conduitv1.Description) string {
	return strings.Join(strings.Fields(prototext.MarshalOptions{}.Format(d)), " ")
}

// toleratesNoise has a shell print before it becomes the plugin.
func toleratesNoise(ctx context.Context, t *trial) error {
	dir, err := os.MkdirTemp("", "cdt-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary one
	script := filepath.Join(dir, filepath.Base(t.o.Path))
	text := "#!/bin/sh\nprintf 'loading the model...\\n50 %%|=====     |\\n'\nexec " + shellQuote(t.o.Path) + " \"$@\"\n"
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil { //nolint:gosec // a program
		return err
	}
	return t.launch(ctx, func(o *LaunchOptions) { o.Path = script })
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func isHealthy(ctx context.Context, t *trial) error {
	if err := t.launch(ctx, nil); err != nil {
		return err
	}
	for range 5 {
		h, err := t.running.Health(ctx)
		if err != nil {
			return err
		}
		if s := h.GetState(); s != conduitv1.HealthResponse_STATE_HEALTHY && s != conduitv1.HealthResponse_STATE_DEGRADED {
			return fmt.Errorf("it is %s: %s", s, h.GetText())
		}
	}
	return nil
}

// unknownService is one that no plugin has.
const unknownService = "conduit.conformance.v1.Nowhere"

// wantRefused wants a call to have ended with a code and as refused.
func wantRefused(err error, code conduit.Code, reasons ...string) error {
	e, ok := failure(err)
	if !ok {
		return fmt.Errorf("it ended with %s, which is no typed error", describeError(err))
	}
	known := false
	for _, r := range reasons {
		known = known || e.Reason == r
	}
	if e.Code != code || e.Outcome != conduit.Refused || !known {
		return fmt.Errorf("it ended with %s, %s, %s (%s); want %s, %s, %s", e.Code, e.Reason, e.Outcome, e.Message, code, strings.Join(reasons, " or "), conduit.Refused)
	}
	return nil
}

func callUnknown(ctx context.Context, f *front, service string) error {
	_, err := conduit.Call[[]byte](ctx, f.service(service), "NoSuchMethod", nil)
	reason := conduit.ReasonMethodNotFound
	if service == unknownService {
		reason = conduit.ReasonServiceNotFound
	}
	if err := wantRefused(err, conduit.NotFound, reason); err != nil {
		return fmt.Errorf("a call of %s NoSuchMethod: %w", service, err)
	}
	return nil
}

func refusesUnknown(ctx context.Context, t *trial) error {
	f, err := t.start(ctx)
	if err != nil {
		return err
	}
	if err := callUnknown(ctx, f, unknownService); err != nil {
		return err
	}
	for _, s := range t.running.Description.GetServices() {
		if err := callUnknown(ctx, f, s.GetName()); err != nil {
			return err
		}
	}
	return callUnknown(ctx, f, unknownService)
}

// spoiler is a carrier that changes the first packet, which holds this end's Hello, or
// sends what is none. The link's writer and send may write at once.
type spoiler struct {
	link.Carrier
	first func(packet []byte) ([]byte, error)

	mu    sync.Mutex
	wrote bool
	err   error // of first
}

// over puts the spoiler into a launch.
func (s *spoiler) over(o *LaunchOptions) {
	o.Carrier = func(c link.Carrier) link.Carrier { s.Carrier = c; return s }
}

func (s *spoiler) broken() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// WriteMessage implements link.Carrier.
func (s *spoiler) WriteMessage(p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.wrote && s.first != nil {
		if p, s.err = s.first(p); s.err != nil {
			return s.err
		}
	}
	s.wrote = true
	return s.Carrier.WriteMessage(p)
}

// ended waits for the end of a link that the plugin has to end.
func (t *trial) ended(ctx context.Context, c *link.Conn, after string) error {
	select {
	case <-c.Done():
	case <-ctx.Done():
		return fmt.Errorf("the link goes on after %s: %w", after, ctx.Err())
	}
	if err := t.alive(ctx); err != nil {
		return fmt.Errorf("after %s: %w", after, err)
	}
	return nil
}

func wantsToken(ctx context.Context, t *trial) error {
	s := &spoiler{first: func(packet []byte) ([]byte, error) {
		var p conduitv1.Packet
		if err := proto.Unmarshal(packet, &p); err != nil {
			return nil, err
		}
		for _, f := range p.GetFrames() {
			if h := f.GetHello(); h != nil {
				h.Token = []byte("this is not the host's own token")
			}
		}
		return proto.Marshal(&p)
	}}
	if err := t.launch(ctx, s.over); err != nil {
		return err
	}
	c, err := t.running.OpenLink(ctx, link.Options{Handler: fromPlugin{t.running}})
	switch {
	case s.broken() != nil:
		return s.broken()
	case err != nil:
		return t.alive(ctx) // it said so before its own Hello, as it may
	}
	// The plugin's Hello may come before it has read ours: then it ends the link.
	return t.ended(ctx, c, "a Hello with another token")
}

// garbage is what no parser of packets takes: a field of two bytes that ends after one.
var garbage = []byte{0x0a, 0x02, 0xff} //nolint:gochecknoglobals // never written

func survivesGarbage(ctx context.Context, t *trial) error {
	// Instead of a Hello.
	s := &spoiler{first: func([]byte) ([]byte, error) { return garbage, nil }}
	if err := t.launch(ctx, s.over); err != nil {
		return err
	}
	if c, err := t.running.OpenLink(ctx, link.Options{Handler: fromPlugin{t.running}}); err == nil {
		if err := t.ended(ctx, c, "garbage instead of a Hello"); err != nil {
			return err
		}
	} else if err := t.alive(ctx); err != nil {
		return fmt.Errorf("after garbage instead of a Hello: %w", err)
	}
	if err := t.running.Close(endGrace); err != nil { //nolint:contextcheck // it is bounded by itself
		return err
	}
	// And on a link that works.
	s = &spoiler{}
	if err := t.launch(ctx, s.over); err != nil {
		return err
	}
	f, err := newFront(ctx, t.running)
	if err != nil {
		return err
	}
	t.front = f
	if err := callUnknown(ctx, f, unknownService); err != nil {
		return err
	}
	if err := s.WriteMessage(garbage); err != nil {
		return err
	}
	return t.ended(ctx, f.plugin, "a packet that is none")
}

func skipsUnknownFrames(ctx context.Context, t *trial) error {
	s := &spoiler{}
	if err := t.launch(ctx, s.over); err != nil {
		return err
	}
	f, err := newFront(ctx, t.running)
	if err != nil {
		return err
	}
	t.front = f
	if err := callUnknown(ctx, f, unknownService); err != nil { // else this end's Hello may be still to come
		return err
	}
	// A frame of the kind 100, on the link itself, with a body.
	frame := protowire.AppendBytes(protowire.AppendTag(nil, 100, protowire.BytesType), []byte("from a later version"))
	packet := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), frame)
	if err := s.WriteMessage(packet); err != nil {
		return err
	}
	return callUnknown(ctx, f, unknownService)
}

func answersCrowd(ctx context.Context, t *trial) error {
	f, err := t.start(ctx)
	if err != nil {
		return err
	}
	const n = 200
	errs := make(chan error, n)
	for range n {
		go func() { errs <- callUnknown(ctx, f, unknownService) }()
	}
	for range n {
		if e := <-errs; e != nil {
			err = e
		}
	}
	return err
}

func stops(ctx context.Context, t *trial) error {
	f, err := t.start(ctx)
	if err != nil {
		return err
	}
	if err := callUnknown(ctx, f, unknownService); err != nil {
		return err
	}
	return t.stop(ctx)
}

// stop asks the plugin to stop and to leave, and wants it to do so by itself.
func (t *trial) stop(ctx context.Context) error {
	if err := t.running.Stop(ctx); err != nil {
		return err
	}
	if err := t.running.Kill(10 * time.Second); err != nil { //nolint:contextcheck // it is bounded by itself
		return err
	}
	if e := t.running.Exit(); e.Code != 0 {
		return fmt.Errorf("asked to leave (Shutdown of go-plugin's plugin.GRPCController) it %s, and should exit with status 0 by itself", e)
	}
	return nil
}

func exitsOnTerm(ctx context.Context, t *trial) error {
	if _, err := t.start(ctx); err != nil {
		return err
	}
	t.running.Terminate()
	return t.exit(ctx, "SIGTERM")
}
