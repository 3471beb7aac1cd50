package host

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// store keeps copies of plugin binaries under the hash of their bytes. What runs
// is the copy: a file that is replaced or written over in place disturbs no
// process, is never "busy", and cannot change between check and exec.
type store struct{ dir string }

// binary is a verified copy.
type binary struct {
	source string // as deployed
	sum    string // hex SHA-256
	exec   string // the copy
}

// install copies f's bytes. check sees the copy before it gets its name.
func (s store) install(f *os.File, check func(copied *os.File) error) (b binary, err error) {
	tmp, err := os.OpenFile(filepath.Join(s.dir, ".copy-"+rand.Text()), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return b, err
	}
	defer func() {
		err = errors.Join(err, ignoreClosed(tmp.Close()))
		_ = os.Remove(tmp.Name()) // gone already if all went well
	}()
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(tmp, sum), f); err != nil {
		return b, fmt.Errorf("copy to %s: %w", s.dir, err)
	}
	if err := check(tmp); err != nil {
		return b, err
	}
	b = binary{source: f.Name(), sum: hex.EncodeToString(sum.Sum(nil))}
	b.exec = filepath.Join(s.dir, b.sum)
	if _, err := os.Lstat(b.exec); err == nil {
		return b, nil
	}
	// Written, synced and closed before it gets its name: no half file is ever
	// run, and no descriptor open for writing makes it busy.
	if err := errors.Join(tmp.Chmod(0o555), tmp.Sync(), tmp.Close()); err != nil {
		return b, err
	}
	if err := os.Rename(tmp.Name(), b.exec); err != nil {
		return b, err
	}
	return b, syncDir(s.dir)
}

// sweep removes all but the copies in keep.
func (s store) sweep(keep map[string]bool) error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !keep[e.Name()] {
			err = errors.Join(err, os.Remove(filepath.Join(s.dir, e.Name())))
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
