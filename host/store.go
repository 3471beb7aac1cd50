package host

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/elemental-conduit/conduit/internal/safepath"
)

// store keeps copies of plugin binaries under the hash of their bytes. What runs
// is the copy: a file that is replaced or written over in place disturbs no
// process, is never "busy", and cannot change between check and exec.
//
// A copy is never trusted by its name: a full disk, a power cut or a hand may have
// changed it since. Whoever uses one opens it with open and runs what that has opened.
// All methods may be called concurrently.
type store struct {
	dir    string
	unsafe bool // a copy that others can change is allowed

	mu   sync.Mutex
	read map[string]stamp // the copies whose bytes were read and found right, by their sum
}

// stamp is a state of a file that no write leaves as it is: of the times, that of the
// last change is the kernel's alone.
type stamp struct {
	dev, ino uint64
	size     int64
	changed  time.Time
}

// halfCopy begins the names of copies that are being made.
const halfCopy = ".copy-"

// tick is more than the kernel's clock of files may lag: a change that follows another
// within it may have the same time.
const tick = 100 * time.Millisecond

func newStore(dir string, unsafe bool) *store {
	return &store{dir: dir, unsafe: unsafe, read: map[string]stamp{}}
}

// binary is a verified copy, and what its process is given.
type binary struct {
	source string // as deployed
	sum    string // hex SHA-256
	exec   string // the copy
	socket string // of the debug process that is taken for it; empty = it is one

	given
	key string // of sum and given; empty = sum, and nothing is given
	// What its element is told beside its own defaults, and the digest of that.
	attributes Attributes
	told       string
}

// id tells a binary from one of other bytes, and from one whose process is given something
// else: only another process is.
func (b *binary) id() string { return cmp.Or(b.key, b.sum) + b.told }

// install copies f's bytes. check sees the copy and the hash of its bytes before it
// gets its name.
func (s *store) install(f *os.File, check func(copied *os.File, sum string) error) (b binary, err error) {
	return s.take(f, f.Name(), check)
}

// take is install of bytes that come from anywhere; source is the file that they are
// going to be deployed as.
func (s *store) take(from io.Reader, source string, check func(copied *os.File, sum string) error) (b binary, err error) {
	tmp, err := os.OpenFile(filepath.Join(s.dir, halfCopy+rand.Text()), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return b, s.notCopied(err)
	}
	defer func() {
		err = errors.Join(err, ignoreClosed(tmp.Close()))
		_ = os.Remove(tmp.Name()) // gone already if all went well
	}()
	hash := sha256.New()
	if _, err := io.Copy(io.MultiWriter(tmp, hash), from); err != nil {
		return b, s.notCopied(err)
	}
	sum := hex.EncodeToString(hash.Sum(nil))
	if err := check(tmp, sum); err != nil {
		return b, err
	}
	b = binary{source: source, sum: sum, exec: filepath.Join(s.dir, sum)}
	if old, err := s.open(sum); err == nil {
		return b, old.Close() // the same bytes, and cheaper to read than to sync
	}
	// Written, synced and closed before it gets its name: no half file is ever
	// run, and no descriptor open for writing makes it busy.
	if err := errors.Join(tmp.Chmod(0o555), tmp.Sync(), tmp.Close()); err != nil {
		return b, s.notCopied(err)
	}
	if err := os.Rename(tmp.Name(), b.exec); err != nil {
		return b, s.notCopied(err)
	}
	return b, syncDir(s.dir)
}

// notCopied says that install failed, in the same words each time: the name of the half
// copy is new at each try, and nobody's business.
func (s *store) notCopied(err error) error {
	return fmt.Errorf("it could not be copied to %s: %w", s.dir, rootCause(err))
}

// damaged says why a copy is not, or no longer, what its name says.
type damaged struct{ why string }

func (d *damaged) Error() string { return "the stored copy " + d.why }

// open opens a copy whose bytes are those of its name, for whoever is going to run
// them. The error is of type *damaged if install would make it good.
func (s *store) open(sum string) (_ *os.File, err error) {
	// Neither a link nor a pipe may stand there, or hold this up.
	f, err := os.OpenFile(filepath.Join(s.dir, sum), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &damaged{"is gone"}
	case errors.Is(err, syscall.ELOOP):
		return nil, &damaged{"was replaced by a link"}
	case err != nil:
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o500 != 0o500 {
		return nil, &damaged{fmt.Sprintf("is no program any more (mode %s)", info.Mode())}
	}
	if err := safepath.CheckInfo(f.Name(), info); err != nil && !s.unsafe {
		return nil, &damaged{"is another's: " + err.Error()}
	}
	now, is := time.Now(), stampOf(info)
	if s.wasRead(sum, is) {
		return f, nil
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return nil, err
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != sum {
		return nil, &damaged{fmt.Sprintf("was changed: its bytes have the SHA-256 %s and should have %s", got, sum)}
	}
	if !is.changed.IsZero() && now.Sub(is.changed) > tick {
		s.mu.Lock()
		s.read[sum] = is
		s.mu.Unlock()
	}
	return f, nil
}

func (s *store) wasRead(sum string, is stamp) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, ok := s.read[sum]
	return ok && was.dev == is.dev && was.ino == is.ino && was.size == is.size && was.changed.Equal(is.changed)
}

// restore copies b anew from the file that it came from, if that still has the same
// bytes.
func (s *store) restore(b binary) error {
	f, _, err := openRegular(b.source)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // read only
	_, err = s.install(f, func(_ *os.File, sum string) error {
		if sum != b.sum {
			return fmt.Errorf("%s has other bytes by now, and is going to be looked at again", b.source)
		}
		return nil
	})
	return err
}

// sweep removes all but the copies in keep, and those that are being made.
func (s *store) sweep(keep map[string]bool) error {
	s.mu.Lock()
	maps.DeleteFunc(s.read, func(sum string, _ stamp) bool { return !keep[sum] })
	s.mu.Unlock()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !keep[e.Name()] && !strings.HasPrefix(e.Name(), halfCopy) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(s.dir, e.Name())))
		}
	}
	return err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func ignoreClosed(err error) error {
	if errors.Is(err, fs.ErrClosed) {
		return nil
	}
	return err
}
