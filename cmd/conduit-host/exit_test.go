package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/config"
)

func TestExitStatus(t *testing.T) {
	by := func(code conduit.Code, outcome conduit.Outcome) error {
		return conduit.Errorf(code, "reason", outcome, "text")
	}
	for _, tc := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("something"), 1},
		{usagef("x"), 2},
		{configf("x"), 2},
		{&config.Error{}, 2},
		{by(conduit.InvalidArgument, conduit.Refused), 2},
		{by(conduit.InvalidArgument, conduit.Executed), 1}, // the element's own answer
		{by(conduit.NotFound, conduit.Refused), 3},
		{by(conduit.NotFound, conduit.Executed), 1},
		{by(conduit.Unavailable, conduit.OutcomeUnknown), 3},
		{by(conduit.ResourceExhausted, conduit.Refused), 3},
		{by(conduit.Unauthenticated, conduit.NotSent), 4},
		{by(conduit.PermissionDenied, conduit.Refused), 4},
		{by(conduit.DeadlineExceeded, conduit.NotSent), 5},
		{by(conduit.DeadlineExceeded, conduit.OutcomeUnknown), 5},
		{by(conduit.DeadlineExceeded, conduit.Executed), 1}, // a deadline of the element's own
		{&deadlineError{by(conduit.DeadlineExceeded, conduit.Executed)}, 5},
		{by(conduit.Internal, conduit.Refused), 1},
		{by(conduit.Canceled, conduit.OutcomeUnknown), 1},
		{&interruptedError{by(conduit.Canceled, conduit.OutcomeUnknown)}, 130},
		{fmt.Errorf("wrapped: %w", by(conduit.NotFound, conduit.Refused)), 3},
	} {
		if got := exitStatus(tc.err); got != tc.want {
			t.Errorf("%v: exit %d, want %d", tc.err, got, tc.want)
		}
	}
}

// Every code has a status, whatever the outcome; none is that of success.
func TestExitStatusOfEveryCode(t *testing.T) {
	for code := conduit.Canceled; code <= conduit.Unauthenticated; code++ {
		for outcome := conduit.OutcomeUnknown; outcome <= conduit.Executed; outcome++ {
			got := exitStatus(conduit.Errorf(code, "", outcome, "x"))
			if got < 1 || got > 5 {
				t.Errorf("%s/%s: exit %d", code, outcome, got)
			}
		}
	}
}

func TestWriteError(t *testing.T) {
	err := &conduit.Error{
		Code: conduit.NotFound, Reason: conduit.ReasonMethodNotFound, Outcome: conduit.Refused,
		Message: "no \x1b[31mmethod\nerror: forged \u202e", Peer: "0100aa", Address: "*://a/b/c", Method: "M",
	}
	var b bytes.Buffer
	writeError(&b, formatTable, err)
	want := "error: no \\x1b[31mmethod\\nerror: forged \\x202e (reason=method_not_found outcome=refused peer=0100aa)\n"
	if b.String() != want {
		t.Errorf("text:\n got %q\nwant %q", b.String(), want)
	}

	b.Reset()
	writeError(&b, formatJSON, err)
	var got map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"message": err.Message, "code": "not_found", "reason": "method_not_found", "outcome": "refused",
		"peer": "0100aa", "address": "*://a/b/c", "method": "M", "exit": 3.0,
	} {
		if got[key] != want {
			t.Errorf("JSON: %s is %v, want %v", key, got[key], want)
		}
	}
	if n := bytes.Count(b.Bytes(), []byte("\n")); n != 1 {
		t.Errorf("JSON: %d lines", n)
	}

	b.Reset()
	writeError(&b, formatTable, errors.New("a plain error"))
	if want := "error: a plain error (reason=unspecified outcome=not_sent)\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

// TestClosedPipe: a reader of our output who has left has seen enough. The other end of a
// link that has died has not, though the system has one word for both.
func TestClosedPipe(t *testing.T) {
	if !isClosedPipe(fmt.Errorf("printing: %w", &fs.PathError{Op: "write", Path: os.Stdout.Name(), Err: syscall.EPIPE})) {
		t.Error("a closed standard output is not one")
	}
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the test's own
	ours, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close() //nolint:errcheck // as above
	theirs, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close()
	_, err = ours.Write([]byte("x"))
	if !errors.Is(err, syscall.EPIPE) {
		t.Fatalf("the write ended with %v", err)
	}
	lost := &conduit.Error{Code: conduit.Unavailable, Reason: conduit.ReasonPeerLost, Outcome: conduit.OutcomeUnknown, Err: err}
	for _, e := range []error{err, lost, &fs.PathError{Op: "write", Path: "/elsewhere", Err: syscall.EPIPE}} {
		if isClosedPipe(e) {
			t.Errorf("%v is taken for a closed standard output", e)
		}
	}
	if got := exitStatus(lost); got != exitUnavailable {
		t.Errorf("status %d", got)
	}
}
