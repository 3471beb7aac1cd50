package host

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// nobody is a user that owns nothing, which only root can become.
var nobody = anotherThan(os.Geteuid()) //nolint:gochecknoglobals // a constant of the run

func anotherThan(uid int) int {
	if uid == 65534 {
		return 65533
	}
	return 65534
}

// asNobody runs a script as another user; it reports whether this user may do that.
func asNobody(t *testing.T, script string) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return false
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-ec", script)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(nobody), Gid: uint32(nobody)}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("as another user: %v\n%s", err, out)
	}
	return true
}

func mustDo(tb testing.TB, errs ...error) {
	tb.Helper()
	if err := errors.Join(errs...); err != nil {
		tb.Fatal(err)
	}
}

// TestPrivateUnsafe: where others can change what the private directory is, nothing
// is made there and nothing runs from there.
func TestPrivateUnsafe(t *testing.T) {
	for _, c := range []struct {
		what   string
		open   func(above string) error
		unsafe bool
		says   string // "" = taken
	}{
		{"a directory of this user's", func(string) error { return nil }, false, ""},
		{"below one that anyone can write", func(d string) error { return os.Chmod(d, 0o777) }, false, "anyone can write it"},          //nolint:gosec // the case
		{"the same, allowed", func(d string) error { return os.Chmod(d, 0o777) }, true, ""},                                            //nolint:gosec // the case
		{"below a sticky one", func(d string) error { return os.Chmod(d, 0o777|fs.ModeSticky) }, false, ""},                            //nolint:gosec // the case
		{"below one of another user's", func(d string) error { return os.Chown(d, nobody, nobody) }, false, "belongs to another user"}, // root only
		{"below a sticky one of another user's", func(d string) error {
			return errors.Join(os.Chown(d, nobody, nobody), os.Chmod(d, 0o755|fs.ModeSticky))
		}, false, "belongs to another user"}, //nolint:gosec // the case; root only
	} {
		t.Run(c.what, func(t *testing.T) {
			above := filepath.Join(t.TempDir(), "above")
			mustDo(t, os.Mkdir(above, 0o700))
			if err := c.open(above); errors.Is(err, syscall.EPERM) && os.Geteuid() != 0 {
				t.Skip("only root can give a directory away; safepath's own tests say the rest")
			} else if err != nil {
				t.Fatal(err)
			}
			p, err := openPrivate(filepath.Join(above, "host"), "", c.unsafe)
			if err == nil {
				p.close()
			}
			switch {
			case c.says == "" && err != nil:
				t.Error(err)
			case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "mode or owner of "+above+",")):
				t.Errorf("got %v", err)
			}
			if left, _ := os.ReadDir(above); c.says != "" && len(left) > 0 {
				t.Errorf("though refused, there is %v", left)
			}
		})
	}
}

// TestPrivateOpenedLater: somebody opens the private directory while the host runs, and
// somebody else puts another one in its place. No process is started from it, and it
// serves again when it is mended.
func TestPrivateOpenedLater(t *testing.T) {
	above := t.TempDir()
	mustDo(t, os.Chmod(filepath.Dir(above), 0o755), os.Chmod(above, 0o755)) //nolint:gosec // for the other user
	r := newRigWith(t, func(o *Options) { o.Private = filepath.Join(above, "host") }, "echo")
	r.ready()
	s := r.elements()["echo"]
	mustDo(t, os.Chmod(above, 0o777)) //nolint:gosec // the case
	moved := asNobody(t, "cd "+above+" && mv host old && mkdir -p host/bin host/work host/data host/s && cp /bin/true host/bin/"+s.Sum+" && chmod -R 777 host")
	mustDo(t, syscall.Kill(s.Pid, syscall.SIGKILL))
	s = r.until("crash_looping", func(m map[string]ElementStatus) bool { return m["echo"].State == CrashLooping })["echo"]
	if s.Generation != 1 || s.Kind != refusedUnsafe || !strings.Contains(s.Reason, above) {
		t.Errorf("the snapshot says %+v", s)
	}
	if moved {
		mustDo(t, os.RemoveAll(filepath.Join(above, "host")), os.Rename(filepath.Join(above, "old"), filepath.Join(above, "host")))
		sockets, err := filepath.Glob(filepath.Join(r.h.priv.sockets, "plugin-dir*"))
		mustDo(t, err)
		for _, dir := range sockets { // of the first process, which ended while it was away
			mustDo(t, os.RemoveAll(dir))
		}
	}
	mustDo(t, os.Chmod(above, 0o755)) //nolint:gosec // mended
	r.until("a new process", func(m map[string]ElementStatus) bool { return m["echo"].State == Ready && m["echo"].Generation == 2 })
}

// TestCopyDamaged: the stored copy is replaced by another program while its element
// runs. What runs next has the bytes that were deployed.
func TestCopyDamaged(t *testing.T) {
	var log lockedBuffer
	r := newRigWith(t, func(o *Options) { o.Log = log.logger() }, "echo")
	r.ready()
	s := r.elements()["echo"]
	copied := filepath.Join(r.private, "bin", s.Sum)
	want, err := os.ReadFile(copied)
	mustDo(t, err)
	other, err := os.ReadFile("/bin/true")
	mustDo(t, err, os.Remove(copied), os.WriteFile(copied, other, 0o555)) //nolint:gosec // a program
	mustDo(t, syscall.Kill(s.Pid, syscall.SIGKILL))
	s = r.until("a new process", func(m map[string]ElementStatus) bool { return m["echo"].State == Ready && m["echo"].Generation == 2 })["echo"]
	if s.Restarts != 1 {
		t.Errorf("it took %d restarts", s.Restarts)
	}
	if got, err := r.call(echo, "Echo", "same"); err != nil || got != "same" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := os.ReadFile(copied); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the copy has %d bytes, %v; want %d", len(got), err, len(want))
	}
	if !strings.Contains(log.String(), "the stored copy of a binary is not what it was") {
		t.Errorf("the log says nothing of it:\n%s", log.String())
	}
}

// TestRestartSeesReplacedFile: a file that is replaced between two scans is what a
// restart runs; the old bytes never come back.
func TestRestartSeesReplacedFile(t *testing.T) {
	r := newRigWith(t, func(o *Options) { o.ScanInterval = time.Hour }, "echo")
	r.ready()
	old := r.elements()["echo"]
	r.deploy("echo", "more")
	mustDo(t, syscall.Kill(old.Pid, syscall.SIGKILL))
	s := r.until("a new process", func(m map[string]ElementStatus) bool { return m["echo"].State == Ready && m["echo"].Generation == 2 })["echo"]
	if s.Sum == old.Sum {
		t.Error("the old bytes were started again")
	}
}

// lockedBuffer is a log that tests look into.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lockedBuffer) logger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: l})
}
