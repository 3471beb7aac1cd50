package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/conformance"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// binaryDescription is what a plugin binary says of itself.
type binaryDescription struct {
	File       string               `json:"file"`
	Element    string               `json:"element"`
	Version    string               `json:"version,omitempty"`
	API        string               `json:"api,omitempty"`
	Exclusive  bool                 `json:"exclusive,omitempty"`
	MaxMessage uint64               `json:"max_message,omitempty"`
	Services   []serviceDescription `json:"services"`
	Attributes []attributeRow       `json:"attributes,omitempty"`
}

func (a *app) describeFile(ctx context.Context, file string) error {
	d, err := runDescribe(ctx, file)
	if err != nil {
		return err
	}
	v := binaryDescriptionOf(file, d)
	return a.print(v, func(w io.Writer) { binaryTable(w, &v) })
}

func binaryDescriptionOf(file string, d *conduitv1.Description) binaryDescription {
	v := binaryDescription{
		File: file, Element: d.GetElement(), Version: d.GetVersion(), API: d.GetApi(), Exclusive: d.GetExclusive(), MaxMessage: d.GetMaxMessage(),
		Services: []serviceDescription{}, Attributes: attributeRowsOf(d),
	}
	for _, s := range d.GetServices() {
		v.Services = append(v.Services, serviceDescriptionOf(s))
	}
	return v
}

func binaryTable(w io.Writer, v *binaryDescription) {
	valueLine(w, "file", v.File)
	offersTable(w, v)
}

func offersTable(w io.Writer, v *binaryDescription) {
	valueLine(w, "element", strings.TrimSpace(v.Element+" "+v.Version))
	if v.Exclusive {
		fmt.Fprintln(w, "exclusive\tit cannot run beside another generation of itself")
	}
	for _, s := range v.Services {
		fmt.Fprintln(w)
		valueLine(w, "service", s.Service)
		fmt.Fprintln(w)
		methodTable(w, s.Methods)
	}
	if len(v.Attributes) > 0 {
		fmt.Fprintln(w)
		attributeTable(w, v.Attributes)
	}
}

// runDescribe runs a binary so that it describes itself: with nothing of this
// process's environment or input, in a group that is killed as a whole, within a
// time and an amount of output.
func runDescribe(ctx context.Context, file string) (*conduitv1.Description, error) {
	path, err := filepath.Abs(file)
	if err != nil {
		return nil, usagef("%s: %v", file, err)
	}
	switch info, err := os.Stat(path); {
	case err != nil:
		return nil, usagef("%s is no address, which would have :// in it, and no file: %v", file, errors.Unwrap(err))
	case !info.Mode().IsRegular():
		return nil, usagef("%s is no plugin binary: it is not a regular file", file)
	case info.Mode().Perm()&0o111 == 0:
		return nil, usagef("%s is not executable (mode %04o); chmod +x it", file, info.Mode().Perm())
	}
	ran := conformance.RunByHand(ctx, path, conformance.DescribeTimeout, "describe")
	switch {
	case ctx.Err() != nil:
		return nil, conduit.FromContext(ctx, conduit.OutcomeUnknown)
	case ran.TooMuch:
		return nil, usagef("%s is no plugin: `%s describe` prints more than %d bytes", file, file, conformance.MaxDescription)
	case ran.TimedOut:
		return nil, conduit.Errorf(conduit.DeadlineExceeded, conduit.ReasonDeadline, conduit.OutcomeUnknown,
			"`%s describe` did not end within %v; is it a plugin, and does it describe itself before it starts anything?", file, conformance.DescribeTimeout)
	case ran.Err != nil:
		said := ""
		if line, _, _ := strings.Cut(ran.Stderr, "\n"); line != "" {
			said = ", saying: " + shorten(line)
		}
		return nil, usagef("%s is no plugin that this machine can run: `%s describe` failed: %v%s", file, file, ran.Err, said)
	}
	d, err := conformance.ParseDescription(ran.Stdout)
	if err != nil {
		return nil, usagef("%s is no plugin: what `%s describe` prints is no description of one", file, file)
	}
	return d, nil
}
