package integration

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/client"
)

func TestTheAuthorsExample(t *testing.T) {
	t.Parallel()
	i := start(t, []string{built.greeter, built.echo})
	i.call(greeterAddr, "Greet", `{"name":"Ada"}`).want(t, 0, `{"text":"Hello, Ada!"}`+"\n")
	i.call(greeterAddr, "Count", "3").want(t, 0, "0\n1\n2\n")
	i.call(greeterAddr, "Greet", `{"name":""}`).want(t, 1, "", "error: ", "name is empty", "reason=", "outcome=executed", "peer=0100")
	i.call(greeterAddr, "Greet", `{"name":""}`, "-o", "json").want(t, 1, "", `"code":"invalid_argument"`, `"outcome":"executed"`)
	i.call(echoAddr, "Hidden").want(t, 4, "", "reason=not_remote", "outcome=refused")
	i.call(greeterAddr, "Nope").want(t, 3, "", "reason=method_not_found", "outcome=refused")
	i.call("*://greeter/greeter/example.Other", "Greet").want(t, 3, "", "reason=service_not_found")
	i.call("*://greeter/other/example.Greeter", "Greet").want(t, 3, "", "reason=element_not_found")
	i.call("*://other/greeter/example.Greeter", "Greet").want(t, 3, "", "reason=deployment_not_found")
	i.call("010000112233445566778899aabbccddeeff://greeter/greeter/example.Greeter", "Greet").want(t, 3, "", "reason=instance_not_found")
	i.call("greeter", "Greet").want(t, 2, "", "error: ", "address")
	i.call(greeterAddr, "Greet", `{"name":`).want(t, 2, "", "error: ")
	i.call(echoAddr, "Delay", `{"ms":60000}`, "--timeout", "200ms").want(t, 5, "", "reason=deadline_exceeded")
	i.call("*://*/echo/conduit.example.Echo", "Upper", `"scan"`).want(t, 0, `"SCAN"`+"\n")
	i.call("*://*/echo[1]/conduit.example.Echo", "Upper", `"scan"`).want(t, 3, "", "reason=element_not_found")
}

func TestPeerThatIsNotThere(t *testing.T) {
	t.Parallel()
	conduitHost(t, "call", greeterAddr, "Greet", "--peer", "ws://127.0.0.1:1").want(t, 3, "", "reason=peer_unreachable", "outcome=not_sent")
}

// TestFromAGoProgram makes the same calls through package client.
func TestFromAGoProgram(t *testing.T) {
	t.Parallel()
	i := start(t, []string{built.greeter, built.echo})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{Peers: []string{i.url}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	type greetRequest struct {
		Name string `json:"name"`
	}
	type greetReply struct {
		Text string `json:"text"`
	}
	got, err := conduit.Call[greetReply](ctx, c.At(greeterAddr), "Greet", greetRequest{"Ada"})
	if err != nil || got.Text != "Hello, Ada!" {
		t.Errorf("%+v, %v", got, err)
	}
	var items []int
	for item, err := range conduit.Stream[int](ctx, c.At(greeterAddr), "Count", 10) {
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, item)
		if item == 6 {
			break // cancels the call
		}
	}
	if !slices.Equal(items, []int{0, 1, 2, 3, 4, 5, 6}) {
		t.Errorf("items %v", items)
	}
	_, err = conduit.Call[greetReply](ctx, c.At(greeterAddr), "Greet", greetRequest{})
	var e *conduit.Error
	if !errors.As(err, &e) || e.Code != conduit.InvalidArgument || e.Outcome != conduit.Executed || e.Message != "name is empty" {
		t.Errorf("empty name: %v", err)
	}
	_, err = conduit.Call[greetReply](ctx, c.At("no address"), "Greet", greetRequest{})
	if !errors.As(err, &e) || e.Code != conduit.InvalidArgument || e.Outcome != conduit.NotSent {
		t.Errorf("bad address: %v", err)
	}
	sum, err := conduit.Upload[int](ctx, c.At(echoAddr), "Sum", slices.Values([]int{1, 2, 3, 4}))
	if err != nil || sum != 10 {
		t.Errorf("sum %d, %v", sum, err)
	}
	var parts [3]int
	n, err := conduit.Call[int](ctx, c.At(echoAddr), "Parts", 5,
		conduit.OnPart(1, func(conduit.Message) { parts[1]++ }), conduit.OnPart(2, func(conduit.Message) { parts[2]++ }))
	if err != nil || n != 5 || parts != [3]int{0, 5, 5} {
		t.Errorf("parts %v, %d, %v", parts, n, err)
	}
	cctx, ccancel := context.WithCancel(ctx)
	time.AfterFunc(100*time.Millisecond, ccancel)
	if _, err := conduit.Call[struct{}](cctx, c.At(echoAddr), "Delay", map[string]int{"ms": 60000}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled call: %v", err)
	}
	if _, err := conduit.Call[struct{}](ctx, c.At(echoAddr), "Panic", "on purpose"); !errors.Is(err, &conduit.Error{Code: conduit.Internal, Reason: conduit.ReasonPanic}) {
		t.Errorf("panic: %v", err)
	}
}

// TestSizes crosses gRPC's own limit of 4 MiB and ours of 10 MiB, both ways.
func TestSizes(t *testing.T) {
	t.Parallel()
	i := start(t, []string{built.echo})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{Peers: []string{i.url}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, n := range []int{0, 4194303, 4194304, 4194305, 9 << 20, 10 << 20} {
		want := bytes.Repeat([]byte{byte(n), 7, 9}, n/3+1)[:n]
		got, err := conduit.Call[[]byte](ctx, c.At(echoAddr), "Echo", want)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("echo of %d bytes: %d bytes, %v", n, len(got), err)
		}
		got, err = conduit.Call[[]byte](ctx, c.At(echoAddr), "Big", map[string]int{"bytes": n})
		if err != nil || len(got) != n {
			t.Errorf("%d bytes down: %d, %v", n, len(got), err)
		}
	}
	var e *conduit.Error
	_, err = conduit.Call[[]byte](ctx, c.At(echoAddr), "Echo", make([]byte, 10<<20+1))
	if !errors.As(err, &e) || e.Reason != conduit.ReasonPayloadTooLarge || e.Outcome != conduit.NotSent || e.Details["limit"] != "10485760" {
		t.Errorf("above the cap, up: %v", err)
	}
	_, err = conduit.Call[[]byte](ctx, c.At(echoAddr), "Big", map[string]int{"bytes": 10<<20 + 1})
	if !errors.As(err, &e) || e.Reason != conduit.ReasonPayloadTooLarge || e.Outcome != conduit.Executed {
		t.Errorf("above the cap, down: %v", err)
	}
	if _, err := conduit.Call[[]byte](ctx, c.At(echoAddr), "Echo", []byte("alive")); err != nil {
		t.Errorf("the link did not survive: %v", err)
	}
}

// TestItemsComeAsTheyAreMade reads the first items of a slow stream while the
// rest is not made yet.
func TestItemsComeAsTheyAreMade(t *testing.T) {
	t.Parallel()
	i := start(t, []string{built.echo})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{Peers: []string{i.url}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// A million items an hour apart: only the first can come.
	for item, err := range conduit.Stream[int](ctx, c.At(echoAddr), "CountSlow", map[string]int{"n": 1000000, "interval_ms": 3600000}) {
		if err != nil || item != 0 {
			t.Fatalf("%d, %v", item, err)
		}
		break
	}
}

// TestBadFilesDisturbNobody drops what is no plugin beside one that is.
func TestBadFilesDisturbNobody(t *testing.T) {
	t.Parallel()
	i := prepare(t, []string{built.echo})
	write := func(name, text string, mode os.FileMode) {
		if err := os.WriteFile(filepath.Join(i.deployments, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("page", "<html>404 not found</html>\n", 0o700)
	write("README.md", "# plugins\n", 0o600)
	write(".echo.swp", "x", 0o700)
	write("echo~", "x", 0o700)
	write("notexec", "\x7fELF", 0o600)
	write("shout", "#!/bin/sh\necho hello\nexit 3\n", 0o700)
	i.launch()
	i.waitReady()
	i.call(echoAddr, "Upper", `"fine"`).want(t, 0, `"FINE"`+"\n")
	for _, name := range []string{"page", "notexec"} {
		i.waitLine("a word on "+name, func(s string) bool { return strings.Contains(s, name) })
	}
	i.call("*://page/page/x.Y", "M").want(t, 3, "")
}
