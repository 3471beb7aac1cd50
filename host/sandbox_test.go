package host

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/budget"
	"github.com/elemental-conduit/conduit/internal/sandbox"
)

// TestSandboxFor: a deployment may ask for more; what the host requires holds for all,
// and whoever gets something else than was asked for is told.
func TestSandboxFor(t *testing.T) {
	for _, c := range []struct {
		host, deployment, want Sandbox
		noted                  bool
	}{
		{SandboxOff, "", SandboxOff, false},
		{SandboxBestEffort, "", SandboxBestEffort, false},
		{SandboxRequired, "", SandboxRequired, false},
		{SandboxOff, SandboxOff, SandboxOff, false},
		{SandboxOff, SandboxBestEffort, SandboxBestEffort, false},
		{SandboxOff, SandboxRequired, SandboxRequired, false},
		{SandboxBestEffort, SandboxRequired, SandboxRequired, false},
		{SandboxBestEffort, SandboxOff, SandboxOff, true},
		{SandboxRequired, SandboxOff, SandboxRequired, true},
		{SandboxRequired, SandboxBestEffort, SandboxRequired, true},
	} {
		got, note := sandboxFor(c.host, c.deployment)
		if got != c.want || (note != "") != c.noted {
			t.Errorf("host %s, deployment %q: %s, %q", c.host, c.deployment, got, note)
		}
	}
}

func TestSandboxOption(t *testing.T) {
	o := Options{Dir: "d", Private: "p", Sandbox: "on"}
	if err := o.setDefaults(); err == nil || !strings.Contains(err.Error(), `"on"`) {
		t.Errorf("a slip: %v", err)
	}
	o.Sandbox = ""
	if err := o.setDefaults(); err != nil || o.Sandbox != SandboxOff {
		t.Errorf("nothing: %v, %q", err, o.Sandbox)
	}
}

// needLandlock passes a test over where the kernel cannot do what it is about; what is to
// happen there TestSandboxRefused and TestSandboxNotWhole say.
func needLandlock(t *testing.T) {
	t.Helper()
	if err := sandbox.Available().Whole(); err != nil {
		t.Skip(err)
	}
}

// TestSandbox: a plugin in a sandbox serves, claims and comes back as any other, and has
// no way to what is the host's, or another's.
func TestSandbox(t *testing.T) {
	needLandlock(t)
	outside := t.TempDir()
	secret := filepath.Join(outside, "worker.token")
	mustDo(t, os.WriteFile(secret, []byte("secret"), 0o600))
	b := budget.New(100)
	r := newRigWith(t, func(o *Options) { o.Sandbox, o.Budget = SandboxRequired, b }, "echo", "echo-other")
	r.ready()
	s := r.untilState("echo", Ready)
	other := r.untilState("echo-other", Ready)
	if !regexp.MustCompile(`^landlock v\d+, no_new_privs, no capabilities, rlimits$`).MatchString(s.Sandbox) || len(s.Warnings) > 0 {
		t.Errorf("it is said to be confined by %q, with the warnings %q", s.Sandbox, s.Warnings)
	}

	// What every plugin does.
	big := strings.Repeat("b", 9<<20)
	if got, err := r.call(echo, "Echo", big); err != nil || got != big {
		t.Errorf("a large payload: %d bytes, %v", len(got), err)
	}
	if _, err := r.call(echo, "ClaimUntil", "done"); err != nil || b.Snapshot().Claimed != 1 {
		t.Errorf("a claim: %v, %+v", err, b.Snapshot())
	}

	// What it may not.
	private := func(parts ...string) string { return filepath.Join(append([]string{r.private}, parts...)...) }
	mustDo(t, os.WriteFile(private("data", "echo-other", "echo", "file"), []byte("theirs"), 0o600))
	mustDo(t, os.WriteFile(private("auth.db"), []byte("users"), 0o600))
	sockets, err := filepath.Glob(filepath.Join(r.h.priv.sockets, "plugin-dir*"))
	if err != nil || len(sockets) != 2 {
		t.Fatalf("the sockets are %v, %v", sockets, err)
	}
	own := private("data", "echo", "echo")
	tries := []string{
		"read " + secret, "read " + private("auth.db"), "read " + private("owner"), "read " + private("data", "echo-other", "echo", "file"),
		"list " + r.dir, "list " + r.h.priv.sockets, "list " + private("work"), "list " + private("bin"), "write " + filepath.Join(outside, "new"), "write " + filepath.Join(r.dir, "plugin"),
		"write " + private("work", "echo-other", "new"), "write " + own + "/../../echo-other/echo/file", "write " + s.Path, "write " + private("bin", s.Sum),
		fmt.Sprintf("signal %d", os.Getpid()), fmt.Sprintf("signal %d", other.Pid), fmt.Sprintf("read /proc/%d/environ", os.Getpid()), "exec /bin/sh",
		"write " + filepath.Join(own, "new"), "write new", "temp", "read /proc/self/status",
	}
	for _, dir := range sockets {
		tries = append(tries, "list "+dir)
	}
	answer, err := r.call(echo, "Try", strings.Join(tries, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	if err := json.Unmarshal([]byte(answer), &said); err != nil {
		t.Fatal(err)
	}
	allowed := []string{"write " + filepath.Join(own, "new"), "write new", "temp", "read /proc/self/status"}
	for _, op := range tries[:len(tries)-len(sockets)-len(allowed)] {
		if got := said[op]; got != syscall.EACCES.Error() && got != syscall.EPERM.Error() {
			t.Errorf("%s: %q", op, got)
		}
	}
	for _, op := range allowed {
		if said[op] != "" {
			t.Errorf("%s: %s", op, said[op])
		}
	}
	if a, b := said["list "+sockets[0]], said["list "+sockets[1]]; (a == "") == (b == "") {
		t.Errorf("of the two directories of sockets it can see %q and %q", a, b)
	}
	if b, err := os.ReadFile(secret); err != nil || string(b) != "secret" {
		t.Errorf("the token is %q now, %v", b, err)
	}

	// How the kernel sees it.
	proc := func(file, want string) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.Pid), file))
		if err != nil || !regexp.MustCompile(want).Match(b) {
			t.Errorf("%s of the process lacks %s: %v\n%s", file, want, err, b)
		}
	}
	proc("status", `NoNewPrivs:\t1\n`)
	proc("limits", `Max core file size +0 +0 `)
	proc("comm", `^echo\n$`)
	if temp, _ := filepath.Glob(private("work", "echo", tempPrefix+"*")); len(temp) != 1 {
		t.Errorf("its directories for temporary files are %v", temp)
	}

	// And again.
	mustDo(t, os.WriteFile(private("work", "echo", "done"), nil, 0o600))
	r.until("the claim's end", func(map[string]ElementStatus) bool { return b.Snapshot().Claimed == 0 })
	_, err = r.call(echo, "Exit", "")
	wantReason(t, err, conduit.ReasonPluginLost, conduit.OutcomeUnknown)
	r.until("its return", func(m map[string]ElementStatus) bool { return m["echo"].Generation == 2 && m["echo"].State == Ready })
	if got, err := r.call(echo, "Echo", "once more"); err != nil || got != "once more" {
		t.Errorf("after a crash: %q, %v", got, err)
	}
	if temp, _ := filepath.Glob(private("work", "echo", tempPrefix+"*")); len(temp) != 1 {
		t.Errorf("after a crash its directories for temporary files are %v", temp)
	}
}

// onKernel makes a host with a sandbox that believes its kernel can do so much.
func onKernel(mode Sandbox, landlock int) func(*Options) {
	return func(o *Options) {
		o.Sandbox = mode
		o.kernel = func() sandbox.Kernel { return sandbox.Kernel{Landlock: min(landlock, sandbox.Available().Landlock)} }
	}
}

// TestSandboxRefused: what is required and not to be had keeps the plugin from running,
// and says why and what to do.
func TestSandboxRefused(t *testing.T) {
	r := newRigWith(t, onKernel(SandboxRequired, sandbox.NeededLandlock-1), "echo")
	s := r.untilState("echo", Refused)
	if s.Kind != "sandbox_unavailable" || s.Pid != 0 || s.Sandbox != "" {
		t.Errorf("it is %+v", s)
	}
	for _, part := range []string{"Linux 6.12", "host.sandbox", "best-effort", filepath.Join(r.dir, "echo")} {
		if !strings.Contains(s.Reason, part) {
			t.Errorf("the reason lacks %q: %s", part, s.Reason)
		}
	}
	_, err := r.call(echo, "Echo", "")
	wantReason(t, err, conduit.ReasonPluginFailed, conduit.Refused)
}

// TestSandboxNotWhole: best effort runs, and says in what it falls short, in the element's
// status and its deployment's.
func TestSandboxNotWhole(t *testing.T) {
	r := newRigWith(t, onKernel(SandboxBestEffort, 0), "echo")
	s := r.untilState("echo", Ready)
	want := "no_new_privs, no capabilities, rlimits"
	if runtime.GOOS != "linux" {
		want = "nothing"
	}
	if s.Sandbox != want || len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "it can read and write all files of its user's") {
		t.Errorf("it is said to be confined by %q, with the warnings %q", s.Sandbox, s.Warnings)
	}
	if d := r.h.Snapshot()[0]; d.Status != "warnings" {
		t.Errorf("the deployment is %s", d.Status)
	}
	if got, err := r.call(echo, "Echo", "hello"); err != nil || got != "hello" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestSandboxOff: nothing is confined, and that is said.
func TestSandboxOff(t *testing.T) {
	r := newRig(t, "echo")
	r.ready()
	if s := r.untilState("echo", Ready); s.Sandbox != "off" || len(s.Warnings) > 0 {
		t.Errorf("it is said to be confined by %q, with the warnings %q", s.Sandbox, s.Warnings)
	}
}

// TestSweepTemp: what processes of a host that was killed have left of temporary files
// goes, and nothing else.
func TestSweepTemp(t *testing.T) {
	private := t.TempDir()
	left, kept := filepath.Join(private, "work", "echo", tempPrefix+"1"), filepath.Join(private, "work", "echo", "state")
	mustDo(t, os.MkdirAll(filepath.Join(left, "deep"), 0o700))
	mustDo(t, os.WriteFile(kept, nil, 0o600))
	p, err := openPrivate(private, "", true)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}

// TestCertificates: whom to trust may be said by the environment, and then has to be
// readable.
func TestCertificates(t *testing.T) {
	t.Setenv("SSL_CERT_FILE", "/host/file")
	t.Setenv("SSL_CERT_DIR", "/host/a:/host/b:relative")
	if got := fmt.Sprint(certificates(nil)); got != "[/host/a /host/b /host/file]" {
		t.Errorf("of the host: %s", got)
	}
	if got := fmt.Sprint(certificates([]string{"SSL_CERT_FILE=/first", "SSL_CERT_FILE=/own", "SSL_CERT_DIR="})); got != "[/own]" {
		t.Errorf("of the deployment: %s", got)
	}
}

// tryAll is the fixture's side of TestSandbox: it does what each line says, and answers
// with what kept it from that, if anything did.
func tryAll(list []byte) ([]byte, error) {
	said := map[string]string{}
	for line := range bytes.Lines(list) {
		op := strings.TrimSuffix(string(line), "\n")
		verb, arg, _ := strings.Cut(op, " ")
		var err error
		switch verb {
		case "read":
			_, err = os.ReadFile(arg)
		case "list":
			_, err = os.ReadDir(arg)
		case "write":
			err = os.WriteFile(arg, []byte("x"), 0o600)
		case "temp":
			var f *os.File
			if f, err = os.CreateTemp("", ""); err == nil {
				err = f.Close()
			}
		case "signal":
			pid, _ := strconv.Atoi(arg)
			err = syscall.Kill(pid, syscall.SIGURG) // harmless to a Go program
		case "exec":
			var p *os.Process
			if p, err = os.StartProcess(arg, []string{arg, "-c", ":"}, &os.ProcAttr{}); err == nil {
				_, err = p.Wait()
			}
		}
		said[op] = ""
		if err != nil {
			said[op] = err.Error()
			if at := strings.LastIndex(said[op], ": "); at >= 0 {
				said[op] = said[op][at+2:]
			}
		}
	}
	return json.Marshal(said)
}

// TestInterpreterIsAPipe: a script whose interpreter is a pipe fails as any that cannot be
// run does. It holds up neither others nor the end of the host, in a sandbox or without.
func TestInterpreterIsAPipe(t *testing.T) {
	t.Parallel()
	for _, mode := range []Sandbox{SandboxOff, SandboxBestEffort} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			pipe := filepath.Join(t.TempDir(), "pipe")
			mustDo(t, syscall.Mkfifo(pipe, 0o755))
			r := newRigWith(t, func(o *Options) { o.Sandbox, o.MaxStarts = mode, 1 })
			mustDo(t, os.WriteFile(filepath.Join(r.dir, "a-script"), []byte("#!"+pipe+"\n"), 0o755)) //nolint:gosec // a program
			s := r.until("a failure", func(m map[string]ElementStatus) bool {
				return m["a-script"].Reason != "" && m["a-script"].State != Starting
			})["a-script"]
			if s.Pid != 0 || !strings.Contains(s.Reason, "interpreter") {
				t.Errorf("it is %+v", s)
			}
			r.deploy("echo", "")
			r.untilState("echo", Ready)
		})
	}
}
