package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// storyCommands are what a story may do beside running the program:
//
//	deploy NAME [PLUGIN]   puts plugins/echo, or another one, into ./deployments as NAME; "matches" is plugins/matches
//	binary FILE [EXTRA]    makes FILE plugins/echo, with EXTRA behind its bytes
//	serving NAME [FLAGS]   starts an instance and waits until it is ready; CLUSTER
//	                       is its endpoint then
//	serves FLAGS           starts an instance of a --name by these flags, but for its
//	                       ports, which are free ones; CLUSTER is its endpoint if it
//	                       has one
//	eventually ARGS        runs the program again and again until it succeeds
//	eventually-in ARGS -- PATTERN  runs it again and again until its output has that
//	status N ARGS          runs the program, which exits with that status
//	cut FILE               takes the second half of the last line from a file
//	killed DEPLOYMENT      kills the process of a deployment's element, as kill -9 does
//	signal NAME SIGNAL     sends term, kill or hup
//	ended NAME STATUS      waits for its end
//	logged NAME PATTERN    waits until the instance's log matches
//	notold NAME FILE       the instance's log does not hold what the file does
//	exclusive FILE...      nobody but this user can do anything with the files
func storyCommands() map[string]func(ts *testscript.TestScript, neg bool, args []string) {
	return map[string]func(ts *testscript.TestScript, neg bool, args []string){
		"deploy": deploy, "binary": makeBinary, "serving": serving, "serves": serves, "eventually": eventually, "eventually-in": eventuallyIn, "status": exits, "cut": cutFile, "killed": killElement, "signal": signalInstance, "ended": ended, "logged": logged, "notold": notTold, "exclusive": exclusive,
	}
}

func deploy(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(os.MkdirAll(ts.MkAbs("deployments"), 0o755))
	if args[0] == "matches" {
		out, err := exec.Command("go", "build", "-o", ts.MkAbs("deployments/matches"), "../../plugins/matches").CombinedOutput()
		if err != nil {
			ts.Fatalf("plugins/matches does not build: %v\n%s", err, out)
		}
		return
	}
	file := echoBinary
	if len(args) > 1 {
		file = map[string]string{"echo": echoBinary, "txpersist": txpersistBinary}[args[1]]
	}
	binary, err := os.ReadFile(file)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs("deployments/"+args[0]), binary, 0o755))
}

func makeBinary(ts *testscript.TestScript, _ bool, args []string) {
	binary, err := os.ReadFile(echoBinary)
	ts.Check(err)
	for _, extra := range args[1:] {
		binary = append(binary, extra...)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), binary, 0o755))
}

// storyInstance is an instance of a story.
type storyInstance struct {
	cmd  *exec.Cmd
	log  lockedText
	over chan struct{}
}

// lockedText is what an instance has logged so far.
type lockedText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedText) add(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.WriteString(s)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// storyKey is where a story keeps its instances.
type storyKey struct{}

func serving(ts *testscript.TestScript, _ bool, args []string) {
	startInstance(ts, args[0], append([]string{
		"--mode", "worker", "--auth-mode", "disabled", "--name", args[0], "--cluster-listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0",
	}, args[1:]...))
}

func serves(ts *testscript.TestScript, _ bool, args []string) {
	flag := func(name string) string {
		i := slices.Index(args, name)
		if i < 0 || i+1 == len(args) {
			ts.Fatalf("no %s in %q", name, args)
		}
		return args[i+1]
	}
	args = append(slices.Clip(args), "--ops-listen", "127.0.0.1:0")
	if mode := flag("--mode"); mode != "external" {
		args = append(args, "--cluster-listen", "127.0.0.1:0")
	}
	if mode := flag("--mode"); mode != "worker" {
		args = append(args, "--gateway-listen", "127.0.0.1:0")
	}
	startInstance(ts, flag("--name"), args)
}

func eventually(ts *testscript.TestScript, _ bool, args []string) {
	for end := time.Now().Add(deadline); ; {
		err := ts.Exec(args[0], args[1:]...)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%q never succeeded: %v", args, err)
		}
	}
}

func eventuallyIn(ts *testscript.TestScript, _ bool, args []string) {
	i := slices.Index(args, "--")
	if i < 0 || i+2 != len(args) {
		ts.Fatalf("eventually-in ARGS -- PATTERN")
	}
	pattern, err := regexp.Compile("(?m)" + args[i+1])
	ts.Check(err)
	for end := time.Now().Add(deadline); ; {
		err := ts.Exec(args[0], args[1:i]...)
		if err == nil && pattern.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%q never said %s: %v", args[:i], pattern, err)
		}
	}
}

func exits(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	if e, ok := errors.AsType[*exec.ExitError](err); !ok || strconv.Itoa(e.ExitCode()) != args[0] {
		ts.Fatalf("%q: %v", args[1:], err)
	}
}

func cutFile(ts *testscript.TestScript, _ bool, args []string) {
	text := strings.TrimSuffix(ts.ReadFile(args[0]), "\n")
	last := len(text) - strings.LastIndexByte(text, '\n')
	ts.Check(os.Truncate(ts.MkAbs(args[0]), int64(len(text)-last/2)))
}

// killElement finds the process in what ls says of the instance that runs.
func killElement(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(ts.Exec("conduit-host", "ls", "elements", "-o", "json"))
	var rows []elementRow
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &rows))
	i := slices.IndexFunc(rows, func(r elementRow) bool { return r.Deployment == args[0] && r.Pid > 0 })
	if i < 0 {
		ts.Fatalf("no process of %s in %v", args[0], rows)
	}
	ts.Check(syscall.Kill(int(rows[i].Pid), syscall.SIGKILL))
}

func startInstance(ts *testscript.TestScript, name string, flags []string) {
	i := &storyInstance{over: make(chan struct{})}
	i.cmd = exec.Command(os.Args[0], append([]string{"serve"}, flags...)...)
	i.cmd.Dir = ts.Getenv("WORK")
	i.cmd.Env = []string{beHost + "=1", "HOME=" + ts.Getenv("HOME"), "PATH=" + ts.Getenv("PATH")}
	stderr, err := i.cmd.StderrPipe()
	ts.Check(err)
	ts.Check(i.cmd.Start())
	ts.Defer(func() {
		_ = i.cmd.Process.Kill()
		<-i.over
	})
	ready, cluster := make(chan struct{}), ""
	go func() {
		defer close(i.over)
		told := false
		for in := bufio.NewScanner(stderr); in.Scan(); {
			line := in.Text()
			i.log.add(line + "\n")
			if url, ok := strings.CutPrefix(line, "cluster: "); ok {
				cluster = url
			}
			var entry map[string]any
			if json.Unmarshal([]byte(line), &entry) == nil && entry["@message"] == "ready" && !told {
				told = true
				close(ready)
			}
		}
		_ = i.cmd.Wait()
	}()
	select {
	case <-ready:
	case <-i.over:
		ts.Fatalf("%s ended instead of being ready:\n%s", name, i.log.String())
	case <-time.After(deadline):
		ts.Fatalf("%s is not ready", name)
	}
	if cluster != "" {
		ts.Setenv("CLUSTER", cluster)
	}
	instancesOf(ts)[name] = i
}

func instancesOf(ts *testscript.TestScript) map[string]*storyInstance {
	m, _ := ts.Value(storyKey{}).(map[string]*storyInstance)
	if m == nil {
		ts.Fatalf("the story has no setup")
	}
	return m
}

func theInstance(ts *testscript.TestScript, name string) *storyInstance {
	i := instancesOf(ts)[name]
	if i == nil {
		ts.Fatalf("there is no instance %s", name)
	}
	return i
}

func signalInstance(ts *testscript.TestScript, _ bool, args []string) {
	s := map[string]os.Signal{"term": syscall.SIGTERM, "kill": syscall.SIGKILL, "hup": syscall.SIGHUP}[args[1]]
	ts.Check(theInstance(ts, args[0]).cmd.Process.Signal(s))
}

func ended(ts *testscript.TestScript, _ bool, args []string) {
	i := theInstance(ts, args[0])
	select {
	case <-i.over:
	case <-time.After(deadline):
		ts.Fatalf("%s has not ended", args[0])
	}
	if got := i.cmd.ProcessState.String(); got != strings.Join(args[1:], " ") {
		ts.Fatalf("%s: %s, want %s\n%s", args[0], got, args[1:], i.log.String())
	}
}

func logged(ts *testscript.TestScript, _ bool, args []string) {
	i := theInstance(ts, args[0])
	pattern, err := regexp.Compile(args[1])
	ts.Check(err)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(deadline); !pattern.MatchString(i.log.String()); <-tick.C {
		if time.Now().After(end) {
			ts.Fatalf("%s never logged %s:\n%s", args[0], pattern, i.log.String())
		}
	}
}

func notTold(ts *testscript.TestScript, _ bool, args []string) {
	i := theInstance(ts, args[0])
	<-i.over
	if secret := strings.TrimSpace(ts.ReadFile(args[1])); secret == "" || strings.Contains(i.log.String(), secret) {
		ts.Fatalf("the log of %s holds the secret %q", args[0], secret)
	}
}

func exclusive(ts *testscript.TestScript, _ bool, args []string) {
	for _, file := range args {
		info, err := os.Lstat(ts.MkAbs(file))
		ts.Check(err)
		if info.Mode().Perm()&0o077 != 0 {
			ts.Fatalf("%s has mode %v", file, info.Mode())
		}
	}
}
