package builtin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// clerk is an Operator that notes what it is asked for.
type clerk struct {
	asked chan string
	err   error
}

func newClerk() *clerk { return &clerk{asked: make(chan string, 10)} }

func (c *clerk) note(format string, args ...any) (*conduitv1.DeploymentResult, error) {
	c.asked <- fmt.Sprintf(format, args...)
	return &conduitv1.DeploymentResult{Name: "d", Result: "ready"}, c.err
}

// Deploy implements Operator.
func (c *clerk) Deploy(_ context.Context, user string, start *conduitv1.DeployStart, file *conduitv1.DeployFile, body io.Reader) (*conduitv1.DeploymentResult, error) {
	if c.err != nil {
		return c.note("deploy refused")
	}
	b, err := io.ReadAll(body)
	if err != nil {
		_, _ = c.note("deploy cut short")
		return nil, err
	}
	return c.note("%s deploys %s, %d bytes of %d: %s", user, start.GetName(), len(b), file.GetSize(), bytes.TrimRight(b, "x"))
}

// DeployDirectory implements Operator.
func (c *clerk) DeployDirectory(_ context.Context, user string, start *conduitv1.DeployStart, next func() (*conduitv1.DeployFile, io.Reader, error)) (*conduitv1.DeploymentResult, error) {
	var got strings.Builder
	for {
		f, body, err := next()
		if errors.Is(err, io.EOF) {
			return c.note("%s deploys the directory %s:%s", user, start.GetName(), &got)
		}
		var b []byte
		if err == nil {
			b, err = io.ReadAll(body)
		}
		if err != nil {
			_, _ = c.note("deploy cut short")
			return nil, err
		}
		fmt.Fprintf(&got, " %s=%s", f.GetPath(), b)
	}
}

// Undeploy implements Operator.
func (c *clerk) Undeploy(_ context.Context, user, name string, purge bool) (*conduitv1.DeploymentResult, error) {
	return c.note("%s undeploys %s, purge %v", user, name, purge)
}

// SetEnabled implements Operator.
func (c *clerk) SetEnabled(_ context.Context, user, name string, on bool) (*conduitv1.DeploymentResult, error) {
	return c.note("%s enables %s %v", user, name, on)
}

// Restart implements Operator.
func (c *clerk) Restart(_ context.Context, user, name string) (*conduitv1.DeploymentResult, error) {
	return c.note("%s restarts %s", user, name)
}

// Rollback implements Operator.
func (c *clerk) Rollback(_ context.Context, user, name string) (*conduitv1.DeploymentResult, error) {
	return c.note("%s rolls %s back", user, name)
}

// Cordon implements Operator.
func (c *clerk) Cordon(_ context.Context, user, deployment string, on bool) (bool, error) {
	_, err := c.note("%s cordons %q %v", user, deployment, on)
	return on, err
}

func startPart(s *conduitv1.DeployStart) *conduitv1.DeployRequest {
	return &conduitv1.DeployRequest{Part: &conduitv1.DeployRequest_Start{Start: s}}
}

func filePart(f *conduitv1.DeployFile) *conduitv1.DeployRequest {
	return &conduitv1.DeployRequest{Part: &conduitv1.DeployRequest_File{File: f}}
}

func chunkPart(s string) *conduitv1.DeployRequest {
	return &conduitv1.DeployRequest{Part: &conduitv1.DeployRequest_Chunk{Chunk: []byte(s)}}
}

// Each method reaches the Operator with what was asked, and by whom.
func TestOperator(t *testing.T) {
	c := newClerk()
	h := start(t, func(o *Options) { o.Operator = c })
	l := h.dial(Management, conduit.Superuser)
	for _, test := range []struct {
		method string
		in     proto.Message
		want   string
	}{
		{"Undeploy", &conduitv1.UndeployRequest{Name: "d", Purge: true}, "ada undeploys d, purge true"},
		{"SetEnabled", &conduitv1.SetEnabledRequest{Name: "d"}, "ada enables d false"},
		{"SetEnabled", &conduitv1.SetEnabledRequest{Name: "d", Enabled: true}, "ada enables d true"},
		{"Restart", &conduitv1.RestartRequest{Name: "d"}, "ada restarts d"},
		{"Rollback", &conduitv1.RollbackRequest{Name: "d"}, "ada rolls d back"},
		{"Cordon", &conduitv1.CordonRequest{Deployment: "d"}, `ada cordons "d" true`},
		{"Uncordon", &conduitv1.UncordonRequest{}, `ada cordons "" false`},
	} {
		// What tells what became of a deployment has it in the same field of each answer.
		if strings.HasSuffix(test.method, "ordon") {
			r, err := ask[*conduitv1.CordonResponse](t, l, adminService, test.method, test.in)
			if err != nil || r.GetUnchanged() != (test.method == "Cordon") {
				t.Errorf("%s: %v, %v", test.method, r, err)
			}
		} else if r, err := ask[*conduitv1.RestartResponse](t, l, adminService, test.method, test.in); err != nil || r.GetDeployment().GetResult() != "ready" {
			t.Errorf("%s: %v, %v", test.method, r, err)
		}
		if got := <-c.asked; got != test.want {
			t.Errorf("%s: %s", test.method, got)
		}
		_, err := ask[*conduitv1.RestartResponse](t, h.dial(Cluster, conduit.Superuser), adminService, test.method, test.in)
		refused(t, test.method, err, conduit.PermissionDenied, conduit.ReasonNotRemote)
		_, err = ask[*conduitv1.RestartResponse](t, h.dial(Management, conduit.User), adminService, test.method, test.in)
		refused(t, test.method, err, conduit.PermissionDenied, conduit.ReasonLevelTooLow)
	}
	no := newClerk()
	no.err = conduit.Errorf(conduit.NotFound, conduit.ReasonDeploymentNotFound, conduit.Refused, "no")
	l = start(t, func(o *Options) { o.Operator = no }).dial(Management, conduit.Superuser)
	_, err := ask[*conduitv1.RestartResponse](t, l, adminService, "Restart", &conduitv1.RestartRequest{})
	refused(t, "its own error", err, conduit.NotFound, conduit.ReasonDeploymentNotFound)

	bare := start(t, nil).dial(Management, conduit.Superuser)
	_, err = ask[*conduitv1.RestartResponse](t, bare, adminService, "Restart", &conduitv1.RestartRequest{})
	refused(t, "no operator", err, conduit.Unimplemented, reasonUnimplemented)
	_, err = ask[*conduitv1.DeployResponse](t, bare, adminService, "Deploy", startPart(&conduitv1.DeployStart{}))
	refused(t, "no operator", err, conduit.Unimplemented, reasonUnimplemented)
}

// A deploy is a start, a file and its bytes, however they are cut; anything else is
// refused before it is begun.
func TestDeployParts(t *testing.T) {
	c := newClerk()
	h := start(t, func(o *Options) { o.Operator = c })
	l := h.dial(Management, conduit.Superuser)
	one := &conduitv1.DeployStart{Name: "d", Files: 1}
	send := func(parts ...*conduitv1.DeployRequest) (*conduitv1.DeployResponse, error) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		inv := onLink{l, address.MustParse("*://conduit/conduit/" + adminService)}
		return conduit.Upload[*conduitv1.DeployResponse](ctx, inv, "Deploy", slices.Values(parts))
	}
	many := []*conduitv1.DeployRequest{startPart(one), filePart(&conduitv1.DeployFile{Size: 7 + 40<<16}), chunkPart("by"), chunkPart(""), chunkPart("tes"), chunkPart("!!")}
	for range 40 {
		many = append(many, chunkPart(strings.Repeat("x", 1<<16)))
	}
	r, err := send(many...)
	if err != nil || r.GetDeployment().GetResult() != "ready" {
		t.Fatalf("%v, %v", r, err)
	}
	if got, want := <-c.asked, fmt.Sprintf("ada deploys d, %d bytes of %d: bytes!!", 7+40<<16, 7+40<<16); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for what, parts := range map[string][]*conduitv1.DeployRequest{
		"nothing":    nil,
		"no start":   {filePart(&conduitv1.DeployFile{})},
		"no file":    {startPart(one)},
		"two starts": {startPart(one), startPart(one)},
		"a path":     {startPart(one), filePart(&conduitv1.DeployFile{Path: "bin/d"})},
	} {
		_, err := send(parts...)
		refused(t, what, err, conduit.InvalidArgument, conduit.ReasonBadContent)
	}
	_, err = send(startPart(&conduitv1.DeployStart{Name: "d", Files: 2}))
	refused(t, "several files that are no directory", err, conduit.InvalidArgument, conduit.ReasonBadContent)
	if len(c.asked) > 0 {
		t.Errorf("begun all the same: %s", <-c.asked)
	}
	_, err = send(startPart(one), filePart(&conduitv1.DeployFile{}), chunkPart("a"), filePart(&conduitv1.DeployFile{}))
	refused(t, "a second file", err, conduit.InvalidArgument, conduit.ReasonBadContent)
	if got := <-c.asked; got != "deploy cut short" {
		t.Error(got)
	}
	// A directory: files with their bytes, of which there may be none.
	dir := startPart(&conduitv1.DeployStart{Name: "d", Directory: true, Files: 3})
	file := func(path string) *conduitv1.DeployRequest { return filePart(&conduitv1.DeployFile{Path: path}) }
	if _, err := send(dir, file("a"), chunkPart("one"), chunkPart("two"), file("empty"), file("b/c"), chunkPart(""), chunkPart("three")); err != nil {
		t.Error(err)
	}
	if got := <-c.asked; got != "ada deploys the directory d: a=onetwo empty= b/c=three" {
		t.Error(got)
	}
	for what, parts := range map[string][]*conduitv1.DeployRequest{
		"bytes of no file":    {dir, chunkPart("x")},
		"a start among files": {dir, file("a"), chunkPart("x"), dir},
		"a start for a file":  {dir, dir},
	} {
		_, err := send(parts...)
		refused(t, what, err, conduit.InvalidArgument, conduit.ReasonBadContent)
		if got := <-c.asked; got != "deploy cut short" {
			t.Errorf("%s: %s", what, got)
		}
	}
	// Who goes away in the middle is no end of the file.
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	gone := errors.New("gone")
	inv := onLink{l, address.MustParse("*://conduit/conduit/" + adminService)}
	going, leave := context.WithCancelCause(ctx)
	_, err = conduit.Upload[*conduitv1.DeployResponse](going, inv, "Deploy", func(yield func(*conduitv1.DeployRequest) bool) {
		for _, p := range []*conduitv1.DeployRequest{startPart(one), filePart(&conduitv1.DeployFile{}), chunkPart("a")} {
			if !yield(p) {
				return
			}
		}
		leave(gone)
		select {
		case got := <-c.asked:
			if got != "deploy cut short" {
				t.Error(got)
			}
		case <-ctx.Done():
			t.Error("the reader never heard of it")
		}
	})
	if err == nil {
		t.Error("it ended well")
	}
	// One that is refused is not read to its end.
	no := newClerk()
	no.err = conduit.Errorf(conduit.AlreadyExists, conduit.ReasonDeploymentExists, conduit.Refused, "no")
	inv.l = start(t, func(o *Options) { o.Operator = no }).dial(Management, conduit.Superuser)
	_, err = conduit.Upload[*conduitv1.DeployResponse](ctx, inv, "Deploy", func(yield func(*conduitv1.DeployRequest) bool) {
		for ok := yield(startPart(one)) && yield(filePart(&conduitv1.DeployFile{})); ok; {
			ok = yield(chunkPart(strings.Repeat("x", 1<<16)))
		}
	})
	refused(t, "its own error", err, conduit.AlreadyExists, conduit.ReasonDeploymentExists)
}
