package registry_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"text/tabwriter"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/budget"
	"github.com/elemental-conduit/conduit/discovery"
	"github.com/elemental-conduit/conduit/locator"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/registry"
)

// simSeeds is how many runs of each row TestCapacity makes; `make sim-capacity` says 20.
var simSeeds = flag.Int("sim.seeds", 0, "runs of each row of the table of TestCapacity; 0 = a short version") //nolint:gochecknoglobals // a flag

// The cluster of a simulation: instances that are as full as the load says, claims that
// end by chance, and one more instance that joins empty. The time is that of a bubble.
const (
	simInstances = 10
	simTotal     = 1000 // units of an instance, and
	simFew       = 40   // where they are few
	simUnits     = 2    // of a call, and of its claim
	simHeld      = 30 * time.Second
	simBriefly   = 500 * time.Millisecond // where they are few: as long as a report may be old
	simJoin      = 15 * time.Second
	simAfter     = 15 * time.Second // how long it goes on after that
	simWindow    = 10 * time.Second // in which the share of who joined is measured

	// One way between two instances, for each packet anew; packets of a link keep their
	// order.
	simLeast, simMost = time.Millisecond, 10 * time.Millisecond

	// When an instance tells of its room without being asked: those of internal/link.
	simPause, simLook, simShare = 500 * time.Millisecond, 20 * time.Millisecond, 20
	// simTold is how long it may take until a caller has been told of room.
	simTold = simLook + simPause + 4*simMost
	// simWay is how long news of room may be on its way, and the call that it lets go: who
	// is younger cannot be known, by whatever rule.
	simWay = 2 * simMost
)

// sim is one run. Each caller has a registry and a locator of its own, the real ones,
// over links that are simulated; the instances' budgets are real, too.
type sim struct {
	t         *testing.T
	policy    registry.Policy
	total     int           // units of an instance
	mean      time.Duration // that they are held
	instances []*simInstance
	over      bool

	mu     sync.Mutex
	random *rand.Rand
	began  time.Time
	joined time.Time
	pool   int // units held in the one pool that figures.lost is about
	figures
}

// figures are what is counted.
type figures struct {
	calls    int
	refusals int // by instances that had no room when the Invoke came
	asked    int // questions who a peer is, which are those for its room but for the first
	// Calls that ended with no_capacity: all; those at whose end an instance had room;
	// those at whose end one had had it, and nobody made use of it, for longer than the
	// news takes; and those that were not sent though that was longer than it takes to be
	// told of it.
	full, wrong, late, untold int
	over                      int // admissions beyond the total of an instance
	// lost are the calls that one pool of all units would have refused, which knows all
	// at once: at full load there are some, whatever the rule.
	lost int

	// Invokes that came within simWindow after the join: all, and those to who joined;
	// and the same in each second of it.
	came, toJoiner int
	bySecond       [int(simWindow / time.Second)][2]int
}

// add adds those of another run.
func (f *figures) add(one *figures) {
	f.calls += one.calls
	f.refusals += one.refusals
	f.full += one.full
	f.asked += one.asked
	f.wrong += one.wrong
	f.late += one.late
	f.lost += one.lost
	f.untold += one.untold
	f.over += one.over
}

// worst is the largest share that who joined had in a second.
func (f *figures) worst() float64 {
	worst := 0.0
	for _, second := range f.bySecond {
		worst = max(worst, float64(second[1])/float64(max(second[0], 1)))
	}
	return worst
}

// simInstance is an instance of the cluster.
type simInstance struct {
	s      *sim
	name   string
	id     address.InstanceID
	budget *budget.Budget

	// Guarded by s.mu.
	held    int64 // units, counted apart from the budget
	coming  int64 // units of Invokes that are on their way to it
	links   []*simLink
	look    *time.Timer
	looking bool
	// roomSince says since when there has been room for a call that none was on its way
	// to; zero = there is none.
	roomSince time.Time
}

// exponential returns a time of that mean.
func (s *sim) exponential(mean time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.random.ExpFloat64() * float64(mean))
}

func simURL(name string) string { return "ws://" + name + ":7400/cluster/v1" }

// runSim runs one simulation in a bubble of its own.
func runSim(t *testing.T, row simRow, seed uint64) (out figures) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &sim{t: t, policy: row.policy, total: simTotal, mean: simHeld, random: rand.New(rand.NewPCG(seed, uint64(row.callers)))} //nolint:gosec // small
		if row.few {
			s.total, s.mean = simFew, simBriefly
		}
		for n := range simInstances {
			i := &simInstance{s: s, name: fmt.Sprintf("i%d", n), budget: budget.New(int64(s.total))}
			i.id = address.UniqueInstanceID(i.name)
			i.look = time.AfterFunc(time.Hour, i.tell)
			i.look.Stop()
			s.instances = append(s.instances, i)
		}
		s.began = time.Now()
		s.joined = s.began.Add(simJoin)
		fill := int(row.load * float64(s.total) / simUnits)
		for _, i := range s.instances[:simInstances-1] {
			i.roomSince = s.began
			for range fill {
				r, err := i.budget.Reserve(simUnits)
				if err != nil {
					t.Fatal(err)
				}
				i.admitted(r)
				s.pool += simUnits
				s.leavePool()
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		// What ends by chance is followed by new calls, on average.
		each := time.Duration(float64(s.mean) * float64(row.callers) / (row.load * float64((simInstances-1)*s.total) / simUnits))
		for range row.callers {
			s.caller(ctx, &all, each)
		}
		time.Sleep(simJoin + simAfter)
		cancel()
		all.Wait()
		s.mu.Lock()
		s.over = true
		s.mu.Unlock()
		for _, i := range s.instances {
			i.look.Stop()
		}
		time.Sleep(time.Second) // packets under way
		out = s.figures
	})
	return out
}

// caller begins calls by chance, until ctx ends.
func (s *sim) caller(ctx context.Context, all *sync.WaitGroup, each time.Duration) {
	static, err := discovery.NewStatic(nil, true)
	if err != nil {
		s.t.Fatal(err)
	}
	r := registry.New(registry.Options{Source: static, Dialer: s, Policy: s.policy})
	l := locator.New(locator.Options{Registry: r})
	var urls []string
	for _, i := range s.instances {
		urls = append(urls, simURL(i.name))
	}
	if err := static.Reload(urls[:simInstances-1]); err != nil {
		s.t.Fatal(err)
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	all.Go(func() {
		if err := r.Run(running); err != nil {
			s.t.Error(err)
		}
	})
	join := time.AfterFunc(simJoin, func() {
		if err := static.Reload(urls); err != nil {
			s.t.Error(err)
		}
	})
	all.Go(func() {
		defer stop()
		defer join.Stop()
		var calls sync.WaitGroup
		defer calls.Wait()
		<-r.Settled()
		target := l.At("*://matches/matches/Matches")
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(s.exponential(each)):
			}
			calls.Go(func() { s.call(running, target) })
		}
	})
}

// call makes one call and judges how it ends.
func (s *sim) call(ctx context.Context, target conduit.Invoker) {
	s.inPool()
	x := target.Invoke(ctx, &conduit.Invocation{Method: "Create", Units: simUnits, Last: true})
	_, err := x.Recv(ctx)
	if err == nil {
		_, _ = x.Recv(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	e, failed := errors.AsType[*conduit.Error](err)
	switch {
	case !failed:
	case e.Reason != conduit.ReasonNoCapacity:
		s.t.Errorf("a call failed with %v", err)
	default:
		s.full++
		// A peer that has just got room cannot be known to have it: a report of it is
		// still under way. So it counts how long the room has been there, too.
		var since time.Duration
		for n, i := range s.instances {
			if n == simInstances-1 && time.Since(s.joined) < time.Second {
				continue // the caller may not have met it yet
			}
			if !i.roomSince.IsZero() {
				since = max(since, time.Since(i.roomSince))
			}
		}
		if since > 0 {
			s.wrong++
		}
		if since > simWay {
			s.late++
		}
		if since > simTold && e.Outcome == conduit.NotSent {
			s.untold++
		}
	}
}

// inPool has a call held by the pool, if it has room.
func (s *sim) inPool() {
	total := s.total * (simInstances - 1)
	s.mu.Lock()
	if !time.Now().Before(s.joined) {
		total += s.total
	}
	room := s.pool+simUnits <= total
	if room {
		s.pool += simUnits
	} else {
		s.lost++
	}
	s.mu.Unlock()
	if room {
		s.leavePool()
	}
}

// leavePool gives what a call holds of the pool back, by chance.
func (s *sim) leavePool() {
	time.AfterFunc(s.exponential(s.mean), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.pool -= simUnits
	})
}

// admitted counts units that a call holds from now on, and gives them back by chance.
func (i *simInstance) admitted(r *budget.Reservation) {
	s := i.s
	s.mu.Lock()
	i.held += simUnits
	if i.held > int64(s.total) {
		s.figures.over++
	}
	s.mu.Unlock()
	claim, err := r.Claim(simUnits)
	if err != nil {
		s.t.Errorf("the claim takes over what is reserved: %v", err)
	}
	r.Release()
	i.changed()
	time.AfterFunc(s.exponential(s.mean), func() {
		s.mu.Lock()
		over := s.over
		i.held -= simUnits
		s.mu.Unlock()
		if !over {
			claim.Release()
			i.changed()
		}
	})
}

// changed notes since when there is room, and looks soon at who is to be told.
func (i *simInstance) changed() {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	i.count()
	if !i.looking && !i.s.over {
		i.looking = true
		i.look.Reset(simLook)
	}
}

// count notes since when there is room that nobody is on the way to. s.mu is held.
func (i *simInstance) count() {
	switch {
	case i.budget.Snapshot().Available-i.coming < simUnits:
		i.roomSince = time.Time{}
	case i.roomSince.IsZero():
		i.roomSince = time.Now()
	}
}

// tell sends a Status to whom it is worth a packet, by the rule of internal/link.
func (i *simInstance) tell() {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	i.looking = false
	next := time.Duration(0)
	for _, l := range i.links {
		now := l.ledger.Status()
		share := int64(i.s.total / simShare)
		little := l.told.Available < share && now.Available > l.told.Available
		if little || far(now.Available, l.told.Available, share) || far(now.Judged, l.told.Judged, share) {
			if rest := simPause - time.Since(l.alone); rest > 0 {
				if next == 0 || rest < next {
					next = rest
				}
				continue
			}
			l.alone = time.Now()
			l.status(nil)
		}
	}
	if next > 0 && !i.s.over {
		i.looking = true
		i.look.Reset(next)
	}
}

func far(a, b, share int64) bool { return max(a-b, b-a) > share }

// simRoute is an address.
type simRoute struct{ a address.Address }

func (r simRoute) Address() address.Address { return r.a }

// Route and Connect make a sim the Dialer of its callers.
func (s *sim) Route(a address.Address) registry.Route { return simRoute{a} }

func (s *sim) Connect(_ context.Context, url string, h registry.Hooks) (registry.Link, error) {
	for _, i := range s.instances {
		if simURL(i.name) != url {
			continue
		}
		time.Sleep(4 * simMost)
		l := &simLink{i: i, hooks: h, ledger: i.budget.Ledger(), done: make(chan struct{})}
		s.mu.Lock()
		defer s.mu.Unlock()
		i.links = append(i.links, l)
		l.status(nil)
		return l, nil
	}
	return nil, fmt.Errorf("nobody is at %s", url)
}

// simLink is a link of one caller to an instance.
type simLink struct {
	i      *simInstance
	hooks  registry.Hooks
	ledger *budget.Ledger
	done   chan struct{}

	// Guarded by s.mu.
	up, down    time.Time // when the last packet arrives
	told        budget.Status
	alone       time.Time
	outstanding int
}

// packet has something happen when a packet arrives that is sent now. s.mu is held.
func (l *simLink) packet(last *time.Time, arrive func()) {
	delay := simLeast + time.Duration(l.i.s.random.Float64()*float64(simMost-simLeast))
	at := time.Now().Add(delay)
	if !at.After(*last) {
		at = last.Add(1)
	}
	*last = at
	time.AfterFunc(time.Until(at), arrive)
}

// status sends what room there is, with an answer if there is one. s.mu is held.
func (l *simLink) status(answer func()) {
	l.told = l.ledger.Status()
	s := &conduitv1.Status{
		Available: uint64(l.told.Available), Total: uint64(l.told.Total), Judged: uint64(l.told.Judged), //nolint:gosec // none is negative
		State: conduitv1.InstanceState_INSTANCE_STATE_ACTIVE, Digest: []byte("1"),
	}
	l.packet(&l.down, func() {
		l.hooks.Status(s)
		if answer != nil {
			answer()
		}
	})
}

func (l *simLink) Instance() string      { return l.i.id.String() }
func (l *simLink) Epoch() uint64         { return 1 }
func (l *simLink) Usable() bool          { return true }
func (l *simLink) Unsent() uint64        { return 0 }
func (l *simLink) Done() <-chan struct{} { return l.done }
func (l *simLink) Release()              {}

func (l *simLink) Outstanding() int {
	l.i.s.mu.Lock()
	defer l.i.s.mu.Unlock()
	return l.outstanding
}

// WhoAreYou implements registry.Link: a way there and back.
func (l *simLink) WhoAreYou(ctx context.Context, digest []byte) (*conduitv1.InstanceInfo, error) {
	answered := make(chan struct{})
	s := l.i.s
	s.mu.Lock()
	s.asked++
	l.packet(&l.up, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		l.status(func() { close(answered) })
	})
	s.mu.Unlock()
	select {
	case <-answered:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	info := &conduitv1.InstanceInfo{Instance: l.i.id.String(), Name: l.i.name, Digest: []byte("1")}
	if string(digest) == "1" {
		info.Unchanged = true
		return info, nil
	}
	info.Deployments = []*conduitv1.DeploymentInfo{{
		Id: address.UniqueDeploymentID("matches").String(), Name: "matches",
		Elements: []*conduitv1.ElementInfo{{Name: "matches", State: "ready", Services: []*conduitv1.ServiceDescription{{
			Name: "Matches", Methods: []*conduitv1.MethodDescription{{Name: "Create", Units: simUnits}},
		}}}},
	}}
	return info, nil
}

// Invoke implements registry.Link: the instance judges when the Invoke arrives.
func (l *simLink) Invoke(_ context.Context, _ registry.Route, in *conduit.Invocation) conduit.Exchange {
	x := &simExchange{l: l, answered: make(chan struct{})}
	s, units := l.i.s, int64(in.Units)
	s.mu.Lock()
	defer s.mu.Unlock()
	l.outstanding++
	l.i.coming += units
	l.i.roomSince = time.Time{}
	l.i.count()
	l.packet(&l.up, func() {
		r, err := l.ledger.Judge(units, units)
		s.mu.Lock()
		l.i.coming -= units
		l.i.count()
		if since := time.Since(s.joined); since >= 0 && since < simWindow {
			joiner := 0
			if l.i == s.instances[simInstances-1] {
				joiner = 1
			}
			s.came++
			s.toJoiner += joiner
			s.bySecond[since/time.Second][0]++
			s.bySecond[since/time.Second][1] += joiner
		}
		s.mu.Unlock()
		if err != nil {
			x.err = err
		} else {
			l.i.admitted(r)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil {
			s.refusals++
		}
		l.status(func() { close(x.answered) })
	})
	return x
}

// simExchange is a call under way.
type simExchange struct {
	l        *simLink
	answered chan struct{}
	err      *conduit.Error // once answered is closed
	over     bool
}

func (x *simExchange) Send(context.Context, []byte) error { return nil }
func (x *simExchange) CloseSend() error                   { return nil }
func (x *simExchange) Cancel(error)                       {}

func (x *simExchange) Recv(context.Context) (conduit.Message, error) {
	<-x.answered
	if x.over {
		return conduit.Message{}, io.EOF
	}
	x.over = true
	x.l.i.s.mu.Lock()
	x.l.outstanding--
	x.l.i.s.mu.Unlock()
	if x.err != nil {
		return conduit.Message{}, x.err
	}
	return conduit.Message{Data: []byte("{}")}, nil
}

// simRow is one row of the table.
type simRow struct {
	policy  registry.Policy
	callers int
	load    float64 // of what there is before one more joins
	few     bool    // units, held briefly
}

// TestCapacity simulates what picks do to a cluster with network delay: how much of all
// calls falls on an instance that joins empty, and who is told that there is no room
// while there is some.
func TestCapacity(t *testing.T) {
	rows, seeds, limit := []simRow{{policy: registry.P2C, callers: 1, load: 0.67}, {policy: registry.P2C, callers: 10, load: 1}, {policy: registry.Headroom, callers: 10, load: 0.33}}, 2, 0.25
	if *simSeeds > 0 {
		rows, seeds, limit = nil, *simSeeds, 0.22
		for _, callers := range []int{1, 3, 10, 50} {
			for _, load := range []float64{0.33, 0.67, 0.9, 0.95, 1} {
				rows = append(rows, simRow{policy: registry.P2C, callers: callers, load: load})
			}
		}
		rows = append(rows, simRow{policy: registry.Headroom, callers: 10, load: 0.33}, simRow{policy: registry.Headroom, callers: 10, load: 0.9})
		for _, load := range []float64{0.5, 0.7, 0.9} {
			rows = append(rows, simRow{policy: registry.P2C, callers: 10, load: load, few: true})
		}
	}
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "policy\tcallers\tload\tcalls\tshare of the joiner\tworst second\trefusals\tasked\tno_capacity\tpool\tfalse\tlate\tuntold\tover\t")
	for _, row := range rows {
		var sum figures
		share, worst := 0.0, 0.0
		for seed := range seeds {
			f := runSim(t, row, uint64(seed+1)) //nolint:gosec // small
			sum.add(&f)
			share += float64(f.toJoiner) / float64(f.came) / float64(seeds)
			worst = max(worst, f.worst())
		}
		name := row.policy.String()
		if row.few {
			name += ", few"
		}
		what := fmt.Sprintf("%s, %d callers, %.0f %%", name, row.callers, row.load*100)
		fmt.Fprintf(table, "%s\t%d\t%.0f %%\t%d\t%.3f\t%.2f\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", name, row.callers, row.load*100,
			sum.calls, share, worst, sum.refusals, sum.asked, sum.full, sum.lost, sum.wrong, sum.late, sum.untold, sum.over)
		if sum.calls == 0 || sum.over != 0 {
			t.Errorf("%s: %d calls, %d admissions beyond an instance's total", what, sum.calls, sum.over)
		}
		if row.policy == registry.Headroom {
			// It is known to herd; that the simulation shows it says that it would.
			if worst < 0.9 {
				t.Errorf("%s: in no second more than %.2f of all calls went to the joiner, which is no herd", what, worst)
			}
			continue
		}
		if row.few {
			continue // with so little room each pick may be the one too many: the figure is what there is to say
		}
		if share > limit {
			t.Errorf("%s: the joiner got %.3f of all calls, more than %.2f", what, share, limit)
		}
		// About as many as one pool of all units would refuse; twice that is far off.
		if seeds >= 20 && sum.full > 2*sum.lost {
			t.Errorf("%s: no_capacity was told %d times, and one pool would have refused %d calls", what, sum.full, sum.lost)
		}
		if sum.untold > 0 || row.load < 1 && sum.wrong > 0 {
			t.Errorf("%s: no_capacity was told %d times while there was room, %d times though it was known", what, sum.wrong, sum.untold)
		}
	}
	if err := table.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d runs of each row\n%s", seeds, &text)
}
