package host

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/elemental-conduit/conduit/internal/safepath"
)

// MaxDeployFiles is how many files a directory may hold that an operator deploys; all of
// them together may have MaxDeploy bytes.
const MaxDeployFiles = 4096

// Tree is a directory as an operator sends it: a deployment.yaml and what it names, or
// programs alone. It is a deployment's whole content: directories that are empty are no
// part of it.
type Tree struct {
	// Name, Transient and Replace are those of an [Upload].
	Name      string
	Transient bool
	Replace   bool
	// Size is how many bytes all files have together, Files how many there are.
	Size  int64
	Files int
	// Next returns the next file, io.EOF after the last one. The body of the one before has
	// been read to its end by then.
	Next func() (TreeFile, error)
}

// TreeFile is a file of a [Tree].
type TreeFile struct {
	// Path is where it is in the directory, with "/" between names.
	Path string
	// Mode says by its permission bits whether it may be executed, and whether others than
	// its owner may read it. Who may write it is the host's business.
	Mode fs.FileMode
	// Size is how many bytes Body has, Sum is their SHA-256 in hex.
	Size int64
	Sum  string
	Body io.Reader
}

// leaf is a file of a directory that the store has.
type leaf struct {
	path string
	mode fs.FileMode // one of 0755, 0644, 0700, 0600
	sum  string
}

// leafMode is what of a mode is kept.
func leafMode(mode fs.FileMode) fs.FileMode {
	switch program, open := mode&0o111 != 0, mode&0o044 != 0; {
	case program && open:
		return 0o755
	case program:
		return 0o700
	case open:
		return 0o644
	}
	return 0o600
}

// tree is a directory that the store has: its files, and a listing of them, whose sum it is
// known by.
type tree struct {
	sum    string
	leaves []leaf // in the order of their paths
}

// treeHead is the first line of a listing.
const treeHead = "conduit tree 1\n"

// listing returns what the store keeps of a directory beside its files.
func listing(leaves []leaf) []byte {
	var b bytes.Buffer
	b.WriteString(treeHead)
	for _, l := range leaves {
		fmt.Fprintf(&b, "%s %04o %s\n", l.sum, l.mode, l.path)
	}
	return b.Bytes()
}

// tree returns the files of a directory by the sum of its listing; the files themselves may
// be damaged.
func (s *store) tree(sum string) ([]leaf, error) {
	f, err := s.open(sum)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	broken := errors.New("the stored listing is none of a directory")
	lines := bufio.NewScanner(f)
	if !lines.Scan() || lines.Text()+"\n" != treeHead {
		return nil, broken
	}
	var leaves []leaf
	for lines.Scan() {
		digest, rest, _ := strings.Cut(lines.Text(), " ")
		mode, name, _ := strings.Cut(rest, " ")
		bits, err := strconv.ParseUint(mode, 8, 9)
		if err != nil || !isSum(digest) || safepath.Inside(name) != nil {
			return nil, broken
		}
		leaves = append(leaves, leaf{path: name, mode: fs.FileMode(bits), sum: digest})
	}
	return leaves, lines.Err()
}

// names are the paths of a directory's files, as they come. No two may need one name.
type names struct {
	files, dirs map[string]bool
}

func newNames() *names { return &names{files: map[string]bool{}, dirs: map[string]bool{}} }

// add says why a file cannot be among those that came before it.
func (n *names) add(name string) error {
	if err := safepath.Inside(name); err != nil {
		return fmt.Errorf("the path %q %w", name, err)
	}
	if n.files[name] || n.dirs[name] {
		return fmt.Errorf("%s is there twice", name)
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if n.files[dir] {
			return fmt.Errorf("%s is a file, and %s is in it", dir, name)
		}
		n.dirs[dir] = true
	}
	n.files[name] = true
	return nil
}

// pins keep copies in the store until they are let go. They are of one goroutine.
type pins struct {
	h    *Host
	sums []string
}

func (p *pins) add(sum string) {
	p.h.pin(sum)
	p.sums = append(p.sums, sum)
}

func (p *pins) release() {
	for _, sum := range p.sums {
		p.h.unpin(sum)
	}
	p.sums = nil
}

// check looks at what is said of a directory.
func (t *Tree) check() error {
	if err := checkNewName(t.Name); err != nil {
		return err
	}
	switch {
	case t.Files <= 0:
		return badDeployment("%s is empty", t.Name)
	case t.Files > MaxDeployFiles:
		return badDeployment("%s has %d files, and a deployment may have %d", t.Name, t.Files, MaxDeployFiles)
	case t.Size < 0 || t.Size > MaxDeploy:
		return badDeployment("the files of %s have %d bytes together, and those of a deployment may have %d", t.Name, t.Size, int64(MaxDeploy))
	}
	return nil
}

// receiveTree copies a directory to the store. What is in it is not looked at yet.
func (h *Host) receiveTree(ctx context.Context, t Tree, kept *pins) (tree, error) {
	var (
		leaves []leaf
		known  = newNames()
		left   = t.Size
	)
	for {
		f, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return tree{}, err
		}
		switch err := known.add(f.Path); {
		case err != nil:
			return tree{}, badDeployment("%s is not deployed: %v", t.Name, err)
		case len(leaves) == t.Files:
			return tree{}, badDeployment("more files of %s came than the %d that were announced", t.Name, t.Files)
		case f.Size < 0 || f.Size > left:
			return tree{}, badDeployment("the files of %s have more than the %d bytes that were announced", t.Name, t.Size)
		case !isSum(f.Sum):
			return tree{}, badDeployment("the SHA-256 of %s must come with it, as 64 hex digits in lower case", f.Path)
		}
		left -= f.Size
		if err := h.receiveFile(ctx, f, kept); err != nil {
			return tree{}, err
		}
		leaves = append(leaves, leaf{path: f.Path, mode: leafMode(f.Mode), sum: f.Sum})
	}
	if len(leaves) < t.Files || left > 0 {
		return tree{}, badDeployment("%s ended after %d files, %d bytes before the %d files and %d bytes that were announced", t.Name, len(leaves), left, t.Files, t.Size)
	}
	return h.storeTree(leaves, kept)
}

// receiveFile copies a file of a directory to the store.
func (h *Host) receiveFile(ctx context.Context, f TreeFile, kept *pins) error {
	body := &counted{r: f.Body, left: f.Size}
	_, err := h.store.take(body, f.Path, func(_ *os.File, sum string) error {
		switch {
		case body.left > 0:
			return badDeployment("%s ended %d bytes before the %d that were announced", f.Path, body.left, f.Size)
		case sum != f.Sum:
			return badDeployment("what came of %s has the SHA-256 %s, and %s was announced: it was changed on its way, or while it was read; deploy it again", f.Path, sum, f.Sum)
		}
		kept.add(sum)
		return nil
	})
	return broughtIn(ctx, f.Path, body, err)
}

// storeTree keeps the listing of a directory whose files the store has.
func (h *Host) storeTree(leaves []leaf, kept *pins) (tree, error) {
	slices.SortFunc(leaves, func(a, b leaf) int { return strings.Compare(a.path, b.path) })
	b, err := h.store.take(bytes.NewReader(listing(leaves)), "", func(_ *os.File, sum string) error {
		kept.add(sum)
		return nil
	})
	if err != nil {
		return tree{}, refusedUpload("it", err)
	}
	return tree{sum: b.sum, leaves: leaves}, nil
}

// keepTree copies a directory that is there to the store. The error says why it cannot be
// kept whole.
func (h *Host) keepTree(dir string, kept *pins) (tree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return tree{}, err
	}
	defer root.Close() //nolint:errcheck // read only
	var leaves []leaf
	left := int64(MaxDeploy)
	err = fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if err := safepath.Inside(name); err != nil {
			return fmt.Errorf("the path %q %w", name, err)
		}
		if entry.Type()&fs.ModeSymlink != 0 {
			return fmt.Errorf("%s is a link", name)
		}
		f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe holds up nothing
		if err != nil {
			return err
		}
		defer f.Close() //nolint:errcheck // read only
		info, err := f.Stat()
		if err != nil {
			return err
		}
		left -= info.Size()
		switch {
		case !info.Mode().IsRegular():
			return fmt.Errorf("%s is neither a file nor a directory", name)
		case len(leaves) == MaxDeployFiles:
			return fmt.Errorf("it has more than %d files", MaxDeployFiles)
		case left < 0:
			return fmt.Errorf("its files have more than %d bytes together", int64(MaxDeploy))
		}
		b, err := h.store.take(f, name, func(_ *os.File, sum string) error {
			kept.add(sum)
			return nil
		})
		leaves = append(leaves, leaf{path: name, mode: leafMode(info.Mode()), sum: b.sum})
		return err
	})
	if err != nil {
		return tree{}, err
	}
	return h.storeTree(leaves, kept)
}

// writeTree makes a directory of what the store has, whole and on the disk. at hears of
// each step.
func (h *Host) writeTree(dir string, t tree, at func(step string)) (err error) {
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // as a directory that was put there by hand; its secrets have modes of their own
		return err
	}
	at(stepMade)
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir)
		}
	}()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // what was written is synced
	dirs := map[string]bool{".": true}
	for _, l := range t.leaves {
		if err := root.MkdirAll(path.Dir(l.path), 0o755); err != nil {
			return err
		}
		for d := path.Dir(l.path); !dirs[d]; d = path.Dir(d) {
			dirs[d] = true
		}
		if err := h.writeLeaf(root, l); err != nil {
			return err
		}
	}
	at(stepWritten)
	for d := range dirs {
		if err := syncDir(filepath.Join(dir, d)); err != nil {
			return err
		}
	}
	at(stepSynced)
	return nil
}

func (h *Host) writeLeaf(root *os.Root, l leaf) (err error) {
	from, err := h.store.open(l.sum)
	if err != nil {
		return err
	}
	defer from.Close() //nolint:errcheck // read only
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return err
	}
	to, err := root.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Chmod(l.mode), to.Sync(), to.Close())
}

// moveTree gives a directory that was written beside its place the name that it is to have;
// where one is, it has it at every moment, the old one or the new. What was there is left
// at from.
func moveTree(from, to string) error {
	err := exchange(from, to)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.Rename(from, to)
	}
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EXDEV) {
		return fmt.Errorf("its file system cannot exchange two directories at one stroke (%w): undeploy what is there first, or have the deployments directory on another one", err)
	}
	return err
}
