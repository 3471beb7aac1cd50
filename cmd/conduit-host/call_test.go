package main

import (
	"context"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/transport"
)

const deadline = 20 * time.Second

// peer is a cluster endpoint that does what a test says.
type peer struct {
	id       address.InstanceID
	url      string
	sessions chan string
	started  chan struct{} // a call of Wait is being served
	ended    chan error    // and this is how it ended
}

func (p *peer) Handle(in *link.Incoming) {
	method := string(in.Invoke.Method)
	in.Serve(func(ctx context.Context, s *link.ServerCall) error {
		switch method {
		case "WhoAreYou": // it says nothing of what it hosts, so it is asked for anything
			contentType, data, err := conduit.Encode(&conduitv1.InstanceInfo{Instance: p.id.String()})
			s.Return(conduit.Message{ContentType: contentType, Data: data})
			return err
		case "Wait":
			p.started <- struct{}{}
			<-ctx.Done()
			p.ended <- context.Cause(ctx)
			return conduit.FromContext(ctx, conduit.Executed)
		case "Once":
			return s.Send(ctx, conduit.Message{ContentType: conduit.ContentJSON, Data: []byte(`"once"`)})
		case "Endless":
			for {
				if err := s.Send(ctx, conduit.Message{ContentType: conduit.ContentJSON, Data: []byte(`"again"`)}); err != nil {
					p.ended <- err
					return err
				}
			}
		default:
			return conduit.Errorf(conduit.NotFound, conduit.ReasonMethodNotFound, conduit.Refused, "no such method")
		}
	})
}

func startPeer(t *testing.T) *peer {
	t.Helper()
	p := &peer{id: address.RandomInstanceID(), sessions: make(chan string, 8), started: make(chan struct{}, 8), ended: make(chan error, 8)}
	s := transport.NewServer(transport.ServerOptions{
		Handler: p,
		Link:    link.Options{Hello: link.Hello{Instance: p.id.String()}},
		Authenticate: func(r *http.Request) (link.Peer, error) {
			p.sessions <- r.Header.Get("Authorization")
			return link.Peer{Name: "client", Level: conduit.Superuser}, nil
		},
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := s.HTTPServer(s)
	go func() { _ = h.Serve(l) }()
	t.Cleanup(func() {
		_ = h.Close()
		_ = s.Close()
	})
	p.url = "ws://" + l.Addr().String()
	return p
}

// program is the program as a process of its own.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), beHost+"=1", "XDG_RUNTIME_DIR=")
	cmd.Dir = t.TempDir()
	return cmd
}

func wait[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(deadline):
		t.Fatalf("%s has not come", what)
		panic("unreachable")
	}
}

const echoAddress = "*://echo/echo/conduit.example.Echo"

// Ctrl-C cancels the call at the other end, and says so by the exit status.
func TestCallInterrupted(t *testing.T) {
	p := startPeer(t)
	cmd := program(t, "call", echoAddress, "Wait", "--peer", p.url)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	wait(t, p.started, "the call")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	wait(t, p.ended, "the end of the call")
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != exitInterrupted {
		t.Errorf("exit %d, want %d; stderr: %s", got, exitInterrupted, &stderr)
	}
	if !strings.HasPrefix(stderr.String(), "error: the call was cancelled (reason=canceled outcome=") {
		t.Errorf("stderr: %s", &stderr)
	}
}

// A reader that has seen enough ends the call, quietly.
func TestCallClosedPipe(t *testing.T) {
	p := startPeer(t)
	cmd := program(t, "call", echoAddress, "Endless", "--peer", p.url)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, len("\"again\"\n"))
	if _, err := io.ReadFull(stdout, first); err != nil || string(first) != "\"again\"\n" {
		t.Errorf("first line %q, %v", first, err)
	}
	_ = stdout.Close()
	wait(t, p.ended, "the end of the call")
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != exitDone || stderr.String() != "" {
		t.Errorf("exit %d, stderr: %s", got, &stderr)
	}
}

// inProcess runs a command line in this process.
func inProcess(t *testing.T, environ []string, stdin string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	a := &app{stdin: strings.NewReader(stdin), stdout: &out, stderr: &errs, environ: environ, dial: dialPeers}
	return a.run(args), out.String(), errs.String()
}

// full is a standard output on a disk that is full.
type full struct{}

func (full) Write([]byte) (int, error) {
	return 0, &fs.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}
}

// What cannot be printed was done nevertheless, and the error says so.
func TestUnwritableOutput(t *testing.T) {
	p := startPeer(t)
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"call", echoAddress, "Once", "--peer", p.url}, "the call was made: to repeat it does its work again (reason=output outcome=executed)"},
		{[]string{"call", echoAddress, "Endless", "--peer", p.url}, "the call was under way and is cancelled: what it has done stays done (reason=output outcome=unknown)"},
		{[]string{"id", "new"}, "(reason=output outcome=executed)"},
		{[]string{"id", "new", "-o", "json"}, `"reason":"output","outcome":"executed","exit":1}`},
	} {
		var stderr strings.Builder
		a := &app{stdin: strings.NewReader(""), stdout: full{}, stderr: &stderr, dial: dialPeers}
		status := a.run(tc.args)
		if status != exitElement || !strings.Contains(stderr.String(), "the result cannot be written to standard output: no space left on device") || !strings.Contains(stderr.String(), tc.want) {
			t.Errorf("%s: exit %d, %s", tc.args, status, &stderr)
		}
	}
	wait(t, p.ended, "the end of the endless call")
}

func TestCallTimeout(t *testing.T) {
	p := startPeer(t)
	status, _, stderr := inProcess(t, nil, "", "call", echoAddress, "Wait", "--peer", p.url, "--timeout", "50ms")
	if status != exitDeadline || !strings.Contains(stderr, "(reason=deadline_exceeded outcome=") {
		t.Errorf("exit %d: %s", status, stderr)
	}
	select {
	case <-p.started:
		wait(t, p.ended, "the end of the call")
	default: // a busy machine took all that time to dial
	}
}

func TestCallNotFound(t *testing.T) {
	p := startPeer(t)
	status, stdout, stderr := inProcess(t, nil, "", "call", echoAddress, "Nope", "--peer", p.url, "-o", "json")
	if status != exitUnavailable || stdout != "" || !strings.Contains(stderr, `"reason":"method_not_found"`) {
		t.Errorf("exit %d: %s", status, stderr)
	}
}

// The secret reaches the peer from each place, and nobody else.
func TestCallSession(t *testing.T) {
	p := startPeer(t)
	file := t.TempDir() + "/secret"
	if err := os.WriteFile(file, []byte("CANARY\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		environ []string
		stdin   string
		args    []string
	}{
		"flag":        {args: []string{"--session", "CANARY"}},
		"file":        {args: []string{"--session", "@" + file}},
		"stdin":       {args: []string{"--session", "-"}, stdin: "CANARY\n"},
		"environment": {environ: []string{"CONDUIT_CFG_SESSION=CANARY"}},
		"flag wins":   {environ: []string{"CONDUIT_CFG_SESSION=other"}, args: []string{"--session", "CANARY"}},
	} {
		args := append([]string{"call", echoAddress, "Nope", "--peer", p.url}, tc.args...)
		_, stdout, stderr := inProcess(t, tc.environ, tc.stdin, args...)
		if got := wait(t, p.sessions, "the link"); got != "Bearer CANARY" {
			t.Errorf("%s: the peer got %q", name, got)
		}
		if strings.Contains(stdout+stderr, "CANARY") {
			t.Errorf("%s: the secret is printed: %s%s", name, stdout, stderr)
		}
	}
}

// endless is an input without an end, which counts what is read of it.
type endless struct{ read int64 }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '1'
	}
	e.read += int64(len(p))
	return len(p), nil
}

// Of an argument no more is read than a message may have, and the error says the sizes.
func TestArgumentIsBounded(t *testing.T) {
	big := t.TempDir() + "/big"
	if err := os.WriteFile(big, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(big, 10<<20+1); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ arg, flag, want string }{
		{"-", "", "standard input has more than 10485760 bytes, and a message has at most 10485760 here"},
		{"-", "64KiB", "standard input has more than 65536 bytes, and a message has at most 65536 here"},
		{"@/dev/zero", "64KiB", "/dev/zero has more than 65536 bytes"},
		{"@" + big, "", big + " has 10485761 bytes, and a message has at most 10485760 here; if the peer takes larger ones, raise cluster.max_payload here, too (--cluster-max-payload, at most 1GiB)"},
		{"-", "2GiB", "--cluster-max-payload: cluster.max_payload: "},
	} {
		in := &endless{}
		var stderr strings.Builder
		a := &app{stdin: in, stdout: io.Discard, stderr: &stderr, dial: dialPeers}
		args := []string{"call", echoAddress, "Echo", tc.arg, "--peer", "ws://127.0.0.1:1"}
		want := exitUnavailable
		if tc.flag != "" {
			args = append(args, "--cluster-max-payload", tc.flag)
		}
		if tc.flag == "2GiB" {
			want = exitUsage
		}
		status := a.run(args)
		if status != want || !strings.Contains(stderr.String(), tc.want) {
			t.Errorf("%s %s: exit %d, %s", tc.arg, tc.flag, status, &stderr)
		}
		if want == exitUnavailable && !strings.Contains(stderr.String(), "(reason=payload_too_large outcome=not_sent)") {
			t.Errorf("%s %s: %s", tc.arg, tc.flag, &stderr)
		}
		if in.read > 10<<20+1 {
			t.Errorf("%s %s: %d bytes were read", tc.arg, tc.flag, in.read)
		}
	}
}

// What the peer takes may be less, and is told with both sizes; nothing is sent.
func TestArgumentAboveThePeersLimit(t *testing.T) {
	p := startPeer(t)
	status, _, stderr := inProcess(t, nil, strings.Repeat("1", 10<<20+1), "call", echoAddress, "Once", "-", "--content-type", "text/plain",
		"--peer", p.url, "--cluster-max-payload", "11MiB", "-o", "json")
	if status != exitUnavailable || !strings.Contains(stderr, `"reason":"payload_too_large","outcome":"not_sent"`) ||
		!strings.Contains(stderr, `"details":{"limit":"10485760","size":"10485761"}`) {
		t.Errorf("exit %d, %s", status, stderr)
	}
}

// A content type that no link takes is refused before anyone is dialled, and the
// limit is the one that was passed.
func TestContentTypes(t *testing.T) {
	p := startPeer(t)
	longest := "text/" + strings.Repeat("x", maxContentType-len("text/"))
	for contentType, want := range map[string]string{
		"application/json":                  "",
		"text/plain; charset=utf-8":         "",
		longest:                             "",
		longest + "x":                       "has 1025 bytes; a content type has at most 1024",
		"text/" + strings.Repeat("x", 2995): "has 3000 bytes; a content type has at most 1024",
		"":                                  `"" is not a content type`,
		"json":                              `"json" is not a content type, for it has no /; write one such as application/octet-stream`,
		"text/pl ain":                       "is not a content type",
		"text/plain\x1b[2J":                 "is not a content type",
		"text/\xff":                         "is not a content type",
	} {
		status, _, stderr := inProcess(t, nil, "", "call", echoAddress, "Once", "1", "--peer", p.url, "--content-type", contentType)
		switch {
		case want == "" && status != exitDone:
			t.Errorf("%.20q: exit %d, %s", contentType, status, stderr)
		case want != "" && (status != exitUsage || !strings.Contains(stderr, want) || len(stderr) > 300):
			t.Errorf("%.20q: exit %d, %s", contentType, status, stderr)
		}
	}
}
