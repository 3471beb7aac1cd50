package pluginapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/elemental-conduit/conduit/internal/tracecontext"
)

// hclogTime is how hclog writes a time in JSON.
const hclogTime = "2006-01-02T15:04:05.000000Z07:00"

// logHandler writes records as hclog's JSON, one object to a line and one Write,
// which is what a host reads from a plugin's stderr. Groups become dotted keys.
type logHandler struct {
	mu    *sync.Mutex // of w, shared by all handlers made of one
	w     io.Writer
	level slog.Leveler
	attrs []byte // @module and the fields of WithAttrs, encoded
	group string // the prefix of keys, ending in "." if there is one
}

func newLogHandler(w io.Writer, level slog.Leveler, module string) *logHandler {
	attrs := appendJSON([]byte(`,"@module":`), module)
	return &logHandler{mu: new(sync.Mutex), w: w, level: level, attrs: attrs}
}

// Enabled implements slog.Handler.
func (h *logHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level.Level() }

// WithAttrs implements slog.Handler.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	h2 := *h
	h2.attrs = slices.Clone(h.attrs)
	for _, a := range attrs {
		h2.attrs = appendAttr(h2.attrs, h.group, a)
	}
	return &h2
}

// WithGroup implements slog.Handler.
func (h *logHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	h2 := *h
	h2.group += name + "."
	return &h2
}

// Handle implements slog.Handler.
func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	b := append([]byte{}, `{"@level":"`...)
	b = append(b, levelName(r.Level)...)
	b = append(b, `","@message":`...)
	b = appendJSON(b, r.Message)
	if !r.Time.IsZero() {
		b = append(b, `,"@timestamp":`...)
		b = appendJSON(b, r.Time.Format(hclogTime))
	}
	b = append(b, h.attrs...)
	r.Attrs(func(a slog.Attr) bool { b = appendAttr(b, h.group, a); return true })
	// Of a call's context: so that the lines of a call are found in the logs of all that
	// it went through.
	if c := callFrom(ctx); c != nil {
		if id := tracecontext.ID(c.s.Invoke().TraceParent); id != "" {
			b = append(b, `,"trace_id":"`+id+`"`...)
		}
	}
	b = append(b, "}\n"...)

	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := h.w.Write(b)
	return err
}

// levelName names a level as hclog does, which knows one below debug.
func levelName(l slog.Level) string {
	switch {
	case l < slog.LevelDebug:
		return "trace"
	case l < slog.LevelInfo:
		return "debug"
	case l < slog.LevelWarn:
		return "info"
	case l < slog.LevelError:
		return "warn"
	default:
		return "error"
	}
}

func appendAttr(b []byte, group string, a slog.Attr) []byte {
	v := a.Value.Resolve()
	if a.Key == "" && v.Kind() != slog.KindGroup || a.Equal(slog.Attr{}) {
		return b
	}
	if v.Kind() == slog.KindGroup {
		if a.Key != "" {
			group += a.Key + "."
		}
		for _, ga := range v.Group() {
			b = appendAttr(b, group, ga)
		}
		return b
	}
	// A key of ours must not shadow one of hclog's.
	key := group + a.Key
	if strings.HasPrefix(key, "@") {
		key = "_" + key
	}
	b = append(b, ',')
	b = appendJSON(b, key)
	b = append(b, ':')
	switch v.Kind() {
	case slog.KindBool:
		return strconv.AppendBool(b, v.Bool())
	case slog.KindInt64:
		return strconv.AppendInt(b, v.Int64(), 10)
	case slog.KindUint64:
		return strconv.AppendUint(b, v.Uint64(), 10)
	case slog.KindTime:
		return appendJSON(b, v.Time().Format(time.RFC3339Nano))
	case slog.KindAny:
		switch x := v.Any().(type) {
		case error:
			return appendJSON(b, x.Error())
		case fmt.Stringer:
			return appendJSON(b, fmt.Sprint(x)) // Sprint survives a nil in it
		default:
			return appendJSON(b, x)
		}
	default:
		return appendJSON(b, v.String())
	}
}

// appendJSON appends v on one line; what JSON cannot carry is written as text.
func appendJSON(b []byte, v any) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		buf.Reset()
		// A string always encodes.
		_ = enc.Encode(fmt.Sprintf("%+v", v))
	}
	return append(b, bytes.TrimSuffix(buf.Bytes(), []byte("\n"))...)
}
