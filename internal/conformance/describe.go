package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/elemental-conduit/conduit/internal/pluginlink"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

const (
	// DescribeTimeout is how long a binary may take to describe itself.
	DescribeTimeout = 10 * time.Second
	// MaxDescription bounds what it may say, in bytes.
	MaxDescription = 1 << 20
)

// Ran is what became of a binary that was run by hand.
type Ran struct {
	Stdout []byte // at most MaxDescription bytes
	Stderr string // its first 4 KiB
	// TooMuch says that it wrote more than MaxDescription bytes to stdout, and was ended.
	TooMuch bool
	// TimedOut says that it did not end by itself in time, and was ended.
	TimedOut bool
	// Err is how it ended, as exec.Cmd.Run says it; nil for status 0.
	Err error
}

// Code returns the exit status, -1 if it did not exit by itself.
func (r *Ran) Code() int {
	if r.Err == nil {
		return 0
	}
	if e, ok := errors.AsType[*exec.ExitError](r.Err); ok {
		return e.ExitCode()
	}
	return -1
}

// RunByHand runs a binary as a person would who knows nothing of it: with nothing of
// this process's environment or input, in a group that is killed as a whole, within
// a time and an amount of output. path must be absolute.
func RunByHand(ctx context.Context, path string, timeout time.Duration, args ...string) Ran {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	stdout, stderr := &boundedBuffer{most: MaxDescription, full: cancel}, &boundedBuffer{most: 4 << 10}
	cmd := exec.CommandContext(limited, path, args...)
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // for what it started and left with its output
	err := cmd.Run()
	return Ran{
		Stdout: stdout.kept.Bytes(), Stderr: strings.TrimSpace(stderr.kept.String()), TooMuch: stdout.over, Err: err,
		TimedOut: !stdout.over && ctx.Err() == nil && errors.Is(limited.Err(), context.DeadlineExceeded),
	}
}

// Describe has a binary describe itself. The error, on one line, says what is wrong
// with it.
func Describe(ctx context.Context, path string) (*conduitv1.Description, error) {
	ran := RunByHand(ctx, path, DescribeTimeout, "describe")
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case ran.TooMuch:
		return nil, fmt.Errorf("`%s describe` prints more than %d bytes: it must print its description and nothing else", path, MaxDescription)
	case ran.TimedOut:
		return nil, fmt.Errorf("`%s describe` did not end within %v: it must describe itself before it starts anything", path, DescribeTimeout)
	case ran.Err != nil:
		return nil, fmt.Errorf("`%s describe` failed: %w%s", path, ran.Err, saying(ran.Stderr))
	}
	return ParseDescription(ran.Stdout)
}

// ParseDescription reads what `<binary> describe` prints.
func ParseDescription(text []byte) (*conduitv1.Description, error) {
	d := &conduitv1.Description{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, d); err != nil {
		// protojson varies the spaces of its errors from build to build.
		return nil, fmt.Errorf("what it prints is no description in JSON: %s", strings.Join(strings.Fields(err.Error()), " "))
	}
	if d.GetElement() == "" {
		return nil, errors.New("what it prints has no \"element\": every element has a name")
	}
	return d, nil
}

// saying adds the first line of stderr to an error.
func saying(stderr string) string {
	line, _, _ := strings.Cut(stderr, "\n")
	if line == "" {
		return ""
	}
	return ", saying: " + pluginlink.Text(line, 200)
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

// fileInfo refuses what is no program before anything is run.
func checkFile(path string) error {
	switch info, err := os.Stat(path); {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", path)
	case info.Mode().Perm()&0o111 == 0:
		return fmt.Errorf("%s is not executable (mode %04o): chmod +x it", path, info.Mode().Perm())
	}
	return nil
}
