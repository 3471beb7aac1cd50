package main

import (
	"context"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit/internal/config"
)

// newLogger makes the instance's logger. It is hclog since go-plugin logs so, and
// what the plugins say comes through in the same form.
func newLogger(c *config.Config, w io.Writer, coloured bool) hclog.Logger {
	o := &hclog.LoggerOptions{
		Name:       c.String("name"),
		Level:      hclog.LevelFromString(c.String("log.level")),
		Output:     w,
		JSONFormat: c.String("log.format") == "json",
	}
	if coloured {
		o.Color = hclog.ForceColor
	}
	return hclog.New(o)
}

// slogTo returns a logger for the packages that take a *slog.Logger.
func slogTo(log hclog.Logger) *slog.Logger { return slog.New(&slogHandler{log: log}) }

// slogHandler writes slog's records to hclog.
type slogHandler struct {
	log    hclog.Logger
	prefix string // the groups, each with its dot
}

func (h *slogHandler) Enabled(_ context.Context, level slog.Level) bool {
	return hclogLevel(level) >= h.log.GetLevel()
}

func (h *slogHandler) Handle(_ context.Context, r slog.Record) error {
	args := make([]any, 0, 2*r.NumAttrs())
	r.Attrs(func(a slog.Attr) bool {
		args = appendAttr(args, h.prefix, a)
		return true
	})
	h.log.Log(hclogLevel(r.Level), r.Message, args...)
	return nil
}

func (h *slogHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	var args []any
	for _, a := range attrs {
		args = appendAttr(args, h.prefix, a)
	}
	return &slogHandler{log: h.log.With(args...), prefix: h.prefix}
}

func (h *slogHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	return &slogHandler{log: h.log, prefix: h.prefix + name + "."}
}

func appendAttr(args []any, prefix string, a slog.Attr) []any {
	v := a.Value.Resolve()
	switch {
	case a.Equal(slog.Attr{}):
		return args
	case v.Kind() == slog.KindGroup:
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, member := range v.Group() {
			args = appendAttr(args, prefix, member)
		}
		return args
	default:
		return append(args, prefix+a.Key, v.Any())
	}
}

func hclogLevel(l slog.Level) hclog.Level {
	switch {
	case l < slog.LevelDebug:
		return hclog.Trace
	case l < slog.LevelInfo:
		return hclog.Debug
	case l < slog.LevelWarn:
		return hclog.Info
	case l < slog.LevelError:
		return hclog.Warn
	default:
		return hclog.Error
	}
}
