package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/elemental-conduit/conduit"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

const (
	// describeTimeout is how long a binary may take to describe itself.
	describeTimeout = 10 * time.Second
	// maxDescription bounds what it may say, in bytes.
	maxDescription = 1 << 20
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
	v := binaryDescription{
		File: file, Element: d.GetElement(), Version: d.GetVersion(), API: d.GetApi(), Exclusive: d.GetExclusive(), MaxMessage: d.GetMaxMessage(),
		Services: []serviceDescription{}, Attributes: attributeRowsOf(d),
	}
	for _, s := range d.GetServices() {
		v.Services = append(v.Services, serviceDescriptionOf(s))
	}
	return a.print(v, func(w io.Writer) { binaryTable(w, &v) })
}

func binaryTable(w io.Writer, v *binaryDescription) {
	valueLine(w, "file", v.File)
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
	limited, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	stdout, stderr := &boundedBuffer{most: maxDescription, full: cancel}, &boundedBuffer{most: 4 << 10}
	cmd := exec.CommandContext(limited, path, "describe")
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // for what it started and left with its output
	err = cmd.Run()
	switch {
	case ctx.Err() != nil:
		return nil, conduit.FromContext(ctx, conduit.OutcomeUnknown)
	case stdout.over:
		return nil, usagef("%s is no plugin: `%s describe` prints more than %d bytes", file, file, maxDescription)
	case errors.Is(limited.Err(), context.DeadlineExceeded):
		return nil, conduit.Errorf(conduit.DeadlineExceeded, conduit.ReasonDeadline, conduit.OutcomeUnknown,
			"`%s describe` did not end within %v; is it a plugin, and does it describe itself before it starts anything?", file, describeTimeout)
	case err != nil:
		said := ""
		if line, _, _ := strings.Cut(strings.TrimSpace(stderr.kept.String()), "\n"); line != "" {
			said = ", saying: " + shorten(line)
		}
		return nil, usagef("%s is no plugin that this machine can run: `%s describe` failed: %v%s", file, file, err, said)
	}
	d := &conduitv1.Description{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(stdout.kept.Bytes(), d); err != nil || d.GetElement() == "" {
		return nil, usagef("%s is no plugin: what `%s describe` prints is no description of one", file, file)
	}
	return d, nil
}

// boundedBuffer keeps the first bytes that are written to it. It is no more than
// an io.Writer: bytes.Buffer's own ReadFrom would know no bound.
type boundedBuffer struct {
	kept bytes.Buffer
	most int
	over bool
	full func() // called when there is too much; may be nil
}

// Write implements io.Writer; it takes everything.
func (b *boundedBuffer) Write(p []byte) (int, error) {
	if room := b.most - b.kept.Len(); len(p) > room {
		b.kept.Write(p[:room])
		if !b.over && b.full != nil {
			b.full()
		}
		b.over = true
		return len(p), nil
	}
	return b.kept.Write(p)
}
