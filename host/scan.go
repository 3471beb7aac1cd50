package host

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

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

// isOf reports whether a file is in this state.
func (s signature) isOf(info fs.FileInfo) bool {
	now := signatureOf(info)
	now.way, now.sum = s.way, s.sum // they are of its name
	return now == s
}

// look is how a file was last seen, and since when it looks like that.
type look struct {
	signature
	since time.Time
}

// finding is what a scan says of one element. Of binary, refused and disabled one is set;
// none is while its file is being written for the first time.
type finding struct {
	name     string // of the deployment
	slot     string // which of the elements of a directory; empty = the deployment is one file
	place    int    // among them, in the order in which ordinals count
	named    string // what a manifest calls the element; empty = nothing
	home     string // what the deployment is: a file or a directory
	path     string
	binary   *binary
	refused  *cause
	disabled bool      // by its manifest
	stale    string    // why this is what was found before; empty = it is not
	set      *settings // nil = the host's own
	// attributes are the deployment's own; those of its instance come below them.
	attributes Attributes
	// round is that of the fresh start that an operator asked for last; the element keeps it.
	round uint64
}

// waits reports whether the file of an element is still being written for the first time.
func (f *finding) waits() bool { return f.binary == nil && f.refused == nil && !f.disabled }

// scanner looks at the deployments directory. It is used by one goroutine.
type scanner struct {
	o      *Options
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
	kinds map[string]kind   // of files in directories
	dirs  map[string]*directory
	grown bool      // there are directories to watch that inside has not returned
	now   time.Time // of the present scan

	halt func() bool // the host stops

	placed map[string]bool // deployments that were put there whole: they need no rest in this scan
}

func newScanner(o *Options, st *store) *scanner {
	return &scanner{
		halt: func() bool { return false },
		o:    o, kinds: map[string]kind{}, dirs: map[string]*directory{},
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

// waits reports whether a file of a deployment was there at the last scan and still
// changed.
func (s *scanner) waits(name string) bool {
	for key, l := range s.seen {
		if (key == name || strings.HasPrefix(key, name+"/")) && s.done[key] != l.signature && !s.isPutOff(key, l.signature) {
			return true
		}
	}
	return false
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
	is, err := os.Stat(dir)
	if err != nil {
		return nil, 0, err
	}
	if s.verify == VerifyChecksum || s.verify == VerifyRequired {
		s.sums = readSums(dir, s.unsafe)
	}
	s.now = now
	present, listed := map[string]bool{}, map[string]bool{}
	for _, e := range entries {
		name := shownName(e.Name())
		listed[name] = true
		if strings.HasPrefix(name, ".") || name == sumsName {
			continue
		}
		if isLeftover(name) {
			s.once(name, "a file is ignored: its name is that of a backup, a transfer or a note", s.log.Info, "file", name)
			continue
		}
		path := filepath.Join(dir, e.Name())
		info, err := os.Stat(path)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) || e.Type()&fs.ModeSymlink != 0 {
				s.once(name, "a file is ignored: "+err.Error(), s.log.Warn, "file", path)
			}
			continue
		}
		switch {
		case info.IsDir():
			f, n := s.scanDirectory(dir, name, path, present)
			found, waiting = append(found, f...), waiting+n
			continue
		case !info.Mode().IsRegular():
			s.once(name, "a file is ignored: it is neither a regular file nor a link to one", s.log.Info, "file", path)
			continue
		}
		present[name] = true
		delete(s.dirs, name)
		f, waits := s.lookAt(candidate{key: name, root: dir, path: path}, info, e.Type()&fs.ModeSymlink != 0)
		if waits {
			waiting++
		}
		if f != nil {
			found = append(found, *f)
		}
	}
	// What was not found since the directory itself has gone is not removed.
	if now, err := os.Stat(dir); err != nil || !os.SameFile(now, is) {
		return nil, 0, fmt.Errorf("deployments directory %s was moved or replaced while it was read", s.dir)
	}
	forget(s.seen, present)
	forget(s.done, present)
	forget(s.found, present)
	forget(s.later, present)
	forget(s.kinds, present)
	forget(s.dirs, present)
	maps.Copy(present, listed)
	forget(s.said, present)
	return found, waiting, nil
}

// shownName is the name of a file as it may stand in any message, in which text has to be
// UTF-8; names of files need not be. What it escapes can be no deployment's name.
func shownName(file string) string {
	if utf8.ValidString(file) {
		return file
	}
	return strings.Trim(strconv.QuoteToASCII(file), `"`)
}

// forget drops what is not there any more.
func forget[T any](m map[string]T, present map[string]bool) {
	maps.DeleteFunc(m, func(key string, _ T) bool { return !present[key] })
}

// candidate is a file that may be a plugin.
type candidate struct {
	key     string // what it is known by, in the list of checksums, too
	root    string // what it may not lead out of
	path    string
	vouched bool // a manifest knows its checksum
}

// lookAt looks at one file, and examines it if it is at rest and has changed. It returns
// what is known of it, nil if nothing is yet, and whether it still changes. linked says that
// there may be a link on the way from root.
func (s *scanner) lookAt(c candidate, info fs.FileInfo, linked bool) (f *finding, waits bool) {
	sig := signatureOf(info)
	if linked {
		sig.way = s.way(c.path)
	}
	sig.sum = s.sums.mark(c.key)
	if c.vouched {
		sig.sum += " and a manifest"
	}
	if s.done[c.key] != sig && !s.isPutOff(c.key, sig) {
		rests := s.rests(c.key, sig)
		waits = !rests || !s.settle(c, sig)
	}
	if f, ok := s.found[c.key]; ok {
		return &f, waits
	}
	return nil, waits
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
func (s *scanner) settle(c candidate, sig signature) bool {
	name, path := c.key, c.path
	b, err := s.examine(c, sig)
	if errors.Is(err, errMoved) {
		delete(s.seen, name) // look again
		return false
	}
	f := finding{name: name, home: path, path: path}
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

// where names what a candidate may not lead out of.
func where(c candidate) string {
	if strings.Contains(c.key, "/") {
		return "its deployment's directory"
	}
	return "the deployments directory"
}

// errMoved says that a file changed while it was copied.
var errMoved = errors.New("the file changed meanwhile")

func (s *scanner) examine(c candidate, sig signature) (b binary, err error) {
	path := c.path
	if !strings.Contains(c.key, "/") { // else that of its directory was looked at
		if err := address.ValidDeploymentName(c.key); err != nil {
			return b, &cause{refusedName, err.Error()}
		}
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return b, err
	}
	if rel, err := filepath.Rel(c.root, target); err != nil || !filepath.IsLocal(rel) {
		return b, &cause{refusedLink, fmt.Sprintf("it is a link that leaves %s, to %s: put a copy of that at %s", where(c), target, path)}
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
	if info.Size() > MaxDeploy { // to copy it would hold up all others, and may fill the disk
		return b, &cause{refusedTooLarge, fmt.Sprintf("it has %d bytes, and a plugin may have %d: it is hardly the file that was meant (%s)", info.Size(), int64(MaxDeploy), path)}
	}
	expected, err := s.sums.expects(s.verify, c.key, path, c.vouched)
	if err != nil {
		return b, err
	}
	f, opened, err := openNow(target)
	if err != nil {
		return b, openError(path, info, err)
	}
	defer f.Close()        //nolint:errcheck // read only
	if !sig.isOf(opened) { // before it is read: it may be a pipe by now
		return b, errMoved
	}
	// No more of it than was seen, and one byte: a file that grows has changed.
	from := &haltable{r: io.LimitReader(f, sig.size+1), halt: s.halt}
	b, err = s.store.take(from, f.Name(), func(copied *os.File, sum string) error {
		// Of the file that was read, not of the name.
		after, err := f.Stat()
		if err != nil {
			return err
		}
		if !sig.isOf(after) {
			return errMoved
		}
		if expected != "" {
			if err := checkSum(s.sums.path, expected, sum, path); err != nil {
				return err
			}
		}
		if err := checkProgram(path, copied); err != nil {
			return err
		}
		if s.sums != nil && expected == "" && !c.vouched {
			s.log.Warn("a plugin is taken whose checksum is not known", "file", path, "list", s.sums.path, "sha256", sum)
		}
		return nil
	})
	if from.halted {
		return b, errMoved // as one that is looked at again, by the next host
	}
	b.source = path
	return b, err
}

// haltable reads until the host stops, which does not wait for a large copy.
type haltable struct {
	r      io.Reader
	halt   func() bool
	halted bool
}

// Read implements io.Reader.
func (h *haltable) Read(p []byte) (int, error) {
	if h.halt() {
		h.halted = true
		return 0, errors.New("the host stops")
	}
	return h.r.Read(p)
}
