package safepath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFault(t *testing.T) {
	me := who{uid: 1000, gid: 1000}
	const dir, sticky = fs.ModeDir, fs.ModeDir | fs.ModeSticky
	for _, c := range []struct {
		what    string
		f       file
		through bool
		says    string // "" = safe
	}{
		{"mine", file{1000, 1000, 0o755}, false, ""},
		{"root's", file{0, 0, 0o755}, false, ""},
		{"my group may write", file{1000, 1000, 0o775}, false, ""},
		{"root's group may write", file{0, 0, 0o775}, false, ""},
		{"another group may write", file{1000, 100, 0o775}, false, "its group can write it"},
		{"anyone may write", file{1000, 1000, 0o757}, false, "anyone can write it (mode 0757"},
		{"another's", file{65534, 65534, 0o755}, false, "belongs to another user"},
		{"another's, closed", file{65534, 65534, 0o500}, false, "belongs to another user"},
		{"a sticky directory at the end", file{0, 0, sticky | 0o777}, false, "anyone can write it"},
		{"a sticky directory above", file{0, 0, sticky | 0o777}, true, ""},
		{"a sticky directory above, for a group", file{1000, 100, sticky | 0o775}, true, ""},
		{"another's sticky directory above", file{65534, 65534, sticky | 0o755}, true, "belongs to another user"},
		{"an open directory above", file{0, 0, dir | 0o777}, true, "anyone can write it"},
		{"a sticky file", file{0, 0, fs.ModeSticky | 0o777}, true, "anyone can write it"},
	} {
		got := me.fault(c.f, c.through)
		if c.says == "" && got != "" || !strings.Contains(got, c.says) {
			t.Errorf("%s: %q, want %q", c.what, got, c.says)
		}
	}
}

// given is an info whose owner or mode the test has chosen.
type given struct {
	fs.FileInfo
	uid  uint32
	mode fs.FileMode
}

func (g given) Sys() any {
	st := *g.FileInfo.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // this system's
	st.Uid = g.uid
	return &st
}

func (g given) Mode() fs.FileMode { return g.mode }

// tree is a directory with what the cases walk through, and a Lstat that says of some
// of its files what only root could make true.
type tree struct {
	root string
	as   map[string]func(*given)
}

func newTree(t *testing.T) *tree {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	tr := &tree{root: root, as: map[string]func(*given){}}
	for _, err := range []error{
		os.MkdirAll(tr.at("deployments/sub"), 0o750),
		os.Mkdir(tr.at("open"), 0o750),
		os.WriteFile(tr.at("deployments/sub/k"), nil, 0o600),
		os.Symlink("sub/k", tr.at("deployments/link")),
		os.Symlink("link", tr.at("deployments/again")),
		os.Symlink("../deployments", tr.at("open/d")),
		os.Symlink(tr.at("open/d/sub"), tr.at("absolute")),
		os.Symlink("loop", tr.at("loop")),
		os.Symlink("/", tr.at("slash")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return tr
}

func (tr *tree) at(path string) string { return filepath.Join(tr.root, path) }

func (tr *tree) lstat(path string) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	g := given{info, info.Sys().(*syscall.Stat_t).Uid, info.Mode()} //nolint:forcetypeassert // this system's
	if change := tr.as[path]; change != nil {
		change(&g)
	}
	return g, nil
}

func (tr *tree) check(path string) error { return check(path, thisUser(), tr.lstat) }

// TestCheck: each case makes one file on the way unsafe, and only the paths that lead
// through it are refused, naming it.
func TestCheck(t *testing.T) {
	all := []string{"deployments", "deployments/sub/k", "deployments/link", "deployments/again", "open/d/sub", "absolute/k", "deployments/none/at/all", "slash"}
	mode := func(m fs.FileMode) func(*given) { return func(g *given) { g.mode = g.mode.Type() | m } }
	foreign := func(g *given) { g.uid = uint32(os.Geteuid()) + 1 }
	for _, c := range []struct {
		what, file string
		change     func(*given)
		refused    []string
	}{
		{"nothing", "none", nil, nil},
		{"the directory that a link leads into", "deployments/sub", mode(0o777), []string{"deployments/sub/k", "deployments/link", "deployments/again", "open/d/sub", "absolute/k"}},
		{"the directory that a link is in", "open", mode(0o777), []string{"open/d/sub", "absolute/k"}},
		{"the end", "deployments/sub/k", mode(0o666), []string{"deployments/sub/k", "deployments/link", "deployments/again", "absolute/k"}},
		{"another's directory", "deployments", foreign, []string{"deployments", "deployments/sub/k", "deployments/link", "deployments/again", "open/d/sub", "absolute/k", "deployments/none/at/all"}},
		{"another's link in a safe directory", "deployments/link", foreign, nil},
		{"a sticky directory at the end and above", "deployments", mode(0o777 | fs.ModeSticky), []string{"deployments"}},
		{"another's sticky directory", "", func(g *given) { foreign(g); mode(0o777 | fs.ModeSticky)(g) }, all[:len(all)-1]},
	} {
		t.Run(c.what, func(t *testing.T) {
			tr := newTree(t)
			if c.change != nil {
				tr.as[tr.at(c.file)] = c.change
			}
			for _, path := range all {
				err := tr.check(tr.at(path))
				want := false
				for _, r := range c.refused {
					want = want || r == path
				}
				u, unsafe := errors.AsType[*UnsafeError](err)
				if c.file == "" && path == "slash" {
					want = true // the link itself is below the directory
				}
				switch {
				case unsafe != want || err != nil && !unsafe:
					t.Errorf("%s: %v, want refused: %v", path, err, want)
				case want && u.Path != tr.at(c.file):
					t.Errorf("%s: %s is named, want %s", path, u.Path, tr.at(c.file))
				}
			}
		})
	}
}

// TestStickyLink: in a sticky directory a link is its owner's to change.
func TestStickyLink(t *testing.T) {
	tr := newTree(t)
	tr.as[tr.at("open")] = func(g *given) { g.mode = fs.ModeDir | fs.ModeSticky | 0o777 }
	if err := tr.check(tr.at("open/d")); err != nil {
		t.Errorf("my own link: %v", err)
	}
	tr.as[tr.at("open/d")] = func(g *given) { g.uid = uint32(os.Geteuid()) + 1 }
	if u, ok := errors.AsType[*UnsafeError](tr.check(tr.at("open/d"))); !ok || u.Path != tr.at("open/d") || !strings.Contains(u.Why, "a link that belongs to another user") {
		t.Errorf("another's link: %v", u)
	}
}

func TestLoop(t *testing.T) {
	tr := newTree(t)
	done := make(chan error, 1)
	go func() { done <- tr.check(tr.at("loop")) }()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "links") {
			t.Errorf("got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("a loop of links is walked for ever")
	}
}

// TestRealOwner does with real files what the rest only says of them.
func TestRealOwner(t *testing.T) {
	tr := newTree(t)
	if err := os.Chmod(tr.at("open"), 0o777); err != nil { //nolint:gosec // the case
		t.Fatal(err)
	}
	if u, ok := errors.AsType[*UnsafeError](Check(tr.at("open/d"))); !ok || u.Path != tr.at("open") {
		t.Errorf("an open directory: %v", u)
	}
	if err := Check(tr.at("deployments/again")); err != nil {
		t.Error(err)
	}
	if os.Geteuid() != 0 {
		return // TestCheck has the rest
	}
	if err := errors.Join(os.Chown(tr.at("deployments"), 65534, 65534), os.Chmod(tr.at("deployments"), 0o755|fs.ModeSticky)); err != nil {
		t.Fatal(err)
	}
	if u, ok := errors.AsType[*UnsafeError](Check(tr.at("deployments/again"))); !ok || u.Path != tr.at("deployments") {
		t.Errorf("another's directory: %v", u)
	}
}
