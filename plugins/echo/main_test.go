package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// asEcho makes the test binary run echo's func main.
const asEcho = "ECHO_TEST_RUN_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asEcho) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// TestBinary: what the program does without a host.
func TestBinary(t *testing.T) {
	for _, tt := range []struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		{nil, 64, "", "deployments directory"},
		{[]string{"describe"}, 0, `"name": "conduit.example.Echo"`, ""},
		{[]string{"--help"}, 0, "deployments directory", ""},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, os.Args[0], tt.args...)
		cmd.Env = append(os.Environ(), asEcho+"=1")
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != tt.code {
			t.Errorf("%v: exit %d (%v), want %d", tt.args, code, err, tt.code)
		}
		if !strings.Contains(stdout.String(), tt.stdout) || (tt.stdout == "") != (stdout.Len() == 0) {
			t.Errorf("%v: stdout is\n%s", tt.args, &stdout)
		}
		if !strings.Contains(stderr.String(), tt.stderr) || (tt.stderr == "") != (stderr.Len() == 0) {
			t.Errorf("%v: stderr is\n%s", tt.args, &stderr)
		}
	}
}
