package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// machine is what a reader must know to judge figures.
type machine struct {
	date     string
	hardware string
	software string
	load     float64 // of the minute before; negative = not known
}

// thisMachine describes where the program runs, before it loads it.
func thisMachine(ctx context.Context) machine {
	return machine{
		date:     time.Now().UTC().Format(time.DateOnly),
		hardware: hardware(),
		software: software(ctx),
		load:     loadAverage(),
	}
}

func hardware() string {
	text := fmt.Sprintf("%d CPUs", runtime.NumCPU())
	if model := field("/proc/cpuinfo", "model name"); model != "" {
		text += " (" + model + ")"
	}
	if kib, err := strconv.Atoi(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB")); err == nil {
		text += fmt.Sprintf(", %.0f GiB", float64(kib)/(1<<20))
	}
	return text
}

func software(ctx context.Context) string {
	parts := []string{runtime.GOOS + "/" + runtime.GOARCH}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		parts[0] += " " + strings.TrimSpace(string(release))
	}
	parts = append(parts, runtime.Version())
	out, err := exec.CommandContext(ctx, "git", "describe", "--tags", "--always", "--dirty").Output()
	if err == nil {
		parts = append(parts, "conduit "+strings.TrimSpace(string(out)))
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			switch module.Path {
			case "github.com/nats-io/nats-server/v2", "github.com/nats-io/nats.go", "google.golang.org/grpc", "github.com/gorilla/websocket":
				parts = append(parts, strings.TrimPrefix(module.Path, "github.com/")+" "+module.Version)
			}
		}
	}
	return strings.Join(parts, ", ")
}

// field finds "name : value" in a file of /proc; empty if there is none.
func field(file, name string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func loadAverage() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return -1
	}
	first, _, _ := strings.Cut(string(text), " ")
	v, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return -1
	}
	return v
}

// busy says whether others used the machine.
func (m machine) busy() string {
	const idle = 0.3 // of a CPU
	switch {
	case m.load < 0:
		return ""
	case m.load <= idle:
		return fmt.Sprintf("Load average of the minute before: %.1f.", m.load)
	default:
		return fmt.Sprintf("**Load average of the minute before: %.1f, so others used the machine: a first look, no more.**", m.load)
	}
}
