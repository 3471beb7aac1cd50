package host

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/safepath"
)

// signature is what tells one state of a file from another without reading it.
type signature struct {
	size     int64
	modified time.Time
	mode     fs.FileMode
	dev, ino uint64
	uid, gid uint32
	way      string // of a link: where it leads, and who else could change that
	sum      string // that it must have, as far as that is known
}

func signatureOf(info fs.FileInfo) signature {
	s := signature{size: info.Size(), modified: info.ModTime(), mode: info.Mode()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.dev, s.ino, s.uid, s.gid = uint64(st.Dev), st.Ino, st.Uid, st.Gid //nolint:unconvert // Dev's type differs by system
	}
	return s
}

// look is how a file was last seen, and since when it looks like that.
type look struct {
	signature
	since time.Time
}

// finding is what a scan says of one deployment. Either of binary and refused is
// set.
type finding struct {
	name    string
	path    string
	binary  *binary
	refused *cause
	// round is that of the fresh start that an operator asked for last; the element keeps it.
	round uint64
}

// scanner looks at the deployments directory. It is used by one goroutine.
type scanner struct {
	dir    string
	rest   time.Duration // how long a file must look the same
	unsafe bool          // allowed
	verify Verify
	sums   *sums // of the present scan; nil if nothing is verified
	store  *store
	log    hclog.Logger

	seen  map[string]look
	done  map[string]signature // what finding came from
	found map[string]finding
	said  map[string]string // what was logged of a name or of the directory
	later map[string]later  // of files that could not be copied
	now   time.Time         // of the present scan

	placed map[string]bool // files that were put there whole: they need no rest in this scan
}

func newScanner(o *Options, st *store) *scanner {
	return &scanner{
		dir: o.Dir, rest: restOf(o), unsafe: o.AllowUnsafe, verify: o.Verify, store: st, log: o.Log.Named("scan"),
		seen: map[string]look{}, done: map[string]signature{}, found: map[string]finding{}, said: map[string]string{}, later: map[string]later{},
	}
}

// later says when a file that could not be copied is tried again: a copy costs as much
// as the file is large, and the disk is not going to be empty in a second.
type later struct {
	signature
	at   time.Time
	wait time.Duration
}

const maxLater = time.Minute

// putOff has a file wait, twice as long as the last time if it is still the same.
func (s *scanner) putOff(name string, sig signature) {
	l := later{signature: sig, wait: s.rest}
	if last, ok := s.later[name]; ok && last.signature == sig {
		l.wait = min(2*last.wait, maxLater)
	}
	l.at = s.now.Add(l.wait)
	s.later[name] = l
}

// isPutOff reports whether it is too early to try a file again.
func (s *scanner) isPutOff(name string, sig signature) bool {
	l, ok := s.later[name]
	return ok && l.signature == sig && s.now.Before(l.at)
}

// soonest returns how long after the last scan a file is to be tried again, at the
// earliest.
func (s *scanner) soonest() time.Duration {
	soonest := time.Duration(math.MaxInt64)
	for _, l := range s.later {
		soonest = min(soonest, max(l.at.Sub(s.now), s.rest))
	}
	return soonest
}

// restOf is how long a file must look the same before it is taken: as long as
// between two scans, and a second where those are rarer, as they are as a rule.
func restOf(o *Options) time.Duration { return min(o.ScanInterval, time.Second) }

// waits reports whether a file was there at the last scan and still changed.
func (s *scanner) waits(name string) bool {
	l, ok := s.seen[name]
	return ok && s.done[name] != l.signature && !s.isPutOff(name, l.signature)
}

// leftovers are the endings of files that editors, package managers and
// transfers leave beside the one that is meant.
var leftovers = []string{ //nolint:gochecknoglobals // a table that nobody writes
	"~", ".bak", ".swp", ".swo", ".tmp", ".temp", ".part", ".partial", ".crdownload", ".orig", ".old", ".rej", ".rpmnew", ".rpmsave", ".dpkg-new", ".dpkg-old",
	".sha256", ".sha512", ".sig", ".asc", ".minisig", ".md", ".txt", ".yaml", ".yml", ".json", ".toml", ".log", ".lock",
}

func isLeftover(name string) bool {
	lower := strings.ToLower(name)
	return strings.HasPrefix(name, "#") || slices.ContainsFunc(leftovers, func(end string) bool { return strings.HasSuffix(lower, end) })
}

// once logs about a name, unless it said the same before.
func (s *scanner) once(name, what string, log func(string, ...any), args ...any) {
	if s.said[name] != what {
		s.said[name] = what
		log(what, args...)
	}
}

// scan looks once. It returns every deployment that is there, in the order of
// names, and how many files wait because they still change. On error, nothing is
// known: what runs goes on.
func (s *scanner) scan(now time.Time) (found []finding, waiting int, err error) {
	dir, entries, err := s.readDir()
	if err != nil {
		return nil, 0, err
	}
	if s.verify == VerifyChecksum || s.verify == VerifyRequired {
		s.sums = readSums(dir, s.unsafe)
	}
	s.now = now
	present := map[string]bool{}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || name == sumsName {
			continue
		}
		if isLeftover(name) {
			s.once(name, "a file is ignored: its name is that of a backup, a transfer or a note", s.log.Info, "file", name)
			continue
		}
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) || e.Type()&fs.ModeSymlink != 0 {
				s.once(name, "a file is ignored: "+err.Error(), s.log.Warn, "file", path)
			}
			continue
		}
		switch {
		case info.IsDir():
			s.once(name, "a subdirectory is ignored: this release takes plain plugin binaries only", s.log.Warn, "directory", path)
			continue
		case !info.Mode().IsRegular():
			s.once(name, "a file is ignored: it is neither a regular file nor a link to one", s.log.Info, "file", path)
			continue
		}
		present[name] = true
		sig := signatureOf(info)
		if e.Type()&fs.ModeSymlink != 0 {
			sig.way = s.way(path)
		}
		sig.sum = s.sums.mark(name)
		before, known := s.seen[name]
		if before.signature != sig {
			before = look{sig, now}
			s.seen[name] = before
		}
		if s.done[name] != sig && !s.isPutOff(name, sig) {
			// A file at rest looks the same twice (a scan may be a little early), or has
			// not been touched lately.
			if !s.placed[name] && now.Sub(before.since) < s.rest*3/4 && (known || now.Sub(sig.modified) < s.rest) {
				waiting++
			} else if !s.settle(dir, path, name, sig) {
				waiting++
			}
		}
		if f, ok := s.found[name]; ok {
			found = append(found, f)
		}
	}
	for name := range s.seen {
		if !present[name] {
			delete(s.seen, name)
			delete(s.done, name)
			delete(s.found, name)
			delete(s.said, name)
			delete(s.later, name)
		}
	}
	return found, waiting, nil
}

// way says where a link leads, and who else could change that: neither shows in the
// file at its end.
func (s *scanner) way(path string) string {
	target, _ := filepath.EvalSymlinks(path)
	if err := safepath.Check(path); err != nil && !s.unsafe {
		target += "\n" + err.Error()
	}
	return target
}

// resolved returns the directory that is going to be read, or its name if that leads
// nowhere.
func (s *scanner) resolved() string {
	dir, err := filepath.Abs(s.dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return s.dir
	}
	return dir
}

func (s *scanner) readDir() (string, []fs.DirEntry, error) {
	// The directory may itself be a link; both sides are resolved before they
	// are compared.
	dir, err := filepath.Abs(s.dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return "", nil, fmt.Errorf("deployments directory %s: %w; make it (mkdir -m 750 %s), or name another with --deployments", s.dir, rootCause(err), s.dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", nil, fmt.Errorf("deployments directory %s cannot be read: %w; give %s the right to read it", s.dir, rootCause(err), safepath.UserName(uint32(os.Geteuid())))
	}
	if !s.unsafe {
		if err := safepath.Check(s.dir); err != nil {
			return "", nil, fmt.Errorf("deployments directory %s is refused: %w", s.dir, err)
		}
	}
	return dir, entries, nil
}

// rootCause takes the path off an error that is going to be wrapped with one.
func rootCause(err error) error {
	if le, ok := errors.AsType[*os.LinkError](err); ok {
		return le.Err
	}
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

// settle examines a file at rest, and keeps what is found until it changes. It reports
// false if the file changed meanwhile.
func (s *scanner) settle(dir, path, name string, sig signature) bool {
	b, err := s.examine(dir, path, name, sig)
	if errors.Is(err, errMoved) {
		delete(s.seen, name) // look again
		return false
	}
	f := finding{name: name, path: path}
	if err == nil {
		f.binary = &b
		delete(s.said, name)
	} else {
		r, ok := errors.AsType[*cause](err)
		if !ok {
			// The copy failed: a full disk, say. It is tried again, ever more seldom;
			// what runs goes on.
			s.putOff(name, sig)
			r = &cause{refusedCopy, err.Error()}
			if old, ok := s.found[name]; ok && old.binary != nil {
				s.once(name, "a changed file could not be taken over: "+err.Error(), s.log.Error, "file", path)
				return true
			}
		}
		f.refused = r
		s.once(name, "a file is refused: "+r.reason, s.log.Warn, "file", path, "kind", r.kind)
		if !ok {
			s.found[name] = f
			return true
		}
	}
	s.found[name] = f
	s.done[name] = sig
	delete(s.later, name)
	return true
}

// errMoved says that a file changed while it was copied.
var errMoved = errors.New("the file changed meanwhile")

func (s *scanner) examine(dir, path, name string, sig signature) (b binary, err error) {
	if err := address.ValidDeploymentName(name); err != nil {
		return b, &cause{refusedName, err.Error()}
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return b, err
	}
	if rel, err := filepath.Rel(dir, target); err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return b, &cause{refusedLink, fmt.Sprintf("it is a link that leaves the deployments directory, to %s: put a copy of that at %s", target, path)}
	}
	info, err := os.Stat(target)
	if err != nil {
		return b, err
	}
	if !s.unsafe {
		if err := safepath.Check(path); err != nil {
			return b, &cause{refusedUnsafe, err.Error()}
		}
	}
	if err := checkExecutable(path, info); err != nil {
		return b, err
	}
	expected, err := s.sums.expects(s.verify, name, path)
	if err != nil {
		return b, err
	}
	f, err := os.Open(target)
	if err != nil {
		return b, openError(path, info, err)
	}
	defer f.Close() //nolint:errcheck // read only
	b, err = s.store.install(f, func(copied *os.File, sum string) error {
		// Of the file that was read, not of the name.
		after, err := f.Stat()
		if err != nil {
			return err
		}
		now := signatureOf(after)
		if now.way, now.sum = sig.way, sig.sum; now != sig {
			return errMoved
		}
		if expected != "" {
			if err := s.sums.checkSum(expected, sum, path); err != nil {
				return err
			}
		}
		if err := checkProgram(path, copied); err != nil {
			return err
		}
		if s.sums != nil && expected == "" {
			s.log.Warn("a plugin is taken whose checksum is not known", "file", path, "list", s.sums.path, "sha256", sum)
		}
		return nil
	})
	b.source = path
	return b, err
}
