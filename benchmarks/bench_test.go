package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
