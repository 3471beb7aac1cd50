package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/client"
)

// What the caller calls: the raw echo of plugins/echo.
const (
	echoAddress = "*://echo/echo/conduit.example.Echo"
	echoMethod  = "Echo"

	hostPackage = "./cmd/conduit-host"
)

// pollEvery is how often it is asked whether something is ready.
const pollEvery = 20 * time.Millisecond

// startConduit builds and starts a worker host with one element in a directory of
// its own.
func startConduit(ctx context.Context, l *lab) (fixture, error) {
	return startConduitOf(ctx, l, "..", l.echo)
}

// startBase is startConduit as the revision of -base has it, caller and plugin included.
func startBase(ctx context.Context, l *lab) (fixture, error) {
	f, err := startConduitOf(ctx, l, l.base, "")
	if err == nil {
		f.caller, err = l.build(ctx, filepath.Join(l.base, "benchmarks"), ".")
	}
	return f, err
}

// startConduitOf starts what a checkout has, with its own echo if none is given.
func startConduitOf(ctx context.Context, l *lab, module, plugin string) (fixture, error) {
	program, err := l.build(ctx, module, hostPackage)
	if err != nil {
		return fixture{}, err
	}
	if plugin == "" {
		if plugin, err = l.build(ctx, module, "./plugins/echo"); err != nil {
			return fixture{}, err
		}
	}
	dir, err := os.MkdirTemp(l.dir, "host-")
	if err != nil {
		return fixture{}, err
	}
	deployments := filepath.Join(dir, "deployments")
	if err := os.Mkdir(deployments, 0o700); err != nil {
		return fixture{}, err
	}
	if err := os.Link(plugin, filepath.Join(deployments, "echo")); err != nil {
		return fixture{}, err
	}
	host, err := l.start(filepath.Base(dir), program, "serve",
		"--mode", "worker", "--name", "bench", "--auth-mode", "disabled",
		"--host-deployments", deployments,
		"--data-dir", filepath.Join(dir, "data"), "--run-dir", filepath.Join(dir, "run"),
		"--cluster-listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0",
		"--log-level", "warn", "--log-format", "text")
	if err != nil {
		return fixture{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("it is not ready after %v", startTimeout))
	defer cancel()
	f := fixture{dir: dir}
	if err := f.awaitHost(ctx, host); err != nil {
		return fixture{}, host.failure(err)
	}
	f.pids = append([]int{host.pid()}, descendants(host.pid())...)
	return f, nil
}

// awaitHost waits until the host is ready and has said where.
func (f *fixture) awaitHost(ctx context.Context, host *child) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if f.target == "" || f.ops == "" {
			if err := f.readAddresses(host.log); err != nil {
				return err
			}
		} else if ready(ctx, f.ops+"/readyz") {
			return nil
		}
		select {
		case <-tick.C:
		case <-host.gone:
			return errors.New("it has ended")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// readAddresses finds what the host prints of its listeners.
func (f *fixture) readAddresses(log string) error {
	r, err := os.Open(log)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // it was only read
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if url, ok := strings.CutPrefix(lines.Text(), "cluster: "); ok {
			f.target = url
		}
		if url, ok := strings.CutPrefix(lines.Text(), "ops: "); ok {
			f.ops = url
		}
	}
	return lines.Err()
}

func ready(ctx context.Context, url string) bool {
	resp, err := get(ctx, url)
	if err != nil {
		return false
	}
	_ = resp.Body.Close() // nothing in it is wanted
	return resp.StatusCode == http.StatusOK
}

func get(ctx context.Context, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(req)
}

// download writes what a URL has to a file.
func download(ctx context.Context, url, file string) (err error) {
	resp, err := get(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = io.Copy(f, resp.Body)
	return err
}

func dialConduit(ctx context.Context, target string) (load, error) {
	return dialWith(ctx, client.Options{Peers: []string{target}})
}

func dialPerCall(ctx context.Context, target string) (load, error) {
	return dialWith(ctx, client.Options{Peers: []string{target}, PerCall: true})
}

func dialWith(ctx context.Context, o client.Options) (load, error) {
	c, err := client.Dial(ctx, o)
	if err != nil {
		return nil, err
	}
	echo := c.At(echoAddress)
	l := &calls{
		echo: func(ctx context.Context, payload []byte) ([]byte, error) {
			return conduit.Call[[]byte](ctx, echo, echoMethod, payload)
		},
		close: c.Close,
	}
	// The first call, so that a wrong address is told at once.
	if _, err := l.echo(ctx, make([]byte, 2*stamp)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return l, nil
}
