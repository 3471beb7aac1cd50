package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// cluster is several workers that know each other, and an external instance that
// knows them all.
type cluster struct {
	t       *testing.T
	workers []*instance
	front   *instance
	// descriptors are the open files of each of all, when all have met and nothing
	// has been called.
	descriptors []int
}

// newCluster starts n workers that host echo and an external instance that hosts
// none, and waits until that knows them. When the test ends it checks that
// nothing is left: no call, process, socket or descriptor.
func newCluster(t *testing.T, n int, flags ...string) *cluster {
	t.Helper()
	c := &cluster{t: t}
	var peers []string
	for range n {
		peers = append(peers, freeAddress(t))
	}
	for k, addr := range peers {
		w := prepare(t, []string{built.echo})
		w.name = fmt.Sprintf("w%d", k)
		w.flags = append([]string{"--cluster-listen", addr, "--discovery-static", strings.Join(peers, ",")}, flags...)
		c.workers = append(c.workers, w)
	}
	c.front = prepare(t, nil)
	c.front.name = "front"
	c.front.flags = append([]string{
		"--mode", "external", "--gateway-listen", "127.0.0.1:0", "--drain-delay", "0s",
		"--discovery-static", strings.Join(peers, ","),
	}, flags...)
	for _, i := range c.all() {
		i.launch(i.flags...)
	}
	for _, i := range c.all() {
		i.waitReady()
	}
	c.front.until("all workers to be picked from", func() bool { return c.candidates() == n })
	c.meet()
	for _, i := range c.all() {
		c.descriptors = append(c.descriptors, i.descriptors())
	}
	t.Cleanup(c.stop)
	return c
}

// meet waits until every instance has its links to all the workers but itself.
func (c *cluster) meet() {
	for _, i := range c.all() {
		i.until("the peers to be alive", func() bool {
			alive := 0
			for _, row := range i.rows("ls", "instances") {
				if row["state"] == "alive" {
					alive++
				}
			}
			return alive == len(c.workers) || i != c.front && alive == len(c.workers)-1
		})
	}
}

func (c *cluster) all() []*instance { return append(append([]*instance(nil), c.workers...), c.front) }

// freeAddress returns a loopback address whose port was free a moment ago: an
// instance that comes back must come back where it was.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// ask runs a command of the command line by the management socket of the
// instance.
func (i *instance) ask(args ...string) result {
	i.t.Helper()
	return conduitHost(i.t, append(args, "--instance", i.name, "--run-dir", filepath.Join(i.dir, "run"))...)
}

// rows is ask for a command that prints data.
func (i *instance) rows(args ...string) []map[string]any {
	i.t.Helper()
	r := i.ask(append(args, "-o", "json")...)
	if r.code != 0 {
		i.t.Fatalf("%v: exit %d: %s", args, r.code, r.err)
	}
	var rows []map[string]any
	if err := json.Unmarshal([]byte(r.out), &rows); err != nil {
		i.t.Fatalf("%v: %v in %s", args, err, r.out)
	}
	return rows
}

// peers returns what the external instance says of the others, by name.
func (c *cluster) peers() map[string]map[string]any {
	peers := map[string]map[string]any{}
	for _, row := range c.front.rows("ls", "instances") {
		name, _ := row["name"].(string)
		peers[name] = row
	}
	return peers
}

// candidates counts the workers that the external instance may pick for a call of
// echo.
func (c *cluster) candidates() int {
	c.t.Helper()
	r := c.front.ask("explain", echoAddr, "Where", "-o", "json")
	var e struct {
		Candidates []struct {
			Name, Verdict string
		}
	}
	if err := json.Unmarshal([]byte(r.out), &e); err != nil {
		c.t.Fatalf("%v in %q, %s", err, r.out, r.err)
	}
	n := 0
	for _, one := range e.Candidates {
		if one.Name != c.front.name && (one.Verdict == "chosen" || one.Verdict == "candidate") {
			n++
		}
	}
	return n
}

// stop ends the cluster in order and checks that nothing is left.
func (c *cluster) stop() {
	if c.t.Failed() {
		return // the instances' own cleanup ends them
	}
	http.DefaultClient.CloseIdleConnections()
	c.meet() // also those that were started again
	for k, i := range c.all() {
		i.until("no call to be under way", func() bool { return i.callsUnderWay() == 0 })
		i.until(fmt.Sprintf("%d descriptors to be what is left", c.descriptors[k]), func() bool { return i.descriptors() <= c.descriptors[k] })
	}
	for _, i := range append([]*instance{c.front}, c.workers...) {
		i.signal(syscall.SIGTERM)
		if code := i.wait(); code != 0 {
			c.t.Errorf("%s exited %d:\n%s", i.name, code, i.output())
		}
		i.noneLeft()
		entries, err := os.ReadDir(filepath.Join(i.dir, "run"))
		if err != nil {
			c.t.Error(err)
		}
		for _, e := range entries {
			if e.Type() != 0 || strings.HasSuffix(e.Name(), ".token") {
				c.t.Errorf("%s left %s", i.name, e.Name())
			}
		}
	}
}

// callsUnderWay counts the calls on all of an instance's links but for the one
// that asks.
func (i *instance) callsUnderWay() int {
	n := 0.0
	for _, row := range i.rows("ls", "links") {
		if row["kind"] == "management" {
			continue
		}
		in, _ := row["calls_in"].(float64)
		out, _ := row["calls_out"].(float64)
		n += in + out
	}
	return int(n)
}

// descriptors counts the open files of the process.
func (i *instance) descriptors() int {
	i.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", i.cmd.Process.Pid))
	if err != nil {
		i.t.Fatal(err)
	}
	return len(entries)
}

// post calls by the gateway and returns the status, the content type and the
// body.
func (i *instance) post(path, body string, header ...string) (status int, contentType, answer string) {
	i.t.Helper()
	req, err := http.NewRequestWithContext(i.t.Context(), http.MethodPost, i.gateway+"/v1/call/"+path, strings.NewReader(body))
	if err != nil {
		i.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for k := 0; k+1 < len(header); k += 2 {
		req.Header.Set(header[k], header[k+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		i.t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode, resp.Header.Get("Content-Type"), readAll(i.t, resp.Body)
}

func writeFile(path, text string) error { return os.WriteFile(path, []byte(text), 0o600) }
