package pluginlink

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// fixture is what the test binary does as a plugin.
func fixture(name string) {
	switch name {
	case "exit0":
	case "exit1":
		_, _ = fmt.Fprintln(os.Stderr, "no licence found")
		os.Exit(1)
	case "panic":
		panic("the moon is full")
	case "version99":
		plugin.Serve(&plugin.ServeConfig{
			HandshakeConfig:  handshakeConfig(),
			VersionedPlugins: map[int]plugin.PluginSet{99: {pluginName: serverPlugin{s: &server{}}}},
			GRPCServer:       plugin.DefaultGRPCServer,
		})
	case "cookie":
		plugin.Serve(&plugin.ServeConfig{
			HandshakeConfig:  plugin.HandshakeConfig{MagicCookieKey: "OTHER_PROGRAM", MagicCookieValue: "x", ProtocolVersion: 1},
			VersionedPlugins: versions(serverPlugin{s: &server{}}),
			GRPCServer:       plugin.DefaultGRPCServer,
		})
	case "tcp":
		fmt.Println("1|1|tcp|127.0.0.1:1|grpc")
	case "refusing":
		fmt.Println("1|1|unix|" + os.Getenv(plugin.EnvUnixSocketDir) + "/none|grpc")
		select {}
	case "elsewhere":
		fmt.Println("1|1|unix|/tmp/elsewhere.sock|grpc")
		select {}
	case "hang":
		select {}
	case "babble":
		for {
			fmt.Println("la la la")
		}
	case "stranger":
		fixtureStranger(os.Getenv("STRANGER_SOCKET"))
	case "host":
		fixtureHost()
	case "threads":
		fixtureThreads()
	case "host-forks":
		fixtureForkingHost()
	case "sweeper": // with the mark in its own environment
		ended, err := Sweep(os.Getenv(envOwner))
		fmt.Println("ended", ended, "error", err)
	case "noisy":
		fmt.Print("\xef\xbb\xbf\n\n\r\nloading cfg...\r\nprogress |=====>   |  50 % | eta 3 s\n\x1b[31mred\x1b[0m\n")
		serveFixture(name)
	case "glued":
		fmt.Print("loading 1")
		serveFixture(name)
	case "glued-blank":
		fmt.Print("\n \t")
		serveFixture(name)
	case "crlf":
		rewriteStdout(func(line string) string { return "\xef\xbb\xbf" + line + "\r\n" })
		serveFixture(name)
	default:
		serveFixture(name)
	}
}

func serveFixture(name string) {
	if err := Serve(&element{name: name}); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// fixtureStranger calls a plugin that it has not started, and prints what came of it.
func fixtureStranger(socket string) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	defer c.Close() //nolint:errcheck // the process ends
	_, err = conduitv1.NewPluginClient(c).Stop(ctx, &conduitv1.StopRequest{})
	fmt.Println(status.Code(err))
}

// fixtureForkingHost is a host whose plugin starts a process of its own; it prints the
// ids of both and waits to be killed.
func fixtureForkingHost() {
	ctx := context.Background()
	self, _ := os.Executable()
	p, err := Launch(ctx, LaunchConfig{
		Path: self, Dir: "/", Env: []string{fixtureVar + "=" + os.Getenv("HOST_PLUGIN")}, SocketDir: os.Getenv("HOST_DIR"),
		Owner: os.Getenv("HOST_OWNER"), Spawner: NewSpawner(),
	})
	if err == nil {
		_, err = p.Configure(ctx, &conduitv1.ConfigureRequest{Deployment: "fixture", Element: "fixture"})
	}
	var h *conduitv1.HealthResponse
	if err == nil {
		h, err = p.Health(ctx)
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(p.Pid(), h.GetDetails()["child"])
	select {}
}

// rewriteStdout passes what is written to file descriptor 1 through change.
func rewriteStdout(change func(string) string) {
	r, w, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	saved, err := syscall.Dup(1)
	if err != nil {
		panic(err)
	}
	if err := redirect(int(w.Fd()), 1); err != nil {
		panic(err)
	}
	out := os.NewFile(uintptr(saved), "real")
	go func() {
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			_, _ = io.WriteString(out, change(lines.Text()))
		}
	}()
}

// element is the fixture's Plugin.
type element struct {
	name  string
	child int
}

func (e *element) Describe() *conduitv1.Description {
	if e.name == "panic-describe" {
		panic("no description")
	}
	return &conduitv1.Description{Element: "fixture", Version: "1.2.3"}
}

func (e *element) Configure(context.Context, *conduitv1.ConfigureRequest) (*conduitv1.ConfigureResponse, error) {
	switch e.name {
	case "config-error":
		return nil, errors.New("the key is missing")
	case "config-exit":
		_, _ = fmt.Fprintln(os.Stderr, "cannot go on")
		os.Exit(7)
	case "fork", "fork-setsid":
		cmd := exec.Command("sleep", "600")
		cmd.Stdout, cmd.Stderr = os.NewFile(1, "1"), os.NewFile(2, "2")
		if e.name == "fork-setsid" {
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		e.child = cmd.Process.Pid
	}
	return &conduitv1.ConfigureResponse{Warnings: []string{"only a test"}}, nil
}

// Health tells what the process sees of its host.
func (e *element) Health(context.Context) *conduitv1.HealthResponse {
	if e.name == "health-hang" {
		select {}
	}
	stdin, _ := io.ReadAll(os.Stdin)
	var fds []string
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, d := range entries {
		to, _ := os.Readlink("/proc/self/fd/" + d.Name())
		fds = append(fds, to)
	}
	var core, files syscall.Rlimit
	_ = syscall.Getrlimit(syscall.RLIMIT_CORE, &core)
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files)
	dir, _ := os.Getwd()
	pgid, _ := syscall.Getpgid(0)
	return &conduitv1.HealthResponse{
		State: conduitv1.HealthResponse_STATE_HEALTHY,
		Details: map[string]string{
			"env": strings.Join(os.Environ(), "\n"), "stdin": string(stdin), "fds": strings.Join(fds, "\n"), "dir": dir,
			"core": strconv.FormatUint(core.Max, 10), "files": strconv.FormatUint(files.Max, 10),
			"leads": strconv.FormatBool(pgid == os.Getpid()), "child": strconv.Itoa(e.child),
		},
	}
}

func (e *element) Stop(ctx context.Context) error {
	if e.name == "stop-hang" {
		<-ctx.Done()
		select {}
	}
	_, _ = fmt.Fprintln(os.Stderr, "flushed")
	return nil
}

func (e *element) Linked(*link.Conn) {}

func (e *element) Handler() link.Handler { return e }

// Handle implements link.Handler: the method says what to do.
func (e *element) Handle(in *link.Incoming) {
	method := string(in.Invoke.Method)
	in.Serve(func(ctx context.Context, s *link.ServerCall) error {
		m, err := s.Recv(ctx)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		switch method {
		case "Wait":
			_, _ = fmt.Fprintln(os.Stderr, "waiting")
			<-ctx.Done()
			return ctx.Err()
		case "Finish": // runs until SIGTERM has come, then answers
			_, _ = fmt.Fprintln(os.Stderr, "working")
			select {
			case <-time.After(300 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		case "Flood":
			big := bytes.Repeat([]byte("x"), 5<<20)
			_, _ = syscall.Write(2, big)
			_, _ = syscall.Write(2, []byte("\n"))
			line := []byte(strings.Repeat("y", 199) + "\n")
			for range 10000 {
				_, _ = syscall.Write(2, line)
			}
		case "Log":
			_, _ = syscall.Write(2, m.Data)
		case "Print":
			fmt.Println("printed to stdout")
			_, _ = fmt.Fprintln(os.Stderr, "printed to stderr")
			_, _ = syscall.Write(1, []byte("written to descriptor 1\n"))
		case "Exit":
			os.Exit(3)
		}
		s.Return(conduit.Message{ContentType: conduit.ContentBytes, Data: m.Data})
		return nil
	})
}
