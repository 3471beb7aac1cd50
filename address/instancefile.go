package address

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxInstanceFile is how much of an instance id file is read, in bytes.
const maxInstanceFile = 4096

// LoadOrCreateInstanceID returns the id on the first line of a file, and
// creates the file with a new random id if it does not exist. Of several
// processes that create it at once, all get the id of the one that was
// first.
//
// Unlike the original, which makes a new id then, it refuses a file that
// exists but holds no id: the id is inside every ResourceID, so a new one
// would orphan all that is stored.
//
// The error is an [*Error] of [KindInstanceFile]; its cause is an *Error of
// [KindInstanceID] for a damaged file, else that of the file system.
func LoadOrCreateInstanceID(file string) (InstanceID, error) {
	id, err := loadInstanceID(file)
	if !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}
	id = RandomInstanceID()
	err = writeInstanceID(file, id, publishNew)
	if errors.Is(err, fs.ErrExist) {
		return loadInstanceID(file) // another process was first
	}
	if err != nil {
		return InstanceID{}, err
	}
	return id, nil
}

// StoreInstanceID writes an id to the file in place of whatever is there;
// use it to reset or restore an identity, with the instance stopped. Either
// the old or the new content survives a crash. The error is an [*Error] of
// [KindInstanceFile].
func StoreInstanceID(file string, id InstanceID) error {
	return writeInstanceID(file, id, os.Rename)
}

func loadInstanceID(file string) (InstanceID, error) {
	f, err := os.Open(file)
	if err != nil {
		return InstanceID{}, fileError(file, "cannot be opened", err)
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxInstanceFile))
	if err != nil {
		return InstanceID{}, fileError(file, "cannot be read", err)
	}
	line, _, _ := strings.Cut(string(content), "\n")
	id, err := ParseInstanceID(trim(line))
	if err == nil && id.IsZero() {
		err = refuse(KindInstanceID, line, "its uuid is all zeros")
	}
	if err != nil {
		return InstanceID{}, fileError(file, "is damaged; the id is inside every ResourceID, so no new one is made up: "+
			"restore the file from a backup, or run `conduit-host id reset` to take a new id and leave what was stored under the old one", err)
	}
	return id, nil
}

// writeInstanceID makes a durable temporary file beside the target and lets
// publish give it the target's name.
func writeInstanceID(file string, id InstanceID, publish func(from, to string) error) (err error) {
	if file == "" {
		return fileError(file, "has no name", fs.ErrInvalid)
	}
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fileError(file, "cannot have its folder made", err)
	}
	temp, err := os.CreateTemp(dir, "instance-id*.txt") // mode 0600
	if err != nil {
		return fileError(file, "cannot be created", err)
	}
	defer os.Remove(temp.Name()) // in vain after a rename
	_, err = temp.WriteString(id.String() + "\n")
	if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err != nil {
		return fileError(file, "cannot be written", err)
	}
	if err := publish(temp.Name(), file); err != nil {
		return fileError(file, "cannot be put in place", err)
	}
	syncDir(dir)
	return nil
}

// publishNew gives a file its name unless the name is taken, which is an
// error that is [fs.ErrExist]: a hard link does both in one step. Where the
// file system has no hard links it falls back to a rename, which of two
// writers in the same instant lets the later win.
func publishNew(from, to string) error {
	err := os.Link(from, to)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	if _, statErr := os.Lstat(to); statErr == nil {
		return &fs.PathError{Op: "create", Path: to, Err: fs.ErrExist}
	}
	return os.Rename(from, to)
}

// syncDir makes a new name durable where the system can; some cannot sync a
// folder, and then there is nothing better to do.
func syncDir(dir string) {
	if d, err := os.Open(dir); err == nil {
		_ = d.Sync()
		_ = d.Close()
	}
}

func fileError(file, what string, err error) *Error {
	return &Error{Kind: KindInstanceFile, Input: file, Why: fmt.Sprintf("it %s (%v)", what, err), Err: err}
}
