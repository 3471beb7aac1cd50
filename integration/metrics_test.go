package integration

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/client"
)

// scrape returns the sum of all series of /metrics of a name that have each of the
// labels, which are written as on the page, and whether there is one.
func (i *instance) scrape(name string, labels ...string) (sum float64, found bool) {
	i.t.Helper()
	resp, err := http.Get(i.ops + "/metrics")
	if err != nil {
		i.t.Fatal(err)
	}
	defer resp.Body.Close()
next:
	for line := range strings.SplitSeq(readAll(i.t, resp.Body), "\n") {
		series, value, _ := strings.Cut(line, "} ")
		has, ok := strings.CutPrefix(series, name+"{")
		if !ok {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(","+has+",", ","+l+",") {
				continue next
			}
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			i.t.Fatalf("%q: %v", line, err)
		}
		sum, found = sum+v, true
	}
	return sum, found
}

// What docs/metrics.md says of calls, links and dials is there in a cluster that has
// done something.
func TestMetricsOfACluster(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	w := c.workers[0]

	// By the gateway of one instance to the element of another.
	calls := []string{`deployment="echo"`, `method="Upper"`, `code="ok"`, `outcome="executed"`}
	for range 3 {
		if status, _, body := c.front.post("echo/echo/conduit.example.Echo/Upper", `"abc"`); status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
	}
	c.front.until("3 calls to be counted where they are made", func() bool {
		n, _ := c.front.scrape("conduit_calls_total", append(calls, `side="client"`)...)
		return n == 3
	})
	w.until("3 calls to be counted where they go", func() bool {
		n, _ := w.scrape("conduit_calls_total", append(calls, `side="server"`)...)
		return n == 3
	})

	if n, _ := c.front.scrape("conduit_link_dials_total", `peer="w0"`, `result="ok"`); n < 1 {
		t.Errorf("front has a link to w0 and has counted %v dials to it", n)
	}
	if n, _ := c.front.scrape("conduit_link_open", `peer="w0"`); n != 1 {
		t.Errorf("front has %v links to w0", n)
	}
	for _, direction := range []string{"in", "out"} {
		if n, _ := c.front.scrape("conduit_link_bytes_total", `peer="w0"`, `direction="`+direction+`"`); n == 0 {
			t.Errorf("front has no bytes %s of w0", direction)
		}
	}

	// A client comes and goes between two scrapes: what it sent stays counted.
	open, _ := w.scrape("conduit_link_open", `peer="client"`)
	before, _ := w.scrape("conduit_link_bytes_total", `peer="client"`, `direction="in"`)
	const size = 256 << 10
	upload(t, w.url, size)
	w.until("the bytes of a link that has ended", func() bool {
		n, _ := w.scrape("conduit_link_bytes_total", `peer="client"`, `direction="in"`)
		now, _ := w.scrape("conduit_link_open", `peer="client"`)
		return now == open && n >= before+size
	})

	// Once more after a failure, which is counted by the name of who was there.
	w.signal(9)
	w.wait()
	c.front.until("a failed dial to w0", func() bool {
		n, _ := c.front.scrape("conduit_link_dials_total", `peer="w0"`, `result="error"`)
		return n > 0
	})
	if n, found := c.front.scrape("conduit_link_open", `peer="w0"`); !found || n != 0 {
		t.Errorf("front has %v links to w0, which is dead; shown: %v", n, found)
	}
	if n, _ := c.front.scrape("conduit_link_bytes_total", `peer="w0"`, `direction="out"`); n == 0 {
		t.Error("what front has sent to w0 is forgotten with the link")
	}
	w.launch(w.flags...)
	w.waitReady()
	c.front.until("a dial to w0 that succeeds", func() bool {
		n, _ := c.front.scrape("conduit_link_dials_total", `peer="w0"`, `result="ok"`)
		return n > 0
	})
}

// upload sends that many bytes on a link of its own.
func upload(t *testing.T, url string, size int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{Peers: []string{url}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got, err := conduit.Call[[]byte](ctx, c.At(echoAddr), "Echo", make([]byte, size))
	if err != nil || len(got) != size {
		t.Fatalf("%d bytes came back: %v", len(got), err)
	}
}
