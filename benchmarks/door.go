package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/client"
)

// door is a way into the cluster for calls of plugins/echo. All methods may be
// called concurrently.
type door interface {
	// call calls a method at an instance, by its InstanceID, or at any if that is
	// empty, and decodes the reply, unless reply is nil. The error is an
	// *conduit.Error.
	call(ctx context.Context, instance, method, request string, reply any) error
	Close() error
}

// The doors, by the names that -doors has.
const (
	gatewayDoor = "gateway"
	clientDoor  = "client"
)

func doorNames() []string { return []string{gatewayDoor, clientDoor} }

// open opens a door, and waits until each worker can be called through it.
func (c *cluster) open(ctx context.Context, name string) (door, error) {
	var d door
	switch name {
	case gatewayDoor:
		d = newHTTPDoor(c.front.gateway)
	default:
		cl, err := client.Dial(ctx, client.Options{Peers: c.urls()})
		if err != nil {
			return nil, err
		}
		d = &goDoor{cl}
	}
	for _, w := range c.workers {
		if err := reach(ctx, d, w); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	return d, nil
}

// reach waits until an instance can be called through a door.
func reach(ctx context.Context, d door, i *instance) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var last error
	tries := 0
	err := until(ctx, func() (bool, error) {
		begun := time.Now()
		err := d.call(ctx, i.id, "Where", "{}", nil)
		if tries++; err != nil {
			last = fmt.Errorf("call %d, %v long: %w", tries, time.Since(begun).Round(time.Millisecond), err)
		}
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%s cannot be called: %w", i.name, last)
	}
	return nil
}

// goDoor is the Go client.
type goDoor struct{ *client.Client }

func (d *goDoor) call(ctx context.Context, instance, method, request string, reply any) error {
	addr := echoAddress
	if instance != "" {
		addr = instance + strings.TrimPrefix(echoAddress, "*")
	}
	got, err := conduit.Call[json.RawMessage](ctx, d.At(addr), method, json.RawMessage(request))
	if err != nil || reply == nil {
		return err
	}
	return json.Unmarshal(got, reply)
}

// connections is how many are kept to the gateway. A call waits for a free one, and
// its latency has the wait in it; without a bound a machine that falls behind for a
// moment would be asked to make a thousand connections, and fall behind for good.
const connections = 256

// httpDoor is the gateway of the external instance, over connections that are kept.
type httpDoor struct {
	base   string
	client *http.Client
}

func newHTTPDoor(gateway string) *httpDoor {
	return &httpDoor{
		base:   gateway + "/v1/call/" + strings.TrimPrefix(echoAddress, "*://") + "/",
		client: &http.Client{Transport: &http.Transport{MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections}},
	}
}

func (d *httpDoor) call(ctx context.Context, instance, method, request string, reply any) error {
	target := d.base + method
	if instance != "" {
		target += "?instance=" + url.QueryEscape(instance)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, strings.NewReader(request))
	if err != nil {
		return conduit.AsError(err, conduit.NotSent)
	}
	req.Header.Set("Content-Type", "application/json")
	if at, ok := ctx.Deadline(); ok {
		req.Header.Set("Conduit-Timeout", fmt.Sprintf("%dms", time.Until(at).Milliseconds()))
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return conduit.AsError(err, conduit.OutcomeUnknown)
	}
	body, err := readBody(resp)
	switch {
	case err != nil:
		return conduit.AsError(err, conduit.OutcomeUnknown)
	case resp.StatusCode != http.StatusOK:
		return problem(resp.Status, body)
	case reply == nil:
		return nil
	}
	return json.Unmarshal(body, reply)
}

func (d *httpDoor) Close() error {
	d.client.CloseIdleConnections()
	return nil
}

func readBody(resp *http.Response) ([]byte, error) {
	body, err := io.ReadAll(resp.Body)
	return body, errors.Join(err, resp.Body.Close())
}

// problem is the error that problem details tell of.
func problem(status string, body []byte) error {
	var p struct{ Code, Reason, Outcome, Detail string }
	if err := json.Unmarshal(body, &p); err != nil || p.Code == "" {
		return conduit.AsError(fmt.Errorf("%s: %s", status, bytes.TrimSpace(body)), conduit.OutcomeUnknown)
	}
	e := &conduit.Error{Code: conduit.Unknown, Reason: p.Reason, Message: p.Code + ": " + p.Detail}
	for code := conduit.Canceled; code.Valid(); code++ {
		if code.String() == p.Code {
			e.Code = code
		}
	}
	for _, o := range []conduit.Outcome{conduit.NotSent, conduit.Refused, conduit.OutcomeUnknown, conduit.Executed} {
		if o.String() == p.Outcome {
			e.Outcome = o
		}
	}
	return e
}
