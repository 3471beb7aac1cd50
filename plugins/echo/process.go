package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/elemental-conduit/conduit/pluginapi"
)

// untilMS is the time until t in milliseconds, at least 1.
func untilMS(t time.Time) int64 { return max(1, time.Until(t).Milliseconds()) }

type printRequest struct {
	Stdout string `json:"stdout,omitempty"`
	Stderr string `json:"stderr,omitempty"`
}

func printLines(_ context.Context, in printRequest) (struct{}, error) {
	if in.Stdout != "" {
		if _, err := fmt.Fprintln(os.Stdout, in.Stdout); err != nil {
			return struct{}{}, err
		}
	}
	if in.Stderr != "" {
		if _, err := fmt.Fprintln(os.Stderr, in.Stderr); err != nil {
			return struct{}{}, err
		}
	}
	return struct{}{}, nil
}

type logRequest struct {
	Level   slog.Level `json:"level"`
	Message string     `json:"message"`
}

func logLine(ctx context.Context, in logRequest) (struct{}, error) {
	pluginapi.HostFrom(ctx).Logger().Log(ctx, in.Level, in.Message, slog.String("user", pluginapi.CallerFrom(ctx).User))
	return struct{}{}, nil
}

type floodRequest struct {
	Lines int `json:"lines"`
	Bytes int `json:"bytes"`
}

// flood writes as fast as it can, until it is done or nobody waits for it.
func flood(ctx context.Context, in floodRequest) (struct{}, error) {
	if in.Bytes < 0 || in.Bytes > maxBytes {
		return struct{}{}, pluginapi.Errorf(pluginapi.InvalidArgument, "bytes must be between 0 and %d", maxBytes)
	}
	line := append(bytes.Repeat([]byte{'x'}, in.Bytes), '\n')
	for range in.Lines {
		if ctx.Err() != nil {
			return struct{}{}, ctx.Err()
		}
		if _, err := os.Stderr.Write(line); err != nil {
			return struct{}{}, err
		}
	}
	return struct{}{}, nil
}

type envReply struct {
	Env  []string `json:"env"`
	Args []string `json:"args"`
	Dir  string   `json:"dir"`
	PID  int      `json:"pid"`
	// Descriptors are the open ones by number, with what they lead to; only where
	// there is a /proc.
	Descriptors map[string]string `json:"descriptors,omitempty"`
	Attributes  map[string]string `json:"attributes,omitempty"`
	DataDir     string            `json:"data_dir,omitempty"`
}

func environment(ctx context.Context, _ struct{}) (envReply, error) {
	host := pluginapi.HostFrom(ctx)
	dir, err := os.Getwd()
	if err != nil {
		return envReply{}, err
	}
	out := envReply{
		Env: os.Environ(), Args: os.Args, Dir: dir, PID: os.Getpid(),
		Attributes: host.Attributes(), DataDir: host.DataDir(),
	}
	for name := range out.Attributes {
		if host.IsSensitive(name) { // anybody may ask
			out.Attributes[name] = "(redacted)"
		}
	}
	slices.Sort(out.Env)
	const fds = "/proc/self/fd"
	entries, err := os.ReadDir(fds)
	if err != nil {
		return out, nil //nolint:nilerr // there is no /proc here
	}
	out.Descriptors = map[string]string{}
	for _, e := range entries {
		// The descriptor that read the directory is closed by now, and left out.
		if to, err := os.Readlink(filepath.Join(fds, e.Name())); err == nil {
			out.Descriptors[e.Name()] = to
		}
	}
	return out, nil
}

type exitRequest struct {
	Code int `json:"code"`
}

func exit(_ context.Context, in exitRequest) (struct{}, error) {
	os.Exit(in.Code)
	return struct{}{}, nil
}

type forkRequest struct {
	Seconds int `json:"seconds"`
}

type forkReply struct {
	PID int `json:"pid"`
}

// fork leaves a child behind on purpose: whoever ends the element should end it.
func fork(ctx context.Context, in forkRequest) (forkReply, error) {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "sleep", strconv.Itoa(in.Seconds)) //nolint:gosec // a number
	if err := cmd.Start(); err != nil {
		return forkReply{}, pluginapi.Errorf(pluginapi.Internal, "starting sleep: %w", err)
	}
	go func() { _ = cmd.Wait() }() // no zombie, should it end before the element
	return forkReply{PID: cmd.Process.Pid}, nil
}
