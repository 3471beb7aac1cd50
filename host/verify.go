package host

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/elemental-conduit/conduit/internal/safepath"
)

// Verify says which binaries must be known by their checksum.
type Verify string

// The ways to verify. The empty one is VerifyOff.
const (
	VerifyOff      Verify = "off"      // none
	VerifyChecksum Verify = "checksum" // those that the list of checksums names
	VerifyRequired Verify = "required" // all: what is not listed is refused
)

// sumsName is the list of checksums in the deployments directory, as sha256sum writes
// it.
const sumsName = "SHA256SUMS"

const maxSums = 1 << 20 // bytes of the list

// sums are the checksums that are known. A list that cannot be read or understood
// vouches for nothing: then err is set, and no file is taken.
type sums struct {
	path  string
	known map[string]string // by file name, hex in lower case
	err   error
}

var (
	gnuSum = regexp.MustCompile(`^([0-9a-fA-F]{64}) [ *](.+)$`)
	bsdSum = regexp.MustCompile(`^SHA256 \((.+)\) = ([0-9a-fA-F]{64})$`)
)

// readSums reads the list of a directory; that there is none is no error.
func readSums(dir string, unsafe bool) *sums {
	s := &sums{path: filepath.Join(dir, sumsName), known: map[string]string{}}
	if err := s.read(unsafe); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.err = fmt.Errorf("%s is not usable: %w", s.path, rootCause(err))
	}
	return s
}

func (s *sums) read(unsafe bool) error {
	f, err := os.OpenFile(s.path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe holds up nothing
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // read only
	info, err := f.Stat()
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("it is no file")
	case info.Size() > maxSums:
		return fmt.Errorf("its %d bytes are more than %d", info.Size(), maxSums)
	}
	if !unsafe {
		if err := safepath.Check(s.path); err != nil {
			return err
		}
		// Of the file that is read, whatever has its name by now.
		if err := safepath.CheckInfo(s.path, info); err != nil {
			return err
		}
	}
	return s.parse(io.LimitReader(f, maxSums))
}

func (s *sums) parse(r io.Reader) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 8<<10)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimRight(lines.Bytes(), "\r ")
		if n == 1 {
			line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
		}
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		var name, sum string
		if m := gnuSum.FindSubmatch(line); m != nil {
			sum, name = string(m[1]), string(m[2])
		} else if m := bsdSum.FindSubmatch(line); m != nil {
			name, sum = string(m[1]), string(m[2])
		} else {
			return fmt.Errorf("line %d is not a checksum and a name, as sha256sum writes them", n)
		}
		name, sum = strings.TrimPrefix(name, "./"), strings.ToLower(sum)
		if old, ok := s.known[name]; ok && old != sum {
			return fmt.Errorf("line %d gives %q another checksum than a line before: leave one of them", n, name)
		}
		s.known[name] = sum
	}
	return lines.Err()
}

// mark is what a change of makes a file be looked at again.
func (s *sums) mark(name string) string {
	if s == nil {
		return ""
	}
	if s.err != nil {
		return s.err.Error()
	}
	return s.known[name]
}

// expects returns the checksum that a file must have, "" if it may have any, or why
// none would do. vouched says that something else knows its checksum.
func (s *sums) expects(how Verify, name, path string, vouched bool) (string, error) {
	switch {
	case s == nil:
		return "", nil
	case s.err != nil:
		return "", &cause{refusedNoChecksum, fmt.Sprintf("its checksum is not known: %v (%s)", s.err, path)}
	case s.known[name] != "":
		return s.known[name], nil
	case how == VerifyRequired && !vouched:
		return "", &cause{refusedNoChecksum, fmt.Sprintf("its checksum is not known, and host.verify is %s: %s does not name it; if you trust it, add the line that `sha256sum %s` prints there, with the name alone (%s)", how, s.path, name, path)}
	}
	return "", nil
}

// checkSum compares a checksum with the one that by says, both in hex. It takes the
// same time wherever they differ.
func checkSum(by, expected, actual, path string) error {
	want, err1 := hex.DecodeString(expected)
	got, err2 := hex.DecodeString(actual)
	if err1 == nil && err2 == nil && len(want) == sha256.Size && subtle.ConstantTimeCompare(want, got) == 1 {
		return nil
	}
	return &cause{refusedChecksum, fmt.Sprintf("its checksum is another than %s says: expected %s, actual %s; copy the right file, or, if you trust this one, mend what says so (%s)", by, expected, actual, path)}
}
