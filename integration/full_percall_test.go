//go:build full

package integration

import "testing"

// TestFullPerCall has a cluster in which each call between instances has a link of its
// own pass what one with shared links passes.
func TestFullPerCall(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(t *testing.T, flags ...string){
		"three workers":    threeWorkers,
		"rolling restart":  rollingRestart,
		"gateway":          theGateway,
		"capacity":         capacityOfTwo,
		"nobody gets more": nobodyGetsMoreThanTheirOwn,
		"revocation":       revocationIsSoon,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, "--cluster-link", "per-call")
		})
	}
}
