package pluginapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/slogtest"
	"time"
)

// lines reads what a logHandler wrote as slogtest wants it: slog's keys, and
// groups as maps.
func lines(t *testing.T, out []byte) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range bytes.Lines(out) {
		var flat map[string]any
		if err := json.Unmarshal(line, &flat); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		m := map[string]any{}
		for key, v := range flat {
			switch key {
			case "@level":
				key = slog.LevelKey
			case "@message":
				key = slog.MessageKey
			case "@timestamp":
				key = slog.TimeKey
			case "@module":
				continue
			}
			at := m
			parts := strings.Split(key, ".")
			for _, g := range parts[:len(parts)-1] {
				if _, ok := at[g].(map[string]any); !ok {
					at[g] = map[string]any{}
				}
				at, _ = at[g].(map[string]any)
			}
			at[parts[len(parts)-1]] = v
		}
		all = append(all, m)
	}
	return all
}

func TestLogHandler(t *testing.T) {
	var buf bytes.Buffer
	if err := slogtest.TestHandler(newLogHandler(&buf, slog.LevelDebug, "m"), func() []map[string]any { return lines(t, buf.Bytes()) }); err != nil {
		t.Error(err)
	}
}

type named struct{ name string }

func (n *named) String() string { return n.name }

func TestLogIsHclogs(t *testing.T) {
	var buf bytes.Buffer
	log := slog.New(newLogHandler(&buf, slog.LevelInfo, "greeter"))
	log.Debug("not taken")
	log.Warn("two\nlines <&>", "error", errors.New("broken"), "took", 1500*time.Millisecond, "n", 3, "ok", true, "nobody", (*named)(nil),
		"@message", "shadow", "odd", func() {}, "at", time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC))
	if strings.Count(buf.String(), "\n") != 1 {
		t.Fatalf("not one line:\n%s", &buf)
	}
	var m map[string]any
	if err := json.Unmarshal(buf.Bytes(), &m); err != nil {
		t.Fatal(err)
	}
	stamp, _ := m["@timestamp"].(string)
	if _, err := time.Parse(hclogTime, stamp); err != nil {
		t.Errorf("the time: %v", err)
	}
	delete(m, "@timestamp")
	delete(m, "odd")
	want := map[string]any{
		"@level": "warn", "@message": "two\nlines <&>", "@module": "greeter", "error": "broken", "took": "1.5s", "n": 3.0, "ok": true,
		"nobody": "<nil>", "_@message": "shadow", "at": "2026-01-02T03:04:05.000006Z",
	}
	if !maps.Equal(m, want) {
		t.Errorf("got  %v\nwant %v", m, want)
	}
}

func TestLogLinesStayWhole(t *testing.T) {
	var buf bytes.Buffer
	log := slog.New(newLogHandler(&buf, slog.LevelInfo, "m"))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			with := log.With("k", "v").WithGroup("g")
			for range 100 {
				with.LogAttrs(context.Background(), slog.LevelError, "text", slog.Int("n", 1))
			}
		})
	}
	wg.Wait()
	all := lines(t, buf.Bytes())
	if len(all) != 800 || slices.ContainsFunc(all, func(m map[string]any) bool { return m["msg"] != "text" || m["k"] != "v" }) {
		t.Errorf("got %d lines", len(all))
	}
}
