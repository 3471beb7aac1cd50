package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/internal/config"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/registry"
)

// listing is what ls can list.
func listing() []string {
	return []string{"instances", "deployments", "elements", "services", "methods", "links", sessionList}
}

// sessionList is what ls lists from the auth store: no instance tells of its users.
const sessionList = "sessions"

// lsFlags are the flags of ls.
type lsFlags struct {
	watch    bool
	interval string
	cluster  bool
}

func (a *app) lsCommand() *cobra.Command {
	f := &lsFlags{}
	cmd := &cobra.Command{
		Use:   "ls " + strings.Join(listing(), "|"),
		Short: "Lists what there is",
		Long: `Lists what the instance of this machine has, or each of the peers named:

  instances    who they are, and what room they have
  deployments  what is deployed
  elements     the elements of deployments, with their states and why
  services     the addresses that can be called
  methods      the methods of those, with what they ask of a caller
  links        who is connected
  sessions     who may call as whom and for how long, from the auth store of this
               machine (--auth-store), whether or not an instance runs

With --cluster, what is deployed is listed of every instance that it knows as well,
as those have told it: so an instance that hosts nothing shows what can be called
through it.

With --peer, methods are those that the caller may call, of the machine nothing is
told, and links are told only if the peer's host.remote_admin is set.

With --watch it asks again and again until it is interrupted (exit status 130) and
prints what it is told each time: on a terminal in place of the last, with -o json
on a line of its own. Who does not answer is left out with a warning.`,
		Example: "  conduit-host ls elements\n" +
			"  conduit-host ls instances --watch\n" +
			"  conduit-host ls services --cluster\n" +
			"  conduit-host ls methods -o json --instance worker-1\n" +
			"  conduit-host ls instances --peer ws://127.0.0.1:7400 --peer ws://127.0.0.1:7401",
		ValidArgs: listing(),
		Args:      takes(1, 1, strings.Join(listing(), "|")),
		RunE:      func(cmd *cobra.Command, args []string) error { return a.ls(cmd.Context(), args[0], f) },
	}
	cmd.Flags().BoolVar(&f.watch, "watch", false, "ask again and again")
	cmd.Flags().BoolVar(&f.cluster, "cluster", false, "list what is deployed in all instances that are known, too")
	cmd.Flags().StringVar(&f.interval, "interval", "2s", "how often --watch asks, at least 100ms")
	a.addKeyFlags(cmd, func(k *config.Key) bool { return isStoreKey(k) || isDialKey(k.Name) })
	return cmd
}

func (a *app) ls(ctx context.Context, what string, f *lsFlags) error {
	if !slices.Contains(listing(), what) {
		near := config.Nearest(what, listing())
		if near != "" {
			near = "; did you mean " + near + "?"
		}
		return usagef("ls lists %s, not %q%s", strings.Join(listing(), ", "), what, near)
	}
	interval, why := config.ParseDuration(f.interval)
	switch {
	case why != "":
		return usagef("--interval: %q %s", f.interval, why)
	case interval < shortestWatch:
		return usagef("--interval: %q is too short; the shortest is %v", f.interval, shortestWatch)
	}
	if f.cluster && (what == "instances" || what == "links" || what == sessionList) {
		return usagef("--cluster goes with what is deployed, not with %s", what)
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	if what == sessionList {
		return blame(ctx, a.lsSessions(ctx, f, interval))
	}
	targets, err := a.targets(ctx)
	if err != nil {
		return blame(ctx, err)
	}
	l := &lister{a: a, what: what, cluster: f.cluster, askers: make([]asker, len(targets))}
	l.list = l.once
	for i, t := range targets {
		l.askers[i].target = t
	}
	defer l.close()
	err = l.once(ctx)
	if f.watch && (err == nil || l.answered) {
		return blame(ctx, l.watch(ctx, interval, err))
	}
	return blame(ctx, err)
}

// lsSessions lists the sessions of the store that serve has with the same
// configuration.
func (a *app) lsSessions(ctx context.Context, f *lsFlags, interval time.Duration) error {
	if len(a.peers) > 0 || a.instance != "" {
		return usagef("sessions are listed from the auth store of this machine, and no instance is asked: leave --peer and --instance out, and say which store with --auth-store or --data-dir")
	}
	return a.withAccounts(ctx, false, func(_ context.Context, accounts *auth.Accounts) error {
		l := &lister{a: a, list: func(ctx context.Context) error { return a.printSessions(ctx, accounts, "") }}
		err := l.list(ctx)
		if err != nil || !f.watch {
			return err
		}
		return l.watch(ctx, interval, nil)
	})
}

// shortestWatch keeps a watch from being a load.
const shortestWatch = 100 * time.Millisecond

// lister asks instances for a listing, once or again and again.
type lister struct {
	a       *app
	what    string
	cluster bool // of all instances that those who are asked know
	askers  []asker
	list    func(ctx context.Context) error // prints it once
	// answered: some instance has, the last time.
	answered bool
}

// asker is a target and the connection to it, which is kept until it fails.
type asker struct {
	target target
	c      connection
}

func (l *lister) close() {
	for i := range l.askers {
		l.askers[i].hangUp()
	}
}

func (s *asker) hangUp() {
	if s.c != nil {
		_ = s.c.Close() // the questions are answered; how the link ends changes nothing
		s.c = nil
	}
}

// once asks all, and prints what they say. The error is the first one's that did
// not answer: what others said is shown all the same.
func (l *lister) once(ctx context.Context) error {
	var answers []answer
	var first error
	for i := range l.askers {
		s := &l.askers[i]
		one, err := s.ask(ctx, l.what, l.cluster)
		switch {
		case err == nil:
			answers = append(answers, one)
		case first == nil:
			first = err
		default:
			l.a.warn("%s: %v", s.target.name, err)
		}
	}
	l.answered = len(answers) > 0
	for _, one := range answers {
		for _, p := range one.problems {
			l.a.warn("discovery of %s: %s", one.peers[0].GetInfo().GetName(), p)
		}
	}
	if first != nil && !l.answered {
		return first
	}
	return errors.Join(l.a.printListing(l.what, answers), first)
}

// watch prints what instances say until ctx ends. first is what the first time
// ended with.
func (l *lister) watch(ctx context.Context, interval time.Duration, first error) error {
	l.tell(first)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return &quietError{conduit.FromContext(ctx, conduit.NotSent)}
		case <-tick.C:
		}
		if isTerminal(l.a.stdout) && l.a.output == formatTable {
			if _, err := io.WriteString(l.a.stdout, "\x1b[H\x1b[2J"); err != nil {
				return outputError(err, conduit.Executed, "")
			}
		}
		err := l.list(ctx)
		if e, ok := errors.AsType[*conduit.Error](err); ok && e.Reason == reasonOutput {
			return err
		}
		if ctx.Err() == nil {
			l.tell(err)
		}
	}
}

// tell warns of who has stopped answering.
func (l *lister) tell(err error) {
	if err != nil {
		l.a.warn("%s", errorText(err))
	}
}

// answer is what one instance was asked for.
type answer struct {
	peers []*conduitv1.PeerInfo // the instance itself is the first
	links []*conduitv1.LinkInfo
	// problems are what its discovery could make no use of.
	problems []string
}

// ask asks over the connection that there is, or a new one.
func (s *asker) ask(ctx context.Context, what string, cluster bool) (answer, error) {
	if s.c == nil {
		c, err := s.target.dial(ctx)
		if err != nil {
			return answer{}, err
		}
		s.c = c
	}
	one, err := askFor(ctx, s.c, what, cluster)
	if err != nil {
		s.hangUp()
		return answer{}, err
	}
	if s.target.peer {
		for _, p := range one.peers[:min(1, len(one.peers))] {
			p.Urls = []string{s.target.name}
		}
	}
	return one, nil
}

func askFor(ctx context.Context, c connection, what string, cluster bool) (answer, error) {
	switch {
	case what == "instances" || cluster:
		peers, problems, err := instancesAndProblems(ctx, c)
		return answer{peers: peers, problems: problems}, err
	case what == "links":
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
	deployments, elements, services, methods := hostedRows(hosts(answers))
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

// hostedRows are what instances host, in the order in which they are given; none is nil.
func hostedRows(told []report) (deployments []deploymentRow, elements []elementRow, services []serviceRow, methods []methodRow) {
	deployments, elements, services, methods = []deploymentRow{}, []elementRow{}, []serviceRow{}, []methodRow{}
	for _, r := range told {
		info := r.info
		// By name: their own order is that of ids, which are hashes.
		for _, d := range slices.SortedStableFunc(slices.Values(info.GetDeployments()), byName) {
			deployments = append(deployments, deploymentRowOf(info.GetName(), d))
			for _, e := range d.GetElements() {
				row := elementRowOf(info.GetName(), d.GetName(), e)
				row.SinceMS += r.age
				elements = append(elements, row)
				for _, s := range e.GetServices() {
					addr := serviceAddress(addressed(d), e.GetName(), s.GetName())
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
	return deployments, elements, services, methods
}

func byName(a, b *conduitv1.DeploymentInfo) int { return cmp.Compare(a.GetName(), b.GetName()) }

// report is what an instance has said of itself, and how long ago, in milliseconds.
type report struct {
	info *conduitv1.InstanceInfo
	age  uint64
}

// hosts are the instances of answers, each once: those that answered know themselves
// best.
func hosts(answers []answer) (list []report) {
	seen := map[string]bool{}
	add := func(p *conduitv1.PeerInfo) {
		if info := p.GetInfo(); info.GetInstance() != "" && !seen[info.GetInstance()] && p.GetState() != registry.StateConflict.String() {
			seen[info.GetInstance()] = true
			list = append(list, report{info, p.GetInfoMillis()})
		}
	}
	for _, one := range answers {
		add(one.peers[0])
	}
	for _, one := range answers {
		for _, p := range one.peers[1:] {
			add(p)
		}
	}
	return list
}

func (a *app) listInstances(answers []answer) error {
	rows := instanceRows(answers)
	return a.print(rows, func(w io.Writer) { instanceTable(w, rows) })
}

// instanceRows has each instance once, though several may know it, and each that claims
// another's id besides.
func instanceRows(answers []answer) []instanceRow {
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
			id, conflict := p.GetInfo().GetInstance(), p.GetState() == registry.StateConflict.String()
			if id == "" || !seen[id] || conflict {
				rows = append(rows, instanceRowOf(p, false))
			}
			// One in conflict stands for nobody: who has the id by right may still come.
			seen[id] = seen[id] || !conflict
		}
	}
	return rows
}
