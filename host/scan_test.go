package host

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit/internal/pluginlink"
	"github.com/elemental-conduit/conduit/internal/safepath"
)

// scanRig is a scanner over a directory of its own, with a clock of the test's.
type scanRig struct {
	t   *testing.T
	dir string
	s   *scanner
	now time.Time
	log *strings.Builder
}

func newScanRig(t *testing.T) *scanRig {
	t.Helper()
	r := &scanRig{t: t, dir: filepath.Join(t.TempDir(), "real"), now: time.Now(), log: &strings.Builder{}}
	if err := os.Mkdir(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r.s = newScanner(&Options{
		Dir: r.dir, ScanInterval: time.Second, Log: hclog.New(&hclog.LoggerOptions{Output: r.log}),
	}, newStore(t.TempDir(), false))
	return r
}

// put writes a file that has been at rest for a minute.
func (r *scanRig) put(name, content string, mode os.FileMode) string {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	past := r.now.Add(-time.Minute)
	if err := errors.Join(os.WriteFile(path, []byte(content), 0o600), os.Chmod(path, mode), os.Chtimes(path, past, past)); err != nil {
		r.t.Fatal(err)
	}
	return path
}

func (r *scanRig) scan() (found map[string]finding, waiting int) {
	r.t.Helper()
	list, waiting, err := r.s.scan(r.now)
	if err != nil {
		r.t.Fatal(err)
	}
	r.now = r.now.Add(time.Second)
	found = map[string]finding{}
	for _, f := range list {
		found[f.name] = f
	}
	return found, waiting
}

// program is a whole, small program of this machine.
func program(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("true")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestScanRefusals(t *testing.T) {
	r := newScanRig(t)
	prog := program(t)
	r.put("good", prog, 0o755)
	r.put("script", "#!/usr/bin/env -S no-such-thing -x\n", 0o755)
	r.put("spaced", "#! /bin/sh", 0o755)
	r.put("dos", "#!/bin/sh\r\nexit\r\n", 0o755)
	r.put("bare", "#!\nexit", 0o755)
	r.put("relative", "#!python3 -u\n", 0o755)
	r.put("longline", "#!/bin/"+strings.Repeat("x", 300)+"\n", 0o755)
	r.put("text", "<html>404 not found</html>", 0o755)
	r.put("empty", "", 0o755)
	r.put("mode", prog, 0o644)
	r.put("world", prog, 0o757)
	r.put("conduit", prog, 0o755)
	r.put("_bad", prog, 0o755)
	r.put("cut", prog[:len(prog)/2], 0o755)
	r.put("head", prog[:40], 0o755)
	wrong := []byte(prog)
	wrong[18], wrong[19] = 0xf3, 0 // e_machine: RISC-V
	if prog[18] == 0xf3 {
		wrong[18] = 62
	}
	r.put("arch", string(wrong), 0o755)
	outside := filepath.Join(t.TempDir(), "elsewhere")
	if err := errors.Join(os.WriteFile(outside, []byte(prog), 0o755), os.Chtimes(outside, r.now.Add(-time.Minute), r.now.Add(-time.Minute)), os.Symlink(outside, filepath.Join(r.dir, "link"))); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	if err := os.Symlink("good", filepath.Join(r.dir, "inner")); err != nil {
		t.Fatal(err)
	}
	found, waiting := r.scan()
	if waiting != 0 {
		t.Errorf("%d files wait", waiting)
	}
	for name, want := range map[string]struct{ kind, says string }{
		"text":     {refusedNotPlugin, "<htm"},
		"dos":      {refusedNotPlugin, "carriage return"},
		"bare":     {refusedNotPlugin, "no interpreter"},
		"relative": {refusedNotPlugin, "python3 -u"},
		"longline": {refusedNotPlugin, "255 bytes"},
		"empty":    {refusedNotPlugin, "no program"},
		"mode":     {refusedNotExecutable, "mode 0644"},
		"world":    {refusedUnsafe, "mode 0757"},
		"conduit":  {refusedName, "built-in"},
		"_bad":     {refusedName, "_"},
		"cut":      {refusedNotPlugin, "cut"},
		"head":     {refusedNotPlugin, "damaged"},
		"arch":     {refusedWrongArch, "GOARCH="},
		"link":     {refusedLink, outside},
	} {
		f, ok := found[name]
		if !ok || f.refused == nil {
			t.Errorf("%s is not refused: %+v", name, f)
			continue
		}
		if f.refused.kind != want.kind || !strings.Contains(f.refused.reason, want.says) {
			t.Errorf("%s: %v, want %s with %q", name, f.refused, want.kind, want.says)
		}
		if path := filepath.Join(r.dir, name); name != "conduit" && name != "_bad" && (strings.HasPrefix(f.refused.reason, path) || !strings.Contains(f.refused.reason, path)) {
			t.Errorf("%s: the reason is to come first and the file to be named: %s", name, f.refused.reason)
		}
	}
	me := safepath.UserName(uint32(os.Geteuid()))
	if why := found["mode"].refused; why != nil && (!strings.Contains(why.reason, "owner "+me) || !strings.Contains(why.reason, "runs as "+me) || !strings.Contains(why.reason, "chmod +x")) {
		t.Errorf("mode: %v", why)
	}
	if info, err := os.Stat(filepath.Join(r.dir, "mode")); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("its mode is %v, %v: the host changes none", info.Mode(), err)
	}
	for _, name := range []string{"good", "inner"} {
		f := found[name]
		if f.binary == nil {
			t.Errorf("%s is refused: %v", name, f.refused)
			continue
		}
		info, err := os.Stat(f.binary.exec)
		if err != nil || info.Mode().Perm() != 0o555 || info.Size() != int64(len(prog)) {
			t.Errorf("the copy of %s: %v, %v", name, info, err)
		}
	}
	for _, name := range []string{"script", "spaced"} { // what runs them is for the system to find
		if f := found[name]; f.binary == nil {
			t.Errorf("%s is refused: %v", name, f.refused)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(r.s.store.dir, ".copy-*")); len(left) > 0 {
		t.Errorf("half copies are left: %v", left)
	}
}

// TestScanLeftovers: what editors and transfers leave is never taken, and said
// once at most.
func TestScanLeftovers(t *testing.T) {
	r := newScanRig(t)
	for _, name := range []string{".echo.swp", ".#echo", "echo~", "echo.tmp", ".nfs0001", ".DS_Store", "README.md", "echo.sha256", "#echo#"} {
		r.put(name, "x", 0o755)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(r.dir, "sub"), 0o755), os.Symlink("sub", filepath.Join(r.dir, "..data"))); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if found, waiting := r.scan(); len(found) != 0 || waiting != 0 {
			t.Fatalf("found %v, %d wait", found, waiting)
		}
	}
	if n := strings.Count(r.log.String(), "\n"); n != 6 {
		t.Errorf("%d lines were logged, want one for each that is not hidden:\n%s", n, r.log)
	}
}

// TestScanWaits: a file that still changes is not touched.
func TestScanWaits(t *testing.T) {
	r := newScanRig(t)
	prog := program(t)
	path := filepath.Join(r.dir, "slow")
	write := func(b string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path, []byte(b), 0o755), os.Chtimes(path, r.now, r.now)); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	write(prog[:1000])
	for _, part := range []string{prog[:2000], prog[:3000], prog} {
		if found, waiting := r.scan(); len(found) != 0 || waiting != 1 {
			t.Fatalf("a growing file was taken: %v, %d wait", found, waiting)
		}
		write(part)
	}
	if _, waiting := r.scan(); waiting != 1 {
		t.Fatal("a file that has just changed was taken")
	}
	if found, waiting := r.scan(); waiting != 0 || found["slow"].binary == nil {
		t.Fatalf("a file at rest was not taken: %+v", found["slow"])
	}
	// While it changes again, what was found stays found.
	write(prog + "more")
	found, waiting := r.scan()
	if waiting != 1 || found["slow"].binary == nil {
		t.Fatalf("found %+v, %d wait", found, waiting)
	}
	old := found["slow"].binary.sum
	if found, _ = r.scan(); found["slow"].binary.sum == old {
		t.Error("the change was not seen")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if found, _ := r.scan(); len(found) != 0 {
		t.Errorf("a removed file is still found: %v", found)
	}
}

// TestScanUnreadable: what the host may run but not read cannot be copied, and so is
// refused with whose it is, its mode, and who the host is (FIL-05).
func TestScanUnreadable(t *testing.T) {
	r := newScanRig(t)
	path := r.put("echo", program(t), 0o111)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	refused := causeOf(openError(path, info, &os.PathError{Op: "open", Path: path, Err: syscall.EACCES}))
	if os.Geteuid() != 0 { // root reads everything
		found, _ := r.scan()
		refused = found["echo"].refused
	}
	if refused == nil || refused.kind != refusedNotReadable {
		t.Fatalf("got %v", refused)
	}
	me := safepath.UserName(uint32(os.Geteuid()))
	for _, part := range []string{"mode 0111", "owner " + me, "runs as " + me, "chmod +r " + path} {
		if !strings.Contains(refused.reason, part) {
			t.Errorf("%q does not say %q", refused.reason, part)
		}
	}
}

// TestScanChmod: a mended mode is seen though neither size nor time changed.
func TestScanChmod(t *testing.T) {
	r := newScanRig(t)
	path := r.put("echo", program(t), 0o644)
	if found, _ := r.scan(); found["echo"].refused == nil {
		t.Fatal("it is not refused")
	}
	if err := os.Chmod(path, 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	r.scan() // sees a change
	if found, _ := r.scan(); found["echo"].binary == nil {
		t.Errorf("still refused: %v", found["echo"].refused)
	}
}

func TestScanDirectoryForms(t *testing.T) {
	r := newScanRig(t)
	r.put("echo", program(t), 0o755)
	parent := filepath.Dir(r.dir)
	if err := os.Symlink("real", filepath.Join(parent, "deployments")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(parent)
	for _, dir := range []string{filepath.Join(parent, "deployments"), "deployments", "./deployments/", "real"} {
		r.s = newScanner(&Options{Dir: dir, ScanInterval: time.Second, Log: hclog.NewNullLogger()}, r.s.store)
		if found, _ := r.scan(); found["echo"].binary == nil {
			t.Errorf("%s: %+v", dir, found)
		}
	}
}

func TestScanUnsafeDirectory(t *testing.T) {
	r := newScanRig(t)
	for _, dir := range []string{r.dir, filepath.Dir(r.dir)} {
		if err := os.Chmod(dir, 0o777); err != nil { //nolint:gosec // the case
			t.Fatal(err)
		}
		_, _, err := r.s.scan(r.now)
		if err == nil || !strings.Contains(err.Error(), "mode 0777") || !strings.Contains(err.Error(), "mode or owner of "+dir+",") || !strings.Contains(err.Error(), "host.allow_unsafe") {
			t.Errorf("%s: %v", dir, err)
		}
		r.s.unsafe = true
		if _, _, err := r.s.scan(r.now); err != nil {
			t.Errorf("though allowed: %v", err)
		}
		r.s.unsafe = false
		if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // back
			t.Fatal(err)
		}
	}
}

// TestScanUnsafeWay: a file is as safe as the whole way to it, and one that was taken
// is looked at again when the way has changed.
func TestScanUnsafeWay(t *testing.T) {
	r := newScanRig(t)
	if err := errors.Join(os.Mkdir(filepath.Join(r.dir, "sub"), 0o755), os.Symlink("sub/k", filepath.Join(r.dir, "vialink"))); err != nil { //nolint:gosec // as deployed
		t.Fatal(err)
	}
	r.put("sub/k", program(t), 0o755)
	settled := func() finding {
		t.Helper()
		r.scan() // sees a change
		found, waiting := r.scan()
		if waiting != 0 {
			t.Fatal("it still waits")
		}
		return found["vialink"]
	}
	if f := settled(); f.binary == nil {
		t.Fatalf("refused: %v", f.refused)
	}
	sub := filepath.Join(r.dir, "sub")
	if err := os.Chmod(sub, 0o777); err != nil { //nolint:gosec // the case
		t.Fatal(err)
	}
	if f := settled(); f.refused == nil || f.refused.kind != refusedUnsafe || !strings.HasPrefix(f.refused.reason, "anyone can write it") || !strings.Contains(f.refused.reason, sub+",") {
		t.Errorf("found %+v, refused %v", f, f.refused)
	}
	if err := os.Chmod(sub, 0o755); err != nil { //nolint:gosec // back
		t.Fatal(err)
	}
	if f := settled(); f.binary == nil {
		t.Errorf("still refused: %v", f.refused)
	}
	// The directory, named by a link that anyone can replace.
	open := filepath.Join(filepath.Dir(r.dir), "open")
	if err := errors.Join(os.Mkdir(open, 0o755), os.Chmod(open, 0o777), os.Symlink(r.dir, filepath.Join(open, "d"))); err != nil { //nolint:gosec // the case
		t.Fatal(err)
	}
	r.s = newScanner(&Options{Dir: filepath.Join(open, "d"), ScanInterval: time.Second, Log: hclog.NewNullLogger()}, r.s.store)
	if _, _, err := r.s.scan(r.now); err == nil || !strings.Contains(err.Error(), "mode or owner of "+open+",") {
		t.Errorf("a link in an open directory: %v", err)
	}
}

// TestScanPipe: a file that has become a pipe between the look at it and its opening holds
// up nothing, though somebody has its other end and writes nothing.
func TestScanPipe(t *testing.T) {
	r := newScanRig(t)
	path := r.put("tool", program(t), 0o755)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	sig := signatureOf(info)
	mustDo(t, os.Remove(path))
	mustDo(t, syscall.Mkfifo(path, 0o755))
	end, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close() //nolint:errcheck // a test's
	r.s.now = r.now
	if _, err := r.s.examine(candidate{key: "tool", root: r.dir, path: path}, sig); !errors.Is(err, errMoved) {
		t.Errorf("it was taken: %v", err)
	}
	if r.s.isProgram("dir/tool", path, info) {
		t.Error("a pipe is a program")
	}
	if err := r.s.store.restore(binary{source: path, sum: strings.Repeat("0", 64)}); err == nil {
		t.Error("a copy was made of a pipe")
	}
}

// TestScanHuge: a file that is larger than any plugin is refused before it is copied, which
// would hold up all others and fill the disk.
func TestScanHuge(t *testing.T) {
	r := newScanRig(t)
	past := r.now.Add(-time.Minute)
	path := r.put("huge", program(t), 0o755)
	mustDo(t, os.Truncate(path, MaxDeploy+1), os.Chtimes(path, past, past)) // a hole: it takes no room itself
	copies := 0
	r.s.halt = func() bool { copies++; return false }
	found, waiting := r.scan()
	if f := found["huge"]; waiting != 0 || f.refused == nil || f.refused.kind != refusedTooLarge || !strings.Contains(f.refused.reason, path) || copies != 0 {
		t.Errorf("it was found as %+v, read in %d parts, and %d wait", f.refused, copies, waiting)
	}
	if left, err := os.ReadDir(r.s.store.dir); err != nil || len(left) != 0 {
		t.Errorf("the store has %v, %v", left, err)
	}
}

// TestScanHalted: the end of a host does not wait for the copy of a file, of which nothing
// is left and which is not refused for that.
func TestScanHalted(t *testing.T) {
	r := newScanRig(t)
	r.put("tool", program(t), 0o755)
	parts := 0
	r.s.halt = func() bool { parts++; return parts > 1 }
	if found, waiting := r.scan(); len(found) != 0 || waiting != 1 || parts != 2 {
		t.Errorf("%v was found after %d parts, and %d wait", found, parts, waiting)
	}
	if left, err := os.ReadDir(r.s.store.dir); err != nil || len(left) != 0 {
		t.Errorf("the store has %v, %v", left, err)
	}
	r.s.halt = func() bool { return false }
	for range 2 {
		r.scan()
	}
	if found, _ := r.scan(); found["tool"].binary == nil {
		t.Errorf("later it is %+v", found["tool"])
	}
}

// TestScanNamesInNoText: a file whose name is no text is refused as any other of a bad name,
// and nothing that is said of it is what no message could carry: that would keep the whole
// instance from saying who it is.
func TestScanNamesInNoText(t *testing.T) {
	r := newScanRig(t)
	if err := os.WriteFile(filepath.Join(r.dir, "\xfe\xff"), []byte(program(t)), 0o755); err != nil { //nolint:gosec // a program
		t.Skip("this file system has no such names: ", err)
	}
	mustDo(t, os.Mkdir(filepath.Join(r.dir, "\xc3dir"), 0o755), os.Mkdir(filepath.Join(r.dir, "dir"), 0o755))
	mustDo(t, os.WriteFile(filepath.Join(r.dir, "dir", "in\xff"), []byte(program(t)), 0o755)) //nolint:gosec // a program
	for range 4 {
		r.scan()
	}
	found, waiting, err := r.s.scan(r.now)
	if err != nil || waiting != 0 || len(found) != 3 {
		t.Fatalf("%d were found, %d wait, %v", len(found), waiting, err)
	}
	var names []string
	for _, f := range found {
		if f.refused == nil || f.refused.kind != refusedName || !utf8.ValidString(f.name+f.slot) || !utf8.ValidString(pluginlink.Text(f.refused.reason, maxReason)) {
			t.Errorf("%q %q: %v", f.name, f.slot, f.refused)
		}
		names = append(names, f.name+" "+f.slot)
	}
	if got := strings.Join(names, ","); got != `dir in\xff,\xc3dir ,\xfe\xff ` {
		t.Errorf("they are called %s", got)
	}
}
