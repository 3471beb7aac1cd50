package main

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/elemental-conduit/conduit/pluginapi"
	"github.com/elemental-conduit/conduit/pluginapi/conformance"
)

const serviceName = "conduit.example.Echo"

// element puts the element together. Each has its own state, so that a test may
// run several in one process.
func element() pluginapi.Element {
	e := &echo{}
	return pluginapi.Element{
		Name:     "echo",
		Version:  "1.0.0",
		Services: []*pluginapi.Service{e.service(), e.loud(), conformance.Service()},
		Attributes: []pluginapi.Attribute{
			{Name: "start_ms", Description: "how long Start takes, in milliseconds"},
			{Name: "start_error", Description: "Start fails with this text"},
			{Name: "stop_ms", Description: "how long Stop takes, in milliseconds"},
			{Name: "health", Description: "degraded or unhealthy"},
			{Name: "warning", Description: "Configure warns with this text"},
			{Name: "motto", Default: "make it so", Description: "does nothing; Env shows it"},
		},
		Configure: e.configure,
		Start:     e.start,
		Health:    e.health,
		Stop:      e.stop,
	}
}

// echo is the running element.
type echo struct {
	attributes atomic.Pointer[map[string]string]
	claims     claims
}

// service lists the methods, in the order of the table in doc.go.
func (e *echo) service() *pluginapi.Service {
	s := pluginapi.NewService(serviceName)
	remote, open := pluginapi.Remote(), pluginapi.MinLevel(pluginapi.Anonymous)

	pluginapi.Handle(s, "Echo", echoBytes, remote, open, pluginapi.Idempotent())
	pluginapi.Handle(s, "EchoJSON", echoJSON, remote, open, pluginapi.Idempotent())
	pluginapi.Handle(s, "Upper", upper, remote, open)
	pluginapi.Handle(s, "Delay", delay, remote, open)
	pluginapi.Handle(s, "Hurried", delay, remote, open, pluginapi.Timeout(50*time.Millisecond))
	pluginapi.Handle(s, "Heavy", delay, remote, open, pluginapi.Units(10))
	pluginapi.Handle(s, "Claim", e.claims.take, remote, open)
	pluginapi.Handle(s, "HeavyClaim", e.claims.take, remote, open, pluginapi.Units(10))
	pluginapi.Handle(s, "Release", e.claims.release, remote, open)
	pluginapi.HandleStream(s, "Count", count, remote, open)
	pluginapi.HandleStream(s, "CountSlow", countSlow, remote, open)
	pluginapi.Handle(s, "Parts", parts, remote, open)
	pluginapi.Handle(s, "Big", big, remote, open)
	pluginapi.HandleStream(s, "BigItems", bigItems, remote, open)
	pluginapi.Handle(s, "Nothing", nothing, remote, open)
	pluginapi.HandleUpload(s, "Sum", sum, remote, open)
	pluginapi.HandleUpload(s, "Size", size, remote, open)
	pluginapi.HandleDuplex(s, "Chat", chat, remote, open)

	pluginapi.HandleStream(s, "Fail", fail, remote, open)
	pluginapi.HandleStream(s, "RefuseMe", refuseMe, remote, open)
	pluginapi.Handle(s, "Panic", panics, remote, open)
	pluginapi.Handle(s, "PanicGoroutine", panicsBeside, remote, open)

	pluginapi.Handle(s, "WhoAmI", whoAmI, remote, open)
	pluginapi.Handle(s, "Where", where, remote, open, pluginapi.Idempotent())
	pluginapi.Handle(s, "Chain", chain, remote, open)
	pluginapi.Handle(s, "Hidden", nothing, open)
	pluginapi.Handle(s, "UserOnly", callersLevel, remote)
	pluginapi.Handle(s, "SuperuserOnly", callersLevel, remote, pluginapi.MinLevel(pluginapi.Superuser))
	pluginapi.Handle(s, "Old", nothing, remote, open, pluginapi.Deprecated("use Nothing"))

	pluginapi.Handle(s, "Print", printLines, remote, open)
	pluginapi.Handle(s, "Log", logLine, remote, open)
	pluginapi.Handle(s, "Flood", flood, remote, open)
	pluginapi.Handle(s, "Env", environment, remote, open)
	pluginapi.HandleStream(s, "Events", events, remote)
	pluginapi.Handle(s, "Exit", exit, remote, open)
	pluginapi.Handle(s, "Fork", fork, remote, open)
	return s
}

// loud is a second service of the same type.
func (e *echo) loud() *pluginapi.Service {
	s := pluginapi.NewService(serviceName, pluginapi.Named("loud"))
	pluginapi.Handle(s, "Upper", func(ctx context.Context, in string) (string, error) {
		out, err := upper(ctx, in)
		return out + "!", err
	}, pluginapi.Remote(), pluginapi.MinLevel(pluginapi.Anonymous))
	return s
}

// setting is an attribute of the deployment, or else a variable of the environment.
func (e *echo) setting(key string) string {
	if a := e.attributes.Load(); a != nil {
		if v, ok := (*a)[key]; ok {
			return v
		}
	}
	return os.Getenv("ECHO_" + strings.ToUpper(key))
}

// pause waits for the setting's number of milliseconds, if it is set, or ctx.
func (e *echo) pause(ctx context.Context, key string) error {
	ms := e.setting(key)
	if ms == "" {
		return nil
	}
	n, err := strconv.Atoi(ms)
	if err != nil {
		return errors.New(key + " must be a number of milliseconds, not " + strconv.Quote(ms))
	}
	return wait(ctx, time.Duration(n)*time.Millisecond)
}

func (e *echo) configure(_ context.Context, c pluginapi.Configuration) ([]string, error) {
	e.attributes.Store(&c.Attributes)
	if w := e.setting("warning"); w != "" {
		return []string{w}, nil
	}
	return nil, nil
}

func (e *echo) start(ctx context.Context, host pluginapi.Host) error {
	host.Logger().DebugContext(ctx, "echo starts", "data_dir", host.DataDir())
	if text := e.setting("start_error"); text != "" {
		return errors.New(text)
	}
	return e.pause(ctx, "start_ms")
}

func (e *echo) stop(ctx context.Context) error { return e.pause(ctx, "stop_ms") }

func (e *echo) health(context.Context) pluginapi.Health {
	switch e.setting("health") {
	case "degraded":
		return pluginapi.Degraded("health is set to degraded")
	case "unhealthy":
		return pluginapi.Unhealthy("health is set to unhealthy")
	}
	return pluginapi.Healthy()
}
