package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/manifest"
)

// content are the files of a directory by their paths.
type content map[string][]byte

// treeOf is what an operator sends of a directory: programs, and what is in bin, may be
// executed, and secret files are nobody else's.
func treeOf(name string, files content) Tree {
	var list []TreeFile
	size := int64(0)
	for path, b := range files {
		f := TreeFile{Path: path, Mode: 0o640, Size: int64(len(b)), Sum: hashOf(b), Body: bytes.NewReader(b)}
		switch {
		case strings.HasPrefix(string(b), "\x7fELF") || strings.HasPrefix(path, "bin/"):
			f.Mode = 0o755
		case strings.HasPrefix(path, "secret"):
			f.Mode = 0o600
		}
		list, size = append(list, f), size+f.Size
	}
	slices.SortFunc(list, func(a, b TreeFile) int { return strings.Compare(a.Path, b.Path) })
	return Tree{Name: name, Replace: true, Size: size, Files: len(list), Next: nextOf(list)}
}

func nextOf(list []TreeFile) func() (TreeFile, error) {
	return func() (TreeFile, error) {
		if len(list) == 0 {
			return TreeFile{}, io.EOF
		}
		f := list[0]
		list = list[1:]
		return f, nil
	}
}

// scriptWith is a script that becomes the test binary: a program of few bytes. mode is what
// that is to do.
func scriptWith(tb testing.TB, mode string) []byte {
	tb.Helper()
	self, err := pluginFile()
	if err != nil {
		tb.Fatal(err)
	}
	return fmt.Appendf(nil, "#!/bin/sh\nexport %s='%s'\nexec '%s' \"$@\"\n", modeVar, mode, self)
}

// pair is a directory of two elements, which are told its text.
func pair(tb testing.TB, text, extra string) content {
	tb.Helper()
	return content{
		manifest.Name: []byte("elements:\n- {path: bin/a}\n- {path: bin/b, env: {TEXT: fixed}}\nattributes: {text: " + text + "}\nattributes_file: secret.yaml\n"),
		"bin/a":       scriptWith(tb, extra), "bin/b": scriptWith(tb, ""),
		"secret.yaml": []byte("pass: word\n"), "share/deep/data": []byte(text), "share/empty": nil,
	}
}

func (r *rig) mustSendTree(t Tree, result string) Change {
	r.t.Helper()
	c, err := r.h.DeployTree(r.ctx, t)
	if err != nil || c.Result != result {
		r.t.Fatalf("deploy of %s: %+v, %v; want %s", t.Name, c, err, result)
	}
	return c
}

// holds fails unless a directory has these files and no others.
func (r *rig) holds(dir string, want content) {
	r.t.Helper()
	got := content{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(dir, name))
		got[name] = b
		return err
	})
	if err != nil {
		r.t.Error(err)
	}
	for name, b := range want {
		if is, ok := got[name]; !ok || !bytes.Equal(is, b) {
			r.t.Errorf("%s of %s is there: %v, and not what it should be", name, dir, ok)
		}
	}
	if len(got) != len(want) {
		r.t.Errorf("%s has %d files, want %d", dir, len(got), len(want))
	}
}

// pids are those of a deployment's elements, by their slots.
func (r *rig) pids(name string) map[string]int {
	m := map[string]int{}
	for _, d := range r.h.Snapshot() {
		for _, e := range d.Elements {
			if d.Name == name {
				m[e.Name] = e.Pid
			}
		}
	}
	return m
}

func (r *rig) given(element, attribute string) string {
	r.t.Helper()
	got, err := r.call("*://pair/"+element+"/test.Fixture", "Given", "TEXT "+attribute)
	if err != nil {
		r.t.Error(err)
	}
	return got
}

// The life of a directory in an operator's hands.
func TestDeployTreeAndBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.ready()
	dir := filepath.Join(r.dir, "pair")
	one := r.mustSendTree(treeOf("pair", pair(t, "one", "")), ResultReady)
	if one.Was != "" || !isSum(one.Sum) || one.Pid != 0 || one.Note != "all of its 2 elements" {
		t.Errorf("deployed: %+v", one)
	}
	r.holds(dir, pair(t, "one", ""))
	for path, want := range map[string]fs.FileMode{"bin/a": 0o755, "secret.yaml": 0o600, manifest.Name: 0o644} {
		if info, err := os.Stat(filepath.Join(dir, path)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	if got := r.given("a", "text"); got != "[]  one a" {
		t.Error(got)
	}
	if got := r.given("b", "pass"); got != "[] fixed word b" {
		t.Error(got)
	}
	first := r.pids("pair")

	// The same once more starts nothing; of other bytes, only what they are.
	if c := r.mustSendTree(treeOf("pair", pair(t, "one", "")), ResultUnchanged); c.Sum != one.Sum {
		t.Errorf("the same: %+v", c)
	}
	x := invoke(r.ctx, r.client, "*://pair/a/test.Fixture", "Wait", "")
	if _, err := x.Recv(r.ctx); err != nil {
		t.Fatal(err)
	}
	two := r.mustSendTree(treeOf("pair", pair(t, "one", "two")), ResultReady)
	if second := r.pids("pair"); two.Was != one.Sum || second["a"] == first["a"] || second["b"] != first["b"] {
		t.Errorf("the second: %+v, %v after %v", two, second, first)
	}
	if s := r.elements()["pair"]; len(s.Old) != 1 || s.Old[0].Calls != 1 {
		t.Errorf("its call was ended: %+v", s)
	}
	x.Cancel(context.Canceled)

	// Back, and forward again, texts and all; the next scan agrees.
	for i, want := range []struct {
		sum   string
		files content
	}{{one.Sum, pair(t, "one", "")}, {two.Sum, pair(t, "one", "two")}, {one.Sum, pair(t, "one", "")}} {
		c, err := r.h.Rollback(r.ctx, "pair")
		if err != nil || c.Result != ResultReady || c.Sum != want.sum {
			t.Fatalf("rollback %d: %+v, %v", i, c, err)
		}
		r.holds(dir, want.files)
		before := r.pids("pair")
		if err := r.h.rescan(r.ctx, ""); err != nil {
			t.Fatal(err)
		}
		if after := r.pids("pair"); after["a"] != before["a"] || after["b"] != before["b"] {
			t.Errorf("after the next scan: %v, %v before", after, before)
		}
	}
	if p := r.h.Snapshot()[0].Previous; p != two.Sum {
		t.Errorf("what can be rolled back to is %q", p)
	}

	// What somebody has put there by hand is what a deploy goes back to.
	mustDo(t, os.WriteFile(filepath.Join(dir, "share/by hand"), []byte("here"), 0o600))
	byHand := pair(t, "one", "")
	byHand["share/by hand"] = []byte("here")
	r.mustSendTree(treeOf("pair", pair(t, "three", "")), ResultReady)
	if got := r.given("a", "text"); got != "[]  three a" {
		t.Error(got)
	}
	if c, err := r.h.Rollback(r.ctx, "pair"); err != nil || c.Result != ResultReady {
		t.Errorf("%+v, %v", c, err)
	}
	r.holds(dir, byHand)
	// A manifest alone that turns all off.
	off := pair(t, "one", "")
	off[manifest.Name] = append(off[manifest.Name], "enabled: false\n"...)
	r.mustSendTree(treeOf("pair", off), ResultDisabled)
	if c, err := r.h.Rollback(r.ctx, "pair"); err != nil || c.Result != ResultReady {
		t.Errorf("%+v, %v", c, err)
	}
	if left := r.leftIn(); left != "pair" {
		t.Errorf("left: %q", left)
	}
	if c, err := r.h.Undeploy(r.ctx, "pair", true); err != nil || c.Result != ResultRemoved {
		t.Errorf("%+v, %v", c, err)
	}
	// With it has gone what could be rolled back to, and its copies.
	r.mustSendTree(treeOf("pair", content{"b": binaryWith(t, "")}), ResultReady)
	wantReason(t, second(r.h.Rollback(r.ctx, "pair")), conduit.ReasonNoPrevious, conduit.Refused)
	r.h.unused.Store(true)
	if err := r.h.rescan(r.ctx, ""); err != nil {
		t.Fatal(err)
	}
	for {
		kept, err := os.ReadDir(filepath.Join(r.private, "bin"))
		if err != nil {
			t.Fatal(err)
		}
		if len(kept) <= 2 { // the program, and the listing
			break
		}
		if err := r.h.rescan(r.ctx, ""); err != nil {
			t.Fatalf("%d copies are kept: %v", len(kept), err)
		}
	}
}

// A directory that does not come up leaves the processes before it, and a rollback leads to
// what serves; that what has failed never served is remembered.
func TestDeployTreeFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.ready()
	one := r.mustSendTree(treeOf("pair", pair(t, "one", "")), ResultReady)
	before := r.pids("pair")
	_, err := r.h.DeployTree(r.ctx, treeOf("pair", pair(t, "one", "fails")))
	e := wantReason(t, err, conduit.ReasonDeployFailed, conduit.Executed)
	if !strings.Contains(e.Message, "element a of deployment pair did not come up, and the process before goes on") || !strings.Contains(e.Message, "the new key is missing") {
		t.Error(e)
	}
	if after := r.pids("pair"); after["a"] != before["a"] || after["b"] != before["b"] {
		t.Errorf("%v after %v", after, before)
	}
	c, err := r.h.Rollback(r.ctx, "pair")
	if err != nil || c.Sum != one.Sum {
		t.Errorf("%+v, %v", c, err)
	}
	r.holds(filepath.Join(r.dir, "pair"), pair(t, "one", ""))
	wantReason(t, second(r.h.Rollback(r.ctx, "pair")), conduit.ReasonNoPrevious, conduit.Refused)
}

// What is wrong with a directory is told before anything has changed.
func TestDeployTreeRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t, "file")
	r.ready()
	good := r.mustSendTree(treeOf("pair", pair(t, "one", "")), ResultReady)
	with := func(change func(content)) content {
		c := pair(t, "one", "")
		change(c)
		return c
	}
	put := func(path, text string) content { return with(func(c content) { c[path] = []byte(text) }) }
	changed := treeOf("pair", pair(t, "one", "two"))
	first := changed.Next
	changed.Next = func() (TreeFile, error) {
		f, err := first()
		f.Sum = hashOf([]byte("another"))
		return f, err
	}
	twice := treeOf("pair", pair(t, "one", "two"))
	same := TreeFile{Path: "bin/a", Mode: 0o755, Sum: hashOf(nil), Body: strings.NewReader("")}
	twice.Files, twice.Next = 2, nextOf([]TreeFile{same, same})
	below := treeOf("pair", content{"bin/a": nil, "bin/a/b": nil})
	short := treeOf("pair", pair(t, "one", "two"))
	short.Files++
	long := treeOf("pair", pair(t, "one", "two"))
	long.Files--
	less := treeOf("pair", pair(t, "one", "two"))
	less.Size++
	more := treeOf("pair", pair(t, "one", "two"))
	more.Size--
	many := treeOf("pair", pair(t, "one", ""))
	many.Files = MaxDeployFiles + 1
	huge := treeOf("pair", pair(t, "one", ""))
	huge.Size = MaxDeploy + 1
	shared := treeOf("pair", pair(t, "one", ""))
	pass := shared.Next
	shared.Next = func() (TreeFile, error) {
		f, err := pass()
		f.Mode |= 0o044
		return f, err
	}
	for what, tree := range map[string]Tree{
		"holds neither a deployment.yaml nor a program": treeOf("pair", content{"README": []byte("none")}),
		"is empty":                                 treeOf("pair", nil),
		"pair/deployment.yaml:1: elments: ":        treeOf("pair", put(manifest.Name, "elments: []\n")),
		"pair/deployment.yaml:1: elements[0].path": treeOf("pair", put(manifest.Name, "elements: [{path: bin/none}]\n")),
		"it is no program":                         treeOf("pair", put("bin/b", "no program")),
		"is there twice":                           twice,
		"is a file, and bin/a/b is in it":          below,
		"leads elsewhere":                          treeOf("pair", put("../pair2/x", "")),
		"a character that is none":                 treeOf("pair", put("bin/\x1b[2J", "")),
		"ended after 6 files":                      short,
		"more files of pair came":                  long,
		"1 bytes before":                           less,
		"have more than the":                       more,
		"has 4097 files":                           many,
		"and those of a deployment may have":       huge,
		"it was changed on its way":                changed,
		"it does not say what it is":               treeOf("pair", put("bin/b", string(scriptWith(t, "dies")))),
		"chmod 600":                                shared,
		"is no directory: undeploy it":             treeOf("file", pair(t, "one", "")),
		"no deployment can have":                   treeOf("../pair", pair(t, "one", "")),
		"can be called pair.bak":                   treeOf("pair.bak", pair(t, "one", "")),
	} {
		_, err := r.h.DeployTree(r.ctx, tree)
		if e := wantReason(t, err, conduit.ReasonBadDeployment, conduit.Refused); !strings.Contains(e.Message, what) || e.Code != conduit.InvalidArgument || strings.Contains(e.Message, ".deploy-") {
			t.Errorf("%s: %v", what, e)
		}
	}
	fresh := treeOf("pair", pair(t, "one", ""))
	fresh.Replace = false
	wantReason(t, second(r.h.DeployTree(r.ctx, fresh)), conduit.ReasonDeploymentExists, conduit.Refused)
	wantReason(t, second(r.h.Deploy(r.ctx, uploadOf("pair", binaryWith(t, "")))), conduit.ReasonBadDeployment, conduit.Refused)
	gone := treeOf("pair", pair(t, "one", "two"))
	gone.Next = func() (TreeFile, error) {
		return TreeFile{}, conduit.Errorf(conduit.Canceled, conduit.ReasonCanceled, conduit.OutcomeUnknown, "gone")
	}
	wantReason(t, second(r.h.DeployTree(r.ctx, gone)), conduit.ReasonCanceled, conduit.OutcomeUnknown)

	r.holds(filepath.Join(r.dir, "pair"), pair(t, "one", ""))
	if c := r.mustSendTree(treeOf("pair", pair(t, "one", "")), ResultUnchanged); c.Sum != good.Sum || r.leftIn() != "file pair" {
		t.Errorf("something has changed: %+v, %q", c, r.leftIn())
	}
	halves, _ := filepath.Glob(filepath.Join(r.private, "bin", halfCopy+"*"))
	probes, _ := filepath.Glob(filepath.Join(r.private, "transient", "*"))
	if len(halves)+len(probes) > 0 {
		t.Errorf("left: %v %v", halves, probes)
	}
}

// The list of checksums, or the manifest that it vouches for, says what a directory may run.
func TestDeployTreeVerified(t *testing.T) {
	t.Parallel()
	r := newRigWith(t, func(o *Options) { o.Verify = VerifyRequired })
	r.ready()
	files := content{"bin/a": scriptWith(t, "")}
	files[manifest.Name] = fmt.Appendf(nil, "elements: [{path: bin/a, sha256: {linux-amd64: %[1]s, linux-arm64: %[1]s, darwin-amd64: %[1]s, darwin-arm64: %[1]s}}]\n", hashOf(files["bin/a"]))
	_, err := r.h.DeployTree(r.ctx, treeOf("solo", files))
	if e := wantReason(t, err, conduit.ReasonBadDeployment, conduit.Refused); e.Details["kind"] != refusedNoChecksum {
		t.Error(e)
	}
	r.write(sumsName, []byte(hashOf(files[manifest.Name])+"  solo/"+manifest.Name+"\n"), 0o644)
	r.mustSendTree(treeOf("solo", files), ResultReady)
	files["bin/a"] = scriptWith(t, "other")
	_, err = r.h.DeployTree(r.ctx, treeOf("solo", files))
	if e := wantReason(t, err, conduit.ReasonBadDeployment, conduit.Refused); e.Details["kind"] != refusedChecksum {
		t.Error(e)
	}
	guest := treeOf("guest", files)
	guest.Transient = true
	wantReason(t, second(r.h.DeployTree(r.ctx, guest)), conduit.ReasonBadDeployment, conduit.Refused)
}

// A transient directory is in the host's private directory, and behind all others.
func TestDeployTreeTransient(t *testing.T) {
	t.Parallel()
	r := newRig(t, "a")
	r.ready()
	guest := func(files content) Tree {
		tree := treeOf("pair", files)
		tree.Transient = true
		return tree
	}
	c := r.mustSendTree(guest(pair(t, "one", "")), ResultReady)
	home := filepath.Join(r.private, "transient", c.ID)
	if c.ID != "T000000000001" || r.leftIn() != "a" {
		t.Errorf("%+v, %q", c, r.leftIn())
	}
	r.holds(filepath.Join(home, "tree"), pair(t, "one", ""))
	for addr, want := range map[string]string{"*://*/a[0]/test.Fixture": "a", "*://*/a[1]/test.Fixture": "a", "*://*/b/test.Fixture": "b"} {
		if got, err := r.call(addr, "Who", ""); err != nil || !strings.HasPrefix(got, want+" ") {
			t.Errorf("%s: %q, %v", addr, got, err)
		}
	}
	if c := r.mustSendTree(guest(pair(t, "one", "")), ResultUnchanged); c.ID != "T000000000001" {
		t.Errorf("%+v", c)
	}
	before := r.pids("pair")
	less := content{manifest.Name: []byte("elements: [{path: bin/b, env: {TEXT: fixed}}]\nattributes: {text: one}\nattributes_file: secret.yaml\n"), "bin/b": scriptWith(t, ""), "secret.yaml": []byte("pass: word\n")}
	two := r.mustSendTree(guest(less), ResultReady)
	r.until("a to go", func(map[string]ElementStatus) bool { return len(r.pids("pair")) == 1 })
	if after := r.pids("pair"); two.Was != c.Sum || after["b"] != before["b"] {
		t.Errorf("%+v, %v after %v", two, after, before)
	}
	r.holds(filepath.Join(home, "tree"), less)
	wantReason(t, second(r.h.Rollback(r.ctx, "pair")), conduit.ReasonNoPrevious, conduit.Refused)
	u := uploadOf("pair", binaryWith(t, ""))
	u.Transient = true
	wantReason(t, second(r.h.Deploy(r.ctx, u)), conduit.ReasonBadDeployment, conduit.Refused)
	if c, err := r.h.Restart(r.ctx, "T000000000001"); err != nil || c.Result != ResultReady {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := r.h.Undeploy(r.ctx, "pair", false); err != nil || c.Result != ResultRemoved {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := os.Stat(home); err == nil {
		t.Error("its directory outlived it")
	}
}

// deployTreeAndDie is deployAndDie of a directory.
func deployTreeAndDie(h *Host) error {
	self, err := pluginFile()
	if err != nil {
		return err
	}
	b, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	_, err = h.DeployTree(context.Background(), treeOf("pair", content{"b": append(b, "two"...), "data": []byte("two")}))
	return err
}

// A host that is killed while it deploys a directory leaves the one before or the new one,
// whole. The next host runs it, and removes what else is there.
func TestDeployTreeKilled(t *testing.T) {
	t.Parallel()
	for _, step := range []string{stepMade, stepWritten, stepSynced, stepRenamed} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			t.Cleanup(cancel)
			r := &rig{t: t, ctx: ctx, dir: t.TempDir(), private: t.TempDir(), done: make(chan error, 1), wake: make(chan struct{})}
			mustDo(t, os.Mkdir(filepath.Join(r.dir, "pair"), 0o755))
			r.deploy("pair/b", "one")
			r.write("pair/data", []byte("one"), 0o644)
			past := time.Now().Add(-time.Minute)
			mustDo(t, os.Chtimes(filepath.Join(r.dir, "pair"), past, past))
			cmd := exec.CommandContext(ctx, os.Args[0])
			cmd.Env = append(os.Environ(), dieAtVar+"="+step+" "+r.dir+" "+r.private, dieTreeVar+"=1")
			out, err := cmd.CombinedOutput()
			if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); err == nil || !ok || status.Signal() != syscall.SIGKILL {
				t.Fatalf("%v: %s", err, out)
			}
			want := "one"
			if step == stepRenamed {
				want = "two"
			}
			files := content{"b": binaryWith(t, want), "data": []byte(want)}
			r.holds(filepath.Join(r.dir, "pair"), files)
			if left := r.leftIn(); strings.Count(left, ".deploy-") != 1 {
				t.Errorf("the kill left %q", left)
			}
			r.run(t, nil)
			r.ready()
			if s := r.elements(); len(s) != 1 || s["pair"].State != Ready || s["pair"].Sum != hashOf(files["b"]) {
				t.Errorf("%+v", s)
			}
			r.holds(filepath.Join(r.dir, "pair"), files)
			if left := r.leftIn(); left != "pair" {
				t.Errorf("left: %q", left)
			}
			// What the killed one has replaced was kept.
			if step == stepRenamed {
				if c, err := r.h.Rollback(r.ctx, "pair"); err != nil || c.Result != ResultReady {
					t.Fatalf("%+v, %v", c, err)
				}
				r.holds(filepath.Join(r.dir, "pair"), content{"b": binaryWith(t, "one"), "data": []byte("one")})
			}
		})
	}
}

// What cannot be kept whole, such as a link, is not rolled back to, and the operator is told.
func TestDeployTreeOverLinks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.ready()
	r.mustSendTree(treeOf("pair", pair(t, "one", "")), ResultReady)
	mustDo(t, os.Symlink("a", filepath.Join(r.dir, "pair/bin/link")))
	if c := r.mustSendTree(treeOf("pair", pair(t, "two", "")), ResultReady); !strings.Contains(c.Note, "is not kept to roll back to: bin/link is a link") {
		t.Errorf("%+v", c)
	}
	wantReason(t, second(r.h.Rollback(r.ctx, "pair")), conduit.ReasonNoPrevious, conduit.Refused)
}

// A listing reads as it was written, and what is none is told.
func TestTreeListing(t *testing.T) {
	t.Parallel()
	s := newStore(t.TempDir(), true)
	leaves := []leaf{{"a b", 0o755, hashOf([]byte("a"))}, {"c/d", 0o600, hashOf([]byte("d"))}}
	keep := func(text []byte) string {
		b, err := s.take(bytes.NewReader(text), "", func(*os.File, string) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		return b.sum
	}
	if got, err := s.tree(keep(listing(leaves))); err != nil || !slices.Equal(got, leaves) {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", "\x7fELF", treeHead + "x", treeHead + hashOf(nil) + " 0755 ../x\n", treeHead + hashOf(nil) + " 7777 x\n"} {
		if got, err := s.tree(keep([]byte(text))); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
	if _, err := s.tree(hashOf([]byte("none"))); !errors.As(err, new(*damaged)) {
		t.Errorf("%v", err)
	}
}
