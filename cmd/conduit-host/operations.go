package main

import (
	"context"
	"encoding/hex"
	"io"
	"io/fs"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/host"
	"github.com/elemental-conduit/conduit/internal/builtin"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// operating is what operators do to the deployments of a host.
type operating interface {
	deploy(ctx context.Context, u host.Upload) (host.Change, error)
	deployTree(ctx context.Context, t host.Tree) (host.Change, error)
	undeploy(ctx context.Context, name string, purge bool) (host.Change, error)
	setEnabled(ctx context.Context, name string, on bool) (host.Change, error)
	restart(ctx context.Context, name string) (host.Change, error)
	rollback(ctx context.Context, name string) (host.Change, error)
	cordon(name string, on bool) (unchanged bool, err error)
}

func (p plugins) deploy(ctx context.Context, u host.Upload) (host.Change, error) {
	return p.Deploy(ctx, u)
}

func (p plugins) deployTree(ctx context.Context, t host.Tree) (host.Change, error) {
	return p.DeployTree(ctx, t)
}

func (p plugins) undeploy(ctx context.Context, name string, purge bool) (host.Change, error) {
	return p.Undeploy(ctx, name, purge)
}

func (p plugins) setEnabled(ctx context.Context, name string, on bool) (host.Change, error) {
	return p.SetEnabled(ctx, name, on)
}

func (p plugins) restart(ctx context.Context, name string) (host.Change, error) {
	return p.Restart(ctx, name)
}

func (p plugins) rollback(ctx context.Context, name string) (host.Change, error) {
	return p.Rollback(ctx, name)
}

func (p plugins) cordon(name string, on bool) (bool, error) { return p.CordonDeployment(name, on) }

func (nothing) deploy(context.Context, host.Upload) (host.Change, error) {
	return host.Change{}, errNoDeployments()
}

func (nothing) deployTree(context.Context, host.Tree) (host.Change, error) {
	return host.Change{}, errNoDeployments()
}

func errNoDeployments() error {
	return conduit.Errorf(conduit.FailedPrecondition, conduit.ReasonNotWritable, conduit.Refused,
		"this instance has no deployments directory: start it with --host-deployments DIR")
}

func (nothing) undeploy(context.Context, string, bool) (host.Change, error) {
	return host.Change{}, notHosted()
}

func (nothing) setEnabled(context.Context, string, bool) (host.Change, error) {
	return host.Change{}, notHosted()
}

func (nothing) restart(context.Context, string) (host.Change, error) {
	return host.Change{}, notHosted()
}

func (nothing) rollback(context.Context, string) (host.Change, error) {
	return host.Change{}, notHosted()
}

func (nothing) cordon(string, bool) (bool, error) { return false, notHosted() }

var _ builtin.Operator = (*instance)(nil)

// asked notes who asked for what.
func (i *instance) asked(user, what, deployment string) {
	i.log.Info("an operator asked for a change", "user", user, "command", what, "deployment", deployment)
}

func resultOf(c host.Change, err error) (*conduitv1.DeploymentResult, error) {
	if err != nil {
		return nil, err
	}
	return &conduitv1.DeploymentResult{
		Name: c.Name, Id: c.ID, Result: c.Result, Sha256: c.Sum, Was: c.Was, Generation: c.Generation, Pid: int64(c.Pid), Note: utf8Text(c.Note),
	}, nil
}

// Deploy implements builtin.Operator.
func (i *instance) Deploy(ctx context.Context, user string, start *conduitv1.DeployStart, file *conduitv1.DeployFile, body io.Reader) (*conduitv1.DeploymentResult, error) {
	i.asked(user, "deploy", start.GetName())
	return resultOf(i.host.deploy(ctx, host.Upload{
		Name: start.GetName(), Transient: start.GetTransient(), Replace: start.GetReplace(),
		Size: int64(min(file.GetSize(), host.MaxDeploy+1)), Sum: hex.EncodeToString(file.GetSha256()), Body: body,
	}))
}

// DeployDirectory implements builtin.Operator.
func (i *instance) DeployDirectory(ctx context.Context, user string, start *conduitv1.DeployStart, next func() (*conduitv1.DeployFile, io.Reader, error)) (*conduitv1.DeploymentResult, error) {
	i.asked(user, "deploy", start.GetName())
	return resultOf(i.host.deployTree(ctx, host.Tree{
		Name: start.GetName(), Transient: start.GetTransient(), Replace: start.GetReplace(),
		Size: int64(min(start.GetSize(), host.MaxDeploy+1)), Files: int(min(start.GetFiles(), host.MaxDeployFiles+1)),
		Next: func() (host.TreeFile, error) {
			file, body, err := next()
			if err != nil {
				return host.TreeFile{}, err
			}
			return host.TreeFile{
				Path: file.GetPath(), Mode: fs.FileMode(file.GetMode()) & fs.ModePerm,
				Size: int64(min(file.GetSize(), host.MaxDeploy+1)), Sum: hex.EncodeToString(file.GetSha256()), Body: body,
			}, nil
		},
	}))
}

// Undeploy implements builtin.Operator.
func (i *instance) Undeploy(ctx context.Context, user, name string, purge bool) (*conduitv1.DeploymentResult, error) {
	i.asked(user, "undeploy", name)
	return resultOf(i.host.undeploy(ctx, name, purge))
}

// SetEnabled implements builtin.Operator.
func (i *instance) SetEnabled(ctx context.Context, user, name string, on bool) (*conduitv1.DeploymentResult, error) {
	i.asked(user, map[bool]string{true: "enable", false: "disable"}[on], name)
	return resultOf(i.host.setEnabled(ctx, name, on))
}

// Restart implements builtin.Operator.
func (i *instance) Restart(ctx context.Context, user, name string) (*conduitv1.DeploymentResult, error) {
	i.asked(user, "restart", name)
	return resultOf(i.host.restart(ctx, name))
}

// Rollback implements builtin.Operator.
func (i *instance) Rollback(ctx context.Context, user, name string) (*conduitv1.DeploymentResult, error) {
	i.asked(user, "rollback", name)
	return resultOf(i.host.rollback(ctx, name))
}

// Cordon implements builtin.Operator.
func (i *instance) Cordon(_ context.Context, user, deployment string, on bool) (unchanged bool, err error) {
	i.asked(user, map[bool]string{true: "cordon", false: "uncordon"}[on], deployment)
	if deployment != "" {
		return i.host.cordon(deployment, on)
	}
	if i.draining.Load() {
		if on {
			return true, nil
		}
		return false, errDraining()
	}
	unchanged = i.budget.Snapshot().Cordoned == on
	i.budget.Cordon(on)
	if i.draining.Load() { // since a moment: that came after
		i.budget.Cordon(true)
	}
	i.changed()
	return unchanged, nil
}
