package host

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// TestCheckDescription: what cannot be addressed, poses as the instance, or is too much
// to show, is refused with what is wrong.
func TestCheckDescription(t *testing.T) {
	method := func(name string) *conduitv1.MethodDescription { return &conduitv1.MethodDescription{Name: name} }
	with := func(service string, methods ...*conduitv1.MethodDescription) *conduitv1.Description {
		return &conduitv1.Description{Element: "e", Services: []*conduitv1.ServiceDescription{{Name: service, Methods: methods}}}
	}
	var crowd, bulk []*conduitv1.MethodDescription
	for i := range maxMethods + 1 {
		crowd = append(crowd, method(fmt.Sprintf("M%d", i)))
	}
	for i := range 100 {
		bulk = append(bulk, &conduitv1.MethodDescription{Name: fmt.Sprintf("M%d", i), Deprecated: strings.Repeat("x", 1000)})
	}
	var services []*conduitv1.ServiceDescription
	for i := range maxServices + 1 {
		services = append(services, &conduitv1.ServiceDescription{Name: fmt.Sprintf("a.S%d", i)})
	}
	for want, d := range map[string]*conduitv1.Description{
		"the name of method \"\" is empty":  with("a.B", method("")),
		"method Get is there twice":         with("a.B", method("Get"), method("Get")),
		`"A\\nB" must be a letter`:          with("a.B", method("A\nB")),
		`"\\x1b[31m" must be a letter`:      with("a.B", method("\x1b[31m")),
		"more than 128 bytes":               with("a.B", method(strings.Repeat("m", 129))),
		"has the shape 99":                  with("a.B", &conduitv1.MethodDescription{Name: "Get", Shape: 99}),
		"asks for level 99":                 with("a.B", &conduitv1.MethodDescription{Name: "Get", MinLevel: 99}),
		"more than 1024 methods":            with("a.B", crowd...),
		"257 services, more than 256":       {Element: "e", Services: services},
		"bytes, more than 65536":            with("a.B", bulk...),
		"exports service a.B twice":         {Element: "e", Services: []*conduitv1.ServiceDescription{{Name: "a.B"}, {Name: "a.B"}}},
		"the instance's own":                {Element: "conduit"},
		"service conduit.v1.Instance;":      with("conduit.v1.Instance"),
		"service conduit.v1.Any#name;":      with("conduit.v1.Any#name"),
		"service conduit.Host;":             with("conduit.Host", method("Claim")),
		"service conduit.Host#x;":           with("conduit.Host#x", method("Claim")),
		"cannot be the name of a directory": {Element: ".."},
	} {
		err := checkDescription(d)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), refusedDescription) || len(err.Error()) > maxReason {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	d := with("conduit.v2.Game", method("Get"), method("Set"))
	d.Version = strings.Repeat("1", 10000)
	if err := checkDescription(d); err != nil || len(d.GetVersion()) > maxVersion+len("…") {
		t.Errorf("version of %d bytes, %v", len(d.GetVersion()), err)
	}
}

// TestTextsAreBounded: however much an element says of itself, its status stays small,
// and so does what is logged of it.
func TestTextsAreBounded(t *testing.T) {
	var mu sync.Mutex
	longest, changes := 0, 0
	r := newRigWith(t, func(o *Options) {
		o.Log = hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: writerFunc(func(p []byte) {
			mu.Lock()
			defer mu.Unlock()
			longest = max(longest, len(p))
			if strings.Contains(string(p), "health changed") {
				changes++
			}
		})})
	}, "loud", "loud-error", "posing")
	r.ready()
	s := r.untilState("loud", Degraded)
	n := len(s.Reason) + len(s.Description.GetVersion())
	for _, w := range s.Warnings {
		n += len(w)
	}
	if n > 48<<10 || !strings.HasPrefix(s.Reason, `\x1b`) || len(s.Warnings) == 0 {
		t.Errorf("the status takes %d bytes, its reason begins with %.20q, it has %d warnings", n, s.Reason, len(s.Warnings))
	}
	if got, err := r.call("*://loud/loud/test.Fixture", "Echo", "here"); err != nil || got != "here" {
		t.Errorf("%q, %v", got, err)
	}
	bad := r.elements()["loud-error"]
	if n := len(bad.Reason) + len(bad.LastError); n > 2*maxReason+16 || !strings.Contains(bad.LastError, "eee") {
		t.Errorf("an error of 3 MiB takes %d bytes", n)
	}
	if s := r.untilState("posing", Refused); s.Kind != refusedDescription || !strings.Contains(s.Reason, "the instance's own") {
		t.Errorf("an element that calls itself conduit: %+v", s)
	}
	_, err := r.call("*://posing/conduit/conduit.v1.Instance", "Echo", "")
	wantReason(t, err, conduit.ReasonPluginFailed, conduit.Refused)
	mu.Lock()
	defer mu.Unlock()
	if longest > 8<<10 || changes == 0 {
		t.Errorf("the longest line has %d bytes; %d changes of health were logged", longest, changes)
	}
}

// TestFileWarningEnds: a warning of a bad file goes with the file.
func TestFileWarningEnds(t *testing.T) {
	r := newRig(t, "echo")
	r.ready()
	before := r.elements()["echo"]
	for range 2 {
		r.write("echo", nil, 0o755)
		s := r.until("the warning", func(m map[string]ElementStatus) bool { return len(m["echo"].Warnings) > 0 })["echo"]
		if len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "the new file is refused") || s.State != Ready {
			t.Errorf("%+v", s)
		}
		r.deploy("echo", "")
		s = r.until("its end", func(m map[string]ElementStatus) bool { return len(m["echo"].Warnings) == 0 })["echo"]
		if s.Pid != before.Pid || s.Generation != 1 || s.State != Ready {
			t.Errorf("the same bytes again: %+v", s)
		}
	}
}

// TestCopyIsPutOff: a file that cannot be copied is tried ever more seldom, said once,
// and taken when there is room.
func TestCopyIsPutOff(t *testing.T) {
	r := newScanRig(t)
	store := r.s.store.dir
	r.s.store.dir = filepath.Join(store, "none")
	r.put("echo", program(t), 0o755)
	tries := 0
	for range 200 { // of a second each
		was := r.s.later["echo"].at
		found, waiting := r.scan()
		if f := found["echo"]; f.refused == nil || f.refused.kind != refusedCopy || strings.Contains(f.refused.reason, ".copy-") || waiting != 0 {
			t.Fatalf("%+v, %d wait", f, waiting)
		}
		if r.s.later["echo"].at != was {
			tries++
		}
	}
	if tries < 5 || tries > 12 {
		t.Errorf("%d tries in 200 s", tries)
	}
	if n := strings.Count(r.log.String(), "could not be copied"); n != 1 {
		t.Errorf("said %d times:\n%s", n, r.log)
	}
	r.s.store.dir = store
	for range 61 {
		if found, _ := r.scan(); found["echo"].binary != nil {
			return
		}
	}
	t.Error("never taken though there is room")
}

// TestNoDescriptors: a host that has no descriptor left blames no element for it, and
// starts the element when it has some again.
func TestNoDescriptors(t *testing.T) {
	r := newRigWith(t, func(o *Options) { o.CrashLoopAfter = 2 }, "echo")
	r.ready()
	var limit syscall.Rlimit
	mustDo(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	none := limit
	none.Cur = 3 // those that are open stay so
	mustDo(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none))
	back := func() { mustDo(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)) }
	defer back()
	pid := r.elements()["echo"].Pid
	mustDo(t, syscall.Kill(pid, syscall.SIGKILL))
	s := r.until("want of descriptors", func(m map[string]ElementStatus) bool { return m["echo"].Kind == "system" })["echo"]
	if s.State != Backoff || s.Restarts != 1 || !strings.Contains(s.Reason, "descriptor") && !strings.Contains(s.Reason, "too many open files") {
		t.Errorf("%+v", s)
	}
	// Through as many tries as would be a loop of crashes.
	ctx, cancel := context.WithTimeout(r.ctx, 500*time.Millisecond)
	defer cancel()
	for ctx.Err() == nil {
		r.mu.Lock()
		wake := r.wake
		r.mu.Unlock()
		if s := r.elements()["echo"]; s.State == CrashLooping || s.Restarts != 1 {
			t.Fatalf("the element is blamed: %+v", s)
		}
		select {
		case <-wake:
		case <-ctx.Done():
		}
	}
	back()
	if s := r.untilState("echo", Ready); s.Generation != 2 {
		t.Errorf("%+v", s)
	}
}
