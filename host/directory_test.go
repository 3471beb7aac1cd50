package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/manifest"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
)

// mkdir makes a directory that has been at rest for a minute.
func (r *scanRig) mkdir(name string) string {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	mustDo(r.t, os.MkdirAll(path, 0o755))
	return path
}

// rests has a directory look as if nothing had been put into it lately.
func (r *scanRig) rests(name string) {
	r.t.Helper()
	past := r.now.Add(-time.Minute)
	mustDo(r.t, os.Chtimes(filepath.Join(r.dir, name), past, past))
}

// scanParts scans until nothing waits, and returns what is found by key.
func (r *scanRig) scanParts() map[string]finding {
	r.t.Helper()
	for range 6 {
		list, waiting, err := r.s.scan(r.now)
		if err != nil {
			r.t.Fatal(err)
		}
		r.now = r.now.Add(time.Second)
		if waiting == 0 {
			found := map[string]finding{}
			for _, f := range list {
				found[keyOf(f.name, f.slot)] = f
			}
			return found
		}
	}
	r.t.Fatal("it waits for ever")
	return nil
}

// wantRefused fails unless an element is refused for this reason, in which all of says is.
func wantRefused(t *testing.T, found map[string]finding, key, kind string, says ...string) {
	t.Helper()
	f, ok := found[key]
	if !ok || f.refused == nil || f.refused.kind != kind {
		t.Errorf("%s: found %+v, refused %v, want %s", key, f, f.refused, kind)
		return
	}
	for _, text := range says {
		if !strings.Contains(f.refused.reason, text) {
			t.Errorf("%s: the reason does not say %q: %s", key, text, f.refused.reason)
		}
	}
}

// TestScanDirectory: without a manifest each program is an element, in the order of names;
// what is none is left alone.
func TestScanDirectory(t *testing.T) {
	r := newScanRig(t)
	prog := program(t)
	r.mkdir("pair/data")
	for _, name := range []string{"pair/b", "pair/a", "pair/lib.so.1", "pair/data/c", "pair/.hidden", "pair/a.bak"} {
		r.put(name, prog, 0o755)
	}
	r.put("pair/notes", "of a person", 0o755)
	r.put("pair/mode", prog, 0o644)
	r.put("pair/world", prog, 0o757)
	r.put("pair/in valid", prog, 0o755)
	r.mkdir("empty")
	r.rests("pair")
	found := r.scanParts()
	if len(found) != 5 || found["pair/a"].binary == nil || found["pair/b"].binary == nil || found["pair/a"].place > found["pair/b"].place {
		t.Errorf("found %+v", found)
	}
	wantRefused(t, found, "pair/mode", refusedNotExecutable, "chmod +x")
	wantRefused(t, found, "pair/world", refusedUnsafe, "mode 0757")
	wantRefused(t, found, "pair/in valid", refusedName)
}

// TestScanDirectoryRefused: the rules for names, links and modes are those for files.
func TestScanDirectoryRefused(t *testing.T) {
	r := newScanRig(t)
	for _, name := range []string{"conduit", "_bad", "open", "good"} {
		r.mkdir(name)
		r.put(name+"/a", program(t), 0o755)
		r.rests(name)
	}
	mustDo(t, os.Chmod(filepath.Join(r.dir, "open"), 0o777)) //nolint:gosec // the case
	outside := t.TempDir()
	mustDo(t, os.Symlink(outside, filepath.Join(r.dir, "away")), os.Symlink("good", filepath.Join(r.dir, "inner")),
		os.Symlink(outside, filepath.Join(r.dir, "good/out")))
	r.put("good/"+manifest.Name, "elements:\n  - path: a\n  - path: out/x\n  - {name: link, path: inside}\n  - path: none\n", 0o644)
	mustDo(t, os.WriteFile(filepath.Join(outside, "x"), []byte(program(t)), 0o755), os.Symlink(filepath.Join(outside, "x"), filepath.Join(r.dir, "good/inside"))) //nolint:gosec // a program
	found := r.scanParts()
	wantRefused(t, found, "conduit", refusedName, "built-in")
	wantRefused(t, found, "_bad", refusedName)
	wantRefused(t, found, "open", refusedUnsafe, "mode 0777")
	wantRefused(t, found, "away", refusedLink, outside)
	for _, name := range []string{"good", "inner"} {
		if found[name+"/a"].binary == nil {
			t.Errorf("%s: found %+v", name, found[name+"/a"])
		}
		wantRefused(t, found, name+"/x", refusedLink, outside)
		wantRefused(t, found, name+"/link", refusedLink, outside)
		wantRefused(t, found, name+"/none", refusedMissing, "deployment.yaml:5")
	}
}

// TestScanManifest: a manifest is taken when it is whole; one that is bad leaves what was
// there before, which says why; one that is mended is taken.
func TestScanManifest(t *testing.T) {
	r := newScanRig(t)
	r.mkdir("d")
	r.put("d/a", program(t), 0o755)
	r.put("d/b", program(t), 0o755)
	file := r.put("d/"+manifest.Name, "elements: [{path: a}]\nbogus: 1\n", 0o644)
	wantRefused(t, r.scanParts(), "d", refusedManifest, file+":2: bogus: is not a key")

	r.put("d/"+manifest.Name, "elements: [{path: a}]\n# mended\n", 0o644)
	found := r.scanParts()
	if len(found) != 1 || found["d/a"].binary == nil || found["d/a"].set == nil {
		t.Fatalf("found %+v", found)
	}
	good := found["d/a"].binary.id()

	// Half of it is written, as a file is: what was there before holds meanwhile.
	mustDo(t, os.WriteFile(file, []byte("elements: [{path"), 0o600), os.Chtimes(file, r.now, r.now))
	list, waiting, err := r.s.scan(r.now)
	if err != nil || waiting != 1 || len(list) != 1 || list[0].stale != "" || list[0].binary == nil {
		t.Fatalf("found %+v, %d wait, %v", list, waiting, err)
	}
	r.now = r.now.Add(time.Second)
	found = r.scanParts()
	if f := found["d/a"]; f.binary == nil || f.binary.id() != good || !strings.Contains(f.stale, file+":2: it is not YAML") {
		t.Errorf("found %+v", f)
	}
	if again := r.scanParts(); !sameFinding(again["d/a"], found["d/a"]) {
		t.Error("each scan finds something else")
	}
	r.put("d/"+manifest.Name, "elements: [{path: b}, {path: a}]\n", 0o644)
	found = r.scanParts()
	if len(found) != 2 || found["d/a"].stale != "" || found["d/a"].place != 1 || found["d/b"].binary == nil {
		t.Errorf("found %+v", found)
	}
	mustDo(t, os.Remove(file))
	if found = r.scanParts(); len(found) != 2 || found["d/a"].place != 0 || found["d/a"].set != nil {
		t.Errorf("without a manifest: %+v", found)
	}
	mustDo(t, os.RemoveAll(filepath.Join(r.dir, "d")))
	if found = r.scanParts(); len(found) != 0 || len(r.s.seen)+len(r.s.done)+len(r.s.dirs)+len(r.s.kinds)+len(r.s.said) != 0 {
		t.Errorf("something is left: %+v %+v", found, r.s)
	}
}

// TestScanAttributesFile: it is read with the manifest, and again when it has changed or its
// mode has.
func TestScanAttributesFile(t *testing.T) {
	r := newScanRig(t)
	r.mkdir("d")
	r.put("d/a", program(t), 0o755)
	r.put("d/"+manifest.Name, "elements: [{path: a}]\nattributes: {both: manifest, one: 1}\nattributes_file: secrets\n", 0o644)
	wantRefused(t, r.scanParts(), "d", refusedManifest, manifest.Name+":3", "secrets is not there")
	file := r.put("d/secrets", "both: file\ntwo: 2\n", 0o644)
	wantRefused(t, r.scanParts(), "d", refusedManifest, "can be read by everybody", "chmod 600 "+file)
	mustDo(t, os.Chmod(file, 0o600))
	found := r.scanParts()
	if f := found["d/a"]; f.binary == nil || fmt.Sprint(f.attributes) != "map[both:(redacted) one:1 two:(redacted)]" || f.attributes["both"].Value != "manifest" || f.attributes["two"].Value != "2" {
		t.Fatalf("found %+v", f)
	}
	r.put("d/secrets", "two: 3\n", 0o600)
	if f := r.scanParts()["d/a"]; f.binary == nil || f.attributes["two"].Value != "3" {
		t.Errorf("found %+v", f)
	}
	r.put("d/secrets", "two: [3]\n", 0o600)
	if f := r.scanParts()["d/a"]; f.binary == nil || !strings.Contains(f.stale, file+":1: two: is a list") {
		t.Errorf("found %+v", f)
	}
}

// TestScanManifestSum: a manifest's checksum is held to, for this machine, with the list of
// checksums and without.
func TestScanManifestSum(t *testing.T) {
	prog := program(t)
	wrong := strings.Repeat("0", 64)
	machine := runtime.GOOS + "-" + runtime.GOARCH
	for _, c := range []struct {
		name, sums, list string
		verify           Verify
		kind             string
		says             []string
	}{
		{name: "right", sums: machine + ": " + sumOf(prog)},
		{name: "wrong", sums: machine + ": " + wrong, kind: refusedChecksum, says: []string{"deployment.yaml:2", "expected " + wrong, "actual " + sumOf(prog)}},
		{name: "other machine", sums: "plan9-mips: " + wrong, kind: refusedNoChecksum, says: []string{machine}},
		{name: "not listed, required", verify: VerifyRequired, kind: refusedNoChecksum, list: "MANIFEST"},
		{name: "vouched for by a listed manifest", verify: VerifyRequired, sums: machine + ": " + sumOf(prog), list: "MANIFEST"},
		{name: "listed", verify: VerifyRequired, list: "MANIFEST" + sumOf(prog) + "  d/a\n"},
		{name: "listed with another", verify: VerifyChecksum, list: wrong + "  d/a\n", kind: refusedChecksum, says: []string{sumsName}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newScanRig(t)
			r.s.verify = c.verify
			r.mkdir("d")
			r.put("d/a", prog, 0o755)
			text := "elements:\n  - path: a\n    sha256: {" + c.sums + "}\n"
			r.put("d/"+manifest.Name, text, 0o644)
			r.put(sumsName, strings.Replace(c.list, "MANIFEST", sumOf(text)+"  d/"+manifest.Name+"\n", 1), 0o644)
			found := r.scanParts()
			if c.kind != "" {
				wantRefused(t, found, "d/a", c.kind, c.says...)
			} else if f := found["d/a"]; f.binary == nil {
				t.Errorf("refused: %v", f.refused)
			}
		})
	}
	r := newScanRig(t)
	r.s.verify = VerifyRequired
	r.mkdir("d")
	r.put("d/a", prog, 0o755)
	r.put("d/"+manifest.Name, "elements: [{path: a}]", 0o644)
	wantRefused(t, r.scanParts(), "d", refusedNoChecksum, manifest.Name)
}

// TestScanOneProgram: elements that run one program have slots of their own, and what one
// says of its checksum holds for all.
func TestScanOneProgram(t *testing.T) {
	r := newScanRig(t)
	prog := program(t)
	r.mkdir("d")
	r.put("d/a", prog, 0o755)
	r.put("d/e[1]", prog, 0o755)
	text := "elements: [{name: e, path: 'e[1]'}, {name: e, path: a}, {path: 'e[1]'}, {name: f, path: a, sha256: {" + runtime.GOOS + "-" + runtime.GOARCH + ": SUM}}]"
	r.put("d/"+manifest.Name, strings.Replace(text, "SUM", sumOf(prog), 1), 0o644)
	found := r.scanParts()
	for _, slot := range []string{"e", "e[1]", "f"} {
		if f := found["d/"+slot]; f.binary == nil {
			t.Errorf("%s is refused: %v", slot, f.refused)
		}
	}
	if len(found) != 4 {
		t.Errorf("found %+v", found)
	}
	wantRefused(t, found, "d/e[1][1]", refusedName)
	r.put("d/"+manifest.Name, strings.Replace(text, "SUM", sumOf("other"), 1), 0o644)
	found = r.scanParts()
	for _, slot := range []string{"e[1]", "f"} {
		wantRefused(t, found, "d/"+slot, refusedChecksum, sumOf("other"))
	}
	if f := found["d/e"]; f.binary == nil {
		t.Errorf("refused: %v", f.refused)
	}
}

// TestScanManifestLater: what a manifest declares has its place from the start, though its
// program is still being copied.
func TestScanManifestLater(t *testing.T) {
	r := newScanRig(t)
	r.mkdir("d")
	slow := r.put("d/slow", program(t), 0o755)
	mustDo(t, os.Chtimes(slow, r.now, r.now))
	r.put("d/b", program(t), 0o755)
	r.put("d/"+manifest.Name, "elements: [{name: e, path: slow}, {name: e, path: b}]", 0o644)
	list, waiting, err := r.s.scan(r.now)
	if err != nil || waiting != 1 || len(list) != 2 || !list[0].waits() || list[0].named != "e" || list[1].slot != "e[1]" || list[1].binary == nil {
		t.Fatalf("found %+v, %d wait, %v", list, waiting, err)
	}
	r.now = r.now.Add(time.Second)
	if found := r.scanParts(); found["d/e"].binary == nil {
		t.Errorf("found %+v", found)
	}
}

// TestEnvironmentNames: a manifest refuses each variable that a process would be refused for.
func TestEnvironmentNames(t *testing.T) {
	for _, name := range []string{"PLUGIN_MIN_PORT", "CONDUIT_PLUGIN", "CONDUIT_PLUGIN_TOKEN", "LD_PRELOAD", "DYLD_INSERT_LIBRARIES"} {
		if _, err := manifest.Parse("m", []byte("elements: [{path: a, env: {"+name+": x}}]")); err == nil {
			t.Errorf("%s is taken by the manifest", name)
		}
		_, err := pluginlink.Launch(t.Context(), pluginlink.LaunchConfig{Path: "/none", Env: []string{name + "=x"}, Spawner: new(pluginlink.Spawner), SocketDir: "/tmp"})
		if e, ok := errors.AsType[*pluginlink.StartError](err); !ok || e.Kind != pluginlink.KindConfig {
			t.Errorf("%s is taken by a start: %v", name, err)
		}
	}
}

// mkdir makes a directory in the deployments directory.
func (r *rig) mkdir(name string) {
	r.t.Helper()
	mustDo(r.t, os.MkdirAll(filepath.Join(r.dir, name), 0o755))
}

func (r *rig) manifest(name, text string) {
	r.t.Helper()
	r.write(name+"/"+manifest.Name, []byte(text), 0o644)
}

// untilDeployment waits until a deployment is as wanted.
func (r *rig) untilDeployment(name, what string, ok func(DeploymentStatus) bool) DeploymentStatus {
	r.t.Helper()
	var found DeploymentStatus
	r.until(name+": "+what, func(map[string]ElementStatus) bool {
		found = DeploymentStatus{}
		for _, d := range r.h.Snapshot() {
			if d.Name == name {
				found = d
			}
		}
		return ok(found)
	})
	return found
}

// states are an ok for untilDeployment.
func states(want ...State) func(DeploymentStatus) bool {
	return func(d DeploymentStatus) bool {
		if len(d.Elements) != len(want) {
			return false
		}
		for i, s := range want {
			if d.Elements[i].State != s {
				return false
			}
		}
		return true
	}
}

// TestDirectory: a directory without a manifest runs each program in it; it is seen when it
// comes, when something in it changes, and when it goes, without a rescan.
func TestDirectory(t *testing.T) {
	r := newRigWith(t, func(o *Options) { o.ScanInterval = time.Hour })
	r.ready()
	r.mkdir("pair")
	r.deploy("pair/e-1", "")
	r.deploy("pair/e-2", "")
	d := r.untilDeployment("pair", "both are ready", states(Ready, Ready))
	if d.Status != "clean" || d.Path != filepath.Join(r.dir, "pair") || d.Elements[1].Path != filepath.Join(r.dir, "pair/e-2") {
		t.Errorf("%+v", d)
	}
	for addr, want := range map[string]string{"e": "e-1", "e[0]": "e-1", "e[1]": "e-2"} {
		if got, err := r.call("*://pair/"+addr+"/test.Fixture", "Who", ""); err != nil || !strings.HasPrefix(got, want+" ") {
			t.Errorf("%s: %q, %v", addr, got, err)
		}
	}
	_, err := r.call("*://pair/e[2]/test.Fixture", "Who", "")
	wantReason(t, err, conduit.ReasonElementNotFound, conduit.Refused)
	if links := r.h.Links(); len(links) != 2 {
		t.Errorf("links %+v", links)
	}
	r.deploy("pair/e-2", "new")
	d = r.untilDeployment("pair", "the second's next generation", func(d DeploymentStatus) bool { return d.Elements[1].Generation == 2 })
	if d.Elements[0].Generation != 1 {
		t.Errorf("%+v", d)
	}
	mustDo(t, os.RemoveAll(filepath.Join(r.dir, "pair")))
	r.untilDeployment("pair", "its end", func(d DeploymentStatus) bool { return d.Name == "" })
}

// TestDirectoryOrdinal: an ordinal never slides, also while the one before it is not ready.
func TestDirectoryOrdinal(t *testing.T) {
	r := newRig(t)
	r.mkdir("d")
	r.deploy("d/first", mode("slow"))
	r.deploy("d/second", "")
	r.manifest("d", "elements:\n  - {name: e, path: first}\n  - {name: e, path: second}\n")
	r.untilDeployment("d", "the second is ready", states(Starting, Ready))
	_, err := r.call("*://d/e[0]/test.Fixture", "Who", "")
	wantReason(t, err, conduit.ReasonPluginStarting, conduit.Refused)
	_, err = r.call("*://*/e[0]/test.Fixture", "Who", "")
	wantReason(t, err, conduit.ReasonPluginStarting, conduit.Refused)
	for _, addr := range []string{"e", "e[1]"} {
		if got, err := r.call("*://d/"+addr+"/test.Fixture", "Given", "- -"); err != nil || !strings.HasSuffix(got, "e[1]") {
			t.Errorf("%s: %q, %v", addr, got, err)
		}
	}
	if d := r.untilDeployment("d", "", states(Starting, Ready)); d.Status != "unstable" {
		t.Errorf("%+v", d)
	}
	r.startingPid("d/e", 0)
	r.touch("d/e", "go")
	r.untilDeployment("d", "both are ready", states(Ready, Ready))
	if got, err := r.call("*://d/e[0]/test.Fixture", "Given", "- -"); err != nil || !strings.HasSuffix(got, " e") {
		t.Errorf("%q, %v", got, err)
	}
}

// TestNamelessOrdinal: as long as nobody knows what an element is called, nothing after it in
// its deployment has an ordinal.
func TestNamelessOrdinal(t *testing.T) {
	first, second := offlineElement("d", "", Starting), offlineElement("d", "e", Ready)
	first.slot, second.slot = "a", "b"
	second.place.Store(1)
	h, err := New(Options{Dir: "-", Private: "-", Instance: testInstance})
	mustDo(t, err)
	for _, e := range []*element{first, second} {
		e.h = h
		h.elements[e.key()] = e
	}
	h.rebuild()
	route, cerr := h.table.Load().find(invokeFrame("d", "e", 0))
	if cerr == nil || cerr.Reason != conduit.ReasonPluginStarting || route.el != first {
		t.Errorf("%+v, %v", route, cerr)
	}
	if route, err := h.table.Load().find(invokeFrame("d", "e", -1)); err != nil || route.el != second {
		t.Errorf("without an ordinal: %+v, %v", route, err)
	}
}

// TestManifest: what a manifest says reaches the process, and what changes in it starts no
// more processes than it must.
func TestManifest(t *testing.T) {
	r := newRig(t)
	r.mkdir("d/bin")
	r.deploy("d/bin/program", "")
	text := `elements:
  - {name: a, path: bin/program, args: [--port, 80], env: {COLOUR: red}}
  - {name: b, path: bin/program}
attributes: {key: one}
limits: {cpus: 1.5, memory_soft: 512MiB}
run_as: superuser
concurrency: 7
`
	r.manifest("d", text)
	d := r.untilDeployment("d", "both are ready", states(Ready, Ready))
	given := func(element, what, want string) {
		t.Helper()
		if got, err := r.call("*://d/"+element+"/test.Fixture", "Given", what); err != nil || got != want {
			t.Errorf("%s %s: %q, %v, want %q", element, what, got, err, want)
		}
	}
	given("a", "COLOUR key", `["--port" "80"] red one a`)
	given("a", "GOMAXPROCS key", `["--port" "80"] 2 one a`)
	given("b", "GOMEMLIMIT key", `[] 536870912 one b`)
	given("b", "COLOUR none", `[]   b`)
	// It calls itself as what run_as says.
	if got, err := r.call("*://d/a/test.Fixture", "Call", "self *://d/b/test.Fixture Own"); err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if c := r.h.elements["d/a"].o().Concurrency; c != 7 {
		t.Errorf("concurrency %d", c)
	}
	pids := func(d DeploymentStatus) [2]int { return [2]int{d.Elements[0].Pid, d.Elements[1].Pid} }
	was := pids(d)

	// The same again, and what the host alone minds: no process.
	r.manifest("d", strings.Replace(text, "concurrency: 7", "concurrency: 8 # more", 1))
	r.until("the change", func(map[string]ElementStatus) bool { return r.h.elements["d/a"].o().Concurrency == 8 })
	if now := pids(r.untilDeployment("d", "ready", states(Ready, Ready))); now != was {
		t.Errorf("pids %v, were %v", now, was)
	}
	// What one is given: that one.
	text = strings.Replace(text, "red", "blue", 1)
	r.manifest("d", text)
	d = r.untilDeployment("d", "a's next", func(d DeploymentStatus) bool { return d.Elements[0].Generation == 2 })
	if pids(d)[1] != was[1] {
		t.Error("b was started again")
	}
	given("a", "COLOUR key", `["--port" "80"] blue one a`)
	// What all are given: all.
	text = strings.Replace(text, "key: one", "key: two", 1)
	r.manifest("d", text)
	r.untilDeployment("d", "the next of both", func(d DeploymentStatus) bool { return d.Elements[0].Generation == 3 && d.Elements[1].Generation == 2 })
	for { // the states are told a moment before calls go there
		got, err := r.call("*://d/b/test.Fixture", "Given", "- key")
		if err != nil || got == `[]  two b` {
			break
		}
	}
	given("b", "- key", `[]  two b`)

	// A manifest that is bad: the old one holds, and says why.
	r.manifest("d", text+"nonsense: 1\n")
	d = r.untilDeployment("d", "the warnings", func(d DeploymentStatus) bool { return d.Status == "warnings" && len(d.Elements[1].Warnings) == 1 })
	if w := d.Elements[1].Warnings[0]; !strings.Contains(w, manifest.Name+":8: nonsense") || d.Elements[1].State != Ready {
		t.Errorf("%+v", d)
	}
	given("b", "- key", `[]  two b`)
	r.manifest("d", text)
	r.untilDeployment("d", "clean", func(d DeploymentStatus) bool { return d.Status == "clean" })

	// It is turned off, and on again.
	r.manifest("d", text+"enabled: false\n")
	d = r.untilDeployment("d", "both are off", states(Disabled, Disabled))
	if d.Elements[0].Pid != 0 || d.Elements[0].Name != "a" || !strings.Contains(d.Elements[0].Reason, manifest.Name+":8") {
		t.Errorf("%+v", d)
	}
	_, err := r.call("*://d/a/test.Fixture", "Who", "")
	wantReason(t, err, conduit.ReasonPluginFailed, conduit.Refused)
	r.manifest("d", text)
	r.untilDeployment("d", "both are on", states(Ready, Ready))
	given("a", "- key", `["--port" "80"]  two a`)
}

// TestManifestName: an element that the manifest calls something else is refused, and says
// what to write.
func TestManifestName(t *testing.T) {
	r := newRig(t)
	r.mkdir("d")
	r.deploy("d/e-x", "")
	r.manifest("d", "elements: [{name: other-x, path: e-x}]\n")
	d := r.untilDeployment("d", "refused", states(Refused))
	if e := d.Elements[0]; e.Kind != refusedNamed || !strings.Contains(e.Reason, "write `name: other`") || e.Name != "other-x" {
		t.Errorf("%+v", e)
	}
	r.manifest("d", "elements: [{path: e-x}]\n")
	if d := r.untilDeployment("d", "ready", states(Ready)); d.Elements[0].Name != "e" {
		t.Errorf("%+v", d)
	}
}

// TestManifestReload: claims of a replaced process end in the drain's time where the
// manifest says so, and with stop-first the old process goes before the new one comes.
func TestManifestReload(t *testing.T) {
	r := newRig(t)
	r.mkdir("d")
	r.deploy("d/e", "")
	text := "elements: [{name: e, path: e}]\ndrain: {timeout: 100ms, claims: release}\ntimeouts: {stop: 100ms}\n"
	r.manifest("d", text)
	r.untilDeployment("d", "ready", states(Ready))
	const addr = "*://d/e/test.Fixture"
	if _, err := r.call(addr, "Claim", "1 orphan"); err != nil {
		t.Fatal(err)
	}
	r.deploy("d/e", "second")
	r.untilDeployment("d", "the old one has gone, and its claim", func(d DeploymentStatus) bool {
		e := d.Elements[0]
		return e.Generation == 2 && len(e.Old) == 0 && e.Claims == 0
	})
	if got := r.h.DrainTimeout(); got != 10*time.Second {
		t.Errorf("a drain of the host takes %s, want its own time, which is more", got)
	}
	// stop-first, with a claim that is released as well.
	r.manifest("d", text+"reload: stop-first\n")
	r.until("the change", func(map[string]ElementStatus) bool { return r.h.elements["d/e"].o().stopFirst })
	if _, err := r.call(addr, "Claim", "1 orphan"); err != nil {
		t.Fatal(err)
	}
	was := r.untilDeployment("d", "ready", states(Ready)).Elements[0].Pid
	r.deploy("d/e", mode("slow"))
	r.startingPid("d/e", 0)
	if err := syscall.Kill(was, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the old process is still there: %v", err)
	}
	r.touch("d/e", "go")
	r.untilDeployment("d", "ready", states(Ready))
}
