package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/host"
	"github.com/elemental-conduit/conduit/internal/conformance"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// reasonNotVerified is that of a plugin which a host would not take.
const reasonNotVerified = "not_verified"

// verifyPatience is how long a plugin may take from its start to healthy: as long as a
// host lets it by default.
const verifyPatience = 70 * time.Second

type verifyOptions struct {
	full       bool
	attributes map[string]string
}

func (a *app) pluginVerify() *cobra.Command {
	var o verifyOptions
	cmd := &cobra.Command{
		Use:   "verify FILE | DIR",
		Short: "Checks whether a host would take a plugin",
		Long: `Looks at a plugin as a host does that finds it in its deployments directory: its name,
who could change it, whether it can be run here, its checksum if there is a SHA256SUMS
beside it, what it says of itself; then it starts the plugin, for a moment and without
any call, and waits until it is healthy. What others than you and root could change is
not run. Of a directory, every file is checked that a host would look at.

With --full it goes on to the checks of conformance, each with a process of its own:
noise, garbage, SIGTERM, many calls at once and so on. A plugin that exports the
service conduit.conformance.v1.Conformance is checked with calls, too: docs/plugins.md.

Exit status: 0 all is well; 1 something is not, with what to do about it.`,
		Example: "  conduit-host plugin verify ./deployments\n  conduit-host plugin verify ./deployments/echo --full",
		Args:    takes(1, 1, "FILE | DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return blame(ctx, a.verify(ctx, args[0], o))
		},
	}
	cmd.Flags().BoolVar(&o.full, "full", false, "check how it behaves, too")
	cmd.Flags().StringToStringVar(&o.attributes, "attribute", nil, "an attribute of its deployment, as KEY=VALUE, if it does not start without (repeatable)")
	return cmd
}

// verdict is what was found of a file. In JSON the names only grow.
type verdict struct {
	File   string       `json:"file"`
	OK     bool         `json:"ok"`
	Checks []checkedRow `json:"checks"`
	// Unfinished: the checks were interrupted, and OK is of those that were made.
	Unfinished bool `json:"unfinished,omitempty"`
}

type checkedRow struct {
	Check string `json:"check"`
	OK    bool   `json:"ok"`
	// Why says what is wrong, and what to do.
	Why  string `json:"why,omitempty"`
	Note string `json:"note,omitempty"`
}

func (a *app) verify(ctx context.Context, path string, o verifyOptions) error {
	files, err := filesToVerify(path)
	if err != nil {
		return err
	}
	var verdicts []verdict
	bad := 0
	out := a.stdout
	if a.output != formatTable {
		out = io.Discard
	}
	t := newVerdictTable(out, files)
	for _, file := range files {
		v := verifyFile(ctx, file, o, t.row)
		v.Unfinished = ctx.Err() != nil
		verdicts = append(verdicts, v)
		if t.err != nil {
			return outputError(t.err, conduit.Executed, "")
		}
		if v.Unfinished {
			break
		}
		if !v.OK {
			bad++
		}
	}
	if a.output != formatTable {
		if err := a.print(verdicts, nil); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return conduit.FromContext(ctx, conduit.OutcomeUnknown)
	}
	if bad > 0 {
		return conduit.Errorf(conduit.FailedPrecondition, reasonNotVerified, conduit.NotSent, "%d of %d files would not do: see FAILED above", bad, len(files))
	}
	return nil
}

// filesToVerify are the file itself, or those of a directory that a host looks at.
func filesToVerify(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, usagef("%s is neither a file nor a directory: %v", path, errors.Unwrap(err))
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, usagef("%s cannot be read: %v", path, errors.Unwrap(err))
	}
	var files []string
	for _, e := range entries {
		if host.Considers(e.Name()) && !e.IsDir() {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	if files == nil {
		return nil, usagef("no file in %s is one that a host would look at", path)
	}
	return files, nil
}

// verifyFile makes the checks of a file, and tells each as it is known.
func verifyFile(ctx context.Context, file string, o verifyOptions, tell func(file string, c checkedRow)) verdict {
	v := verdict{File: file, OK: true}
	add := func(name string, err error, note string) bool {
		if ctx.Err() != nil {
			return false // what was under way was cut short, and says nothing
		}
		row := checkedRow{Check: name, OK: err == nil, Note: note}
		if err != nil {
			v.OK, row.Why, row.Note = false, err.Error(), ""
		}
		v.Checks = append(v.Checks, row)
		tell(file, row)
		return row.OK
	}
	for _, f := range host.Inspect(file) {
		var err error
		if f.Kind != "" {
			err = fmt.Errorf("%s (%s)", f.Reason, f.Kind)
		}
		add(f.Name, err, f.Note)
	}
	if !v.OK {
		return v // it is not run
	}
	var d *conduitv1.Description
	path, err := filepath.Abs(file)
	if err == nil {
		d, err = conformance.Describe(ctx, path)
	}
	if err == nil {
		err = host.CheckDescription(d)
	}
	if !add("describe", err, strings.TrimSpace("element "+d.GetElement()+" "+d.GetVersion())) {
		return v
	}
	took, err := startOnce(ctx, path, o)
	if !add("starts", err, fmt.Sprintf("healthy, with a link, after %v", took.Round(time.Millisecond))) || !o.full {
		return v
	}
	for _, c := range conformance.Checks() {
		switch {
		case ctx.Err() != nil:
			return v
		case c.Service && !conformance.Exports(d):
			continue
		}
		err := c.Run(ctx, conformance.Options{Path: path, Attributes: o.attributes})
		if err != nil {
			err = fmt.Errorf("%s. It does not: %w", c.Says, err)
		}
		add(c.Name, err, c.Says)
	}
	if !conformance.Exports(d) {
		add("calls", nil, "not checked: it does not export "+conformance.ServiceName)
	}
	return v
}

// startOnce brings a plugin up and ends it again.
func startOnce(ctx context.Context, path string, o verifyOptions) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, verifyPatience)
	defer cancel()
	begun := time.Now()
	r, err := conformance.Launch(ctx, conformance.LaunchOptions{Path: path, Attributes: o.attributes})
	if err != nil {
		return 0, err
	}
	_, err = r.OpenLink(ctx, link.Options{})
	took = time.Since(begun)
	if err == nil {
		err = r.Stop(ctx)
	}
	return took, errors.Join(err, r.Close(2*time.Second)) //nolint:contextcheck // it is ended also when ctx is over
}

// verdictTable writes a line for each check as it is known, since all of them may take
// half a minute: so its columns are as wide as what may come.
type verdictTable struct {
	w           io.Writer
	file, check int   // the widths
	err         error // the first of writing
}

func newVerdictTable(w io.Writer, files []string) *verdictTable {
	t := &verdictTable{w: w, file: len("FILE"), check: len("description")}
	for _, file := range files {
		t.file = max(t.file, utf8.RuneCountInString(shown(file, maxValue)))
	}
	for _, c := range conformance.Checks() {
		t.check = max(t.check, len(c.Name))
	}
	t.line("FILE", "CHECK", "RESULT", "WHY")
	return t
}

func (t *verdictTable) row(file string, c checkedRow) {
	result, why := "ok", c.Note
	if !c.OK {
		result, why = "FAILED", c.Why
	}
	t.line(shown(file, maxValue), c.Check, result, orDash(shown(why, maxWhy)))
}

func (t *verdictTable) line(file, check, result, why string) {
	if t.err == nil {
		_, t.err = fmt.Fprintf(t.w, "%-*s  %-*s  %-6s  %s\n", t.file, file, t.check, check, result, why)
	}
}

// maxWhy is what a table shows of a reason, in characters: it says what to do, and its
// column is the last.
const maxWhy = 2000

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
