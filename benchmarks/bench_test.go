package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
)

// A whole window, with the relay and the echo in this process instead of their own.
func TestAWindowOfTheFloor(t *testing.T) {
	t.Parallel()
	socket := playing(t, playEcho, filepath.Join(t.TempDir(), "s"))
	addr := playing(t, playRelay, socket)
	l, err := dialFloor(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for _, c := range []cell{{32, 1}, {32, 64}, {1 << 20, 3}, {100_000, 64}} {
		s, err := measure(t.Context(), l, request{Size: c.size, InFlight: c.inFlight, Warm: 5 * time.Millisecond, Window: 60 * time.Millisecond})
		if err != nil {
			t.Fatalf("%v: %v", c, err)
		}
		if s.Calls == 0 || s.P50 <= 0 || s.P99 < s.P50 || s.Max < s.P99 {
			t.Errorf("%v: %+v", c, s)
		}
	}
}

// playing runs a role until the test ends and returns where it is ready.
func playing(t *testing.T, part func([]string, io.Reader, io.Writer) error, arg string) string {
	t.Helper()
	in, stdin := io.Pipe()
	stdout, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- part([]string{arg}, in, out) }()
	t.Cleanup(func() {
		_ = stdin.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(strings.TrimPrefix(line, "ready "))
}

// A load whose replies are wrong must not end up in a table.
func TestAWrongReplyFailsTheWindow(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func([]byte) []byte{
		"first byte": func(b []byte) []byte { b[0] ^= 1; return b },
		"last byte":  func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
		"short":      func(b []byte) []byte { return b[1:] },
		"another's":  func(b []byte) []byte { mark(b, 7); return b },
	} {
		l := &calls{
			echo:  func(_ context.Context, p []byte) ([]byte, error) { return spoil(bytes.Clone(p)), nil },
			close: func() error { return nil },
		}
		_, err := measure(t.Context(), l, request{Size: 32, InFlight: 1, Warm: time.Millisecond, Window: time.Millisecond})
		if err == nil || !strings.Contains(err.Error(), "a reply") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRatiosAreOfNeighbours(t *testing.T) {
	t.Parallel()
	// The second round was disturbed for both: a ratio of medians would see 300/100.
	turn := func(a, b int64) []sample {
		return []sample{{Calls: a, Elapsed: time.Second}, {Calls: b, Elapsed: time.Second}}
	}
	c := cell{32, 1}
	r := &results{cells: []cell{c}, samples: map[cell][][]sample{c: {turn(400, 200), turn(30, 20), turn(300, 100), {{Error: "broken"}, {Calls: 1}}}}}
	if got, want := spread(r.ratios(c, 1, sample.rate)), "**2.00** (1.50–3.00)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestHowFiguresLook(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		thousands(0): "0", thousands(999): "999", thousands(1000): "1,000", thousands(1234567.8): "1,234,568",
		short(0.1234): "0.12", short(12.34): "12.3", short(123.4): "123",
		micros(1500): "1.50", sizeText(32): "32 B", sizeText(64 << 10): "64 KiB", sizeText(1 << 20): "1 MiB", sizeText(1500): "1500 B",
		spread(nil): "–",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if middle([]float64{4, 1, 3, 2}) != 2.5 || middle([]float64{3, 1, 2}) != 2 || middle(nil) != 0 {
		t.Error("medians")
	}
}

func TestWritingReplacesWhatIsBetweenTheMarkers(t *testing.T) {
	t.Parallel()
	doc := "# Title\n\n" + docsBegin + "\nold\n" + docsEnd + "\n\nrest\n"
	once, err := between(doc, "\nnew\n")
	if err != nil {
		t.Fatal(err)
	}
	if want := "# Title\n\n" + docsBegin + "\n\nnew\n\n" + docsEnd + "\n\nrest\n"; once != want {
		t.Errorf("got %q", once)
	}
	if twice, err := between(once, "new"); err != nil || twice != once {
		t.Errorf("again: %q, %v", twice, err)
	}
	for _, bad := range []string{"nothing", docsBegin, docsEnd + docsBegin} {
		if _, err := between(bad, "new"); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestFlagsAreChecked(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"fewer than 3": {"-rounds", "2"}, "no \"zmq\"": {"-systems", "conduit,zmq"}, "from 16 up": {"-sizes", "8"}, "only flags": {"x"},
		"say where": {"-systems", "conduit,conduit-base"},
	} {
		var stderr bytes.Buffer
		if code := run(args, nil, io.Discard, &stderr); code != 2 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%q: exit %d, %s", args, code, &stderr)
		}
	}
}

func TestHeapFiguresAreReadFromTheProfilersText(t *testing.T) {
	t.Parallel()
	got := heapFrom("heap profile: 1: 2 [3: 4] @ heap/1048576\n# Alloc = 5\n# TotalAlloc = 6\n# Mallocs = 7\n# NumGC = 8\n# PauseNs = [9 10]\n")
	if want := (heap{Mallocs: 7, Bytes: 6, GCs: 8}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestAScenariosFlagsAreChecked(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"no \"flood\"":   {"-scenario", "flood"},
		"no \"smoke\"":   {"-scenario", "kill", "-doors", "gateway,smoke"},
		"no meaning":     {"-scenario", "kill", "-sizes", "32"},
		"1 or more":      {"-scenario", "kill", "-rounds", "0"},
		"calls a second": {"-scenario", "rolling", "-rate", "0"},
		"-within has":    {"-scenario", "kill", "-within", "1m"},
		"-rate has":      {"-rate", "5"},
		"-doors has":     {"-doors", "client"},
	} {
		var stderr bytes.Buffer
		if code := run(args, nil, io.Discard, &stderr); code != 2 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%q: exit %d, %s", args, code, &stderr)
		}
	}
	o, err := parse([]string{"-scenario", "rolling"}, io.Discard)
	if err != nil || o.rounds != 3 || o.limit != 10*time.Minute || o.rate != 2000 || len(o.doors) != 2 {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err = parse([]string{"-scenario", "kill", "-rounds", "1", "-limit", "1m"}, io.Discard); err != nil || o.rounds != 1 || o.limit != time.Minute {
		t.Errorf("%+v, %v", o, err)
	}
}

// An open loop begins calls at its rate also while none of them ends, and counts
// their time from when they were to begin.
func TestAPacedLoadDoesNotWaitForItsCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lost := &conduit.Error{Code: conduit.Unavailable, Reason: conduit.ReasonPeerLost, Outcome: conduit.OutcomeUnknown, Message: "gone"}
		answer := make(chan struct{})
		p := newPaced(100, []string{"even", "odd"}, func(_ context.Context, n int) error {
			<-answer
			switch {
			case n%2 == 1:
				return lost
			case n == 2:
				return errors.New("what is this")
			}
			return nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second-time.Millisecond)
		defer cancel()
		go func() {
			<-ctx.Done()
			time.Sleep(time.Second) // of the bubble: all calls have begun, and wait
			close(answer)
		}()
		p.run(ctx)
		want := map[string]int{"even: ok": 49, "even: wrong reply": 1, "odd: unknown/peer_lost": 50}
		if p.made != 100 || p.late != 0 || !maps.Equal(p.counts, want) {
			t.Errorf("%d calls, %d late, %v", p.made, p.late, p.counts)
		}
		if p.failed("odd", "") != 50 || p.failed("odd", "unknown") != 50 || p.failed("odd", "refused") != 0 || p.failed("even", "") != 1 {
			t.Errorf("%v", p.counts)
		}
		if got := p.troubles(); len(got) != 2 || !strings.Contains(got[1], "50 × odd: unknown/peer_lost; the first at") {
			t.Errorf("%q", got)
		}
		// From 1.01 to 2 s in 50 equal steps.
		if p50 := time.Duration(p.latencies.ValueAtQuantile(50)); p50 < 1400*time.Millisecond || p50 > 1600*time.Millisecond {
			t.Errorf("half of the calls took %v", p50)
		}
	})
}

// What can not be begun in its time is counted, and not made.
func TestAPacedLoadIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(mostUnderWay, []string{"all"}, func(ctx context.Context, _ int) error {
			<-ctx.Done()
			return conduit.FromContext(ctx, conduit.OutcomeUnknown)
		})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		p.run(ctx)
		if p.made != mostUnderWay || p.late < mostUnderWay*9/10 || p.failed("all", "unknown") != mostUnderWay {
			t.Errorf("%d calls, %d late, %v", p.made, p.late, p.counts)
		}
	})
}

func TestAProblemIsTheErrorThatItTellsOf(t *testing.T) {
	t.Parallel()
	e, ok := errors.AsType[*conduit.Error](problem("503 Service Unavailable", []byte(`{"code":"unavailable","reason":"draining","outcome":"refused","detail":"it goes away"}`)))
	if !ok || e.Code != conduit.Unavailable || e.Reason != conduit.ReasonDraining || e.Outcome != conduit.Refused || !strings.Contains(e.Message, "it goes away") {
		t.Errorf("%+v", e)
	}
	for _, body := range []string{"<html>", "", "{}"} {
		e, ok := errors.AsType[*conduit.Error](problem("502 Bad Gateway", []byte(body)))
		if !ok || e.Outcome != conduit.OutcomeUnknown || !strings.Contains(e.Message, "502") {
			t.Errorf("%q: %+v", body, e)
		}
	}
}

// The gateway's door: what it asks for, and what it makes of answers.
func TestTheGatewaysDoor(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/call/echo/echo/conduit.example.Echo/Upper" || r.Header.Get("Conduit-Timeout") == "" {
			t.Errorf("%s %s, %v, %v", r.Method, r.URL, r.Header, err)
		}
		if r.URL.Query().Get("instance") != "" {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"code":"not_found","reason":"instance_not_found","outcome":"not_sent"}`)
			return
		}
		_, _ = w.Write(bytes.ToUpper(body))
	}))
	defer s.Close()
	d := newHTTPDoor(s.URL)
	defer func() { _ = d.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	var reply string
	if err := d.call(ctx, "", "Upper", `"x"`, &reply); err != nil || reply != "X" {
		t.Errorf("%q, %v", reply, err)
	}
	if err := d.call(ctx, "0100", "Upper", `"x"`, nil); howFailed(err) != "not_sent/instance_not_found" {
		t.Errorf("%v", err)
	}
}

func TestEveryFailedCallOfARollingRestartIsTold(t *testing.T) {
	t.Parallel()
	answers := []error{nil, conduit.Errorf(conduit.Unavailable, conduit.ReasonPeerLost, conduit.OutcomeUnknown, "lost"), conduit.Errorf(conduit.Unavailable, conduit.ReasonDraining, conduit.Refused, "goes")}
	for n, err := range answers {
		r := &roll{load: newPaced(1, []string{idempotentCalls, plainCalls}, nil)}
		r.load.ended(n, 0, 0, err)
		if got := r.troubles("gateway"); (len(got) > 0) != (err != nil) {
			t.Errorf("after %v: %q", err, got)
		}
	}
	r := &roll{load: newPaced(1, []string{plainCalls}, nil), lost: []error{io.EOF}}
	r.load.late = 3
	if got := r.troubles("gateway"); len(got) != 2 {
		t.Errorf("a worker that stays away and calls that were not made: %q", got)
	}
}

func TestTheRowOfKills(t *testing.T) {
	t.Parallel()
	got := killRow("client", []killed{
		{reset: 2 * time.Millisecond, last: 4 * time.Millisecond, rerouted: 1},
		{reset: 3 * time.Millisecond, last: 60 * time.Millisecond, failed: 2},
		{reset: 7 * time.Millisecond, last: 6 * time.Millisecond},
	})
	if want := []string{"client", "3", "3.00 ms / 7.00 ms", "2.00 ms / 57.0 ms", "1", "600", "1", "2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The end of a peer is noticed when it comes, and not before.
func TestAResetIsSeen(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	var c net.ListenConfig
	l, err := c.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	seen, err := resetOf(ctx, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	closed := time.Now()
	_ = conn.Close()
	select {
	case at := <-seen:
		if at.Before(closed) {
			t.Errorf("seen %v early", closed.Sub(at))
		}
	case <-ctx.Done():
		t.Fatal("it is not seen")
	}
}
