package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/elemental-conduit/conduit/transport"
)

// stopsWithin is how long an instance may take to drain.
const stopsWithin = 40 * time.Second

// cluster is workers that know each other, each with plugins/echo, and an external
// instance that hosts nothing and knows them all.
type cluster struct {
	l       *lab
	program string // conduit-host
	workers []*instance
	front   *instance
}

// instance is a conduit-host that may be started again where it was.
type instance struct {
	name  string
	addr  string // host:port of its cluster listener; empty if it has none
	id    string // its InstanceID, once it has been ready
	flags []string
	runs  int
	*child

	ops, gateway string
}

// startCluster starts n workers and the external instance, and returns when each
// is ready. It must be called on the main goroutine, as all that starts processes.
func startCluster(ctx context.Context, l *lab, n int) (*cluster, error) {
	c := &cluster{l: l}
	var plugin string
	var err error
	if c.program, err = l.build(ctx, "..", hostPackage); err != nil {
		return nil, err
	}
	if plugin, err = l.build(ctx, "..", "./plugins/echo"); err != nil {
		return nil, err
	}
	addrs, err := freeAddresses(ctx, n)
	if err != nil {
		return nil, err
	}
	peers := strings.Join(addrs, ",")
	for k, addr := range addrs {
		w := &instance{name: fmt.Sprintf("w%d", k), addr: addr}
		deployments := filepath.Join(l.dir, w.name, "deployments")
		if err := os.MkdirAll(deployments, 0o700); err != nil {
			return nil, err
		}
		if err := os.Link(plugin, filepath.Join(deployments, "echo")); err != nil {
			return nil, err
		}
		w.flags = c.flags(w, "worker", peers, "--cluster-listen", addr, "--host-deployments", deployments)
		c.workers = append(c.workers, w)
	}
	c.front = &instance{name: "front"}
	c.front.flags = c.flags(c.front, "external", peers, "--gateway-listen", "127.0.0.1:0")
	all := append(append([]*instance(nil), c.workers...), c.front)
	for _, i := range all {
		if err := c.launch(i); err != nil {
			return nil, err
		}
	}
	for _, i := range all {
		if err := i.await(ctx); err != nil {
			return nil, err
		}
	}
	for _, w := range c.workers {
		if w.id, err = instanceAt(ctx, w.addr); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *cluster) flags(i *instance, mode, peers string, more ...string) []string {
	dir := filepath.Join(c.l.dir, i.name)
	return append([]string{
		"serve", "--mode", mode, "--name", i.name, "--auth-mode", "disabled", "--discovery-static", peers,
		"--data-dir", filepath.Join(dir, "data"), "--run-dir", filepath.Join(dir, "run"), "--ops-listen", "127.0.0.1:0",
		"--drain-delay", "0s", "--log-level", "warn", "--log-format", "text",
	}, more...)
}

// urls are what a Go client is told of the cluster.
func (c *cluster) urls() []string {
	var urls []string
	for _, w := range c.workers {
		urls = append(urls, "ws://"+w.addr)
	}
	return urls
}

// launch starts an instance, for the first time or once more.
func (c *cluster) launch(i *instance) error {
	i.runs++
	var err error
	i.child, err = c.l.start(fmt.Sprintf("%s-%d", i.name, i.runs), c.program, i.flags...)
	return err
}

// restart ends an instance in order, waits for its end, starts it once more, and
// waits until it is ready.
func (c *cluster) restart(ctx context.Context, i *instance) error {
	if err := i.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return i.failure(err)
	}
	select {
	case <-i.gone:
	case <-time.After(stopsWithin):
		return i.failure(fmt.Errorf("it has not ended %v after SIGTERM", stopsWithin))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if i.err != nil {
		return i.failure(errors.New("it did not drain in order"))
	}
	if err := c.launch(i); err != nil {
		return err
	}
	return i.await(ctx)
}

// await waits until an instance says that it is ready.
func (i *instance) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("it is not ready after %v", startTimeout))
	defer cancel()
	i.ops, i.gateway = "", ""
	err := until(ctx, func() (bool, error) {
		select {
		case <-i.gone:
			return false, errors.New("it has ended")
		default:
		}
		if i.ops == "" {
			return false, i.readAddresses()
		}
		return ready(ctx, i.ops+"/readyz"), nil
	})
	if err != nil {
		return i.failure(err)
	}
	return nil
}

// readAddresses finds what the instance has printed of its listeners: that of the
// ops listener comes last.
func (i *instance) readAddresses() error {
	text, err := os.ReadFile(i.log)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		line, whole := strings.CutSuffix(line, "\n")
		if !whole {
			break
		}
		if url, ok := strings.CutPrefix(line, "gateway: "); ok {
			i.gateway = url
		}
		if url, ok := strings.CutPrefix(line, "ops: "); ok {
			i.ops = url
		}
	}
	return nil
}

// serving is how many calls the instance's elements have under way, as its metrics
// say.
func (i *instance) serving(ctx context.Context) (int, error) {
	text, err := fetch(ctx, i.ops+"/metrics")
	if err != nil {
		return 0, err
	}
	const series = `conduit_calls_in_flight{side="server"} `
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), series); ok {
			n, err := strconv.ParseFloat(value, 64)
			return int(n), err
		}
	}
	return 0, fmt.Errorf("its metrics have no %s", series)
}

// until asks again and again whether something from outside holds, within ctx:
// there is no event to wait for in another process.
func until(ctx context.Context, holds func() (bool, error)) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if ok, err := holds(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// freeAddresses are loopback addresses whose ports were free a moment ago: who is
// started again must come back where it was.
func freeAddresses(ctx context.Context, n int) ([]string, error) {
	var addrs []string
	for range n {
		var c net.ListenConfig
		l, err := c.Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }() // not before all are known, so that they differ
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}

// instanceAt asks who answers at an address.
func instanceAt(ctx context.Context, addr string) (string, error) {
	t := transport.NewClient(transport.ClientOptions{})
	p := t.Peer("ws://" + addr)
	err := p.Connect(ctx)
	id := p.Hello().Instance
	return id, errors.Join(err, t.Close())
}

// fetch returns the text behind a URL.
func fetch(ctx context.Context, url string) (string, error) {
	resp, err := get(ctx, url)
	if err != nil {
		return "", err
	}
	text, err := readBody(resp)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return string(text), err
}
