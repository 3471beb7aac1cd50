package host

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
)

// binaryWith is the test binary with an end of its own: other bytes, and another mode.
func binaryWith(tb testing.TB, extra string) []byte {
	tb.Helper()
	self, err := pluginFile()
	if err != nil {
		tb.Fatal(err)
	}
	b, err := os.ReadFile(self)
	if err != nil {
		tb.Fatal(err)
	}
	return append(b, extra...)
}

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func uploadOf(name string, b []byte) Upload {
	return Upload{Name: name, Replace: true, Size: int64(len(b)), Sum: hashOf(b), Body: bytes.NewReader(b)}
}

// send deploys the test binary as an operator does.
func (r *rig) send(name, extra string) (Change, error) {
	r.t.Helper()
	return r.h.Deploy(r.ctx, uploadOf(name, binaryWith(r.t, extra)))
}

func (r *rig) mustSend(name, extra, result string) Change {
	r.t.Helper()
	c, err := r.send(name, extra)
	if err != nil || c.Result != result {
		r.t.Fatalf("deploy of %s: %+v, %v; want %s", name, c, err, result)
	}
	return c
}

// leftIn returns what is in the deployments directory.
func (r *rig) leftIn() string {
	r.t.Helper()
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func (r *rig) fileIs(name, extra string) {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil || hashOf(b) != hashOf(binaryWith(r.t, extra)) {
		r.t.Errorf("the file %s is not the one with %q: %v", name, extra, err)
	}
}

// The life of a deployment in an operator's hands.
func TestDeployAndBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.ready()
	c := r.mustSend("echo", "one", ResultReady)
	if c.Was != "" || c.Sum != hashOf(binaryWith(t, "one")) || c.Generation != 1 || c.Pid == 0 || c.ID == "" {
		t.Errorf("deployed: %+v", c)
	}
	if got, err := r.call(echo, "Echo", "hi"); got != "hi" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	if _, err := r.h.Rollback(r.ctx, "echo"); err == nil {
		t.Error("rolled back to nothing")
	} else {
		wantReason(t, err, conduit.ReasonNoPrevious, conduit.Refused)
	}

	// The same once more starts nothing.
	again := r.mustSend("echo", "one", ResultUnchanged)
	if again.Pid != c.Pid || again.Generation != 1 {
		t.Errorf("the same bytes: %+v", again)
	}

	// Others are a hot swap: a call under way goes on.
	x := invoke(r.ctx, r.client, echo, "Wait", "")
	if _, err := x.Recv(r.ctx); err != nil {
		t.Fatal(err)
	}
	two := r.mustSend("echo", "two", ResultReady)
	if two.Was != c.Sum || two.Generation != 2 || two.Pid == c.Pid {
		t.Errorf("the second: %+v", two)
	}
	if s := r.elements()["echo"]; len(s.Old) != 1 || s.Old[0].Calls != 1 {
		t.Errorf("its call was ended: %+v", s)
	}
	x.Cancel(context.Canceled)

	// Back, and forward again; the next scan agrees.
	for i, want := range []string{"one", "two", "one"} {
		c, err := r.h.Rollback(r.ctx, "echo")
		if err != nil || c.Result != ResultReady || c.Sum != hashOf(binaryWith(t, want)) || c.Generation != uint64(3+i) {
			t.Fatalf("rollback %d: %+v, %v", i, c, err)
		}
		r.fileIs("echo", want)
		if err := r.h.rescan(r.ctx, ""); err != nil {
			t.Fatal(err)
		}
		if s := r.elements()["echo"]; s.Sum != c.Sum || s.Generation != c.Generation {
			t.Errorf("after the next scan: %+v", s)
		}
	}

	c, err := r.h.Restart(r.ctx, "echo")
	if err != nil || c.Result != ResultReady || c.Sum != hashOf(binaryWith(t, "one")) || c.Generation != 6 {
		t.Fatalf("restart: %+v, %v", c, err)
	}
	if s := r.elements()["echo"]; s.Restarts != 0 {
		t.Errorf("an operator's restart counts as a crash: %+v", s)
	}

	data := filepath.Join(r.private, "data", "echo")
	if c, err := r.h.Undeploy(r.ctx, "echo", false); err != nil || c.Result != ResultRemoved || c.Was == "" {
		t.Fatalf("undeploy: %+v, %v", c, err)
	}
	if _, err := os.Stat(data); err != nil || r.leftIn() != "" || len(r.h.Snapshot()) != 0 {
		t.Errorf("after the undeploy: data %v, files %q, %+v", err, r.leftIn(), r.h.Snapshot())
	}
	for _, err := range []error{
		second(r.h.Undeploy(r.ctx, "echo", false)), second(r.h.Restart(r.ctx, "echo")), second(r.h.Rollback(r.ctx, "echo")), second(r.h.SetEnabled(r.ctx, "echo", true)),
		second(r.h.CordonDeployment("echo", true)),
	} {
		if e := wantReason(t, err, conduit.ReasonDeploymentNotFound, conduit.Refused); e.Code != conduit.NotFound {
			t.Error(e)
		}
	}
	r.mustSend("echo", "one", ResultReady)
	if _, err := r.h.Undeploy(r.ctx, "echo", true); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(data); err == nil {
		t.Error("its data outlived a purge")
	}
}

func second[T any](_ T, err error) error { return err }

// What cannot come up does not take the place of what serves, and the operator is told;
// a rollback then leads to what serves.
func TestDeployFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.ready()
	one := r.mustSend("echo", "one", ResultReady)
	_, err := r.send("echo", "MODE=fails;")
	e := wantReason(t, err, conduit.ReasonDeployFailed, conduit.Executed)
	if !strings.Contains(e.Message, "the new key is missing") || !strings.Contains(e.Message, "the process before goes on") || e.Details["serves"] != one.Sum {
		t.Errorf("%v, %v", e, e.Details)
	}
	if got, err := r.call(echo, "Echo", "hi"); got != "hi" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	// It is not told of the last time.
	_, err = r.send("echo", "MODE=fails;")
	wantReason(t, err, conduit.ReasonDeployFailed, conduit.Executed)
	c, err := r.h.Rollback(r.ctx, "echo")
	if err != nil || c.Sum != one.Sum || c.Pid != one.Pid {
		t.Errorf("rollback: %+v, %v", c, err)
	}
	r.fileIs("echo", "one")
	r.until("that nothing is said of it any more", func(m map[string]ElementStatus) bool { return len(m["echo"].Warnings) == 0 })

	// Where nothing served before, nothing does.
	_, err = r.send("other", "MODE=fails;")
	if e := wantReason(t, err, conduit.ReasonDeployFailed, conduit.Executed); !strings.Contains(e.Message, "nothing of it serves") {
		t.Error(e)
	}
	// One that stops first: the binary before comes back before the operator is told.
	single := r.mustSend("single", "one", ResultReady)
	_, err = r.send("single", "MODE=fails;")
	if e := wantReason(t, err, conduit.ReasonDeployFailed, conduit.Executed); !strings.Contains(e.Message, "the process before goes on") || e.Details["serves"] != single.Sum {
		t.Error(e)
	}
}

// What is no plugin for this machine is refused before anything has changed.
func TestDeployRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t, "echo")
	r.ready()
	before := r.elements()["echo"]
	good := binaryWith(t, "")
	short := uploadOf("echo", good)
	short.Body = bytes.NewReader(good[:len(good)-1])
	long := uploadOf("echo", good)
	long.Body = io.MultiReader(bytes.NewReader(good), strings.NewReader("more"))
	changed := uploadOf("echo", good)
	changed.Sum = hashOf([]byte("other"))
	huge := uploadOf("echo", good)
	huge.Size = MaxDeploy + 1
	foreign := bytes.Clone(good)
	foreign[18] ^= 0xff // the machine
	for what, u := range map[string]Upload{
		"is empty":                      uploadOf("echo", nil),
		"it is no program":              uploadOf("echo", []byte("<html>404</html>")),
		"this machine is":               uploadOf("echo", foreign),
		"ended 1 bytes before":          short,
		"more bytes came":               long,
		"it was changed on its way":     changed,
		"a deployment may have":         huge,
		"does not say what it is":       uploadOf("dies", good),
		"calls itself \"../../etc\"":    uploadOf("misnamed", good),
		"no deployment can have":        uploadOf("../echo", good),
		"the built-in services":         uploadOf("conduit", good),
		"can be called echo.bak":        uploadOf("echo.bak", good),
		"can be called SHA256SUMS":      uploadOf("SHA256SUMS", good),
		"can be called T000000000001":   uploadOf("T000000000001", good),
		"calls itself \"conduit\", a n": uploadOf("posing", good),
	} {
		_, err := r.h.Deploy(r.ctx, u)
		if e := wantReason(t, err, conduit.ReasonBadDeployment, conduit.Refused); !strings.Contains(e.Message, what) || e.Code != conduit.InvalidArgument {
			t.Errorf("%s: %v", what, e)
		} else if what == "does not say what it is" && !strings.Contains(e.Message, ": what was sent for ") {
			t.Errorf("it names a file that was not tried: %v", e)
		}
	}
	u := uploadOf("echo", good)
	u.Replace = false
	wantReason(t, second(r.h.Deploy(r.ctx, u)), conduit.ReasonDeploymentExists, conduit.Refused)
	u = uploadOf("echo", good)
	u.Transient = true
	wantReason(t, second(r.h.Deploy(r.ctx, u)), conduit.ReasonDeploymentExists, conduit.Refused)
	// A sender that goes away in the middle.
	u = uploadOf("echo", append(good, "new"...))
	u.Body = io.MultiReader(bytes.NewReader(good), failing{conduit.Errorf(conduit.Canceled, conduit.ReasonCanceled, conduit.OutcomeUnknown, "gone")})
	wantReason(t, second(r.h.Deploy(r.ctx, u)), conduit.ReasonCanceled, conduit.OutcomeUnknown)

	if s := r.elements(); len(s) != 1 || s["echo"].Pid != before.Pid || r.leftIn() != "echo" {
		t.Errorf("something has changed: %+v, %q", s, r.leftIn())
	}
	halves, _ := filepath.Glob(filepath.Join(r.private, "bin", halfCopy+"*"))
	probes, _ := filepath.Glob(filepath.Join(r.private, "transient", "*"))
	if len(halves)+len(probes) > 0 {
		t.Errorf("left: %v %v", halves, probes)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// The list of checksums says which bytes may be deployed, by a rollback too.
func TestDeployVerified(t *testing.T) {
	t.Parallel()
	r := newRigWith(t, func(o *Options) { o.Verify = VerifyRequired })
	r.ready()
	one, two := binaryWith(t, "one"), binaryWith(t, "two")
	list := func(b []byte) { r.write(sumsName, []byte(hashOf(b)+"  echo\n"), 0o644) }
	e := wantReason(t, second(r.h.Deploy(r.ctx, uploadOf("echo", one))), conduit.ReasonBadDeployment, conduit.Refused)
	if !strings.Contains(e.Message, "does not name it") || e.Details["kind"] != refusedNoChecksum {
		t.Error(e)
	}
	list(one)
	r.mustSend("echo", "one", ResultReady)
	e = wantReason(t, second(r.h.Deploy(r.ctx, uploadOf("echo", two))), conduit.ReasonBadDeployment, conduit.Refused)
	if !strings.Contains(e.Message, "expected "+hashOf(one)) || e.Details["kind"] != refusedChecksum {
		t.Error(e)
	}
	list(two)
	r.mustSend("echo", "two", ResultReady)
	wantReason(t, second(r.h.Rollback(r.ctx, "echo")), conduit.ReasonBadDeployment, conduit.Refused)
	r.fileIs("echo", "two")
	u := uploadOf("guest", one)
	u.Transient = true
	wantReason(t, second(r.h.Deploy(r.ctx, u)), conduit.ReasonBadDeployment, conduit.Refused)
}

// A directory that cannot be written says so; nothing has changed, and what is transient
// needs none.
func TestDeployReadOnly(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Log("as root every directory can be written: a directory that has gone stands for one that cannot")
	}
	r := newRig(t, "echo")
	r.ready()
	if os.Geteuid() == 0 {
		if err := os.Rename(r.dir, r.dir+".away"); err != nil {
			t.Fatal(err)
		}
		defer os.Rename(r.dir+".away", r.dir) //nolint:errcheck // the test's own directory
	} else {
		if err := os.Chmod(r.dir, 0o500); err != nil {
			t.Fatal(err)
		}
		defer os.Chmod(r.dir, 0o700) //nolint:errcheck // the test's own directory
	}
	_, err := r.send("echo", "two")
	if e := wantReason(t, err, conduit.ReasonNotWritable, conduit.Refused); !strings.Contains(e.Message, "--transient") || e.Code != conduit.FailedPrecondition {
		t.Error(e)
	}
	wantReason(t, second(r.h.Undeploy(r.ctx, "echo", false)), conduit.ReasonNotWritable, conduit.Refused)
	if got, err := r.call(echo, "Echo", "hi"); got != "hi" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// A transient deployment is found by scans, behind all others, and by nothing else; it is
// gone with the process.
func TestTransient(t *testing.T) {
	t.Parallel()
	r := newRig(t, "echo")
	r.ready()
	u := uploadOf("echo-guest", binaryWith(t, "")) // its element is "echo", too
	u.Transient = true
	c, err := r.h.Deploy(r.ctx, u)
	if err != nil || c.Result != ResultReady || c.ID != "T000000000001" {
		t.Fatalf("%+v, %v", c, err)
	}
	who := func(addr string) string {
		got, err := r.call(addr, "Who", "")
		if e, ok := errors.AsType[*conduit.Error](err); ok {
			return e.Reason
		}
		name, _, _ := strings.Cut(got, " ")
		return name
	}
	for addr, want := range map[string]string{
		"*://*/echo/test.Fixture":                conduit.ReasonUnspecified, // replaced below
		"*://*/echo[0]/test.Fixture":             "echo",
		"*://*/echo[1]/test.Fixture":             "echo-guest",
		"*://*/echo[2]/test.Fixture":             conduit.ReasonElementNotFound,
		"*://echo-guest/echo/test.Fixture":       conduit.ReasonDeploymentNotFound,
		"*://T000000000001/echo/test.Fixture":    conduit.ReasonDeploymentNotFound,
		"*://echo/echo/test.Fixture":             "echo",
		"*://echo-guest/echo[0]/test.Fixture":    conduit.ReasonDeploymentNotFound,
		"*://T000000000001/echo[0]/test.Fixture": conduit.ReasonDeploymentNotFound,
	} {
		if strings.Contains(addr, "*://*/echo/") {
			want = "echo" // the first that is ready
		}
		if got := who(addr); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
	all := r.h.Snapshot()
	if len(all) != 2 || all[1].Transient != "T000000000001" || all[1].Name != "echo-guest" || !all[1].ID.IsZero() || r.leftIn() != "echo" {
		t.Errorf("%+v", all)
	}
	home := filepath.Join(r.private, "transient", "T000000000001")
	if _, err := os.Stat(filepath.Join(home, "data", "echo-guest", "echo")); err != nil {
		t.Errorf("its data: %v", err)
	}
	// A deployment of its name would hide it.
	_, err = r.send("echo-guest", "")
	wantReason(t, err, conduit.ReasonDeploymentExists, conduit.Refused)
	// Scans let it be, and a deploy of its name swaps it.
	u = uploadOf("echo-guest", binaryWith(t, "two"))
	u.Transient, u.Replace = true, true
	if c, err = r.h.Deploy(r.ctx, u); err != nil || c.ID != "T000000000001" || c.Generation != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err = r.h.Restart(r.ctx, "T000000000001"); err != nil || c.Generation != 3 {
		t.Errorf("%+v, %v", c, err)
	}
	wantReason(t, second(r.h.Rollback(r.ctx, "echo-guest")), conduit.ReasonNoPrevious, conduit.Refused)
	if c, err = r.h.Undeploy(r.ctx, "echo-guest", false); err != nil || c.Result != ResultRemoved {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := os.Stat(home); err == nil {
		t.Error("its directory outlived it")
	}
	// The next is another; the end of the host takes it away.
	u = uploadOf("echo-guest", binaryWith(t, ""))
	u.Transient = true
	if c, err = r.h.Deploy(r.ctx, u); err != nil || c.ID != "T000000000002" {
		t.Fatalf("%+v, %v", c, err)
	}
	if err := r.h.Stop(r.ctx); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(r.private, "transient*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// Operators who deploy one name at once: each is told the truth, and what is there in the
// end is whole, and what the last one sent.
func TestDeployAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.ready()
	var wg sync.WaitGroup
	var mu sync.Mutex
	ready := map[string]bool{}
	for i := range 4 {
		wg.Go(func() {
			b := binaryWith(t, strconv.Itoa(i))
			c, err := r.h.Deploy(r.ctx, uploadOf("echo", b))
			e, _ := errors.AsType[*conduit.Error](err)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && c.Sum == hashOf(b):
				ready[c.Sum] = true
			case e == nil || e.Reason != conduit.ReasonSuperseded:
				t.Errorf("%d: %+v, %v", i, c, err)
			}
		})
	}
	wg.Wait()
	b, err := os.ReadFile(filepath.Join(r.dir, "echo"))
	if err != nil {
		t.Fatal(err)
	}
	s := r.elements()["echo"]
	if !ready[hashOf(b)] || s.Sum != hashOf(b) || r.leftIn() != "echo" {
		t.Errorf("the file is %s, what serves %s; ready were %v; %q", hashOf(b), s.Sum, ready, r.leftIn())
	}
}

// dieAtVar has the test binary be a host that deploys, and is killed at a step of it:
// "<step> <deployments> <private>".
const dieAtVar = "HOST_DIE_AT"

// dieTreeVar has that deploy a directory.
const dieTreeVar = "HOST_DIE_TREE"

func deployAndDie(at string) {
	step, dirs, _ := strings.Cut(at, " ")
	dir, private, _ := strings.Cut(dirs, " ")
	fail := func(err error) {
		if err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(3)
		}
	}
	h, err := New(Options{Dir: dir, Private: private, Instance: testInstance, Env: []string{fixtureVar + "=1"}, ScanInterval: 50 * time.Millisecond, StartTimeout: time.Minute})
	fail(err)
	go func() { fail(h.Run(context.Background())) }()
	<-h.Ready()
	h.placing = func(reached string) {
		if reached == step {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	if os.Getenv(dieTreeVar) != "" {
		fail(deployTreeAndDie(h))
		fail(errors.New("it was not killed"))
	}
	self, err := pluginFile()
	fail(err)
	b, err := os.ReadFile(self)
	fail(err)
	_, err = h.Deploy(context.Background(), uploadOf("echo", append(b, "two"...)))
	fail(err)
	fail(errors.New("it was not killed"))
}

// A host that is killed while it deploys leaves the file before or the new one, whole. The
// next host runs it, and removes what else is there.
func TestDeployKilled(t *testing.T) {
	t.Parallel()
	for _, step := range []string{stepMade, stepWritten, stepSynced, stepRenamed} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			t.Cleanup(cancel)
			r := &rig{t: t, ctx: ctx, dir: t.TempDir(), private: t.TempDir(), done: make(chan error, 1), wake: make(chan struct{})}
			r.deploy("echo", "one")
			cmd := exec.CommandContext(ctx, os.Args[0])
			cmd.Env = append(os.Environ(), dieAtVar+"="+step+" "+r.dir+" "+r.private)
			if out, err := cmd.CombinedOutput(); err == nil || cmd.ProcessState.String() != "signal: killed" {
				t.Fatalf("%v: %s", err, out)
			}
			want, halves := "one", 1
			if step == stepRenamed {
				want, halves = "two", 0
			}
			r.fileIs("echo", want)
			if left := r.leftIn(); strings.Count(left, ".deploy-") != halves {
				t.Errorf("the kill left %q", left)
			}
			foreign := filepath.Join(r.dir, ".deploy-0123456789abcdef-x") // another instance's
			guest := filepath.Join(r.private, "transient", "T000000000001")
			if err := errors.Join(os.WriteFile(foreign, nil, 0o600), os.MkdirAll(guest, 0o700)); err != nil {
				t.Fatal(err)
			}
			r.run(t, nil)
			r.ready()
			if s := r.elements(); len(s) != 1 || s["echo"].State != Ready || s["echo"].Sum != hashOf(binaryWith(t, want)) {
				t.Errorf("%+v", s)
			}
			if left := r.leftIn(); left != filepath.Base(foreign)+" echo" {
				t.Errorf("left: %q", left)
			}
			if _, err := os.Stat(guest); err == nil {
				t.Error("what was transient outlived its host")
			}
		})
	}
}

// A write that fails leaves nothing behind.
func TestWriteWhole(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	say := func(s string) func(io.Writer) error {
		return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
	}
	if err := writeWhole(path, ".t", 0o640, say("one"), nil); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if err := writeWhole(path, ".t", 0o640, func(io.Writer) error { return broken }, nil); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	if err := writeWhole(dir, "../.t", 0o640, say("two"), nil); err == nil {
		t.Error("a directory was replaced")
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".t")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}
