package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/transport"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// The load of the scenario line: small calls that begin at a fixed rate, beside
// transfers back to back, all over one connection.
const (
	lineSmall     = 128     // bytes of a small call, each way
	lineBulk      = 8 << 20 // bytes of a transfer, each way
	lineTransfers = 4       // under way at once
	lineRate      = 400     // small calls a second
	lineWindow    = 4 * time.Second
	lineWarm      = time.Second
)

// lineSystems are those that the scenario compares: the first with the others.
func lineSystems() []system {
	return []system{
		{
			name: "line", title: "conduit, a link", start: startLine, dial: dialLine,
			about: "caller → a process that serves `/cluster/v1` and answers itself: two processes, one link",
		},
		{
			name: "grpc", title: "grpc-go", start: startGRPC, dial: dialGRPC,
			about: "unary calls, caller → server: two processes, one connection",
		},
		systems()[0],
		systems()[1],
	}
}

// lineSample is what one window gave, as a line of JSON.
type lineSample struct {
	Small    int64         `json:"small"` // calls that ended
	P50, P99 time.Duration // of them, from when they were to begin
	Bulk     float64       `json:"bulk"` // MB/s that came back
	Late     int           `json:"late"` // small calls that too many under way kept from beginning
	Error    string        `json:"error,omitempty"`
}

// playLineCaller is the caller's process: a window for each line that it reads.
func playLineCaller(args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) != 2 {
		return errors.New("usage: line-caller SYSTEM TARGET")
	}
	i := slices.IndexFunc(lineSystems(), func(s system) bool { return s.name == args[0] })
	if i < 0 {
		return fmt.Errorf("there is no system %q", args[0])
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout/2)
	defer cancel()
	l, err := lineSystems()[i].dial(ctx, args[1])
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // the process ends with it
	c, ok := l.(*calls)
	if !ok {
		return fmt.Errorf("%s makes no calls that one can pace", args[0])
	}
	fmt.Fprintln(stdout, "ready", args[1])
	requests, samples := json.NewDecoder(stdin), json.NewEncoder(stdout)
	for {
		var transfers int
		if err := requests.Decode(&transfers); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		s, err := lineWindowOf(context.Background(), c, transfers)
		if err != nil {
			s = lineSample{Error: err.Error()}
		}
		if err := samples.Encode(s); err != nil {
			return err
		}
	}
}

// lineWindowOf measures one window with so many transfers under way.
func lineWindowOf(ctx context.Context, c *calls, transfers int) (lineSample, error) {
	var stop atomic.Bool
	var moved atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for worker := range transfers {
		g.Go(func() error {
			payload := make([]byte, lineBulk)
			for n := uint64(worker) << 32; !stop.Load(); n++ {
				mark(payload, n)
				reply, err := c.call(ctx, payload)
				if err != nil {
					return err
				}
				if err := check(reply, lineBulk, n); err != nil {
					return err
				}
				moved.Add(lineBulk)
			}
			return nil
		})
	}
	small := newPaced(lineRate, []string{"small"}, func(ctx context.Context, n int) error {
		payload := make([]byte, lineSmall)
		mark(payload, uint64(n))
		reply, err := c.echo(ctx, payload)
		if err != nil {
			return err
		}
		return check(reply, lineSmall, uint64(n))
	})
	var s lineSample
	g.Go(func() error {
		defer stop.Store(true)
		pacing, cancel := context.WithTimeout(ctx, lineWarm+lineWindow)
		defer cancel()
		warm := time.AfterFunc(lineWarm, func() {
			small.takeLatencies()
			moved.Store(0)
		})
		defer warm.Stop()
		end := time.AfterFunc(lineWarm+lineWindow, func() { s.Bulk = float64(moved.Load()) / 1e6 / lineWindow.Seconds() })
		defer end.Stop()
		small.run(pacing) // waits for those under way
		return nil
	})
	if err := g.Wait(); err != nil {
		return s, err
	}
	if n := small.failed("small", ""); n > 0 {
		return s, fmt.Errorf("%d small calls failed: %s", n, strings.Join(small.troubles(), "; "))
	}
	h := small.takeLatencies()
	s.Small, s.Late = h.TotalCount(), small.late
	s.P50, s.P99 = time.Duration(h.ValueAtQuantile(50)), time.Duration(h.ValueAtQuantile(99))
	return s, nil
}

// lineScenario measures the systems in turn, window by window.
func lineScenario(ctx context.Context, l *lab, o options, stdout, stderr io.Writer) error {
	all := lineSystems()
	callers := make([]*child, len(all))
	for i, s := range all {
		f, err := s.start(ctx, l)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if callers[i], _, err = l.role(ctx, "line-caller-"+s.name, "line-caller", s.name, f.target); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	loads := []int{0, lineTransfers}
	got := map[int][][]lineSample{0: make([][]lineSample, len(all)), lineTransfers: make([][]lineSample, len(all))}
	for round := range o.rounds {
		for _, transfers := range loads {
			if transfers == 0 && round > 0 {
				continue // what it is without them is told once
			}
			for i, s := range all {
				fmt.Fprintf(stderr, "round %d of %d: %s, %d transfers\n", round+1, o.rounds, s.name, transfers)
				sample, err := askLine(ctx, callers[i], transfers)
				if err != nil {
					return fmt.Errorf("%s: %w", s.name, err)
				}
				got[transfers][i] = append(got[transfers][i], sample)
			}
		}
	}
	lineTable(stdout, all, got[0], got[lineTransfers])
	return nil
}

// askLine has a caller measure one window.
func askLine(ctx context.Context, c *child, transfers int) (s lineSample, err error) {
	if err := json.NewEncoder(c.in).Encode(transfers); err != nil {
		return s, c.failure(err)
	}
	line, err := c.line(ctx, lineWarm+lineWindow+2*callTimeout)
	if err != nil {
		return s, c.failure(err)
	}
	if err := json.Unmarshal([]byte(line), &s); err != nil {
		return s, err
	}
	if s.Error != "" {
		return s, c.failure(errors.New(s.Error))
	}
	return s, nil
}

func lineTable(w io.Writer, all []system, alone, beside [][]lineSample) {
	for _, s := range all {
		fmt.Fprintf(w, "- **%s**: %s\n", s.title, s.about)
	}
	fmt.Fprintf(w, "\n%d small calls of %d B a second, beside %d transfers of %d MiB each way; windows of %v. A ratio is the median of those of windows side by side.\n\n",
		lineRate, lineSmall, lineTransfers, lineBulk>>20, lineWindow)
	fmt.Fprintln(w, "| | alone, p50 / p99 in ms | beside transfers, p50 / p99 in ms | bulk MB/s | not begun | p99 ÷ grpc-go's | bulk ÷ grpc-go's |")
	fmt.Fprintln(w, "|---|--:|--:|--:|--:|--:|--:|")
	ms := func(d float64) string { return fmt.Sprintf("%.2f", d/1e6) }
	p50 := func(s lineSample) float64 { return float64(s.P50) }
	p99 := func(s lineSample) float64 { return float64(s.P99) }
	bulk := func(s lineSample) float64 { return s.Bulk }
	grpc := slices.IndexFunc(all, func(s system) bool { return s.name == "grpc" })
	for i, s := range all {
		late := 0
		for _, one := range beside[i] {
			late += one.Late
		}
		fmt.Fprintf(w, "| %s | %s / %s | %s / %s | %.0f | %d | %.2f | %.2f |\n", s.title,
			ms(lineMedian(alone[i], p50)), ms(lineMedian(alone[i], p99)), ms(lineMedian(beside[i], p50)), ms(lineMedian(beside[i], p99)),
			lineMedian(beside[i], bulk), late, lineRatio(beside[i], beside[grpc], p99), lineRatio(beside[i], beside[grpc], bulk))
	}
	fmt.Fprintln(w, "\nAim of the first row: p99 at most 0.5 of grpc-go's, with at least 0.7 of its bulk.")
}

func lineMedian(s []lineSample, of func(lineSample) float64) float64 {
	values := make([]float64, len(s))
	for i, one := range s {
		values[i] = of(one)
	}
	slices.SortFunc(values, cmp.Compare)
	return values[len(values)/2]
}

func lineRatio(a, b []lineSample, of func(lineSample) float64) float64 {
	values := make([]float64, len(a))
	for i := range a {
		values[i] = of(a[i]) / of(b[i])
	}
	slices.SortFunc(values, cmp.Compare)
	return values[len(values)/2]
}

// startLine is a process that serves links and answers calls itself.
func startLine(ctx context.Context, l *lab) (fixture, error) {
	c, url, err := l.role(ctx, "line-server", "line-server")
	if err != nil {
		return fixture{}, err
	}
	return fixture{target: url, pids: []int{c.pid()}}, nil
}

func playLineServer(_ []string, stdin io.Reader, stdout io.Writer) error {
	lis, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // on loopback it does not wait
	if err != nil {
		return err
	}
	s := transport.NewServer(transport.ServerOptions{
		Handler:      lineEcho{},
		Authenticate: func(*http.Request) (link.Peer, error) { return link.Peer{Name: "client", Level: conduit.User}, nil },
	})
	h := &http.Server{Handler: s, ReadHeaderTimeout: startTimeout}
	go func() { _ = h.Serve(lis) }() // it ends with Close
	fmt.Fprintf(stdout, "ready ws://%s/cluster/v1\n", lis.Addr())
	err = untilEOF(stdin)
	return errors.Join(err, s.Close(), h.Close())
}

// lineEcho answers each call with its request.
type lineEcho struct{}

// Handle implements link.Handler.
func (lineEcho) Handle(in *link.Incoming) {
	in.Serve(func(ctx context.Context, s *link.ServerCall) error {
		m, err := s.Recv(ctx)
		if err != nil {
			return err
		}
		s.Return(m)
		return nil
	})
}

func dialLine(_ context.Context, target string) (load, error) {
	c := transport.NewClient(transport.ClientOptions{})
	echo := c.Peer(target).At(address.MustParse("*://line/line/line.Echo"))
	return &calls{
		echo: func(ctx context.Context, payload []byte) ([]byte, error) {
			return conduit.Call[[]byte](ctx, echo, "Echo", payload)
		},
		close: c.Close,
	}, nil
}

// rawCodec hands bytes to grpc-go as they are, so that what is measured is no encoding.
type rawCodec struct{}

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("a %T is no bytes", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("a %T is no bytes", v)
	}
	*b = data.Materialize()
	return nil
}

func (rawCodec) Name() string { return "raw" }

const grpcMethod = "/bench.Echo/Echo"

func startGRPC(ctx context.Context, l *lab) (fixture, error) {
	c, where, err := l.role(ctx, "grpc-server", "grpc-server")
	if err != nil {
		return fixture{}, err
	}
	return fixture{target: where, pids: []int{c.pid()}}, nil
}

func playGRPCServer(_ []string, stdin io.Reader, stdout io.Writer) error {
	lis, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // on loopback it does not wait
	if err != nil {
		return err
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(2*lineBulk), grpc.MaxSendMsgSize(2*lineBulk))
	echo := func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		in := new([]byte)
		if err := decode(in); err != nil {
			return nil, err
		}
		return in, nil
	}
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "bench.Echo", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: "Echo", Handler: echo}}}, nil)
	encoding.RegisterCodecV2(rawCodec{})
	go func() { _ = s.Serve(lis) }() // it ends with Stop
	fmt.Fprintln(stdout, "ready", lis.Addr())
	err = untilEOF(stdin)
	s.Stop()
	return err
}

func dialGRPC(_ context.Context, target string) (load, error) {
	encoding.RegisterCodecV2(rawCodec{})
	c, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(2*lineBulk), grpc.MaxCallSendMsgSize(2*lineBulk), grpc.CallContentSubtype("raw")))
	if err != nil {
		return nil, err
	}
	return &calls{
		echo: func(ctx context.Context, payload []byte) ([]byte, error) {
			var out []byte
			err := c.Invoke(ctx, grpcMethod, &payload, &out)
			return out, err
		},
		close: c.Close,
	}, nil
}
