package host

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/manifest"
	"github.com/elemental-conduit/conduit/internal/safepath"
)

// directory is what is known of a deployment that is a directory. It belongs to the
// scanner's goroutine.
type directory struct {
	path     string   // resolved
	inside   []string // the directories that its programs and texts are in
	secret   string   // the attributes_file of the manifest that was read last, good or not
	manifest *manifest.Manifest
	set      *settings
	given    given // to every element
	told     Attributes
	why      *cause // why the manifest that is there is not the one above
	last     []finding
}

// part is one element that a directory declares.
type part struct {
	slot, path string
	declared   *manifest.Element // nil without a manifest
	at         string            // where it is declared
	sums       map[string]string // that its program must have, by system and machine
	sumsAt     string            // where they are declared
}

// errWaits says that something of a directory still changes.
var errWaits = errors.New("it still changes")

// scanDirectory looks at a deployment that is a directory.
func (s *scanner) scanDirectory(dir, name, path string, present map[string]bool) (found []finding, waiting int) {
	present[name] = true
	d := s.dirs[name]
	if d == nil {
		d = &directory{}
		s.dirs[name] = d
	}
	parts, err := s.partsOf(d, dir, name, path, present)
	if errors.Is(err, errWaits) {
		return d.last, 1
	}
	if err != nil {
		why, ok := errors.AsType[*cause](err)
		if !ok {
			why = &cause{refusedNotReadable, fmt.Sprintf("it cannot be read: %v (%s)", rootCause(err), path)}
		}
		s.once(name, "a directory is refused: "+why.reason, s.log.Warn, "directory", path, "kind", why.kind)
		s.keep(name, present)
		return d.standing(name, path, why), 0
	}
	if len(parts) == 0 {
		s.once(name, "a directory is ignored: it holds no "+manifest.Name+" and no program", s.log.Info, "directory", path)
	} else if d.why == nil {
		delete(s.said, name)
	}
	for i, p := range parts {
		f, waits := s.lookAtPart(d, name, path, &p, present)
		f.place = i
		if waits {
			waiting++
		}
		found = append(found, f)
	}
	d.last = found
	return found, waiting
}

// standing is what a directory that is refused leaves of it: what was there before goes on,
// and says why.
func (d *directory) standing(name, path string, why *cause) []finding {
	if len(d.last) == 0 || d.last[0].slot == "" {
		d.last = []finding{{name: name, home: path, path: path, refused: why}}
		return d.last
	}
	d.last = slices.Clone(d.last)
	for i := range d.last {
		d.last[i].stale = "what is deployed now is refused, and what was before goes on: " + why.reason
	}
	return d.last
}

// keep has what is known of the files of a directory outlast a scan that did not look at
// them.
func (s *scanner) keep(name string, present map[string]bool) {
	for key := range s.seen {
		if strings.HasPrefix(key, name+"/") {
			present[key] = true
		}
	}
}

// partsOf returns the elements that a directory declares, in order. The error is errWaits,
// or of type *cause, or the system's.
func (s *scanner) partsOf(d *directory, dir, name, path string, present map[string]bool) ([]part, error) {
	if err := address.ValidDeploymentName(name); err != nil {
		return nil, &cause{refusedName, err.Error()}
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	if rel, err := filepath.Rel(dir, target); err != nil || !filepath.IsLocal(rel) || rel == "." {
		return nil, &cause{refusedLink, fmt.Sprintf("it is a link that leaves the deployments directory, to %s: put a copy of that at %s", target, path)}
	}
	if !s.unsafe {
		if err := safepath.Check(path); err != nil {
			return nil, &cause{refusedUnsafe, err.Error()}
		}
	}
	if d.path != target {
		d.path, d.inside, s.grown = target, nil, true
	}
	if err := s.readManifest(d, name, path, present); err != nil {
		return nil, err
	}
	if d.manifest != nil && len(d.manifest.Elements) > 0 {
		return declaredParts(d.manifest), nil
	}
	return s.programsIn(d, name, path, present)
}

// readManifest reads a manifest that has changed and is at rest.
func (s *scanner) readManifest(d *directory, name, path string, present map[string]bool) error {
	key, file := keyOf(name, manifest.Name), filepath.Join(path, manifest.Name)
	present[key] = true
	sig, err := s.textSignature(file)
	if err != nil {
		return err
	}
	sig.sum = s.sums.mark(key)
	secret, secretKey := signature{}, keyOf(name, "attributes of "+manifest.Name)
	if d.secret != "" {
		present[secretKey] = true
		if secret, err = s.textSignature(filepath.Join(path, d.secret)); err != nil {
			return err
		}
	}
	if done, known := s.done[key]; known && done == sig && s.done[secretKey] == secret {
		return asError(d.why)
	}
	if rests := s.rests(key, sig); d.secret != "" && !s.rests(secretKey, secret) || !rests {
		s.keep(name, present)
		return errWaits
	}
	if sig.ino == 0 {
		d.manifest, d.set, d.given, d.told, d.why, d.secret = nil, nil, given{}, nil, nil, ""
		s.done[key] = sig
		delete(s.done, secretKey)
		return nil
	}
	m, attributes, err := s.loadManifest(key, file, path)
	d.secret = ""
	if m != nil {
		d.secret = m.AttributesFile
	}
	if e, ok := errors.AsType[*manifest.Error](err); ok {
		err = &cause{refusedManifest, e.Error()}
	}
	d.why = nil
	if err != nil {
		why, ok := errors.AsType[*cause](err)
		if !ok {
			return err // the system's: it is tried again
		}
		d.why = why
	}
	again, err := s.textSignature(file)
	if again.sum = sig.sum; err != nil || again != sig {
		delete(s.seen, key) // it changed meanwhile
		s.keep(name, present)
		return errWaits
	}
	s.done[key] = sig
	present[secretKey] = d.secret != ""
	// As it was before it was read: what has changed since, or was not known to be read, is
	// read once more at the next scan.
	s.done[secretKey] = secret
	if d.why != nil {
		return d.why
	}
	d.manifest, d.set, d.given, d.told = m, settingsOf(s.o, m), givenBy(m), attributes
	return nil
}

func asError(why *cause) error {
	if why == nil {
		return nil
	}
	return why
}

// loadManifest reads a manifest and the attributes that it names.
func (s *scanner) loadManifest(key, file, path string) (*manifest.Manifest, Attributes, error) {
	if _, err := manifest.Within(path, manifest.Name); err != nil {
		return nil, nil, &cause{refusedLink, fmt.Sprintf("%s %v", file, err)}
	}
	m, err := manifest.Load(path, s.unsafe)
	if err != nil {
		return nil, nil, err
	}
	expected, err := s.sums.expects(s.verify, key, file, false)
	if err != nil {
		return nil, nil, err
	}
	if expected != "" {
		if err := checkSum(s.sums.path, expected, m.Sum(), file); err != nil {
			return nil, nil, err
		}
	}
	secret, err := m.FileAttributes(path, s.unsafe)
	if err != nil {
		return m, nil, err // the manifest also with an error, for what it names
	}
	return m, MergeAttributes(NewAttributes(FromDeployment, true, secret), NewAttributes(FromDeployment, false, m.Attributes)), nil
}

// textSignature is the signature of a file that need not be there.
func (s *scanner) textSignature(file string) (signature, error) {
	info, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(file); err == nil {
			return signature{}, fmt.Errorf("%s is a link to nothing: %w", file, fs.ErrNotExist)
		}
		return signature{}, nil
	}
	if err != nil {
		return signature{}, err
	}
	sig := signatureOf(info)
	sig.way = s.way(file)
	return sig, nil
}

// rests reports whether a file has looked the same for long enough.
func (s *scanner) rests(key string, sig signature) bool {
	before, known := s.seen[key]
	if before.signature != sig {
		before = look{sig, s.now}
		s.seen[key] = before
	}
	// A file at rest looks the same twice (a scan may be a little early), or has not been
	// touched lately, or was put there whole.
	return s.isPlaced(key) || s.now.Sub(before.since) >= s.rest*3/4 || !known && s.now.Sub(sig.modified) >= s.rest
}

// isPlaced reports whether a file, or the directory that it is in, was put there whole.
func (s *scanner) isPlaced(key string) bool {
	name, _, _ := strings.Cut(key, "/")
	return s.placed[key] || s.placed[name]
}

// declaredParts are the elements of a manifest.
func declaredParts(m *manifest.Manifest) []part {
	parts := make([]part, 0, len(m.Elements))
	taken := map[string]int{}
	for i := range m.Elements {
		e := &m.Elements[i]
		slot := e.Name
		if slot == "" {
			slot = filepath.Base(e.Path)
		}
		name, n := slot, taken[slot]
		for ; taken[slot] > 0; n++ { // brackets are in no name of an element, but may be in a file's
			slot = fmt.Sprintf("%s[%d]", name, n)
		}
		if slot != name {
			taken[name]++
		}
		taken[slot]++
		parts = append(parts, part{slot: slot, path: filepath.Clean(e.Path), declared: e, at: m.Where(fmt.Sprintf("elements[%d].path", i))})
	}
	// What one says of a program's checksum holds for all that run it.
	for i := range parts {
		if p := &parts[i]; len(p.declared.SHA256) > 0 {
			p.sums, p.sumsAt = p.declared.SHA256, p.at
		}
		for j := range parts {
			if p, q := &parts[i], &parts[j]; p.path == q.path && len(p.sums) == 0 && len(q.declared.SHA256) > 0 {
				p.sums, p.sumsAt = q.declared.SHA256, q.at
			}
		}
	}
	return parts
}

// programsIn are the elements of a directory that declares none: the programs in it, in
// the order of their names.
func (s *scanner) programsIn(d *directory, name, path string, present map[string]bool) ([]part, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	recent := func(info fs.FileInfo) bool { return s.now.Sub(info.ModTime()) < s.rest*3/4 }
	var parts []part
	// One that is being filled is not taken until nothing more is put into it: its
	// manifest may come last.
	waits := len(entries) > 0 && recent(info)
	for _, e := range entries {
		file := filepath.Join(path, e.Name())
		key := keyOf(name, e.Name())
		if strings.HasPrefix(e.Name(), ".") || isLeftover(e.Name()) || isLibrary(e.Name()) || d.manifest != nil && filepath.Clean(d.manifest.AttributesFile) == e.Name() {
			continue
		}
		info, err := os.Stat(file)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		present[key] = true
		if !s.isProgram(key, file, info) {
			waits = waits || recent(info) // it may become one
			continue
		}
		waits = waits || recent(info)
		parts = append(parts, part{slot: shownName(e.Name()), path: e.Name(), at: path})
	}
	switch {
	case len(parts) > manifest.MaxElements:
		return nil, &cause{refusedTooMany, fmt.Sprintf("it holds %d programs, and a deployment has at most %d elements: split it, or name those to run in %s", len(parts), manifest.MaxElements, filepath.Join(path, manifest.Name))}
	case waits && len(d.last) == 0 && !s.placed[name]:
		s.keep(name, present)
		return nil, errWaits
	}
	return parts, nil
}

// isLibrary reports whether a name is that of a shared library, which is in a program's
// form and is none.
func isLibrary(name string) bool {
	return strings.HasSuffix(name, ".so") || strings.Contains(name, ".so.") || strings.HasSuffix(name, ".dylib") || strings.HasSuffix(name, ".o") || strings.HasSuffix(name, ".a")
}

// isProgram reports whether a file begins as programs of this system do. It reads a file
// once for each of its states.
func (s *scanner) isProgram(key, file string, info fs.FileInfo) bool {
	sig := signatureOf(info)
	if k, ok := s.kinds[key]; ok && k.signature == sig {
		return k.program
	}
	program := false
	if f, _, err := openRegular(file); err == nil {
		start := make([]byte, 4)
		_, err := io.ReadFull(f, start)
		program = err == nil && beginsProgram(start)
		_ = f.Close()
	}
	s.kinds[key] = kind{sig, program}
	return program
}

// kind is whether a file is a program, in one state of it.
type kind struct {
	signature
	program bool
}

func beginsProgram(start []byte) bool {
	if runtime.GOOS != "darwin" {
		return string(start) == "\x7fELF"
	}
	switch string(start) {
	case "\xca\xfe\xba\xbe", "\xcf\xfa\xed\xfe", "\xfe\xed\xfa\xcf":
		return true
	}
	return false
}

// lookAtPart looks at the program of one element.
func (s *scanner) lookAtPart(d *directory, name, path string, p *part, present map[string]bool) (f finding, waits bool) {
	file := filepath.Join(path, p.path)
	f = finding{name: name, slot: p.slot, home: path, path: file, set: d.set}
	if p.declared != nil {
		f.named = p.declared.Name
	}
	if d.manifest != nil && d.manifest.Disabled() {
		f.disabled, f.path = true, d.manifest.Where("enabled")
		return f, false
	}
	if sub := filepath.Dir(filepath.Join(d.path, p.path)); sub != d.path && !slices.Contains(d.inside, sub) {
		d.inside, s.grown = append(d.inside, sub), true
	}
	if err := validSlot(p); err != nil {
		f.refused = err
		return f, false
	}
	key := keyOf(name, p.path)
	present[key] = true
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.refused = &cause{refusedMissing, fmt.Sprintf("%s names %s, which is not there: put it there, or mend the path (%s)", p.at, p.path, file)}
		return f, false
	case err != nil:
		f.refused = &cause{refusedNotReadable, fmt.Sprintf("it cannot be read: %v (%s)", rootCause(err), file)}
		return f, false
	case !info.Mode().IsRegular():
		f.refused = &cause{refusedNotPlugin, fmt.Sprintf("it is no file: %s names what is none (%s)", p.at, file)}
		return f, false
	}
	expected, sumErr := p.expects()
	if sumErr != nil {
		f.refused = sumErr
		return f, false
	}
	seen, waits := s.lookAt(candidate{key: key, root: d.path, path: file, vouched: expected != ""}, info, true)
	switch {
	case seen == nil: // still being written, for the first time
		return f, true
	case seen.refused != nil:
		f.refused = seen.refused
		return f, waits
	}
	if expected != "" {
		if err := checkSum(p.sumsAt, expected, seen.binary.sum, file); err != nil {
			f.refused = causeOf(err)
			return f, waits
		}
	}
	g := d.given
	if p.declared != nil {
		g = g.ownOf(p.declared, p.at)
	}
	f.binary, f.attributes = seen.binary.with(g), d.told
	return f, waits
}

// validSlot holds what is not named by a manifest to what may stand in a directory of the
// host's.
func validSlot(p *part) *cause {
	if p.declared != nil && p.declared.Name != "" {
		return nil // the manifest was checked
	}
	if err := address.ValidDeploymentName(filepath.Base(p.path)); err != nil {
		return &cause{refusedName, "its name cannot be an element's: " + err.Error()}
	}
	return nil
}

// expects returns the checksum that the manifest gives the program for this machine; "" if
// it gives none at all.
func (p *part) expects() (string, *cause) {
	if len(p.sums) == 0 {
		return "", nil
	}
	machine := runtime.GOOS + "-" + runtime.GOARCH
	sum := p.sums[machine]
	if sum == "" {
		return "", &cause{refusedNoChecksum, fmt.Sprintf("its checksum is not known: %s gives it some, and none for %s, which this machine is; add that (%s)", p.sumsAt, machine, p.path)}
	}
	return sum, nil
}

// inside returns the directories beside the deployments directory whose events tell of
// changes.
func (s *scanner) inside() []string {
	s.grown = false
	var list []string
	for _, d := range s.dirs {
		if d.path != "" {
			list = append(append(list, d.path), d.inside...)
		}
	}
	return list
}
