package locator

import (
	"context"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
)

// HasNode is what names the node that it is on: an address.ResourceID, TaskID or
// NodeID.
type HasNode interface{ Node() address.NodeID }

// SameNode returns what calls a service on the one node that all ids name, such as
// the two resources that are to be linked. element may have an ordinal. That there
// is no id, or that they name different nodes, surfaces at the call: as
// invalid_argument, not_sent.
func (l *Locator) SameNode(element, service string, ids ...HasNode) conduit.Invoker {
	nodes, err := distinct(ids)
	switch {
	case err != nil:
		return failing{err}
	case len(nodes) == 0:
		return failing{routing("no id is given that names a node")}
	case len(nodes) > 1:
		return failing{routing("the ids name different nodes, " + nodes[0].String() + " and " + nodes[1].String() + ": one call goes to one node")}
	}
	return l.At(onNode(nodes[0], element, service))
}

// Nodes returns the nodes that ids name, each once, for [conduit.Gather]: the
// original's list routing. Without ids it is all nodes that declare the element.
func (l *Locator) Nodes(element, service string, ids ...HasNode) conduit.Group {
	nodes, err := distinct(ids)
	switch {
	case err != nil:
		return &members{err: err}
	case len(nodes) == 0:
		return l.All(address.Wildcard + "://" + address.Wildcard + "/" + element + "/" + service)
	}
	m := &members{}
	for _, n := range nodes {
		m.all = append(m.all, conduit.Member{
			Node:    conduit.Node{Instance: n.Instance().String(), Deployment: n.Deployment().String()},
			Invoker: l.At(onNode(n, element, service)),
		})
	}
	return m
}

func onNode(n address.NodeID, element, service string) string {
	return n.Instance().String() + "://" + n.Deployment().String() + "/" + element + "/" + service
}

// distinct returns the nodes of ids, each once, in the order of the ids.
func distinct(ids []HasNode) ([]address.NodeID, *conduit.Error) {
	var nodes []address.NodeID
	seen := map[address.NodeID]bool{}
	for _, id := range ids {
		if id == nil {
			continue
		}
		n := id.Node()
		if n.IsZero() {
			return nil, routing("an id names no node")
		}
		if !seen[n] {
			seen[n] = true
			nodes = append(nodes, n)
		}
	}
	return nodes, nil
}

func routing(message string) *conduit.Error {
	return &conduit.Error{
		Code: conduit.InvalidArgument, Reason: conduit.ReasonBadAddress, Outcome: conduit.NotSent, Op: "locator.route", Message: message,
	}
}

// members is a group that does not change.
type members struct {
	all []conduit.Member
	err *conduit.Error
}

// Members implements conduit.Group.
func (m *members) Members(context.Context) ([]conduit.Member, error) {
	if m.err != nil {
		return nil, m.err
	}
	return m.all, nil
}
