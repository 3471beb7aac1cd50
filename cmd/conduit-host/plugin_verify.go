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
	for _, file := range files {
		v := verifyFile(ctx, file, o)
		if err := ctx.Err(); err != nil {
			return conduit.FromContext(ctx, conduit.OutcomeUnknown)
		}
		if !v.OK {
			bad++
		}
		verdicts = append(verdicts, v)
	}
	if err := a.print(verdicts, func(w io.Writer) { verdictTable(w, verdicts) }); err != nil {
		return err
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

func verifyFile(ctx context.Context, file string, o verifyOptions) verdict {
	v := verdict{File: file, OK: true}
	add := func(name string, err error, note string) bool {
		row := checkedRow{Check: name, OK: err == nil, Note: note}
		if err != nil {
			v.OK, row.Why, row.Note = false, err.Error(), ""
		}
		v.Checks = append(v.Checks, row)
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

func verdictTable(w io.Writer, verdicts []verdict) {
	tableLine(w, "FILE", "CHECK", "RESULT", "WHY")
	for _, v := range verdicts {
		for _, c := range v.Checks {
			result, why := "ok", c.Note
			if !c.OK {
				result, why = "FAILED", c.Why
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", shown(v.File, maxValue), c.Check, result, orDash(shown(why, maxWhy)))
		}
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
