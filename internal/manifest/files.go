package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/elemental-conduit/conduit/internal/safepath"
	"github.com/elemental-conduit/conduit/internal/values"
)

// Load reads the deployment.yaml of a directory, which must have one. Unless unsafe is
// allowed, nobody else than root and this user may be able to change it. The error is an
// [*Error], but for one of the system's own, such as fs.ErrNotExist.
func Load(dir string, unsafe bool) (*Manifest, error) {
	file := filepath.Join(dir, Name)
	text, _, err := read(file, unsafe)
	if err != nil {
		return nil, fault(file, err)
	}
	m, err := Parse(file, text)
	if m != nil {
		sum := sha256.Sum256(text)
		m.sum = hex.EncodeToString(sum[:])
	}
	return m, err
}

// Sum returns the SHA-256 of the file that Load has read, in hex.
func (m *Manifest) Sum() string { return m.sum }

// fault makes an error of what is wrong with a file as a whole.
func fault(file string, err error) error {
	if why, ok := errors.AsType[*unusable](err); ok {
		return &Error{[]Problem{{Path: file, Message: why.Error()}}}
	}
	return err
}

// unusable is what is wrong with a file for good, until somebody changes it.
type unusable struct{ why string }

func (u *unusable) Error() string { return u.why }

// read reads a file that decides what is run.
func read(file string, unsafe bool) ([]byte, fs.FileInfo, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe holds up nothing
	if errors.Is(err, fs.ErrPermission) {
		return nil, nil, &unusable{"it cannot be read by " + safepath.UserName(uint32(os.Geteuid())) + ", as whom the host runs: give that user the right"}
	}
	if err != nil {
		return nil, nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, nil, err
	case !info.Mode().IsRegular():
		return nil, nil, &unusable{"it is no file: put a text file in its place"}
	case info.Size() > MaxFile:
		return nil, nil, &unusable{fmt.Sprintf("it has %d bytes, more than %s: that is not what it should be", info.Size(), values.FormatSize(MaxFile))}
	}
	if !unsafe {
		if err := safepath.Check(file); err != nil {
			return nil, nil, &unusable{err.Error()}
		}
		// Of the file that is read, whatever has its name by now.
		if err := safepath.CheckInfo(file, info); err != nil {
			return nil, nil, &unusable{err.Error()}
		}
	}
	text, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	return text, info, err
}

// Within returns where a path of a manifest leads, which must be inside the directory. The
// error says what to do, but for one of the system's own, such as fs.ErrNotExist.
func Within(dir, path string) (string, error) {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", err
	}
	target, err := filepath.EvalSymlinks(filepath.Join(root, path))
	if err != nil {
		return "", err
	}
	if rel, err := filepath.Rel(root, target); err != nil || !filepath.IsLocal(rel) {
		return "", &unusable{fmt.Sprintf("leads out of the directory, to %s: put a copy of that into %s", target, dir)}
	}
	return target, nil
}

// FileAttributes returns the attributes of attributes_file, which is in dir, none if it is
// not named. They are secrets: dir and the file must be nobody else's to read, unless
// unsafe. The file is read anew each time. The error is an [*Error].
func (m *Manifest) FileAttributes(dir string, unsafe bool) (map[string]string, error) {
	const key = "attributes_file"
	refuse := func(format string, args ...any) error {
		return &Error{[]Problem{{Path: m.path, Line: m.lines[key], Key: key, Message: fmt.Sprintf(format, args...)}}}
	}
	if m.AttributesFile == "" {
		return map[string]string{}, nil
	}
	if _, err := Within(dir, m.AttributesFile); err != nil {
		return nil, refuse("%s %s", m.AttributesFile, missing(err))
	}
	file := filepath.Join(dir, m.AttributesFile)
	text, info, err := read(file, unsafe)
	if err != nil {
		return nil, refuse("%s is not usable: %s", m.AttributesFile, missing(err))
	}
	if who := readers(info); who != "" && !unsafe {
		return nil, refuse("%s can be read by %s (mode %04o), and may hold secrets: chmod 600 %s", m.AttributesFile, who, info.Mode().Perm(), file)
	}
	return ParseAttributes(file, text)
}

// missing says an error of the system's in the words of a manifest.
func missing(err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "is not there; put it there, or mend the path"
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

// readers says who else can read a file; "" = nobody. To read what is another user's, such
// as root's, this one needs its group.
func readers(info fs.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch mode := info.Mode().Perm(); {
	case mode&0o007 != 0:
		return "everybody"
	case mode&0o070 != 0 && (!ok || int(st.Uid) == os.Geteuid()):
		return "its group"
	}
	return ""
}

// Check reads the deployment.yaml of each directory in root, and looks for what they name.
// It returns what is wrong, in the order of the directories' names; the error is the
// system's, about root.
func Check(root string, unsafe bool) ([]Problem, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	var problems []Problem
	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if _, err := os.Lstat(filepath.Join(dir, Name)); err == nil {
			problems = append(problems, CheckDir(dir, unsafe)...)
		}
	}
	return problems, nil
}

// CheckDir is Check for one directory, which is to have a deployment.yaml.
func CheckDir(dir string, unsafe bool) []Problem {
	problemsOf := func(err error) []Problem {
		if e, ok := errors.AsType[*Error](err); ok {
			return e.Problems
		}
		return []Problem{{Path: filepath.Join(dir, Name), Message: missing(err)}}
	}
	m, err := Load(dir, unsafe)
	if err != nil {
		return problemsOf(err)
	}
	var problems []Problem
	for i, e := range m.Elements {
		key := fmt.Sprintf("elements[%d].path", i)
		target, err := Within(dir, e.Path)
		if err == nil {
			var info fs.FileInfo
			if info, err = os.Stat(target); err == nil && !info.Mode().IsRegular() {
				err = &unusable{"is no file"}
			}
		}
		if err != nil {
			problems = append(problems, Problem{Path: m.path, Line: m.lines[key], Key: key, Message: e.Path + " " + missing(err)})
		}
	}
	if _, err := m.FileAttributes(dir, unsafe); err != nil {
		problems = append(problems, problemsOf(err)...)
	}
	return problems
}
