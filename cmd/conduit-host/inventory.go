package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit/host"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/transport"
)

// Package host knows states, transport and host know links, and internal/builtin
// knows messages. Here they meet.

// maxInventory is from how many bytes on a list of elements says less of the rest of
// them: it has to fit into one message.
const maxInventory = 4 << 20

// maxSchemas is how many bytes of schemas a list has at most; further elements go without.
const maxSchemas = 2 << 20

// Deployments implements builtin.Inventory.
func (p plugins) Deployments() []*conduitv1.DeploymentInfo {
	now := time.Now()
	var list []*conduitv1.DeploymentInfo
	size, schemas := 0, 0
	for _, d := range p.Snapshot() {
		info := &conduitv1.DeploymentInfo{
			Id: cmp.Or(d.Transient, d.ID.String()), Name: utf8Text(d.Name), Status: d.Status,
			Disabled: d.Disabled, Cordoned: d.Cordoned, Transient: d.Transient != "", Previous: d.Previous,
		}
		for _, e := range d.Elements {
			x := elementInfo(e, now)
			size = fit(x, size)
			if n := proto.Size(e.Description.GetSchemas()); schemas+n <= maxSchemas {
				schemas += n
				x.Schemas = e.Description.GetSchemas()
			}
			info.Elements = append(info.Elements, x)
		}
		list = append(list, info)
	}
	slices.SortFunc(list, func(a, b *conduitv1.DeploymentInfo) int { return strings.Compare(a.GetId(), b.GetId()) })
	return list
}

func elementInfo(e host.ElementStatus, now time.Time) *conduitv1.ElementInfo {
	info := &conduitv1.ElementInfo{
		Name: e.Name, State: string(e.State), SinceMillis: millis(now.Sub(e.Since)), Reason: utf8Text(whyElement(e)), Generation: e.Generation,
		Restarts: e.Restarts, Pid: int64(e.Pid), InFlight: uint64(max(0, e.Calls)), Claims: uint64(max(0, e.Claims)), File: utf8Text(e.Path),
		Version: e.Description.GetVersion(), Services: e.Description.GetServices(),
		Sandbox: e.Sandbox,
	}
	if !e.LastExit.At.IsZero() {
		info.LastExit = utf8Text(e.LastExit.String())
	}
	for _, a := range e.Attributes {
		info.Attributes = append(info.Attributes, &conduitv1.AttributeInfo{Name: a.Name, Value: utf8Text(a.Value), Sensitive: a.Sensitive, Source: a.Source})
	}
	for _, line := range e.Stderr {
		info.Stderr = append(info.Stderr, utf8Text(line))
	}
	return info
}

// whyElement is why an element is in its state, and what it warned of: one does not
// hide the other.
func whyElement(e host.ElementStatus) string {
	var why []string
	for _, what := range slices.Concat([]string{e.Reason}, e.Warnings, finishing(e.Old)) {
		if what != "" && !slices.Contains(why, what) {
			why = append(why, what)
		}
	}
	return strings.Join(why, "; ")
}

// fit leaves out of an element what a list of so many bytes has no more room for, and
// returns how many it has then.
func fit(x *conduitv1.ElementInfo, size int) int {
	n := proto.Size(x)
	if size+n <= maxInventory {
		return size + n
	}
	x.Services, x.Stderr, x.Attributes = nil, nil, nil
	x.Reason = strings.TrimPrefix(x.GetReason()+"; ", "; ") + "its services, its stderr and its attributes are left out: the list would be too large to send"
	return size + proto.Size(x)
}

// finishing says what keeps the processes that were replaced.
func finishing(old []host.OldGeneration) []string {
	if len(old) == 0 {
		return nil
	}
	var calls, claims int64
	var pids []string
	for _, g := range old {
		calls, claims = calls+g.Calls, claims+g.Claims
		pids = append(pids, strconv.Itoa(g.Pid))
	}
	verbs := [...]string{"still finish", "hold"}
	if len(old) == 1 {
		verbs = [...]string{"still finishes", "holds"}
	}
	return []string{fmt.Sprintf("%s %s %s and %s %s (pid %s)", count(len(old), "old generation"), verbs[0], count(int(calls), "call"), verbs[1], count(int(claims), "claim"), strings.Join(pids, ", "))}
}

// Deployments implements builtin.Inventory.
func (nothing) Deployments() []*conduitv1.DeploymentInfo { return nil }

func (p plugins) links() []host.PluginLink { return p.Links() }

func (nothing) links() []host.PluginLink { return nil }

// Links implements builtin.Links.
func (i *instance) Links() []*conduitv1.LinkInfo {
	now := time.Now()
	var list []*conduitv1.LinkInfo
	for _, s := range []struct {
		kind   string
		server *transport.Server
	}{{"cluster", i.cluster}, {"management", i.door.server}} {
		if s.server == nil {
			continue // this instance has none
		}
		for _, l := range s.server.OpenLinks() {
			list = append(list, linkInfo(s.kind, l.Peer.Name, l.Remote, l.Conn, now))
		}
	}
	for _, p := range i.fabric.registry.Peers() {
		if p.Link != nil {
			list = append(list, linkInfo("peer", p.Instance.String(), p.URLs[0], connOf(p.Link), now))
		}
	}
	for conn, l := range i.linked.all() {
		if l.url != "" { // those of peers are above
			list = append(list, linkInfo("peer", l.instance, l.url, conn, now))
		}
	}
	for _, l := range i.host.links() {
		list = append(list, linkInfo("plugin", l.Name, "", l.Conn, now))
	}
	return list
}

func linkInfo(kind, peer, remote string, l *link.Conn, now time.Time) *conduitv1.LinkInfo {
	s := l.Stats()
	out, in := l.Calls()
	info := &conduitv1.LinkInfo{
		Kind: kind, Peer: peer, Remote: remote, CallsOut: uint32(out), CallsIn: uint32(in),
		BytesIn: s.BytesIn, BytesOut: s.BytesOut, PacketsIn: s.PacketsIn, PacketsOut: s.PacketsOut,
		RttMicros: uint64(max(0, s.RTT.Microseconds())), Queued: uint32(s.Queued), Overdue: uint32(l.Overdue()),
	}
	if since, idle := l.IdleSince(); idle {
		info.IdleMillis = millis(now.Sub(since))
	}
	return info
}

func millis(d time.Duration) uint64 { return uint64(max(0, d.Milliseconds())) }

// utf8Text makes what a process or a file system said fit for a message.
func utf8Text(s string) string { return strings.ToValidUTF8(s, "?") }
