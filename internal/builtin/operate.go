package builtin

import (
	"context"
	"errors"
	"io"

	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// Operator does what operators ask of an instance and its deployments; user is who asks.
// A deployment is named by its name, a transient one also by its id. Its methods are
// called concurrently, may take as long as ctx lets them, and return errors of type
// *conduit.Error.
type Operator interface {
	// Deploy takes a deployment of one file, whose bytes are what body has.
	Deploy(ctx context.Context, user string, start *conduitv1.DeployStart, file *conduitv1.DeployFile, body io.Reader) (*conduitv1.DeploymentResult, error)
	// DeployDirectory takes a deployment of the files that next returns, io.EOF after the
	// last one. A body is read to its end before the next call.
	DeployDirectory(ctx context.Context, user string, start *conduitv1.DeployStart, next func() (*conduitv1.DeployFile, io.Reader, error)) (*conduitv1.DeploymentResult, error)
	Undeploy(ctx context.Context, user, name string, purge bool) (*conduitv1.DeploymentResult, error)
	SetEnabled(ctx context.Context, user, name string, on bool) (*conduitv1.DeploymentResult, error)
	Restart(ctx context.Context, user, name string) (*conduitv1.DeploymentResult, error)
	Rollback(ctx context.Context, user, name string) (*conduitv1.DeploymentResult, error)
	// Cordon has the instance, if deployment is empty, or a deployment take no new units,
	// or takes that back. unchanged says that it was so already.
	Cordon(ctx context.Context, user, deployment string, on bool) (unchanged bool, err error)
}

// operatorMethods are the methods of Admin that change something but the instance's
// life.
func operatorMethods() map[string]method {
	return map[string]method{
		"Deploy": {serve: deploy},
		"Undeploy": operates(func() *conduitv1.UndeployRequest { return &conduitv1.UndeployRequest{} },
			func(ctx context.Context, o Operator, user string, in *conduitv1.UndeployRequest) (*conduitv1.UndeployResponse, error) {
				r, err := o.Undeploy(ctx, user, in.GetName(), in.GetPurge())
				return &conduitv1.UndeployResponse{Deployment: r}, err
			}),
		"SetEnabled": operates(func() *conduitv1.SetEnabledRequest { return &conduitv1.SetEnabledRequest{} },
			func(ctx context.Context, o Operator, user string, in *conduitv1.SetEnabledRequest) (*conduitv1.SetEnabledResponse, error) {
				r, err := o.SetEnabled(ctx, user, in.GetName(), in.GetEnabled())
				return &conduitv1.SetEnabledResponse{Deployment: r}, err
			}),
		"Restart": operates(func() *conduitv1.RestartRequest { return &conduitv1.RestartRequest{} },
			func(ctx context.Context, o Operator, user string, in *conduitv1.RestartRequest) (*conduitv1.RestartResponse, error) {
				r, err := o.Restart(ctx, user, in.GetName())
				return &conduitv1.RestartResponse{Deployment: r}, err
			}),
		"Rollback": operates(func() *conduitv1.RollbackRequest { return &conduitv1.RollbackRequest{} },
			func(ctx context.Context, o Operator, user string, in *conduitv1.RollbackRequest) (*conduitv1.RollbackResponse, error) {
				r, err := o.Rollback(ctx, user, in.GetName())
				return &conduitv1.RollbackResponse{Deployment: r}, err
			}),
		"Cordon": operates(func() *conduitv1.CordonRequest { return &conduitv1.CordonRequest{} },
			func(ctx context.Context, o Operator, user string, in *conduitv1.CordonRequest) (*conduitv1.CordonResponse, error) {
				same, err := o.Cordon(ctx, user, in.GetDeployment(), true)
				return &conduitv1.CordonResponse{Unchanged: same}, err
			}),
		"Uncordon": operates(func() *conduitv1.UncordonRequest { return &conduitv1.UncordonRequest{} },
			func(ctx context.Context, o Operator, user string, in *conduitv1.UncordonRequest) (*conduitv1.UncordonResponse, error) {
				same, err := o.Cordon(ctx, user, in.GetDeployment(), false)
				return &conduitv1.UncordonResponse{Unchanged: same}, err
			}),
	}
}

// operates makes a method of what an Operator does with one message.
func operates[Req, Res proto.Message](empty func() Req, f func(ctx context.Context, o Operator, user string, in Req) (Res, error)) method {
	return unary(empty, func(ctx context.Context, s *Services, who asker, in Req) (Res, error) {
		if s.o.Operator == nil {
			var none Res
			return none, lacking("deployments that can be changed")
		}
		return f(ctx, s.o.Operator, who.user, in)
	})
}

// deploy serves Deploy: a start, a file, and its bytes as they come; of a directory, a file
// and its bytes again and again.
func deploy(s *Services, who asker) link.ServeFunc {
	return func(ctx context.Context, call *link.ServerCall) error {
		if s.o.Operator == nil {
			return lacking("deployments that can be changed")
		}
		parts := &deployParts{ctx: ctx, call: call}
		first, err := parts.next()
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		start := first.GetStart()
		switch {
		case start == nil:
			return badParts("it begins with something else than a start")
		case start.GetDirectory():
			parts.several = true
			result, err := s.o.Operator.DeployDirectory(ctx, who.user, start, parts.nextFile)
			if err != nil {
				return err
			}
			return reply(call, &conduitv1.DeployResponse{Deployment: result})
		case start.GetFiles() > 1:
			return badParts("there are several files, and the start does not say that they are a directory")
		}
		second, err := parts.next()
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		file := second.GetFile()
		switch {
		case file == nil:
			return badParts("the start is not followed by a file")
		case file.GetPath() != "":
			return badParts("the file of a deployment that is no directory has no path")
		}
		result, err := s.o.Operator.Deploy(ctx, who.user, start, file, parts)
		if err != nil {
			return err
		}
		return reply(call, &conduitv1.DeployResponse{Deployment: result})
	}
}

func badParts(what string) error {
	return conduit.Errorf(conduit.InvalidArgument, conduit.ReasonBadContent, conduit.Refused, "a deploy is a start, a file, and its bytes in chunks, of a directory each file and its bytes: %s", what)
}

// deployParts reads the messages of a Deploy; once those of the chunks are next, it is
// their bytes as an io.Reader.
type deployParts struct {
	ctx  context.Context //nolint:containedctx // the call's own: an io.Reader is given none
	call *link.ServerCall
	left []byte // of the last chunk

	several bool                  // files follow one another: the next ends the bytes of the last
	file    *conduitv1.DeployFile // that has come, and was not asked for yet
}

// nextFile returns the next file of a directory, and its bytes. The error is io.EOF after
// the last one, otherwise an *conduit.Error.
func (p *deployParts) nextFile() (*conduitv1.DeployFile, io.Reader, error) {
	if p.file == nil {
		part, err := p.next()
		if err != nil {
			return nil, nil, err
		}
		if p.file = part.GetFile(); p.file == nil {
			return nil, nil, badParts("something else comes where a file should")
		}
	}
	f := p.file
	p.file, p.left = nil, nil
	return f, p, nil
}

// next reads a message. The error is io.EOF after the last one, otherwise an
// *conduit.Error.
func (p *deployParts) next() (*conduitv1.DeployRequest, error) {
	m, err := p.call.Recv(p.ctx)
	if err != nil {
		return nil, err
	}
	part, err := conduit.Decode[*conduitv1.DeployRequest](m)
	if err != nil {
		e := *conduit.AsError(err, conduit.Refused)
		e.Outcome = conduit.Refused // nothing has been done
		return nil, &e
	}
	return part, nil
}

// Read implements io.Reader.
func (p *deployParts) Read(b []byte) (int, error) {
	for len(p.left) == 0 {
		if p.file != nil {
			return 0, io.EOF
		}
		part, err := p.next()
		if err != nil {
			return 0, err
		}
		if p.several && part.GetFile() != nil {
			p.file = part.GetFile()
			continue
		}
		if _, ok := part.GetPart().(*conduitv1.DeployRequest_Chunk); !ok {
			return 0, badParts("something else than a chunk comes among them")
		}
		p.left = part.GetChunk()
	}
	n := copy(b, p.left)
	p.left = p.left[n:]
	return n, nil
}
