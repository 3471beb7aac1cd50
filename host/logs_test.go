package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// followed is a log that is followed.
type followed struct {
	r       *rig
	records chan *conduitv1.LogRecord
	done    chan error
}

// follow follows a log until the test's end.
func (r *rig) follow(in *conduitv1.LogsRequest) *followed {
	ctx, cancel := context.WithCancel(r.ctx)
	f := &followed{r: r, records: make(chan *conduitv1.LogRecord), done: make(chan error, 1)}
	in.Follow = true
	go func() {
		f.done <- r.h.Logs(ctx, in, func(m *conduitv1.LogRecord) error {
			select {
			case f.records <- m:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	r.t.Cleanup(func() {
		cancel()
		<-f.done
	})
	return f
}

// until returns the next record that ok takes.
func (f *followed) until(what string, ok func(m *conduitv1.LogRecord) bool) *conduitv1.LogRecord {
	f.r.t.Helper()
	for {
		select {
		case m := <-f.records:
			if ok(m) {
				return m
			}
		case err := <-f.done:
			f.done <- err
			f.r.t.Fatalf("the log ended without %s: %v", what, err)
		case <-f.r.ctx.Done():
			f.r.t.Fatalf("the log never had %s", what)
		}
	}
}

func (f *followed) message(text string) *conduitv1.LogRecord {
	f.r.t.Helper()
	return f.until(fmt.Sprintf("%q", text), func(m *conduitv1.LogRecord) bool { return strings.HasPrefix(m.GetMessage(), text) })
}

// tail reads what there is.
func (r *rig) tail(in *conduitv1.LogsRequest) (list []*conduitv1.LogRecord, err error) {
	err = r.h.Logs(r.ctx, in, func(m *conduitv1.LogRecord) error {
		list = append(list, m)
		return nil
	})
	return list, err
}

// say has an element write something.
func (r *rig) say(method, text string) {
	r.t.Helper()
	if _, err := r.call(echo, method, text); err != nil {
		r.t.Fatal(err)
	}
}

// What a process writes in whatever way is in its deployment's log, with who wrote it; so
// is how it ended, and what the next one writes; and it is still there when the deployment
// is not.
func TestLogs(t *testing.T) {
	r := newRig(t, "echo")
	s := r.untilState("echo", Ready)
	log := r.follow(&conduitv1.LogsRequest{Deployment: "echo"})
	m := log.message("element ready")
	if m.GetSource() != "host" || m.GetLevel() != "info" || m.GetGeneration() != 1 || m.GetPid() != int64(s.Pid) || m.GetFields()["version"] != "1" {
		t.Errorf("%v", m)
	}

	r.say("Raw", `{"@level":"warn","@message":"careful\u001b[2J","@timestamp":"x","pid":1,"n":{"a":[1]}}`+"\n")
	m = log.message("careful")
	if m.GetLevel() != "warn" || m.GetMessage() != `careful\x1b[2J` || m.GetElement() != "echo" || m.GetDeployment() != "echo" || m.GetGeneration() != 1 ||
		m.GetPid() != int64(s.Pid) || m.GetSource() != "stderr" || m.GetFields()["n"] != `{"a":[1]}` || m.GetFields()["plugin.pid"] != "1" || m.GetUnixMicros() == 0 {
		t.Errorf("%v", m)
	}
	r.say("Raw", `{"@level":"debug","@message":"in detail"}`+"\n")
	if m := log.message("in detail"); m.GetLevel() != "debug" {
		t.Errorf("%v", m)
	}
	r.say("Println", "to stdout")
	if m := log.message("to stdout"); m.GetSource() != "stdout" || m.GetLevel() != "info" {
		t.Errorf("%v", m)
	}
	r.say("Print", "[ERROR] to stderr")
	if m := log.message("to stderr"); m.GetSource() != "stderr" || m.GetLevel() != "error" {
		t.Errorf("%v", m)
	}
	var text strings.Builder
	text.WriteString("panic: oh no\n\ngoroutine 7 [running]:\n")
	for i := range 14 {
		fmt.Fprintf(&text, "main.f%d(...)\n\t/x.go:%d\n", i, i)
	}
	r.say("Raw", text.String())
	if m := log.message("panic: oh no"); m.GetLevel() != "error" || strings.Count(m.GetFields()["stack"], "\n") != 29 {
		t.Errorf("%v", m)
	}
	r.say("Raw", `{"@level":"warn","@message":"`+strings.Repeat("z", 1<<20)+"\"}\n")
	m = log.until("the long line", func(m *conduitv1.LogRecord) bool { return m.GetFields()["truncated"] == "true" })
	lost, err := strconv.Atoi(m.GetFields()["lost_bytes"])
	if err != nil || m.GetLevel() != "warn" || lost < 1<<19 || len(m.GetMessage()) > 1<<19 {
		t.Errorf("%s, %d bytes, %v", m.GetLevel(), len(m.GetMessage()), m.GetFields()["lost_bytes"])
	}

	_, _ = r.call(echo, "Exit", "")
	if m := log.message("element failed"); m.GetLevel() != "error" || m.GetSource() != "host" || !strings.Contains(m.GetFields()["reason"], "status 9") {
		t.Errorf("%v", m)
	}
	log.message("element ready")
	r.say("Print", "here again")
	if m := log.message("here again"); m.GetGeneration() != 2 || m.GetPid() == int64(s.Pid) {
		t.Errorf("%v", m)
	}
	for _, named := range []string{"echo", r.h.Snapshot()[0].ID.String()} {
		if all, err := r.tail(&conduitv1.LogsRequest{Deployment: named, Element: "echo", MinLevel: "error", SinceMillis: 1 << 62}); err != nil || len(all) != 3 {
			t.Errorf("%v, %v", all, err)
		}
	}
	if err := os.Remove(filepath.Join(r.dir, "echo")); err != nil {
		t.Fatal(err)
	}
	log.message("element stopped")
	r.until("it has gone", func(m map[string]ElementStatus) bool { return len(m) == 0 })
	one := uint32(1)
	if last, err := r.tail(&conduitv1.LogsRequest{Deployment: "echo", Tail: &one}); err != nil || len(last) != 1 || last[0].GetMessage() != "element stopped" {
		t.Errorf("%v, %v", last, err)
	}
}

// A question that cannot be meant says what is wrong with it.
func TestLogsRefused(t *testing.T) {
	r := newRig(t, "echo")
	r.untilState("echo", Ready)
	for _, c := range []struct {
		in     *conduitv1.LogsRequest
		reason string
		text   string
	}{
		{&conduitv1.LogsRequest{Deployment: "ecco"}, conduit.ReasonDeploymentNotFound, "there is echo"},
		{&conduitv1.LogsRequest{Deployment: "../bin"}, conduit.ReasonDeploymentNotFound, "there is echo"},
		{&conduitv1.LogsRequest{}, conduit.ReasonDeploymentNotFound, "there is echo"},
		{&conduitv1.LogsRequest{Deployment: "conduit"}, conduit.ReasonDeploymentNotFound, "the instance itself"},
		{&conduitv1.LogsRequest{Deployment: "echo", MinLevel: "loud"}, conduit.ReasonBadContent, "trace, debug"},
	} {
		_, err := r.tail(c.in)
		if e := wantReason(t, err, c.reason, conduit.Refused); !strings.Contains(e.Message, c.text) {
			t.Errorf("%v: %v", c.in, err)
		}
	}
}

// Of one that crashes again and again the log has each try, with what it wrote before it
// had a name.
func TestLogsOfCrashes(t *testing.T) {
	r := newRigWith(t, func(o *Options) { o.CrashLoopAfter = 2 }, "dies")
	r.ready()
	log := r.follow(&conduitv1.LogsRequest{Deployment: "dies"})
	for range 2 {
		if m := log.message("cannot live"); m.GetElement() != "" || m.GetGeneration() != 1 || m.GetPid() == 0 {
			t.Errorf("%v", m)
		}
		if m := log.message("element failed"); !strings.Contains(m.GetFields()["reason"], "status 4") {
			t.Errorf("%v", m)
		}
	}
}

// Of more lines than there may be, each is either there or counted.
func TestLogsFlood(t *testing.T) {
	const all = 25000
	r := newRigWith(t, func(o *Options) { o.LogSize = 64 << 20 }, "echo")
	r.untilState("echo", Ready)
	r.say("Flood", strconv.Itoa(all))
	for there, dropped := 0, 0; there+dropped != all; {
		list, err := r.tail(&conduitv1.LogsRequest{Deployment: "echo"})
		if err != nil {
			t.Fatal(err)
		}
		there, dropped = 0, 0
		for _, m := range list {
			n, _ := strconv.Atoi(m.GetFields()["dropped"])
			dropped += n
			if m.GetMessage() == "flood" {
				there++
			}
		}
		if there+dropped > all {
			t.Fatalf("%d lines are there, and %d were dropped", there, dropped)
		}
		select {
		case <-time.After(100 * time.Millisecond): // to read all of it again is work
		case <-r.ctx.Done():
			t.Fatalf("%d lines are there, and %d were dropped", there, dropped)
		}
		if there+dropped == all && dropped == 0 {
			t.Log("this machine was too slow for the rate")
		}
	}
	r.say("Echo", "well")
}

// While files become old ones, who follows loses nothing; what is kept is bounded.
func TestLogsRotation(t *testing.T) {
	r := newRigWith(t, func(o *Options) { o.LogSize, o.LogFiles = 32<<10, 2 }, "echo")
	r.untilState("echo", Ready)
	log := r.follow(&conduitv1.LogsRequest{Deployment: "echo"})
	next := 0
	for range 20 {
		var text strings.Builder
		for i := range 50 {
			fmt.Fprintf(&text, "line %d %s\n", next+i, strings.Repeat("x", 100))
		}
		r.say("Raw", text.String())
		for range 50 {
			if m := log.message("line "); !strings.HasPrefix(m.GetMessage(), fmt.Sprintf("line %d ", next)) {
				t.Fatalf("instead of line %d: %v", next, m)
			}
			next++
		}
	}
	dir := filepath.Join(r.private, logsDir)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 {
		t.Errorf("%v, %v", entries, err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Size() > 32<<10 || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), info, err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
}

// A log that cannot be written costs the log, and no call.
func TestLogsUnwritable(t *testing.T) {
	r := newRigWith(t, func(o *Options) {
		if err := os.MkdirAll(filepath.Join(o.Private, logsDir, "echo.log"), 0o700); err != nil {
			t.Fatal(err)
		}
	}, "echo")
	r.untilState("echo", Ready)
	for range 10 {
		r.say("Flood", "1000")
	}
	if _, err := r.tail(&conduitv1.LogsRequest{Deployment: "echo"}); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("its log: %v", err)
	}
}

// Who follows hears why it ends, and the host does not wait for it.
func TestLogsFollowEnds(t *testing.T) {
	r := newRig(t, "echo")
	r.untilState("echo", Ready)
	ctx, cancel := context.WithCancelCause(r.ctx)
	why := conduit.Errorf(conduit.Unavailable, conduit.ReasonDraining, conduit.OutcomeUnknown, "going away")
	err := r.h.Logs(ctx, &conduitv1.LogsRequest{Deployment: "echo", Follow: true}, func(*conduitv1.LogRecord) error {
		cancel(why)
		return nil
	})
	if !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
}

// That a process takes the place of another is in the log of the deployment, and which one
// has gone.
func TestLogsOfSwap(t *testing.T) {
	r := newRig(t, "echo")
	r.untilState("echo", Ready)
	log := r.follow(&conduitv1.LogsRequest{Deployment: "echo"})
	log.message("element ready")
	r.deploy("echo", "two")
	if m := log.message("the binary has changed: a new process is started beside the old one"); m.GetSource() != "host" || m.GetGeneration() != 1 || len(m.GetFields()["sha256"]) != 64 || len(m.GetFields()["was"]) != 64 {
		t.Errorf("%v", m)
	}
	if m := log.message("element ready"); m.GetGeneration() != 2 {
		t.Errorf("%v", m)
	}
	log.message("old generation 1 stopped")
}
