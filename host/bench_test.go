package host

import (
	"errors"
	"fmt"
	"testing"
)

// BenchmarkSwap replaces the binary of an element under load, a claim being held all the
// while. It fails if a call does, or the claim is lost. For the figure:
//
//	go test -run '^$' -bench Swap -benchtime 100x ./host
func BenchmarkSwap(b *testing.B) {
	r := newRig(b, "echo")
	r.ready()
	if _, err := r.call(echo, "ClaimUntil", "never"); err != nil {
		b.Fatal(err)
	}
	stop := r.load(echo, 8)
	b.ResetTimer()
	for n := range b.N {
		r.deploy("echo", fmt.Sprint("version ", n))
		r.until("the next generation", func(m map[string]ElementStatus) bool { return m["echo"].Generation == uint64(n)+2 })
	}
	b.StopTimer()
	calls, failed := stop()
	lost := 0
	for _, n := range failed {
		lost += n
	}
	s := r.elements()["echo"]
	if lost > 0 || s.Claims != 1 || s.Restarts != 0 {
		b.Errorf("of %d calls failed: %v; %+v", calls, failed, s)
	}
	b.ReportMetric(float64(lost), "failed")
	b.ReportMetric(float64(calls)/b.Elapsed().Seconds(), "calls/s")
}

// BenchmarkStart starts and ends the process of an element, with and without a sandbox.
// For the figures:
//
//	go test -run '^$' -bench Start -benchtime 50x ./host
func BenchmarkStart(b *testing.B) {
	for _, mode := range []Sandbox{SandboxOff, SandboxBestEffort} {
		b.Run(string(mode), func(b *testing.B) {
			r := newRigWith(b, func(o *Options) { o.Sandbox = mode }, "echo")
			r.ready()
			e := r.h.elements["echo"]
			f, _ := e.wanted()
			b.ResetTimer()
			for range b.N {
				g, err := e.start(r.ctx, f.binary, true)
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				g.drain()
				e.part(g, errors.New("the benchmark is done with it"))
				b.StartTimer()
			}
		})
	}
}
