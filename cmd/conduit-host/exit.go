package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"unicode"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/config"
)

// The exit statuses. They are part of the contract with scripts.
const (
	exitDone        = 0
	exitElement     = 1 // the element answered with an error, or something broke
	exitUsage       = 2 // usage or configuration
	exitUnavailable = 3 // not found, unavailable, no capacity, draining
	exitDenied      = 4 // not authenticated or not permitted
	exitDeadline    = 5
	exitInterrupted = 130
)

// Reasons of errors that are made here and never travel.
const (
	reasonUsage       = "usage"       // a command, flag or argument
	reasonConfig      = "bad_config"  // the configuration, or what it asks of the machine
	reasonInterrupted = "interrupted" // a signal
	reasonOutput      = "output"      // standard output cannot be written
	reasonUnwell      = "unwell"      // the doctor found problems
)

// usagef makes the error of a command line that cannot be meant.
func usagef(format string, args ...any) error {
	return conduit.Errorf(conduit.InvalidArgument, reasonUsage, conduit.NotSent, format, args...)
}

// configf makes the error of a configuration that this machine cannot give.
func configf(format string, args ...any) error {
	return conduit.Errorf(conduit.InvalidArgument, reasonConfig, conduit.NotSent, format, args...)
}

// outputError makes the error of a result that could not be written; outcome is
// that of what was asked for, and note says more of it. Whether a reader has just
// seen enough shows in its cause.
func outputError(err error, outcome conduit.Outcome, note string) error {
	cause := err
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		cause = path.Err
	}
	return &conduit.Error{
		Code: conduit.Internal, Reason: reasonOutput, Outcome: outcome, Err: err,
		Message: fmt.Sprintf("the result cannot be written to standard output: %v%s", cause, note),
	}
}

// interruptedError says that a signal ended the command, whatever else went wrong
// because of it.
type interruptedError struct{ err error }

func (e *interruptedError) Error() string { return e.err.Error() }
func (e *interruptedError) Unwrap() error { return e.err }

// deadlineError says that the command's own deadline passed, whoever noticed it
// first: the other end may be quicker, and answer for the element that it ran.
type deadlineError struct{ err error }

func (e *deadlineError) Error() string { return e.err.Error() }
func (e *deadlineError) Unwrap() error { return e.err }

// quietError ends a command that can end in no other way, and is not printed.
type quietError struct{ err error }

func (e *quietError) Error() string { return e.err.Error() }
func (e *quietError) Unwrap() error { return e.err }

// exitStatus says how a command that ended with err exits.
func exitStatus(err error) int {
	if err == nil {
		return exitDone
	}
	if _, ok := errors.AsType[*interruptedError](err); ok {
		return exitInterrupted
	}
	if _, ok := errors.AsType[*deadlineError](err); ok {
		return exitDeadline
	}
	if _, ok := errors.AsType[*config.Error](err); ok {
		return exitUsage
	}
	e, ok := errors.AsType[*conduit.Error](err)
	if !ok {
		return exitElement
	}
	if e.Outcome == conduit.Executed {
		return exitElement
	}
	switch e.Code {
	case conduit.InvalidArgument:
		return exitUsage
	case conduit.NotFound, conduit.Unavailable, conduit.ResourceExhausted:
		return exitUnavailable
	case conduit.Unauthenticated, conduit.PermissionDenied:
		return exitDenied
	case conduit.DeadlineExceeded:
		return exitDeadline
	default:
		return exitElement
	}
}

// isClosedPipe reports whether err is that of a reader of this program's output who has
// seen enough. A link whose other end has died says EPIPE, too.
func isClosedPipe(err error) bool {
	e, ok := errors.AsType[*fs.PathError](err)
	return ok && errors.Is(e.Err, syscall.EPIPE) && (e.Path == os.Stdout.Name() || e.Path == os.Stderr.Name())
}

// errorReport is the JSON form of an error on stderr.
type errorReport struct {
	Message    string            `json:"message"`
	Code       conduit.Code      `json:"code"`
	Reason     string            `json:"reason"`
	Outcome    conduit.Outcome   `json:"outcome"`
	Retryable  bool              `json:"retryable,omitempty"`
	RetryAfter string            `json:"retry_after,omitempty"`
	Peer       string            `json:"peer,omitempty"`
	Address    string            `json:"address,omitempty"`
	Method     string            `json:"method,omitempty"`
	Details    map[string]string `json:"details,omitempty"`
	Problems   []string          `json:"problems,omitempty"`
	Exit       int               `json:"exit,omitempty"` // of the command
}

// writeError says on w why the command failed: a line of text for each problem,
// or one JSON object.
func writeError(w io.Writer, format string, err error) {
	var problems []string
	if c, ok := errors.AsType[*config.Error](err); ok {
		for _, p := range c.Problems {
			problems = append(problems, p.String())
		}
		err = configf("%s", strings.Join(problems, "; "))
	}
	if format == "json" {
		r := newErrorReport(err)
		r.Problems, r.Exit = problems, exitStatus(err)
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(r) // if stderr is gone there is nobody left to tell
		return
	}
	if len(problems) == 0 {
		fmt.Fprintf(w, "error: %s\n", printable(errorText(err)))
	}
	for _, p := range problems {
		fmt.Fprintf(w, "error: %s %s\n", printable(p), printable(errorTail(err)))
	}
}

func newErrorReport(err error) errorReport {
	e := conduit.AsError(err, conduit.NotSent)
	r := errorReport{
		Message: errorMessage(e), Code: e.Code, Reason: e.Reason, Outcome: e.Outcome, Retryable: e.Retryable,
		Peer: e.Peer, Address: e.Address, Method: e.Method, Details: e.Details,
	}
	if e.RetryAfter > 0 {
		r.RetryAfter = e.RetryAfter.String()
	}
	return r
}

func errorMessage(e *conduit.Error) string {
	switch {
	case e.Message != "":
		return e.Message
	case e.Err != nil:
		return e.Err.Error()
	default:
		return e.Code.String()
	}
}

// errorText is an error as a line for people.
func errorText(err error) string {
	return errorMessage(conduit.AsError(err, conduit.NotSent)) + " " + errorTail(err)
}

func errorTail(err error) string {
	e := conduit.AsError(err, conduit.NotSent)
	tail := fmt.Sprintf("(reason=%s outcome=%s", e.Reason, e.Outcome)
	if e.Peer != "" {
		tail += " peer=" + e.Peer
	}
	return tail + ")"
}

// printable keeps text on one line and its escape sequences from the terminal:
// an element's error message is whatever its author, or his user, wrote.
func printable(s string) string {
	// A byte that is not UTF-8 is a control character to some terminals.
	s = strings.ToValidUTF8(s, "\uFFFD")
	if !strings.ContainsFunc(s, isControl) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteByte(' ')
		case isControl(r):
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// isControl also counts the characters that turn the direction of a line, or end it.
func isControl(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}
