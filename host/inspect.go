package host

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/safepath"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// Finding is one thing that a host looks at before it takes a file.
type Finding struct {
	// Name is what was looked at, in a word.
	Name string
	// Kind and Reason say why a host would refuse the file, and what to do; both are
	// empty if it would not.
	Kind, Reason string
	// Note is what there is to know beside.
	Note string
}

// Inspect looks at a file as a host does that finds it in its deployments directory,
// which is the one that it lies in. It starts nothing. What cannot be looked at because
// of what was found before is left out.
func Inspect(path string) []Finding {
	var found []Finding
	add := func(name string, err error, note string) bool {
		f := Finding{Name: name, Note: note}
		if c, ok := errors.AsType[*cause](err); ok {
			f.Kind, f.Reason = c.kind, c.reason
		} else if err != nil {
			f.Kind, f.Reason = refusedNotReadable, err.Error()
		}
		found = append(found, f)
		return err == nil
	}
	name := filepath.Base(path)
	nameErr := address.ValidDeploymentName(name)
	if nameErr != nil {
		nameErr = &cause{refusedName, nameErr.Error()}
	}
	if !Considers(name) {
		nameErr = &cause{refusedName, "a file whose name is that of a backup, a transfer or a note is ignored: rename " + path}
	}
	add("name", nameErr, "it is deployed as "+name)
	f, info, err := openRegular(path)
	if !add("file", err, "") {
		return found
	}
	defer f.Close() //nolint:errcheck // read only
	var unsafe error
	if err := safepath.Check(path); err != nil {
		unsafe = &cause{refusedUnsafe, err.Error()}
	}
	add("owners", unsafe, "nobody but this user and root can change it, nor the way to it")
	add("executable", checkExecutable(path, info), "")
	add("program", checkProgram(path, f), "")
	note, err := inspectSum(path, f)
	add("checksum", err, note)
	return found
}

func openRegular(path string) (*os.File, fs.FileInfo, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, &cause{refusedNotReadable, "there is no file " + path}
	case err != nil:
		return nil, nil, rootCause(err)
	case !info.Mode().IsRegular():
		return nil, nil, &cause{refusedNotPlugin, path + " is neither a regular file nor a link to one"}
	}
	f, is, err := openNow(path)
	if err != nil {
		return nil, nil, openError(path, info, err)
	}
	if !is.Mode().IsRegular() {
		_ = f.Close()
		return nil, nil, &cause{refusedNotPlugin, path + " is no regular file any more"}
	}
	return f, is, nil
}

// openNow opens a file to be read, and says what it has opened. Whatever has taken the
// name since it was looked at, a pipe say, holds up nothing as long as it is not read.
func openNow(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// inspectSum compares the file with the list beside it, if there is one.
func inspectSum(path string, f io.Reader) (note string, err error) {
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", err
	}
	list := readSums(filepath.Dir(path), false)
	expected, err := list.expects(VerifyChecksum, filepath.Base(path), path, false)
	switch {
	case err != nil:
		return "", err
	case expected == "":
		return "no " + sumsName + " beside it names it; host.verify=required would refuse it", nil
	}
	return "as " + sumsName + " says", checkSum(list.path, expected, hex.EncodeToString(hash.Sum(nil)), path)
}

// CheckDescription says why a host would not take what an element says of itself, or
// returns nil.
func CheckDescription(d *conduitv1.Description) error {
	if err := checkDescription(d); err != nil {
		c, _ := errors.AsType[*cause](err)
		return errors.New(c.reason)
	}
	return nil
}

// Considers reports whether a host looks at a file of this name in its deployments
// directory.
func Considers(name string) bool {
	return !strings.HasPrefix(name, ".") && name != sumsName && !isLeftover(name)
}
