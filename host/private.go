package host

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/elemental-conduit/conduit/internal/pluginlink"
	"github.com/elemental-conduit/conduit/internal/safepath"
)

// private is a host's own directory, locked against a second host.
type private struct {
	dir     string
	sockets string
	chosen  bool // sockets is this package's choice
	unsafe  bool // allowed
	lock    *os.File
}

// openPrivate makes and locks the directory, and removes what a host that died
// hard has left in it: sockets and half copies. Plugins die with their host; what
// they had started themselves, [pluginlink.Sweep] finds.
//
// Unless unsafe is allowed, nobody else than root and this user may be able to change
// what is in it, or what its path leads to.
func openPrivate(dir, sockets string, unsafe bool) (_ *private, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	p := &private{dir: dir, chosen: sockets == "", unsafe: unsafe}
	for _, sub := range []string{"", "bin", "work", "data", logsDir} {
		path := filepath.Join(dir, sub)
		if err := p.check(path); err != nil { // before anything is made where others can
			return nil, err
		}
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, fmt.Errorf("private directory: %w; choose another data directory, or give this user the right to write it", err)
		}
		if err := p.check(path); err != nil {
			return nil, err
		}
	}
	if err := p.takeLock(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.sockets, err = p.socketDir(sockets); err != nil {
		return nil, err
	}
	return p, p.sweep()
}

// check says who else could change what path leads to.
func (p *private) check(path string) error {
	if p.unsafe {
		return nil
	}
	if err := safepath.Check(path); err != nil {
		return fmt.Errorf("private directory %s is refused: %w", path, err)
	}
	return nil
}

// trusted looks again at what a process is going to be started from and with: since
// the host's start, somebody may have opened a directory.
func (p *private) trusted() error {
	for _, dir := range []string{filepath.Join(p.dir, "bin"), filepath.Join(p.dir, "work"), filepath.Join(p.dir, "data"), p.sockets} {
		if err := p.check(dir); err != nil {
			return &cause{refusedUnsafe, err.Error()}
		}
	}
	return nil
}

func (p *private) takeLock() error {
	name := filepath.Join(p.dir, "host.lock")
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("lock of the private directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder := make([]byte, 32)
		n, _ := f.ReadAt(holder, 0)
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return fmt.Errorf("private directory %s is in use by another conduit-host (pid %s): stop that one, or give this one a name or data directory of its own", p.dir, strings.TrimSpace(string(holder[:n])))
		}
		return fmt.Errorf("lock %s: %w", name, err)
	}
	_ = f.Truncate(0)
	_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	p.lock = f
	return nil
}

// owner is a name that no other host's private directory has, on this machine: of the
// directory itself, so that a copy of it has another. It marks the processes that were
// started from here.
func (p *private) owner() (string, error) {
	name := filepath.Join(p.dir, "owner")
	random, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(random) < 16 { // or cut short by a full disk
		random = []byte(rand.Text())
		err = os.WriteFile(name, random, 0o600)
	}
	if err != nil {
		return "", err
	}
	info, err := p.lock.Stat()
	if err != nil {
		return "", err
	}
	sig := signatureOf(info)
	h := sha256.Sum256(fmt.Appendf(nil, "%s %d %d", random, sig.dev, sig.ino))
	return hex.EncodeToString(h[:16]), nil
}

// close gives the lock back. The file stays: to remove it would let two hosts
// lock two files of one name.
func (p *private) close() {
	if p.chosen {
		_ = os.Remove(p.sockets) // if it is empty, as it should be
	}
	if p.lock != nil {
		_ = p.lock.Close()
	}
}

func (p *private) sweep() error {
	entries, err := os.ReadDir(p.sockets)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "plugin-dir") {
			err = errors.Join(err, os.RemoveAll(filepath.Join(p.sockets, e.Name())))
		}
	}
	p.sweepTemp()
	halves, _ := filepath.Glob(filepath.Join(p.dir, "bin", ".copy-*"))
	for _, h := range halves {
		err = errors.Join(err, os.Remove(h))
	}
	return err
}

// socketDir makes the directory for sockets: the one asked for, or the first
// whose path is short enough. It must be this user's and closed to others, since
// any process that can connect to a plugin's socket can stop the plugin.
func (p *private) socketDir(asked string) (string, error) {
	h := sha256.Sum256([]byte(p.dir))
	id := hex.EncodeToString(h[:4])
	candidates := []string{asked}
	if asked == "" {
		candidates = []string{filepath.Join(p.dir, "s")}
		if x := os.Getenv("XDG_RUNTIME_DIR"); x != "" {
			candidates = append(candidates, filepath.Join(x, "ch-"+id))
		}
		candidates = append(candidates, fmt.Sprintf("/tmp/ch-%d-%s", os.Geteuid(), id))
	}
	var why error
	for _, dir := range candidates {
		dir, err := filepath.Abs(dir)
		if err == nil {
			err = pluginlink.CheckSocketDir(dir)
		}
		if err == nil {
			err = p.check(dir)
		}
		if err == nil {
			err = makeOwn(dir)
		}
		if err == nil {
			err = p.check(dir)
		}
		if err == nil {
			return dir, nil
		}
		why = errors.Join(why, err)
	}
	return "", why
}

func makeOwn(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || ok && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("socket directory %s is not a directory of this user's own: remove it, or choose another", dir)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return os.Chmod(dir, 0o700)
	}
	return nil
}
