package pluginlink

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

func TestLineReader(t *testing.T) {
	long := strings.Repeat("z", maxLine+100)
	r := newLineReader(strings.NewReader("one\r\n\n" + long + "\n" + strings.Repeat("m", 70<<10) + "\nlast"))
	for i, want := range []struct{ n, cut int }{{3, 0}, {0, 0}, {maxLine, 100}, {70 << 10, 0}, {4, 0}} {
		line, cut, err := r.next()
		if err != nil || len(line) != want.n || cut != want.cut {
			t.Errorf("line %d has %d bytes, %d cut, %v; want %v", i, len(line), cut, err, want)
		}
	}
	if _, _, err := r.next(); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

// TestRate: an element that writes without end is cut to a rate, and what is
// lost is counted and told.
func TestRate(t *testing.T) {
	log := &logged{wake: make(chan struct{})}
	o := newOutput(hclog.New(&hclog.LoggerOptions{Output: log, JSONFormat: true}))
	now := time.Now().Add(-2 * time.Second) // long enough ago that the last line has room again
	passed := 0
	for range lineBurst + 500 {
		if ok, _ := o.allow(now); ok {
			passed++
		}
	}
	if passed != lineBurst || o.Lost() != 500 {
		t.Errorf("%d passed, %d lost", passed, o.Lost())
	}
	ok, noticed := o.allow(now.Add(time.Second))
	if !ok || noticed != 500 {
		t.Errorf("after a second: %v, %d noticed", ok, noticed)
	}
	o.line("stderr", []byte("here again"), 0)
	log.await(testContext(t), t, "the line", has("@message", "here again"))
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"plain äö\t.": "plain äö\t.", "a\nb": `a\nb`, "\x1b[2J": `\x1b[2J`, "\xff": `\xff`, "x\u202ey": `x\xe2\x80\xaey`, "\x00\r": `\x00\x0d`,
	} {
		if got := clean(in); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
}

// FuzzOutput: no bytes on stderr can harm the reader, and each record is one
// line of safe text.
func FuzzOutput(f *testing.F) {
	for _, s := range []string{`{"@message":5}`, `{"@level":[],"@message":null}`, "panic: x\n\n", "[WARN] y", "{\"@message\":\"a\\u0000\"}", "\xff\xfe"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, ok := parseRecord(b); ok && strings.ContainsAny(r.message, "\n\x1b\x00") {
			t.Errorf("unsafe message %q", r.message)
		}
		if r := plainRecord(bytes.TrimRight(b, "\n"), 1); strings.ContainsAny(r.message, "\n\x1b\x00") {
			t.Errorf("unsafe message %q", r.message)
		}
		o := newOutput(hclog.New(&hclog.LoggerOptions{Output: io.Discard, JSONFormat: true}))
		o.drainStderr(bytes.NewReader(b), func(time.Time) error { return nil })
		if a, ok := parseAnnouncement(string(b)); ok {
			_ = a.check("p", "/s")
		}
	})
}
