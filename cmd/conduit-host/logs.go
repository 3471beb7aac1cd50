package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/config"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// tailDefault is how many records logs shows if nothing else is said.
const tailDefault = "100"

// logsFlags are the flags of logs.
type logsFlags struct {
	follow         bool
	tail           string
	since          string
	level, element string
	tailed         bool // --tail was given
}

func (a *app) logsCommand() *cobra.Command {
	f := &logsFlags{}
	cmd := &cobra.Command{
		Use:   "logs DEPLOYMENT",
		Short: "Shows what the elements of a deployment wrote",
		Long: `Shows what the elements of a deployment wrote, and what the host has to say of
their processes: the last 100 records, or all of the time that --since gives. The
log outlives processes, so it shows why one crashed; and the deployment: its files
stay when that is removed, and are read by its name.

With -f it goes on with what comes, until it is interrupted (exit status 130) or the
instance has drained (3). Who reads slower than the log grows is told how much was
left out.

It asks the instance of this machine; a peer tells its logs only if its
host.remote_admin is set.`,
		Example: "  conduit-host logs echo\n" +
			"  conduit-host logs echo -f --level warn\n" +
			"  conduit-host logs echo --since 15m -o json\n" +
			"  conduit-host logs echo --tail all --element echo",
		Args: takes(1, 1, "DEPLOYMENT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.tailed = cmd.Flags().Changed("tail")
			return a.logs(cmd.Context(), args[0], f)
		},
	}
	cmd.Flags().BoolVarP(&f.follow, "follow", "f", false, "go on with what comes")
	cmd.Flags().StringVar(&f.tail, "tail", tailDefault, "how many of the last records, or all")
	cmd.Flags().StringVar(&f.since, "since", "", "only what is no older than this, such as 15m")
	cmd.Flags().StringVar(&f.level, "level", "", "only this level and above: "+strings.Join(logLevels(), ", "))
	cmd.Flags().StringVar(&f.element, "element", "", "only the element of this name")
	a.addTargetFlags(cmd)
	return cmd
}

func logLevels() []string { return []string{"trace", "debug", "info", "warn", "error"} }

// request says what is asked for.
func (f *logsFlags) request(deployment string) (*conduitv1.LogsRequest, error) {
	in := &conduitv1.LogsRequest{Deployment: deployment, Element: utf8Text(f.element), MinLevel: f.level, Follow: f.follow}
	if address.ValidDeploymentName(deployment) != nil {
		if _, err := address.ParseDeploymentID(deployment); err != nil {
			return nil, usagef("%q is not the name of a deployment; `conduit-host ls deployments` lists them", shorten(deployment))
		}
	}
	if f.level != "" && !slices.Contains(logLevels(), f.level) {
		near := config.Nearest(f.level, logLevels())
		if near != "" {
			near = "; did you mean " + near + "?"
		}
		return nil, usagef("--level: %q is none; the levels are %s%s", f.level, strings.Join(logLevels(), ", "), near)
	}
	if f.since != "" {
		d, why := config.ParseDuration(f.since)
		if why != "" {
			return nil, usagef("--since: %q %s", f.since, why)
		}
		in.SinceMillis = uint64(max(d.Milliseconds(), 1))
	}
	switch {
	case f.tail == "all", f.since != "" && !f.tailed:
	default:
		n, err := strconv.ParseUint(f.tail, 10, 31)
		if err != nil {
			return nil, usagef("--tail: %q is neither a number of records nor all", f.tail)
		}
		tail := uint32(n)
		in.Tail = &tail
	}
	return in, nil
}

func (a *app) logs(ctx context.Context, deployment string, f *logsFlags) error {
	in, err := f.request(deployment)
	if err != nil {
		return err
	}
	if len(a.peers) > 1 {
		return usagef("logs asks one instance; give one --peer")
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	t, err := a.target(ctx)
	if err != nil {
		return blame(ctx, err)
	}
	c, err := t.dial(ctx)
	if err != nil {
		return blame(ctx, err)
	}
	defer c.Close() //nolint:errcheck // what was asked for is over
	var options []conduit.CallOption
	if f.follow {
		options = append(options, conduit.AsBackground())
	}
	for r, err := range conduit.Stream[*conduitv1.LogRecord](ctx, c.At("*://conduit/conduit/"+adminService), "Logs", in, options...) {
		if err != nil {
			return logsEnd(ctx, t, f.follow, err)
		}
		if err := a.printRecord(r); err != nil {
			return err
		}
	}
	return nil
}

// logsEnd says how a log ended that was still to be read.
func logsEnd(ctx context.Context, t target, follow bool, err error) error {
	if errors.Is(context.Cause(ctx), errInterrupted) {
		if follow {
			return &interruptedError{&quietError{err}} // there is no other end of it
		}
		return &interruptedError{err}
	}
	if e, ok := errors.AsType[*conduit.Error](err); ok && follow && e.Code == conduit.Unavailable && e.Reason == conduit.ReasonDraining {
		ended := *e
		ended.Message = fmt.Sprintf("the log ends here: the instance %s has drained, or does", t.name)
		return &ended
	}
	return err
}

// logRow is a record as it is printed, and stands in the file.
type logRow struct {
	Time       string            `json:"time"`
	Level      string            `json:"level"`
	Deployment string            `json:"deployment"`
	Element    string            `json:"element"`
	Generation uint64            `json:"generation"`
	Pid        int64             `json:"pid"`
	Source     string            `json:"source"`
	Message    string            `json:"message"`
	Fields     map[string]string `json:"fields,omitempty"`
	Dropped    uint64            `json:"dropped,omitempty"`
}

// printRecord prints one record as soon as it is there.
func (a *app) printRecord(r *conduitv1.LogRecord) error {
	var b bytes.Buffer
	at := time.UnixMicro(r.GetUnixMicros())
	row := logRow{
		Time: at.UTC().Format(time.RFC3339Nano), Level: r.GetLevel(), Deployment: r.GetDeployment(), Element: r.GetElement(),
		Generation: r.GetGeneration(), Pid: r.GetPid(), Source: r.GetSource(), Message: r.GetMessage(), Fields: r.GetFields(), Dropped: r.GetDropped(),
	}
	switch a.output {
	case formatTable:
		recordText(&b, at, &row)
	default:
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(row); err != nil {
			return err
		}
		if a.output == formatYAML {
			text, err := jsonToYAML(b.Bytes())
			if err != nil {
				return err
			}
			b.Reset()
			b.WriteString("---\n")
			b.Write(text)
		}
	}
	if _, err := a.stdout.Write(b.Bytes()); err != nil {
		return outputError(err, conduit.Executed, "")
	}
	return nil
}

// recordText writes a record for people: one line, and below it, set in, what has
// several.
func recordText(w io.Writer, at time.Time, r *logRow) {
	who := printable(r.Element)
	if r.Source == "host" {
		who = "(host)"
	} else if who == "" {
		who = "-"
	}
	fmt.Fprintf(w, "%s %-5s %s: %s", at.Format("2006-01-02 15:04:05.000"), strings.ToUpper(printable(r.Level)), who, printable(r.Message))
	if r.Dropped > 0 {
		fmt.Fprintf(w, " (%d)", r.Dropped)
	}
	var below strings.Builder
	for _, k := range slices.Sorted(maps.Keys(r.Fields)) {
		v := r.Fields[k]
		if k == "module" && v == r.Element {
			continue // as loggers call themselves by default
		}
		if strings.Contains(v, "\n") {
			for line := range strings.Lines(v) {
				below.WriteString("    " + printable(strings.TrimSuffix(line, "\n")) + "\n")
			}
			continue
		}
		if v == "" || strings.ContainsAny(v, " \t\"=") {
			v = strconv.Quote(v)
		}
		fmt.Fprintf(w, " %s=%s", printable(k), printable(v))
	}
	fmt.Fprintf(w, "\n%s", below.String())
}
