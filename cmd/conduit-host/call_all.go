package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// nodeName is a node as call --all writes it. The names are for people, and empty
// where the instance does not say them.
type nodeName struct {
	Instance       string `json:"instance"`
	Name           string `json:"name,omitempty"`
	Deployment     string `json:"deployment,omitempty"`
	DeploymentName string `json:"deployment_name,omitempty"`
}

// nodeNames knows the names of nodes.
type nodeNames struct {
	infos map[string]*conduitv1.InstanceInfo
	// shared are the names that more than one instance has.
	shared map[string]bool
}

func newNodeNames(infos []*conduitv1.InstanceInfo) nodeNames {
	n := nodeNames{infos: map[string]*conduitv1.InstanceInfo{}, shared: map[string]bool{}}
	owner := map[string]string{}
	for _, info := range infos {
		id, name := info.GetInstance(), info.GetName()
		n.infos[id] = info
		if first, ok := owner[name]; ok && first != id {
			n.shared[name] = true
		}
		owner[name] = id
	}
	return n
}

func (n nodeNames) of(node conduit.Node) nodeName {
	info := n.infos[node.Instance]
	v := nodeName{Instance: node.Instance, Name: info.GetName(), Deployment: node.Deployment}
	for _, d := range info.GetDeployments() {
		if d.GetId() == node.Deployment {
			v.DeploymentName = d.GetName()
		}
	}
	return v
}

// label is a node for people: INSTANCE/DEPLOYMENT, by their names if they have
// some of their own.
func (n nodeNames) label(node conduit.Node) string {
	v := n.of(node)
	label := v.Name
	if label == "" || n.shared[label] {
		label = v.Instance
	}
	switch {
	case v.DeploymentName != "":
		label += "/" + v.DeploymentName
	case v.Deployment != "":
		label += "/" + v.Deployment
	}
	return shown(label, maxCell)
}

// asCaller makes calls as call does: results as JSON if they can be had so, and no
// deadline but the caller's.
type asCaller struct {
	conduit.Group

	accept string
}

// Members implements conduit.Group.
func (g asCaller) Members(ctx context.Context) ([]conduit.Member, error) {
	members, err := g.Group.Members(ctx)
	for i := range members {
		members[i].Invoker = callerInvoker{members[i].Invoker, g.accept}
	}
	return members, err
}

type callerInvoker struct {
	conduit.Invoker

	accept string
}

// Invoke implements conduit.Invoker.
func (c callerInvoker) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	with := *in
	with.Accept, with.Streaming = c.accept, true
	return c.Invoker.Invoke(ctx, &with)
}

// callAll calls every node, prints what comes back as it comes, and then says on
// standard error what became of each.
func (a *app) callAll(ctx context.Context, addr address.Address, in *conduit.Invocation, arg argument, f *callFlags) error {
	p, unseen, err := a.newPicture(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	infos := p.infos
	if err := arg.fill(in, func() bool { return anyTakesBytes(infos, addr, in.Method) }); err != nil {
		return err
	}
	var request any
	if in.HasRequest {
		request = conduit.Message{ContentType: in.ContentType, Data: in.Request}
	}
	var opts []conduit.CallOption
	if in.Units > 0 {
		opts = append(opts, conduit.WithUnits(in.Units))
	}
	names := newNodeNames(infos)
	out := &resultPrinter{w: a.stdout, format: a.output, raw: f.raw, parts: f.parts, names: &names}
	g := conduit.Gather[conduit.Message](ctx, asCaller{p.all(addr.String()), in.Accept}, in.Method, request, opts...)
	var failed error
	for r := range g.All() {
		if err := out.printNode(r); err != nil {
			failed = err
			break
		}
	}
	a.tellSkipped(out)
	report := g.Report()
	if report.Err != nil {
		a.tellUnseen(unseen)
		return adviseCall(report.Err, addr, in.Method, func() []*conduitv1.InstanceInfo { return infos })
	}
	if isClosedPipe(failed) {
		return failed
	}
	a.report(names, report, unseen)
	switch _, ok := errors.AsType[*conduit.Error](failed); {
	case failed == nil && len(a.peers) == 0: // whom the instance cannot reach is no node
		return worst(report, nil)
	case failed == nil:
		return worst(report, unseen)
	case ok:
		return failed
	default:
		return outputError(failed, conduit.OutcomeUnknown, "; the calls under way are cancelled: what they have done stays done")
	}
}

func (a *app) tellUnseen(unseen []hidden) {
	for _, h := range unseen {
		a.warn("%s could not be asked: %s", h.URL, h.why())
	}
}

func (h hidden) why() string {
	if h.Reason == "" {
		return "it is " + h.State
	}
	return strings.TrimPrefix(h.Reason, h.URL+": ")
}

// nodeError is a node that did not answer, in the report.
type nodeError struct {
	Node  nodeName    `json:"node"`
	Error errorReport `json:"error"`
}

// gatherReport is the report as JSON.
type gatherReport struct {
	Nodes      int         `json:"nodes"`
	Answered   []nodeName  `json:"answered"`
	Failed     []nodeError `json:"failed"`
	NotReached []nodeError `json:"not_reached"`
	// Unseen are instances of which it is not known what they have.
	Unseen []hidden `json:"unseen,omitempty"`
}

// report says on standard error what became of each node.
func (a *app) report(names nodeNames, r conduit.Report, unseen []hidden) {
	if a.output == formatJSON {
		v := gatherReport{Nodes: r.Nodes(), Answered: []nodeName{}, Failed: []nodeError{}, NotReached: []nodeError{}, Unseen: unseen}
		for _, n := range r.Answered {
			v.Answered = append(v.Answered, names.of(n))
		}
		for _, n := range r.Failed {
			v.Failed = append(v.Failed, nodeError{names.of(n.Node), newErrorReport(n.Err)})
		}
		for _, n := range r.NotReached {
			v.NotReached = append(v.NotReached, nodeError{names.of(n.Node), newErrorReport(n.Err)})
		}
		enc := json.NewEncoder(a.stderr)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(struct {
			Report gatherReport `json:"report"`
		}{v}) // if stderr is gone there is nobody left to tell
		return
	}
	fmt.Fprintf(a.stderr, "%s: %d answered, %d failed, %d not reached\n", count(r.Nodes(), "node"), len(r.Answered), len(r.Failed), len(r.NotReached))
	tell := func(what string, list []conduit.NodeError) {
		for _, n := range list {
			fmt.Fprintf(a.stderr, "%s %s: %s\n", what, names.label(n.Node), printable(errorText(n.Err)))
		}
	}
	tell("failed", r.Failed)
	tell("not reached", r.NotReached)
	a.tellUnseen(unseen)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// worst is the error of a call of all nodes, of which the exit status is made: the
// worst that a node's call ended with. What was, or may have been, executed is
// worse than what was not; what does not mend itself is worse than what may.
func worst(r conduit.Report, unseen []hidden) error {
	order := []int{exitUnavailable, exitDeadline, exitUsage, exitDenied, exitElement}
	rank := func(err error) int {
		for i, status := range order {
			if exitStatus(err) == status {
				return i
			}
		}
		return len(order)
	}
	var w *conduit.Error
	for _, list := range [][]conduit.NodeError{r.NotReached, r.Failed} {
		for _, n := range list {
			if w == nil || rank(n.Err) > rank(w) {
				w = n.Err
			}
		}
	}
	missing := r.Nodes() - len(r.Answered)
	if w == nil {
		if len(unseen) == 0 {
			return nil
		}
		return conduit.Errorf(conduit.Unavailable, conduit.ReasonPeerUnreachable, conduit.NotSent,
			"all %s answered, and %s could not be asked what they have", count(r.Nodes(), "node"), count(len(unseen), "instance"))
	}
	e := *w
	e.Message = fmt.Sprintf("%d of %s did not answer; the worst that one said: %s", missing, count(r.Nodes(), "node"), errorMessage(w))
	return &e
}

// printNode writes a message of a node, or how its call ended.
func (p *resultPrinter) printNode(r conduit.Gathered[conduit.Message]) error {
	if r.Err == nil {
		return p.printOf(&r.Node, r.Value)
	}
	if r.Node == (conduit.Node{}) || p.raw || p.format == formatTable {
		return nil // the report says it
	}
	text, err := json.Marshal(struct {
		Node  nodeName    `json:"node"`
		Error errorReport `json:"error"`
	}{p.names.of(r.Node), newErrorReport(conduit.AsError(r.Err, conduit.OutcomeUnknown))})
	if err != nil {
		return err
	}
	return p.writeDocument(text)
}
