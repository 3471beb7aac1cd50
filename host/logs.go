package host

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	"github.com/elemental-conduit/conduit/internal/pluginlog"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// logsDir is where in the private directory the files of the deployments' logs are.
const logsDir = "logs"

// logsFlush is what the last records have to be written when the host ends.
const logsFlush = 2 * time.Second

// newLogs makes the deployments' logs; nothing is touched before a plugin writes.
func newLogs(o *Options, log hclog.Logger) (*pluginlog.Logs, error) {
	dir, err := filepath.Abs(o.Private)
	if err != nil {
		return nil, err
	}
	p := private{unsafe: o.AllowUnsafe}
	return pluginlog.New(pluginlog.Options{
		Dir: filepath.Join(dir, logsDir), MaxSize: o.LogSize, Keep: o.LogFiles, Check: p.check,
		Trouble: func(deployment string, lost uint64, err error) {
			if err != nil {
				log.Error("a deployment's log cannot be written; its records are lost there until it can, and nothing else suffers", "deployment", deployment, "error", err)
			} else {
				log.Info("a deployment's log can be written again", "deployment", deployment, "lost", lost)
			}
		},
	}), nil
}

// flushLogs waits a moment for what was written last.
func (h *Host) flushLogs() {
	ctx, cancel := context.WithTimeout(context.Background(), logsFlush)
	defer cancel()
	if err := h.logs.Flush(ctx); err != nil {
		h.log.Warn("not all of the deployments' logs was written before the end", "error", err)
	}
}

// keep returns what takes the output of a process that is to be that generation.
func (e *element) keep(generation uint64) func(pluginlink.OutputRecord) {
	return func(r pluginlink.OutputRecord) {
		e.h.logs.Append(pluginlog.Record{
			Time: r.Time, Level: r.Level, Deployment: e.deployment, Element: r.Element, Generation: generation, Pid: r.Pid,
			Source: r.Source, Message: r.Message, Fields: logFields(r.Fields),
		})
	}
}

// tell logs something of the element that whoever reads its own log wants to know, too.
// There it has the generation that is serving, or was the last to.
func (e *element) tell(level hclog.Level, message string, args ...any) {
	e.log.Log(level, message, args...)
	e.mu.Lock()
	r := pluginlog.Record{Deployment: e.deployment, Element: e.status.Name, Generation: e.status.Generation, Pid: e.status.Pid}
	e.mu.Unlock()
	r.Time, r.Level, r.Source, r.Message = time.Now(), level, "host", message
	r.Fields = logFields(args)
	for _, own := range []string{"element", "generation", "pid"} {
		delete(r.Fields, own) // the record has them
	}
	e.h.logs.Append(r)
}

// logFields are keys and values in turns as texts.
func logFields(args []any) map[string]string {
	if len(args) < 2 {
		return nil
	}
	fields := make(map[string]string, len(args)/2)
	for i := 0; i+1 < len(args); i += 2 {
		fields[fmt.Sprint(args[i])] = fmt.Sprint(args[i+1])
	}
	return fields
}

// Logs gives the records of a deployment's log that in asks for, oldest first, on the
// caller's goroutine: of one that is deployed, and of one that was while its files are
// there. With follow it goes on until ctx ends, and returns the cause of that. An error
// of send ends it and is returned. A caller that is slow delays nobody, and is told how
// much it has lost.
func (h *Host) Logs(ctx context.Context, in *conduitv1.LogsRequest, send func(*conduitv1.LogRecord) error) error {
	q, err := logQuery(in)
	if err != nil {
		return err
	}
	name, err := h.loggedDeployment(in.GetDeployment())
	if err != nil {
		return err
	}
	err = h.logs.Read(ctx, name, q, func(r pluginlog.Record) error {
		return send(&conduitv1.LogRecord{
			UnixMicros: r.Time.UnixMicro(), Level: r.Level.String(), Deployment: r.Deployment, Element: r.Element,
			Generation: r.Generation, Pid: int64(r.Pid), Source: r.Source, Message: r.Message, Fields: r.Fields, Dropped: r.Dropped,
		})
	})
	if errors.Is(err, pluginlog.ErrFollowers) {
		return conduit.Errorf(conduit.ResourceExhausted, conduit.ReasonOverloaded, conduit.Refused, "%v; end one, or read without following", err)
	}
	return err
}

func logQuery(in *conduitv1.LogsRequest) (q pluginlog.Query, err error) {
	q = pluginlog.Query{Element: in.GetElement(), Tail: -1, Follow: in.GetFollow()}
	if in.Tail != nil {
		q.Tail = int(min(in.GetTail(), math.MaxInt32))
	}
	if ms := in.GetSinceMillis(); ms > 0 {
		q.Since = time.Now().Add(-time.Duration(min(ms, math.MaxInt64/uint64(time.Millisecond))) * time.Millisecond)
	}
	if level := in.GetMinLevel(); level != "" {
		var ok bool
		if q.MinLevel, ok = pluginlog.ParseLevel(level); !ok {
			return q, conduit.Errorf(conduit.InvalidArgument, conduit.ReasonBadContent, conduit.Refused,
				"min_level is %q; it may be trace, debug, info, warn or error", pluginlink.Text(level, maxMethodName))
		}
	}
	return q, nil
}

// loggedDeployment finds the name of a deployment that has a log, or is there and may
// come to have one, by its name or its id.
func (h *Host) loggedDeployment(named string) (string, error) {
	h.mu.Lock()
	list := h.list()
	h.mu.Unlock()
	names := make([]string, len(list))
	for i, e := range list {
		if e.deployment == named || e.deploymentID.String() == named {
			return e.deployment, nil
		}
		names[i] = e.deployment
	}
	if h.logs.Has(named) {
		return named, nil
	}
	shown := pluginlink.Text(named, maxMethodName)
	if named == address.BuiltinDeployment {
		return "", conduit.Errorf(conduit.NotFound, conduit.ReasonDeploymentNotFound, conduit.Refused, "the deployment %s is the instance itself: its log is what it writes to standard error", shown)
	}
	there := "; none is deployed"
	if len(names) > 0 {
		slices.Sort(names)
		there = "; there is " + strings.Join(names[:min(len(names), maxNamesShown)], ", ")
		if n := len(names) - maxNamesShown; n > 0 {
			there += fmt.Sprintf(" and %d more", n)
		}
	}
	return "", conduit.Errorf(conduit.NotFound, conduit.ReasonDeploymentNotFound, conduit.Refused, "there is no log of a deployment %q on this instance%s", shown, there)
}

// maxNamesShown is how many deployments an error names.
const maxNamesShown = 10
