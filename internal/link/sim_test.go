//nolint:thelper // what is given to bubble is a test, no helper
package link

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

var (
	simSeeds = flag.Int("sim.seeds", 300, "how many seeds the simulation runs")  //nolint:gochecknoglobals // a flag
	simSeed  = flag.Uint64("sim.seed", 0, "run this one seed of the simulation") //nolint:gochecknoglobals // a flag
)

// TestSim runs random calls over links that are slow and fail at random frames,
// in fake time. Each seed is one world of its own; a failure names it, and
// -sim.seed=N runs it again.
func TestSim(t *testing.T) {
	first, n := uint64(1), uint64(*simSeeds)
	if *simSeed != 0 {
		first, n = *simSeed, 1
	}
	reroutes, saved := 0, 0
	var simple, plain [2]int // calls, and those that succeeded
	for seed := first; seed < first+n; seed++ {
		if ok := t.Run("seed="+strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, seed)
				s.run()
				for _, op := range s.ops {
					reroutes += op.attempts
					if op.attempts > 0 && op.err == nil {
						saved++
					}
					count := &plain
					if s.simple != [3]bool{} {
						count = &simple
					}
					count[0]++
					if op.err == nil {
						count[1]++
					}
				}
			})
		}); !ok {
			return // one story is enough
		}
	}
	t.Logf("%d reroutes, by which %d calls succeeded", reroutes, saved)
	if *simSeed == 0 && (reroutes == 0 || saved == 0) {
		t.Errorf("%d reroutes, and %d calls that succeeded by them: the test tests too little", reroutes, saved)
	}
	t.Logf("with a link of the simple profile %d of %d calls succeeded, without one %d of %d", simple[1], simple[0], plain[1], plain[0])
	if *simSeed == 0 && n >= 100 && simple[1]*plain[0]*10 < plain[1]*simple[0]*9 {
		t.Error("with the simple profile markedly fewer calls succeed")
	}
}

// sim is one world: a caller, a server, and perhaps a host between them.
type sim struct {
	t    *testing.T
	seed uint64
	r    *rand.Rand

	caller, front *Conn // ends of the first link
	back, server  *Conn // ends of the second, when there is one
	back2, other  *Conn // ends of a third, to which calls of the second are rerouted
	wires         []*simWire
	memories      []*Memory
	quiet         bool    // no faults: every call must come to its natural end
	sound         bool    // no wire fails: each link is alive at the end
	simple        [3]bool // the links that have the simple profile
	drained       bool    // an end said GoAway
	hops          []*simHop

	mu    sync.Mutex
	ran   map[int]int
	ends  map[uint64]int
	tags  uint64
	byTag map[uint64]*simOp
	ops   map[int]*simOp
}

// simOp is one call and what its caller and its handler do.
type simOp struct {
	id       int
	kind     string
	up, down int // messages
	size     int // of each, about
	slow     time.Duration
	timeout  time.Duration // 0 = none of the op's own
	cancelAt time.Duration // 0 = never
	leave    int           // the caller leaves after so many messages; 0 = never
	early    bool          // the handler returns before it has read all
	start    time.Duration
	units    uint32
	// background calls do not count for max_calls.
	background bool

	err      error
	got      int
	done     bool
	attempts int // that were made after a first one
	doubts   int // of them, those that followed an unknown end
}

func newSim(t *testing.T, seed uint64) *sim {
	s := &sim{
		t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 7)),
		ran: map[int]int{}, ends: map[uint64]int{}, ops: map[int]*simOp{}, byTag: map[uint64]*simOp{},
	}
	s.quiet = s.r.IntN(3) == 0
	s.sound = s.quiet || s.r.IntN(4) == 0
	spliced := s.r.IntN(2) == 0
	if r := rand.New(rand.NewPCG(seed, 11)); r.IntN(2) == 0 { // beside s.r, so that the rest of a story stays as it was
		s.simple = [3]bool{r.IntN(3) == 0, r.IntN(3) > 0, r.IntN(2) == 0}
	}
	first := s.wire()
	second := first
	if spliced {
		second = s.wire()
	}
	s.hops = []*simHop{{}}
	if spliced {
		s.hops = append(s.hops, &simHop{})
	}
	in, out := s.hops[0], s.hops[len(s.hops)-1]
	at := 0 // the last link
	if spliced {
		at = 1
	}
	s.server = New(second[1], s.options(Options{Handler: handlerFunc(s.serve), Reporter: out, Hello: Hello{Simple: s.simple[at]}}))
	out.judge.Store(s.server)
	if !spliced {
		s.front = s.server
	} else {
		s.back = New(second[0], s.options(Options{Dialer: true, Simple: s.simple[1], LostReason: conduit.ReasonPluginLost, OnStatus: out.onStatus, OnGoAway: out.onGoAway}))
		s.front = New(first[1], s.options(Options{Handler: handlerFunc(s.splice), Reporter: in, Hello: Hello{Simple: s.simple[0]}}))
		in.judge.Store(s.front)
		out.caller.Store(s.back)
	}
	if spliced && s.r.IntN(3) > 0 {
		third, also := s.wire(), &simHop{}
		s.hops = append(s.hops, also)
		s.other = New(third[1], s.options(Options{Handler: handlerFunc(s.serve), Reporter: also, Hello: Hello{Simple: s.simple[2]}}))
		also.judge.Store(s.other)
		s.back2 = New(third[0], s.options(Options{Dialer: true, Simple: s.simple[2], LostReason: conduit.ReasonPluginLost, OnStatus: also.onStatus, OnGoAway: also.onGoAway}))
		also.caller.Store(s.back2)
	}
	s.caller = New(first[0], s.options(Options{Dialer: true, Simple: s.simple[0], OnStatus: in.onStatus, OnGoAway: in.onGoAway}))
	in.caller.Store(s.caller)
	for _, c := range []*Conn{s.back, s.back2} {
		if c != nil && c.o.Simple { // or it takes none of what is passed on
			if err := c.Ready(t.Context()); err != nil {
				t.Logf("seed %d: %v", seed, err)
			}
		}
	}
	return s
}

// wire makes a link's carriers with their delays and their fate.
func (s *sim) wire() [2]Carrier {
	latency := time.Duration(s.r.IntN(3)) * 7 * time.Millisecond
	r := rand.New(rand.NewPCG(s.r.Uint64(), 1))
	delay := func() time.Duration { return latency + time.Duration(r.IntN(1000))*time.Microsecond }
	at, kind, side, pause := 2+s.r.IntN(120), s.r.IntN(4), s.r.IntN(2), time.Duration(1+s.r.IntN(6000))*time.Millisecond
	if s.sound {
		at = -1
	}
	w, a, b := newSimWire(150<<10, delay, func(w *simWire, _, n int) {
		if n != at {
			return
		}
		switch kind {
		case 0:
			w.kill()
		case 1:
			w.hole = true
		default:
			w.frozen[side] = true
			time.AfterFunc(pause, func() {
				w.mu.Lock()
				w.frozen[side] = false
				w.change.Broadcast()
				w.mu.Unlock()
			})
		}
	})
	s.wires = append(s.wires, w)
	ends := [2]Carrier{a, b}
	for i, e := range ends {
		if e, ok := e.(*simEnd); ok && r.IntN(2) == 0 {
			ends[i] = &tryingEnd{simEnd: e}
		}
	}
	return ends
}

func (s *sim) options(o Options) Options {
	pick := func(list ...int) int { return list[s.r.IntN(len(list))] }
	m := NewMemory(int64(pick(2<<20, 8<<20, 256<<20)))
	s.memories = append(s.memories, m)
	o.Memory = m
	o.Hello.LinkCredit = uint32(pick(minLinkCredit, 0))
	o.Hello.CallCredit = uint32(pick(minCallCredit, 5000, 0))
	o.Hello.MaxPacket = pick(minPacket, 0)
	o.Hello.MaxMessage = int64(pick(100_000, 400_000))
	o.Hello.MaxCalls = uint32(pick(6, 0))
	o.LinkMemory = int64(pick(256<<10, 0))
	o.CallTimeout = -1
	return o
}

func (s *sim) fail(op *simOp, format string, args ...any) {
	s.t.Helper()
	s.t.Errorf("seed %d: call %d (%+v): %s", s.seed, op.id, *op, fmt.Sprintf(format, args...))
}

// payload is the n-th message of a call in one direction.
func (op *simOp) payload(n, dir int) []byte {
	size := op.size
	switch (op.id + n) % 5 {
	case 1:
		size += n % 3
	case 2:
		size /= 2
	case 3:
		size = n % 40
	}
	p := make([]byte, size)
	for i := range p {
		p[i] = byte(op.id*31 + n*7 + dir*3 + i + i>>8)
	}
	return p
}

func (s *sim) run() {
	ctx := s.t.Context()
	n := 3 + s.r.IntN(14)
	var wg sync.WaitGroup
	for id := range n {
		op := s.op(id)
		s.mu.Lock()
		s.ops[id] = op
		s.mu.Unlock()
		wg.Go(func() {
			time.Sleep(op.start)
			s.call(ctx, op)
		})
	}
	if s.r.IntN(4) == 0 {
		end, at := s.front, time.Duration(s.r.IntN(400))*time.Millisecond
		if s.back != nil && s.r.IntN(2) == 0 {
			end = s.server
			if s.other != nil && s.r.IntN(2) == 0 {
				end = s.other
			}
		}
		s.quiet, s.drained = false, true
		wg.Go(func() {
			time.Sleep(at)
			end.GoAway(conduit.ReasonDraining, time.Second)
			if at%(2*time.Millisecond) == 0 {
				end.CancelBackground(&conduit.Error{Code: conduit.Unavailable, Reason: conduit.ReasonDraining, Retryable: true, Message: "draining"})
			}
		})
	}
	over := make(chan struct{})
	go s.watch(over)
	wg.Wait()
	close(over)
	if s.sound {
		time.Sleep(2 * time.Second) // handlers end, and what is worth a Status is told
		synctest.Wait()
	}
	for i, h := range s.hops {
		h.check(s, i)
	}
	if !s.sound {
		s.settle()
	}
	if s.sound {
		time.Sleep(100 * time.Millisecond) // what is on its way comes home
		synctest.Wait()
		for _, pair := range [][2]*Conn{{s.caller, s.front}, {s.back, s.server}, {s.back2, s.other}} {
			if pair[0] != nil && pair[1] != nil {
				checkCredit(s.t, pair[0], pair[1])
				out, _ := pair[0].Calls()
				_, in := pair[1].Calls()
				if out != 0 || in != 0 {
					s.t.Errorf("seed %d: %d calls are left on one end, %d on the other", s.seed, out, in)
				}
			}
		}
	}
	for _, c := range s.conns() {
		if c != nil {
			c.Close(CloseDone, "over")
		}
	}
	for _, w := range s.wires {
		w.mu.Lock()
		w.frozen = [2]bool{}
		w.change.Broadcast()
		w.mu.Unlock()
	}
	for i, c := range s.conns() {
		if c != nil {
			checkOver(s.t, fmt.Sprintf("seed %d: conn %d", s.seed, i), c)
		}
	}
	time.Sleep(time.Second) // handlers that sleep come to their end, and decisions that are late
	synctest.Wait()
	checkHolds(s.t, fmt.Sprintf("seed %d: the front", s.seed), s.front)
	for i, m := range s.memories {
		checkMemory(s.t, fmt.Sprintf("seed %d: memory %d", s.seed, i), m)
	}
	s.verdict()
}

// settle waits until who serves has found out which callers are gone, and looks that no
// work goes on for them on a link that lives.
func (s *sim) settle() {
	time.Sleep(time.Minute)
	synctest.Wait()
	for i, pair := range [][2]*Conn{{s.caller, s.front}, {s.back, s.server}, {s.back2, s.other}} {
		if pair[0] == nil || pair[1] == nil || pair[0].Err() != nil || pair[1].Err() != nil {
			continue
		}
		out, _ := pair[0].Calls()
		_, in := pair[1].Calls()
		if out != 0 || in != 0 {
			s.t.Errorf("seed %d: link %d lives, and all callers are done or gone: %d calls are left on one end, %d on the other", s.seed, i, out, in)
		}
	}
}

func (s *sim) conns() []*Conn {
	return []*Conn{s.caller, s.front, s.back, s.server, s.back2, s.other}
}

// watch holds all calls to what they were promised, from time to time.
func (s *sim) watch(over chan struct{}) {
	for {
		select {
		case <-over:
			return
		case <-time.After(3 * time.Millisecond):
		}
		for i, h := range s.hops {
			h.look(s, i)
		}
		for _, c := range s.conns() {
			if c == nil {
				continue
			}
			c.mu.Lock()
			for id, k := range c.calls {
				if h := k.hold; h != nil && h.state != holdPassing && h.size-k.lent > int64(c.o.Hello.CallCredit)+dataCost {
					s.t.Errorf("seed %d: call %d: %d bytes are held", s.seed, id, h.size)
				}
				if may := k.recvLeft + k.recvOwed; !k.recvDone && k.window > 0 && may > k.window+k.lent {
					s.t.Errorf("seed %d: call %d may get %d bytes, and was promised %d and %d", s.seed, id, may, k.window, k.lent)
				}
			}
			for id, k := range c.calls {
				if c.simple && !k.cancelled && !k.recvDone && k.recvLeft < 0 {
					s.t.Errorf("seed %d: call %d: %d bytes above its window were let in", s.seed, id, -k.recvLeft)
				}
			}
			if c.linkCredit < 0 {
				s.t.Errorf("seed %d: link credit of %d", s.seed, c.linkCredit)
			}
			c.mu.Unlock()
		}
	}
}

// verdict compares what callers were told with what ran.
func (s *sim) verdict() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, op := range s.ops {
		ran := s.ran[id]
		if !op.done {
			s.fail(op, "has no outcome")
			continue
		}
		if ran > 1+op.doubts {
			s.fail(op, "ran %d times", ran)
		}
		if op.err == nil {
			if ran < 1 {
				s.fail(op, "succeeded and ran %d times", ran)
			}
			continue
		}
		e, ok := errors.AsType[*conduit.Error](op.err)
		if !ok {
			s.fail(op, "ended with %v, which is no *conduit.Error", op.err)
			continue
		}
		if (e.Outcome == conduit.NotSent || e.Outcome == conduit.Refused) && ran != 0 {
			s.fail(op, "ended as %s and ran: %v", e.Outcome, e)
		}
		if e.Outcome == conduit.Executed && ran == 0 {
			s.fail(op, "ended as executed and never ran: %v", e)
		}
		if e.Reason == conduit.ReasonProtocol {
			s.fail(op, "broke the protocol: %v", e)
		}
		if s.sound && !s.natural(op, e) {
			s.fail(op, "failed though nothing went wrong: %v", e)
		}
	}
	for tag := uint64(1); tag <= s.tags; tag++ {
		if s.ends[tag] != 1 {
			s.t.Errorf("seed %d: the owner of %d was told %d times of its end", s.seed, tag, s.ends[tag])
		}
	}
}

// natural reports whether an error is how a call may end where no wire fails. An end that
// drains turns new calls away and ends those in the background; no other is lost to it.
func (s *sim) natural(op *simOp, e *conduit.Error) bool {
	if op.timeout > 0 || op.cancelAt > 0 || op.leave > 0 || op.kind == "fail" || op.kind == "refuse" {
		return true
	}
	switch e.Reason {
	case conduit.ReasonOverloaded, conduit.ReasonPayloadTooLarge:
		return true
	case conduit.ReasonDraining:
		return s.drained && (op.background || e.Outcome == conduit.NotSent || e.Outcome == conduit.Refused)
	}
	return false
}

func (s *sim) op(id int) *simOp {
	r := s.r
	kinds := []string{"unary", "unary", "stream", "upload", "duplex", "parts", "fail", "refuse", "wait"}
	sizes := []int{0, 1, 40, 900, 1000, 1024, 1250, 2048, 4000, 4064, 4096, 4097, 16_000, 16_384, 32_736, 32_768, 40_000, 65_504, 65_536, 70_000, 99_990, 131_072, 262_112, 300_000}
	op := &simOp{
		id: id, kind: kinds[r.IntN(len(kinds))], size: sizes[r.IntN(len(sizes))],
		up: 1, down: 1, start: time.Duration(r.IntN(300)) * time.Millisecond,
	}
	many := 1 + r.IntN(12)
	if op.size > 50_000 {
		many = 1 + r.IntN(3)
	}
	switch op.kind {
	case "stream", "parts":
		op.down = many
	case "upload":
		op.up = many
		op.early = r.IntN(4) == 0
	case "duplex":
		op.up, op.down = many, many
	}
	if r.IntN(3) == 0 {
		op.slow = time.Duration(r.IntN(60)) * time.Millisecond
	}
	if r.IntN(5) == 0 || op.kind == "wait" {
		op.timeout = time.Duration(1+r.IntN(400)) * time.Millisecond
	}
	if r.IntN(4) == 0 {
		op.cancelAt = time.Duration(1+r.IntN(300)) * time.Millisecond
	}
	if op.down > 1 && r.IntN(4) == 0 {
		op.leave = 1 + r.IntN(op.down)
	}
	op.units = uint32(r.IntN(4)) * 10
	op.background = r.IntN(6) == 0
	return op
}

// patience is how long a call without a limit of its own may take. It is far
// beyond what any wire here needs, so a call that meets it is stuck.
const patience = time.Hour

// call makes one call and notes its end.
func (s *sim) call(ctx context.Context, op *simOp) {
	guard, free := context.WithTimeout(ctx, patience)
	defer free()
	ctx, cancel := context.WithCancel(guard)
	defer cancel()
	if op.timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, op.timeout)
		defer cancel()
	}
	x := s.begin(ctx, op)
	if op.cancelAt > 0 {
		stop := time.AfterFunc(op.cancelAt, func() { x.Cancel(context.Canceled) })
		defer stop.Stop()
	}
	var sender sync.WaitGroup
	if op.kind == "upload" || op.kind == "duplex" {
		sender.Go(func() {
			for i := 1; i < op.up; i++ {
				if err := x.Send(ctx, op.payload(i, 0)); err != nil {
					if !errors.Is(err, io.EOF) {
						x.Cancel(err) // refused here: the call cannot be whole any more
					}
					return
				}
				if op.slow > 0 {
					time.Sleep(op.slow)
				}
			}
			if err := x.CloseSend(); err != nil {
				s.fail(op, "CloseSend: %v", err)
			}
		})
	}
	watch := time.AfterFunc(patience-time.Minute, func() {
		s.fail(op, "is stuck:\n%s%s%s%s", dump("caller", s.caller), dump("front", s.front), dump("back", s.back), dump("server", s.server)+dump("back2", s.back2)+dump("other", s.other))
	})
	defer watch.Stop()
	err := s.receive(ctx, x, op)
	x.Cancel(errors.New("too late")) // it has ended, and as what it has ended
	if _, again := x.Recv(ctx); again == nil || errors.Is(again, io.EOF) != (err == nil) || err != nil && again.Error() != err.Error() {
		s.fail(op, "ended with %v, and then with %v", err, again)
	}
	if guard.Err() != nil {
		s.fail(op, "was stuck")
	}
	sender.Wait()
	s.mu.Lock()
	op.err, op.done = err, true
	s.mu.Unlock()
}

func (s *sim) begin(ctx context.Context, op *simOp) conduit.Exchange {
	in := &conduit.Invocation{
		Method: fmt.Sprintf("%s/%d", op.kind, op.id), ContentType: conduit.ContentBytes,
		Streaming: op.kind != "unary" && op.kind != "fail" && op.kind != "refuse" && op.kind != "wait",
	}
	if op.kind != "upload" && op.kind != "duplex" {
		in.Last = true
	}
	if op.up > 0 {
		in.Request, in.HasRequest = op.payload(0, 0), true
	}
	in.Units = op.units
	in.Background = op.background
	s.hops[0].sent.Add(uint64(op.units))
	return s.caller.Invoke(ctx, testRoute, in)
}

// receive takes what comes down and holds it to what was sent.
func (s *sim) receive(ctx context.Context, x conduit.Exchange, op *simOp) error {
	for n := 0; ; n++ {
		m, err := x.Recv(ctx)
		if errors.Is(err, io.EOF) {
			if n != op.down {
				s.fail(op, "succeeded with %d messages of %d", n, op.down)
			}
			return nil
		}
		if err != nil {
			return err
		}
		op.got++
		part := uint32(0)
		if op.kind == "parts" && n < op.down-1 {
			part = uint32(n%3 + 1)
		}
		if n >= op.down || m.Part != part || !bytes.Equal(m.Data, op.payload(n, 1)) {
			s.fail(op, "message %d is wrong: %d bytes of part %d", n, len(m.Data), m.Part)
		}
		if op.leave > 0 && op.got == op.leave {
			x.Cancel(nil)
		}
		if op.slow > 0 {
			time.Sleep(op.slow)
		}
	}
}

// splice is the host's dispatcher.
func (s *sim) splice(in *Incoming) {
	s.hops[0].judges(in)
	if m := in.Invoke.Method; strings.HasPrefix(string(m), "refuse") && m[len(m)-1]%2 == 0 {
		in.Refuse(conduit.Errorf(conduit.NotFound, conduit.ReasonElementNotFound, conduit.Refused, "no"))
		return
	}
	if s.back2 == nil {
		out := s.out(s.back, in.Invoke)
		in.Splice(s.back, &out, s, s.tag(in.Invoke))
		return
	}
	_, number, _ := strings.Cut(string(in.Invoke.Method), "/")
	r := rand.New(rand.NewPCG(s.seed, uint64(len(number))<<32+in.ID()))
	to, held := s.somewhere(r), r.IntN(3) > 0
	if r.IntN(3) > 0 {
		out := s.out(to, in.Invoke)
		if held {
			in.SpliceHeld(to, &out, s, s.tag(in.Invoke))
		} else {
			in.Splice(to, &out, s, s.tag(in.Invoke))
		}
		return
	}
	p, what, wait := in.Park(), r.IntN(10), time.Duration(r.IntN(200))*time.Millisecond
	go func() {
		select {
		case <-time.After(wait):
		case <-p.Done():
		}
		switch {
		case what == 0:
			p.Refuse(conduit.Errorf(conduit.ResourceExhausted, conduit.ReasonOverloaded, conduit.Refused, "not now"))
		case what < 3:
			op := s.opOf(p.Invoke())
			p.Serve(func(ctx context.Context, c *ServerCall) error {
				s.mu.Lock()
				s.ran[op.id]++
				s.mu.Unlock()
				return s.handle(ctx, c, op)
			})
		case held:
			out := s.out(to, p.Invoke())
			p.SpliceHeld(to, &out, s, s.tag(p.Invoke()))
		default:
			out := s.out(to, p.Invoke())
			p.Splice(to, &out, s, s.tag(p.Invoke()))
		}
	}()
}

// out is the Invoke that is handed to a link, with what the method takes, as a host
// writes it.
func (s *sim) out(to *Conn, in *frame.Invoke) frame.Invoke {
	out := *in
	out.Units += 3
	for _, h := range s.hops {
		if h.caller.Load() == to {
			h.sent.Add(uint64(out.Units))
		}
	}
	return out
}

// hopOf returns the hop that ends at a link's serving end.
func (s *sim) hopOf(c *Conn) *simHop {
	for _, h := range s.hops {
		if h.judge.Load() == c {
			return h
		}
	}
	return s.hops[0] // before it is known: not reached, links start with a Hello
}

func (s *sim) somewhere(r *rand.Rand) *Conn {
	if r.IntN(3) == 0 {
		return s.back2
	}
	return s.back
}

func (s *sim) opOf(in *frame.Invoke) *simOp {
	_, number, _ := strings.Cut(string(in.Method), "/")
	id, err := strconv.Atoi(number)
	if err != nil {
		s.t.Errorf("seed %d: method %q", s.seed, in.Method)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ops[id]
}

// tag returns a new tag for a call that is passed on.
func (s *sim) tag(in *frame.Invoke) uint64 {
	op := s.opOf(in)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tags++
	s.byTag[s.tags] = op
	return s.tags
}

// Failed implements Router: what did not start is tried again, and what may have run
// if it may run twice; at once or later.
func (s *sim) Failed(p Parked, tag uint64, err *conduit.Error) bool {
	s.mu.Lock()
	op := s.byTag[tag]
	may := op.attempts < 2 && err.Retryable && (err.Outcome == conduit.Refused || err.Outcome == conduit.OutcomeUnknown && op.id%2 == 0)
	r := rand.New(rand.NewPCG(s.seed, tag<<8+uint64(op.attempts)))
	if s.ends[tag] > 0 {
		s.t.Errorf("seed %d: the owner of %d was asked after its end", s.seed, tag)
	}
	if may {
		op.attempts++
		if err.Outcome == conduit.OutcomeUnknown {
			op.doubts++
		}
	}
	s.mu.Unlock()
	again := func() {
		to := s.somewhere(r)
		out := s.out(to, p.Invoke())
		out.Attempt++
		p.SpliceHeld(to, &out, s, tag)
	}
	switch how := r.IntN(8); {
	case !may && how == 0:
		go p.Fail(err)
	case !may:
		return false
	case how < 3:
		again()
	case how == 3:
		go p.Fail(err)
	default:
		wait := time.Duration(r.IntN(150)) * time.Millisecond
		time.AfterFunc(wait, again)
	}
	return true
}

// simHop is what the two ends of one link say of the units that went over it.
type simHop struct {
	judge, caller atomic.Pointer[Conn]

	sent    atomic.Uint64 // handed to the link
	judged  atomic.Int64
	version atomic.Uint64

	mu   sync.Mutex
	told int64  // judged, as the caller last heard
	was  uint64 // unsent, as it was last seen
	away int
	late bool
}

// Refuse implements Reporter. It says at once that something has changed, as the
// owner of a budget does.
func (h *simHop) Refuse(units int64) {
	h.judged.Add(units)
	h.version.Add(1)
	if c := h.judge.Load(); c != nil {
		c.StatusChanged()
	}
}

// Version implements Reporter.
func (h *simHop) Version() uint64 { return h.version.Load() }

// Status implements Reporter. With a total of nothing each movement is worth a packet.
func (h *simHop) Status() Status {
	return Status{Judged: h.judged.Load(), State: conduitv1.InstanceState_INSTANCE_STATE_ACTIVE}
}

// judges has the handler judge some calls itself.
func (h *simHop) judges(in *Incoming) {
	if in.ID()%3 == 0 && in.Invoke.Units > 0 {
		in.Reporter().Refuse(int64(in.Invoke.Units))
		in.MarkJudged()
	}
}

func (h *simHop) onStatus(body []byte) {
	var m conduitv1.Status
	err := proto.Unmarshal(body, &m)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.late = h.late || err != nil || int64(m.GetJudged()) < h.told
	h.told = int64(m.GetJudged())
}

func (h *simHop) onGoAway(string, time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.away++
	if c := h.caller.Load(); c != nil && c.Usable() {
		h.late = true
	}
}

// look holds what is unsent to its promise.
func (h *simHop) look(s *sim, hop int) {
	c := h.caller.Load()
	h.mu.Lock()
	defer h.mu.Unlock()
	judged := uint64(h.judged.Load()) // in this order: all three grow
	n := c.Unsent()
	if sent := h.sent.Load(); n < h.was || n+judged > sent {
		s.t.Errorf("seed %d: hop %d: unsent was %d and is %d; %d are judged, of %d", s.seed, hop, h.was, n, judged, sent)
	}
	h.was = n
}

// check is called when all calls have ended.
func (h *simHop) check(s *sim, hop int) {
	h.look(s, hop)
	h.mu.Lock()
	defer h.mu.Unlock()
	sent, judged, c := h.sent.Load(), h.judged.Load(), h.caller.Load()
	if h.late || h.away > 1 {
		s.t.Errorf("seed %d: hop %d: a Status fell, or a GoAway came too early or %d times", s.seed, hop, h.away)
	}
	if n := c.Outstanding(); n != 0 && s.sound {
		s.t.Errorf("seed %d: hop %d: %d calls are outstanding", s.seed, hop, n)
	}
	if !s.sound {
		return
	}
	if c.Unsent()+uint64(judged) != sent {
		s.t.Errorf("seed %d: hop %d: %d units were sent; %d are judged and %d unsent", s.seed, hop, sent, judged, c.Unsent())
	}
	if h.told != judged {
		s.t.Errorf("seed %d: hop %d: %d units are judged, and the caller was told %d", s.seed, hop, judged, h.told)
	}
}

// CallEnded implements Owner.
func (s *sim) CallEnded(tag uint64, _ conduit.Code, _ conduit.Outcome) {
	s.mu.Lock()
	s.ends[tag]++
	s.mu.Unlock()
}

// serve is the handler of all calls: it does what the call's op says.
func (s *sim) serve(in *Incoming) {
	s.hopOf(in.Conn()).judges(in)
	if strings.HasPrefix(string(in.Invoke.Method), "refuse") {
		in.Refuse(conduit.Errorf(conduit.PermissionDenied, conduit.ReasonNotRemote, conduit.Refused, "no"))
		return
	}
	op := s.opOf(in.Invoke)
	id := op.id
	if in.Conn() == s.server && s.back2 != nil && id%3 == 0 { // another may do better
		in.Refuse(&conduit.Error{Code: conduit.ResourceExhausted, Reason: conduit.ReasonOverloaded, Retryable: true, Message: "full"})
		return
	}
	in.Serve(func(ctx context.Context, c *ServerCall) error {
		s.mu.Lock()
		s.ran[id]++
		s.mu.Unlock()
		return s.handle(ctx, c, op)
	})
}

func (s *sim) handle(ctx context.Context, c *ServerCall, op *simOp) error {
	nap := func() {
		if op.slow > 0 && op.id%2 == 0 {
			time.Sleep(op.slow)
		}
	}
	recv := func(n int) error {
		m, err := c.Recv(ctx)
		if err == nil && !bytes.Equal(m.Data, op.payload(n, 0)) {
			s.fail(op, "message %d up is wrong: %d bytes", n, len(m.Data))
		}
		return err
	}
	if err := recv(0); err != nil {
		return err
	}
	nap()
	switch op.kind {
	case "fail":
		return conduit.Errorf(conduit.NotFound, "no_such_thing", conduit.Executed, "as asked")
	case "wait":
		<-ctx.Done()
		return context.Cause(ctx)
	case "stream", "parts":
		for i := range op.down - 1 {
			m := conduit.Message{Data: op.payload(i, 1)}
			if op.kind == "parts" {
				m.Part = uint32(i%3 + 1)
			}
			if err := c.Send(ctx, m); err != nil {
				return err
			}
			nap()
		}
	case "upload":
		for i := 1; ; i++ {
			if op.early && i > op.up/2 {
				break
			}
			if err := recv(i); errors.Is(err, io.EOF) {
				if i != op.up {
					s.fail(op, "%d messages came up, not %d", i, op.up)
				}
				break
			} else if err != nil {
				return err
			}
			nap()
		}
	case "duplex":
		for i := range op.down - 1 {
			if err := c.Send(ctx, conduit.Message{Data: op.payload(i, 1)}); err != nil {
				return err
			}
			if err := recv(i + 1); err != nil {
				return err
			}
		}
	}
	c.Return(conduit.Message{Data: op.payload(op.down-1, 1)})
	return nil
}
