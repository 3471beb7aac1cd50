package main

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/elemental-conduit/conduit/internal/config"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// listing is what ls can list.
func listing() []string {
	return []string{"instances", "deployments", "elements", "services", "methods", "links"}
}

func (a *app) lsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls " + strings.Join(listing(), "|"),
		Short: "Lists what there is",
		Long: `Lists what the instance of this machine has, or each of the peers named:

  instances    who they are, and what room they have
  deployments  what is deployed
  elements     the elements of deployments, with their states
  services     the addresses that can be called
  methods      the methods of those, with what they ask of a caller
  links        who is connected

With --peer, methods are those that the caller may call, of the machine nothing is
told, and links are told only if the peer's host.remote_admin is set.`,
		Example: "  conduit-host ls elements\n" +
			"  conduit-host ls methods -o json --instance worker-1\n" +
			"  conduit-host ls instances --peer ws://127.0.0.1:7400 --peer ws://127.0.0.1:7401",
		ValidArgs: listing(),
		Args:      takes(1, 1, strings.Join(listing(), "|")),
		RunE:      func(cmd *cobra.Command, args []string) error { return a.ls(cmd.Context(), args[0]) },
	}
	a.addTargetFlags(cmd)
	return cmd
}

func (a *app) ls(ctx context.Context, what string) error {
	if !slices.Contains(listing(), what) {
		near := config.Nearest(what, listing())
		if near != "" {
			near = "; did you mean " + near + "?"
		}
		return usagef("ls lists %s, not %q%s", strings.Join(listing(), ", "), what, near)
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	targets, err := a.targets(ctx)
	if err != nil {
		return blame(ctx, err)
	}
	answers, err := a.askEach(ctx, targets, what)
	if err != nil && len(answers) == 0 {
		return blame(ctx, err)
	}
	// What some peers said is shown also when others could not be asked.
	return errors.Join(a.printListing(what, answers), blame(ctx, err))
}

// answer is what one instance was asked for.
type answer struct {
	peers []*conduitv1.PeerInfo // the instance itself is the first
	links []*conduitv1.LinkInfo
}

// askEach asks each of the targets. The error is the first one's that did not
// answer.
func (a *app) askEach(ctx context.Context, targets []target, what string) (answers []answer, first error) {
	for _, t := range targets {
		one, err := askOne(ctx, t, what)
		switch {
		case err == nil:
			answers = append(answers, one)
		case first == nil:
			first = err
		default:
			a.warn("%s: %v", t.name, err)
		}
	}
	return answers, first
}

func askOne(ctx context.Context, t target, what string) (answer, error) {
	c, err := t.dial(ctx)
	if err != nil {
		return answer{}, err
	}
	defer c.Close() //nolint:errcheck // the questions are answered; how the link ends changes nothing
	switch what {
	case "instances":
		peers, err := instances(ctx, c)
		return answer{peers: peers}, err
	case "links":
		r, err := ask[*conduitv1.LinksResponse](ctx, c, "*", adminService, "Links", &conduitv1.LinksRequest{})
		return answer{links: r.GetLinks()}, err
	default:
		info, err := hosted(ctx, c, "*")
		return answer{peers: []*conduitv1.PeerInfo{{Info: info}}}, err
	}
}

// printListing prints what was asked for. In JSON even nothing is a list.
func (a *app) printListing(what string, answers []answer) error {
	switch what {
	case "instances":
		return a.listInstances(answers)
	case "links":
		rows := []linkRow{}
		for _, one := range answers {
			for _, l := range one.links {
				rows = append(rows, linkRowOf(l))
			}
		}
		return a.print(rows, func(w io.Writer) { linkTable(w, rows) })
	}
	deployments, elements, services, methods := []deploymentRow{}, []elementRow{}, []serviceRow{}, []methodRow{}
	for _, one := range answers {
		info := one.peers[0].GetInfo()
		for _, d := range info.GetDeployments() {
			deployments = append(deployments, deploymentRow{Instance: info.GetName(), ID: d.GetId(), Name: d.GetName(), Status: d.GetStatus(), Elements: len(d.GetElements())})
			for _, e := range d.GetElements() {
				elements = append(elements, elementRowOf(info.GetName(), d.GetName(), e))
				for _, s := range e.GetServices() {
					addr := serviceAddress(d.GetName(), e.GetName(), s.GetName())
					services = append(services, serviceRow{
						Instance: info.GetName(), Deployment: d.GetName(), Element: e.GetName(), Service: s.GetName(), Methods: len(s.GetMethods()), Address: addr,
					})
					for _, m := range s.GetMethods() {
						r := methodRowOf(m)
						r.Instance, r.Address = info.GetName(), addr
						methods = append(methods, r)
					}
				}
			}
		}
	}
	switch what {
	case "deployments":
		return a.print(deployments, func(w io.Writer) { deploymentTable(w, deployments) })
	case "elements":
		return a.print(elements, func(w io.Writer) { elementTable(w, elements) })
	case "services":
		return a.print(services, func(w io.Writer) { serviceTable(w, services) })
	default:
		return a.print(methods, func(w io.Writer) { methodsTable(w, methods) })
	}
}

// listInstances lists each instance once, though several may know it.
func (a *app) listInstances(answers []answer) error {
	rows := []instanceRow{}
	seen := map[string]bool{}
	for _, one := range answers { // those that answered know themselves best
		if p := one.peers[0]; !seen[p.GetInfo().GetInstance()] {
			seen[p.GetInfo().GetInstance()] = true
			rows = append(rows, instanceRowOf(p, true))
		}
	}
	for _, one := range answers {
		for _, p := range one.peers[1:] {
			if id := p.GetInfo().GetInstance(); id == "" || !seen[id] || p.GetState() == "conflict" {
				seen[id] = true
				rows = append(rows, instanceRowOf(p, false))
			}
		}
	}
	return a.print(rows, func(w io.Writer) { instanceTable(w, rows) })
}
