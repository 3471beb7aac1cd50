package host

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/budget"
)

// TestOperateDirectory: commands for a deployment that is a directory reach all of its
// elements, and what is for one file says so.
func TestOperateDirectory(t *testing.T) {
	t.Parallel()
	b := budget.New(100)
	r := newRigWith(t, func(o *Options) { o.Budget = b })
	r.ready()
	two := "elements:\n  - {name: a, path: bin/program}\n  - {name: b, path: bin/program}\n"
	r.mkdir("d/bin")
	r.deploy("d/bin/program", "")
	r.manifest("d", two)
	d := r.untilDeployment("d", "both are ready", states(Ready, Ready))
	was := []int{d.Elements[0].Pid, d.Elements[1].Pid}

	// All are started anew, from the same bytes.
	c, err := r.h.Restart(r.ctx, "d")
	if err != nil || c.Result != ResultReady || c.Pid != 0 || c.Sum != "" || !strings.Contains(c.Note, "2 elements") {
		t.Fatalf("%+v, %v", c, err)
	}
	d = r.untilDeployment("d", "both are ready again", states(Ready, Ready))
	for i, e := range d.Elements {
		if e.Generation != 2 || e.Pid == was[i] {
			t.Errorf("%+v", e)
		}
		gone(t, r, was[i])
	}

	// Nothing of a directory is kept to go back to, and no binary takes its place.
	if e := wantReason(t, second(r.h.Rollback(r.ctx, "d")), conduit.ReasonNoPrevious, conduit.Refused); !strings.Contains(e.Message, "directory") {
		t.Error(e)
	}
	_, err = r.send("d", "")
	if e := wantReason(t, err, conduit.ReasonBadDeployment, conduit.Refused); !strings.Contains(e.Message, "is a directory") {
		t.Error(e)
	}
	_, err = r.h.Deploy(r.ctx, Upload{Name: "d", Transient: true, Size: 1, Sum: hashOf([]byte("x")), Body: strings.NewReader("x")})
	wantReason(t, err, conduit.ReasonDeploymentExists, conduit.Refused)
	if d.Previous != "" {
		t.Errorf("it can be rolled back to %s", d.Previous)
	}

	// A cordon is for all, and for what joins them.
	if unchanged, err := r.h.CordonDeployment("d", true); unchanged || err != nil {
		t.Fatal(unchanged, err)
	}
	r.manifest("d", two+"  - {name: c, path: bin/program}\n")
	r.untilDeployment("d", "the third", states(Ready, Ready, Ready))
	for _, element := range []string{"a", "b", "c"} {
		_, err := r.call("*://d/"+element+"/test.Fixture", "Heavy", "")
		wantReason(t, err, conduit.ReasonCordoned, conduit.Refused)
	}
	if unchanged, err := r.h.CordonDeployment("d", false); unchanged || err != nil || r.cordoned("d") {
		t.Fatal(unchanged, err)
	}
	x := invoke(r.ctx, r.client, "*://d/c/test.Fixture", "Heavy", "")
	if _, err := x.Recv(r.ctx); err != nil {
		t.Error(err)
	}
	x.Cancel(context.Canceled)

	// One that does not come up is named.
	r.manifest("d", two+"  - {name: c, path: bin/none}\n")
	r.untilDeployment("d", "the third, refused", func(d DeploymentStatus) bool {
		return len(d.Elements) == 3 && len(d.Elements[2].Warnings) > 0
	})
	if e := wantReason(t, second(r.h.Restart(r.ctx, "d")), conduit.ReasonDeployFailed, conduit.Executed); !strings.Contains(e.Message, "element c of deployment d") {
		t.Error(e)
	}

	// It goes with its directory, its processes and, if that is wanted, its data.
	r.manifest("d", two)
	d = r.untilDeployment("d", "two", states(Ready, Ready))
	data := filepath.Join(r.private, "data", "d")
	if _, err := os.Stat(data); err != nil {
		t.Fatal(err)
	}
	c, err = r.h.Undeploy(r.ctx, "d", true)
	if err != nil || c.Result != ResultRemoved {
		t.Fatalf("%+v, %v", c, err)
	}
	for _, e := range d.Elements {
		gone(t, r, e.Pid)
	}
	for _, path := range []string{filepath.Join(r.dir, "d"), data, filepath.Join(r.private, "work", "d")} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	if left := r.leftIn(); left != "" {
		t.Errorf("left in the deployments directory: %s", left)
	}
	wantReason(t, second(r.h.Restart(r.ctx, "d")), conduit.ReasonDeploymentNotFound, conduit.Refused)
	r.mustSend("d", "", ResultReady) // the name is free
}

// TestDisabledDirectory: an operator's word is for the whole directory, whatever its
// manifest says and whatever joins it; what the manifest turns off, no operator turns on.
func TestDisabledDirectory(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.ready()
	text := "elements:\n  - {name: a, path: program}\n"
	second := second[Change]
	r.mkdir("d")
	r.deploy("d/program", "")
	r.manifest("d", text)
	pid := r.untilDeployment("d", "it is ready", states(Ready)).Elements[0].Pid
	turn := func(on bool, result string) {
		t.Helper()
		if c, err := r.h.SetEnabled(r.ctx, "d", on); err != nil || c.Result != result {
			t.Fatalf("%+v, %v", c, err)
		}
	}
	turn(false, ResultDisabled)
	gone(t, r, pid)
	text += "  - {name: b, path: program}\n"
	r.manifest("d", text)
	d := r.untilDeployment("d", "who joins is off", states(Disabled, Disabled))
	if !d.Disabled || !strings.Contains(d.Elements[1].Reason, "operator") {
		t.Errorf("%+v", d)
	}
	turn(false, ResultUnchanged)

	r.manifest("d", text+"enabled: false\n")
	r.until("the manifest", func(map[string]ElementStatus) bool {
		list, err := r.h.find("d")
		return err == nil && offInManifest(list) != ""
	})
	for _, err := range []error{second(r.h.SetEnabled(r.ctx, "d", true)), second(r.h.Restart(r.ctx, "d"))} {
		wantReason(t, err, conduit.ReasonDisabled, conduit.Refused)
	}
	if e := wantReason(t, second(r.h.SetEnabled(r.ctx, "d", true)), conduit.ReasonDisabled, conduit.Refused); !strings.Contains(e.Message, "deployment.yaml:4") {
		t.Error(e)
	}
	r.manifest("d", text)
	r.until("the manifest", func(map[string]ElementStatus) bool {
		list, err := r.h.find("d")
		return err == nil && offInManifest(list) == ""
	})
	if d = r.untilDeployment("d", "it is off", states(Disabled, Disabled)); !d.Disabled {
		t.Errorf("%+v", d) // the operator's word holds
	}
	turn(true, ResultReady)
	r.untilDeployment("d", "both are ready", states(Ready, Ready))

	// By the manifest alone; then an operator says so, too.
	r.manifest("d", text+"enabled: false\n")
	if d = r.untilDeployment("d", "both are off", states(Disabled, Disabled)); !d.Disabled {
		t.Errorf("%+v", d)
	}
	wantReason(t, second(r.h.SetEnabled(r.ctx, "d", true)), conduit.ReasonDisabled, conduit.Refused)
	turn(false, ResultDisabled)
	r.manifest("d", text)
	r.until("the manifest", func(map[string]ElementStatus) bool {
		list, err := r.h.find("d")
		return err == nil && offInManifest(list) == ""
	})
	turn(true, ResultReady)

	// Over the end of the host.
	turn(false, ResultDisabled)
	if err := r.h.Stop(r.ctx); err != nil {
		t.Fatal(err)
	}
	next := &rig{t: t, ctx: r.ctx, dir: r.dir, private: r.private, wake: make(chan struct{}), done: make(chan error, 1)}
	next.run(t, nil)
	next.ready()
	next.untilDeployment("d", "it is off", states(Disabled, Disabled))
	if c, err := next.h.SetEnabled(r.ctx, "d", true); err != nil || c.Result != ResultReady {
		t.Fatalf("%+v, %v", c, err)
	}
	next.untilDeployment("d", "both are ready", states(Ready, Ready))
}

// TestTransientAttributes: what goes with the process is told the instance's attributes,
// and started anew when they change.
func TestTransientAttributes(t *testing.T) {
	t.Parallel()
	r := newRigWith(t, func(o *Options) { o.Attributes = NewAttributes(FromInstance, false, map[string]string{"key": "one"}) })
	r.ready()
	u := uploadOf("passing", binaryWith(t, ""))
	u.Transient = true
	if c, err := r.h.Deploy(r.ctx, u); err != nil || c.Result != ResultReady {
		t.Fatalf("%+v, %v", c, err)
	}
	told := func() string {
		got, err := r.call("*://*/passing/test.Fixture", "Given", "- key")
		if err != nil {
			t.Error(err)
		}
		return got
	}
	if got := told(); !strings.Contains(got, " one ") {
		t.Errorf("%q", got)
	}
	if err := r.h.SetAttributes(NewAttributes(FromInstance, false, map[string]string{"key": "two"})); err != nil {
		t.Fatal(err)
	}
	r.until("the next generation", func(m map[string]ElementStatus) bool {
		return m["passing"].Generation == 2 && m["passing"].State == Ready
	})
	if got := told(); !strings.Contains(got, " two ") {
		t.Errorf("%q", got)
	}
}

// TestRestartLooksFirst: what an operator has started anew is what the directory, and the
// list of checksums in it, say at that moment, though no scan has seen it yet. What is said
// of a process that goes on is taken back with its end.
func TestRestartLooksFirst(t *testing.T) {
	t.Parallel()
	r := newRigWith(t, func(o *Options) { o.Verify, o.ScanInterval = VerifyRequired, time.Hour })
	self, err := pluginFile()
	mustDo(t, err)
	good, err := os.ReadFile(self)
	mustDo(t, err)
	list := func(sum string) { r.write(sumsName, []byte(sum+"  echo\n"), 0o644) }
	list(hashOf(good))
	r.deploy("echo", "")
	was := r.untilState("echo", Ready)

	list(hashOf([]byte("another")))
	_, err = r.h.Restart(r.ctx, "echo")
	wantReason(t, err, conduit.ReasonDeployFailed, conduit.Executed)
	s := r.until("a warning", func(m map[string]ElementStatus) bool { return len(m["echo"].Warnings) > 0 })["echo"]
	if s.State != Ready || s.Pid != was.Pid || s.Generation != was.Generation || !strings.Contains(s.Warnings[0], "goes on") {
		t.Errorf("what does not vouch for it any more has made of it %+v", s)
	}
	mustDo(t, syscall.Kill(was.Pid, syscall.SIGKILL))
	if s := r.untilState("echo", Refused); len(s.Warnings) != 0 || s.Kind != refusedChecksum {
		t.Errorf("nothing of it goes on: %+v", s)
	}

	list(hashOf(good))
	if c, err := r.h.Restart(r.ctx, "echo"); err != nil || c.Result != ResultReady || c.Sum != was.Sum {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := r.h.SetEnabled(r.ctx, "echo", false); err != nil {
		t.Fatal(err)
	}
	list(hashOf([]byte("another")))
	_, err = r.h.SetEnabled(r.ctx, "echo", true)
	wantReason(t, err, conduit.ReasonDeployFailed, conduit.Executed)
	if s := r.untilState("echo", Refused); s.Pid != 0 || s.Generation != 2 {
		t.Errorf("enabled, it is %+v", s)
	}
}
