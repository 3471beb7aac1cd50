package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/config"
	"github.com/elemental-conduit/conduit/internal/loadgen"
)

// benchFlags are the flags of bench.
type benchFlags struct {
	callFlags

	rate        float64
	duration    string
	warmup      string
	links       int
	maxInFlight int
	histogram   string
}

// What a load may be. A mistyped number should not take the machine with it.
const (
	mostRate     = 1_000_000
	mostBench    = 24 * time.Hour
	mostLinks    = 256
	mostInFlight = 1 << 20
)

func (a *app) benchCommand() *cobra.Command {
	f := &benchFlags{}
	cmd := &cobra.Command{
		Use:   "bench ADDRESS METHOD [JSON | @FILE | -]",
		Short: "Calls a method at a fixed rate, and says how long it took",
		Long: `Calls a method at a fixed rate from outside, as call does with the same arguments, and
prints how many calls were answered, and how long they took.

It is an open loop: when each call is due is settled beforehand, and it is made then
whatever became of those before. How long it took counts from when it was due, so a
service that stalls is seen by all who would have come meanwhile. At most
--max-in-flight calls are under way: what is due then waits, which counts as well, and
what cannot be made in the time is reported as not started. LAG says how late calls were
begun: if that is much and nothing waited, this machine was too slow for the rate.

One call is made before all others, and if it fails that is the end, with the exit status
of call. Calls that fail later are counted by reason. A call ends with its last result;
results are not printed.

--histogram FILE writes all percentiles as HdrHistogram's plotter takes them (.hgrm).
Ctrl-C ends it early, and what was measured is printed.

Exit status: 0 if calls were answered, also if others failed: -o json says how many; that
of the most frequent failure if none was; 130 interrupted.`,
		Example: "  conduit-host bench '*://greeter/greeter/example.Greeter' Greet '{\"name\":\"Ada\"}' --rate 500 --duration 30s\n" +
			"  conduit-host bench '*://greeter/greeter/example.Greeter' Greet @ada.json --peer ws://127.0.0.1:7400 --links 4 --rate 20000 -o json\n" +
			"  conduit-host bench '*://greeter/greeter/example.Greeter' Count 3 --rate 50 --timeout 1s --histogram count.hgrm",
		Args: takes(2, 3, "ADDRESS METHOD [JSON | @FILE | -]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.typed = cmd.Flags().Changed("content-type")
			return a.bench(cmd.Context(), f, args)
		},
	}
	a.addKeyFlags(cmd, func(k *config.Key) bool { return k.Name == "data_dir" || k.Name == argumentKey || isDialKey(k.Name) })
	flags := cmd.Flags()
	flags.Lookup("cluster-max-payload").Usage = "the largest argument, at most 1GiB; the peer's limit may be lower"
	flags.Float64Var(&f.rate, "rate", 100, "calls a second, such as 1000 or 0.5")
	flags.StringVar(&f.duration, "duration", "10s", "how long calls are made that count")
	flags.StringVar(&f.warmup, "warmup", "1s", "how long calls are made before, that do not count; 0s: none")
	flags.StringVar(&f.timeout, "timeout", "10s", "deadline of each call, from when it is made")
	flags.IntVar(&f.links, "links", 1, "how many connections the calls take turns on")
	flags.IntVar(&f.maxInFlight, "max-in-flight", 1024, "how many calls may be under way")
	flags.StringVar(&f.histogram, "histogram", "", "write the latencies' percentiles to FILE (.hgrm)")
	flags.Uint32Var(&f.units, "units", 0, "units of capacity that a call needs, if more than the method's own")
	flags.StringVar(&f.asUser, "as-user", "", "call as the user whose session's secret is in @FILE")
	flags.StringVar(&f.contentType, "content-type", conduit.ContentJSON, "what the argument is; anything but JSON is sent unread")
	return cmd
}

// load is what the flags say of the load.
func (f *benchFlags) load() (o loadgen.Options, err error) {
	if o.Duration, err = aDuration("--duration", f.duration); err != nil {
		return o, err
	}
	if o.Warmup, err = aDuration("--warmup", f.warmup); err != nil {
		return o, err
	}
	o.Rate, o.MaxInFlight = f.rate, f.maxInFlight
	switch calls := o.Rate * o.Duration.Seconds(); {
	case !(o.Rate > 0 && o.Rate <= mostRate): // NaN neither
		return o, usagef("--rate: %s calls a second cannot be made; write a number above 0, and at most %d", strconv.FormatFloat(o.Rate, 'g', -1, 64), mostRate)
	case o.Duration <= 0 || o.Duration > mostBench || o.Warmup > mostBench:
		return o, usagef("--duration and --warmup are at most %v, and --duration is more than 0s", mostBench)
	case calls < 1:
		return o, usagef("--rate %s for --duration %s is less than one call; raise one of them", strconv.FormatFloat(o.Rate, 'g', -1, 64), f.duration)
	case o.MaxInFlight < 1 || o.MaxInFlight > mostInFlight:
		return o, usagef("--max-in-flight is from 1 to %d, not %d", mostInFlight, o.MaxInFlight)
	case f.links < 1 || f.links > mostLinks:
		return o, usagef("--links is from 1 to %d, not %d", mostLinks, f.links)
	}
	return o, nil
}

func aDuration(flag, text string) (time.Duration, error) {
	d, why := config.ParseDuration(text)
	if why != "" {
		return 0, usagef("%s: %q %s", flag, text, why)
	}
	return d, nil
}

// bench makes the load and prints what it has measured.
func (a *app) bench(ctx context.Context, f *benchFlags, args []string) error {
	addr, err := address.Parse(args[0])
	if err != nil {
		return conduit.Errorf(conduit.InvalidArgument, conduit.ReasonBadAddress, conduit.NotSent, "%v", err)
	}
	o, err := f.load()
	if err != nil {
		return err
	}
	limit, err := f.limit()
	if err != nil {
		return err
	}
	in, arg, err := a.invocation(&f.callFlags, args[1:])
	if err != nil {
		return err
	}
	if in.As, err = a.asUser(f.asUser); err != nil {
		return err
	}
	histogram, err := createHistogram(f.histogram)
	if err != nil {
		return err
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	result, err := a.makeLoad(ctx, f, o, limit, addr, in, arg)
	if histogram != nil {
		if result != nil {
			err = errors.Join(err, writeHistogram(histogram, result.Latency))
		} else {
			_ = histogram.Close()
			_ = os.Remove(f.histogram) // nothing was measured
		}
	}
	if result == nil {
		return blame(ctx, err)
	}
	if err := errors.Join(a.printBench(f, o, args, result), err); err != nil {
		return err
	}
	switch {
	case ctx.Err() != nil:
		return &interruptedError{conduit.Errorf(conduit.Aborted, reasonInterrupted, conduit.OutcomeUnknown, "a signal ended the load early; what is printed was measured until then")}
	case result.Answered == 0 && len(result.Failures) > 0:
		return result.Failures[0].Example
	case result.Answered == 0:
		return conduit.Errorf(conduit.DeadlineExceeded, conduit.ReasonDeadline, conduit.OutcomeUnknown, "no call was answered")
	}
	return nil
}

// makeLoad connects, makes one call that must go well, and then the load. Without a
// result nothing was measured.
func (a *app) makeLoad(ctx context.Context, f *benchFlags, o loadgen.Options, limit time.Duration, addr address.Address, in *conduit.Invocation, arg argument) (*loadgen.Result, error) {
	t, err := a.target(ctx)
	if err != nil {
		return nil, err
	}
	invokers := make([]conduit.Invoker, 0, f.links)
	for n := range f.links {
		c, err := t.dial(ctx)
		if err != nil {
			return nil, err
		}
		defer c.Close() //nolint:errcheck // the load is over; how its links end changes nothing
		if n == 0 {
			if err := arg.fill(in, func() bool { return a.takesBytes(ctx, c, addr, in.Method) }); err != nil {
				return nil, err
			}
		}
		invokers = append(invokers, c.At(addr.String()))
	}
	o.Call = func(ctx context.Context, n int) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		one := *in
		x := invokers[n%len(invokers)].Invoke(ctx, &one)
		for {
			if _, err := x.Recv(ctx); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
		}
	}
	for n := range invokers { // who is measured first shall not pay for the links
		if err := o.Call(ctx, n); err != nil {
			return nil, err
		}
	}
	line := a.newStatusLine()
	o.Each = func(p loadgen.Progress) {
		line.show("%v of %v: %d answered, %d failed, %d under way", p.Elapsed.Round(time.Second), p.Whole, p.Answered, p.Failed, p.InFlight)
	}
	defer line.clear()
	return loadgen.Run(ctx, o), nil
}

func createHistogram(path string) (*os.File, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // none was asked for
	}
	w, err := os.Create(path)
	if err != nil {
		return nil, usagef("--histogram: the file cannot be made: %v", err)
	}
	return w, nil
}

// writeHistogram writes percentiles in milliseconds as HdrHistogram's plotter reads them.
func writeHistogram(w *os.File, h *hdrhistogram.Histogram) error {
	const ticks, microsInMilli = 5, 1000
	_, err := h.PercentilesPrint(w, ticks, microsInMilli)
	if err = errors.Join(err, w.Close()); err != nil {
		return outputError(err, conduit.Executed, "; it was that of --histogram")
	}
	return nil
}

// benchReport is what a load has measured, as JSON. Times are in milliseconds.
type benchReport struct {
	Address      string         `json:"address"`
	Method       string         `json:"method"`
	Rate         float64        `json:"rate"`
	Duration     string         `json:"duration"`
	Links        int            `json:"links"`
	Due          int64          `json:"due"`
	Answered     int64          `json:"answered"`
	Failed       int64          `json:"failed"`
	NotStarted   int64          `json:"not_started"`
	Interrupted  int64          `json:"interrupted"`
	MostInFlight int            `json:"most_in_flight"`
	Elapsed      float64        `json:"elapsed_seconds"`
	Throughput   float64        `json:"answered_per_second"`
	Latency      *benchLatency  `json:"latency_ms,omitempty"` // of those answered, from when they were due
	Lag          *benchLatency  `json:"lag_ms,omitempty"`     // how late calls were begun
	Failures     []benchFailure `json:"failures,omitempty"`
	Histogram    []benchBucket  `json:"histogram,omitempty"` // of Latency
}

type benchLatency struct {
	Min  float64 `json:"min"`
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P75  float64 `json:"p75"`
	P90  float64 `json:"p90"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99.9"`
	P4   float64 `json:"p99.99"`
	Max  float64 `json:"max"`
}

type benchFailure struct {
	Count   int64       `json:"count"`
	Example errorReport `json:"example"`
}

// benchBucket counts the calls that took at most UpTo, and more than the bucket before.
type benchBucket struct {
	UpTo  float64 `json:"up_to_ms"`
	Count int64   `json:"count"`
}

func newBenchReport(f *benchFlags, o loadgen.Options, args []string, r *loadgen.Result) benchReport {
	v := benchReport{
		Address: args[0], Method: args[1], Rate: o.Rate, Duration: o.Duration.String(), Links: f.links,
		Due: r.Due, Answered: r.Answered, Failed: r.Failed(), NotStarted: r.NotStarted, Interrupted: r.Interrupted, MostInFlight: r.MostInFlight,
		Elapsed: r.Elapsed.Seconds(), Throughput: r.Throughput(),
		Latency: newBenchLatency(r.Latency), Lag: newBenchLatency(r.Lag), Histogram: newBuckets(r.Latency),
	}
	for _, f := range r.Failures {
		v.Failures = append(v.Failures, benchFailure{f.Count, newErrorReport(f.Example)})
	}
	return v
}

func newBenchLatency(h *hdrhistogram.Histogram) *benchLatency {
	if h.TotalCount() == 0 {
		return nil
	}
	at := func(q float64) float64 { return inMillis(h.ValueAtQuantile(q)) }
	return &benchLatency{
		Min: inMillis(h.Min()), Mean: h.Mean() / 1000, P50: at(50), P75: at(75), P90: at(90), P95: at(95), P99: at(99), P999: at(99.9), P4: at(99.99), Max: inMillis(h.Max()),
	}
}

func inMillis(micros int64) float64 { return float64(micros) / 1000 }

// newBuckets sorts latencies into steps of 1, 2, 5, 10 and so on.
func newBuckets(h *hdrhistogram.Histogram) []benchBucket {
	var list []benchBucket
	upTo := int64(1)
	next := func() {
		switch first := strconv.FormatInt(upTo, 10)[0]; first {
		case '2':
			upTo = upTo / 2 * 5
		default: // 1 and 5
			upTo *= 2
		}
	}
	for _, bar := range h.Distribution() {
		if bar.Count == 0 {
			continue
		}
		for first := len(list) == 0; bar.From > upTo; {
			next()
			if !first {
				list = append(list, benchBucket{UpTo: inMillis(upTo)})
			}
		}
		if len(list) == 0 {
			list = append(list, benchBucket{UpTo: inMillis(upTo)})
		}
		list[len(list)-1].Count += bar.Count
	}
	return list
}

func (a *app) printBench(f *benchFlags, o loadgen.Options, args []string, r *loadgen.Result) error {
	v := newBenchReport(f, o, args, r)
	return a.print(v, func(w io.Writer) { writeBench(w, v) })
}

// writeBench writes the report for people.
func writeBench(w io.Writer, v benchReport) {
	fmt.Fprintf(w, "%s calls a second for %s over %s, to %s %s\n\n", strconv.FormatFloat(v.Rate, 'f', -1, 64), v.Duration, count(v.Links, "link"), printable(v.Address), printable(v.Method))
	fmt.Fprintf(w, "due\t%d\n", v.Due)
	fmt.Fprintf(w, "answered\t%d\t%.1f a second\n", v.Answered, v.Throughput)
	fmt.Fprintf(w, "failed\t%d\n", v.Failed)
	if v.NotStarted > 0 {
		fmt.Fprintf(w, "not started\t%d\ttoo many were under way; see --max-in-flight\n", v.NotStarted)
	}
	if v.Interrupted > 0 {
		fmt.Fprintf(w, "interrupted\t%d\n", v.Interrupted)
	}
	fmt.Fprintf(w, "under way\t%d at most\n", v.MostInFlight)
	for _, f := range v.Failures {
		fmt.Fprintf(w, "\nfailed %d times, at first: %s (reason=%s outcome=%s)\n", f.Count, printable(f.Example.Message), f.Example.Reason, f.Example.Outcome)
	}
	fmt.Fprint(w, "\n\tMIN\tMEAN\tP50\tP75\tP90\tP95\tP99\tP99.9\tP99.99\tMAX\n")
	writeLatency(w, "latency", v.Latency)
	writeLatency(w, "lag", v.Lag)
	if len(v.Histogram) == 0 {
		return
	}
	fmt.Fprintln(w)
	var most int64
	for _, b := range v.Histogram {
		most = max(most, b.Count)
	}
	const width = 40
	for _, b := range v.Histogram {
		bar := strings.Repeat("#", int((b.Count*width+most-1)/most)) // one, if there was any
		fmt.Fprintf(w, "to %s\t%d\t%s\n", shownMillis(b.UpTo), b.Count, bar)
	}
}

func writeLatency(w io.Writer, what string, l *benchLatency) {
	if l == nil {
		return
	}
	fmt.Fprint(w, what)
	for _, ms := range []float64{l.Min, l.Mean, l.P50, l.P75, l.P90, l.P95, l.P99, l.P999, l.P4, l.Max} {
		fmt.Fprint(w, "\t"+shownMillis(ms))
	}
	fmt.Fprintln(w)
}

// shownMillis writes a time with three digits and the unit that fits.
func shownMillis(ms float64) string {
	d := time.Duration(ms * float64(time.Millisecond))
	step := time.Microsecond
	for d/step >= 1000 {
		step *= 10
	}
	return d.Round(step).String()
}
