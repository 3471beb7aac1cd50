package pluginlink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// debugProcess serves a fixture as [Debug] does, from this process, and returns its socket.
func debugProcess(ctx context.Context, t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dbg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("XDG_RUNTIME_DIR", dir)
	ctx, cancel := context.WithCancel(ctx)
	up, over := make(chan string, 1), make(chan error, 1)
	go func() {
		over <- Debug(ctx, "echo", func() Plugin { return &element{} }, func(socket string) { up <- socket })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	select {
	case socket := <-up:
		return socket
	case err := <-over:
		over <- nil
		t.Fatalf("it does not serve: %v", err)
		return ""
	}
}

// TestAttachRefused: who is no debug process of this user is not attached to, and it is
// said why.
func TestAttachRefused(t *testing.T) {
	ctx := testContext(t)
	socket := debugProcess(ctx, t)
	record := debugRecord(socket)
	good, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string, kind StartKind, says ...string) {
		t.Helper()
		p, err := Attach(ctx, AttachConfig{Name: "echo", Socket: socket})
		if err == nil {
			_ = p.Kill(0)
			t.Errorf("%s: attached", what)
			return
		}
		e, ok := errors.AsType[*StartError](err)
		if !ok || e.Kind != kind {
			t.Errorf("%s: %v", what, err)
		}
		for _, s := range says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %v; want %q", what, err, s)
			}
		}
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(record, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(strings.Replace(string(good), "1|1|", "1|7|", 1))
	refused("another protocol", KindVersion, "protocol version 7", fmt.Sprintf("this host %d to %d", minProtocolVersion, ProtocolVersion))
	write("nonsense")
	refused("nonsense", KindNotPlugin, record)
	write(strings.ReplaceAll(string(good), socket, filepath.Join(filepath.Dir(socket), "other.sock")))
	refused("another's record", KindNotPlugin)
	write(string(good))
	if err := os.Chmod(filepath.Dir(socket), 0o755); err != nil { //nolint:gosec // that is the fault
		t.Fatal(err)
	}
	refused("open to others", KindAddress, "0755", "chmod 700")
	if err := os.Chmod(filepath.Dir(socket), 0o700); err != nil { //nolint:gosec // a directory
		t.Fatal(err)
	}
	// The same, and nothing is wrong: what was refused was refused for what was said.
	p, err := Attach(ctx, AttachConfig{Name: "echo", Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Describe(ctx); err != nil {
		t.Error(err)
	}
	if p.Pid() != os.Getpid() && p.Pid() != 0 {
		t.Errorf("its pid is %d", p.Pid())
	}
	_ = p.Kill(0)
	_ = p.Kill(0)

	was := socket
	socket = record
	refused("no socket", KindAddress, "it is no socket")
	socket = was + ".none"
	refused("nothing", KindNotFound, "start `<binary> debug`")
	socket = filepath.Join(filepath.Dir(was), "dead.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	if err := os.WriteFile(debugRecord(socket), []byte(strings.ReplaceAll(string(good), was, socket)), 0o600); err != nil {
		t.Fatal(err)
	}
	refused("a killed one's socket", KindNotFound, "no debug process is there")
}

// TestAttachToken: a host that has read the record of a process before gets no link.
func TestAttachToken(t *testing.T) {
	ctx := testContext(t)
	socket := debugProcess(ctx, t)
	p, err := Attach(ctx, AttachConfig{Name: "echo", Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill(0) //nolint:errcheck // it returns none
	p.token = make([]byte, 32)
	if _, err := p.Configure(ctx, &conduitv1.ConfigureRequest{Deployment: "echo", Element: "echo"}); err != nil {
		t.Fatal(err)
	}
	conn, err := p.OpenLink(ctx, link.Options{})
	if err != nil {
		return
	}
	select { // their Hello may come before they have seen ours
	case <-conn.Done():
	case <-ctx.Done():
		t.Error("a link without the token")
	}
}
