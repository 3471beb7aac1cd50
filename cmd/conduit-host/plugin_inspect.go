package main

import (
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/elemental-conduit/conduit/internal/pluginlink"
)

// sdkModule is the module that plugins in Go are built with.
const sdkModule = "github.com/elemental-conduit/conduit"

func (a *app) pluginInspect() *cobra.Command {
	return &cobra.Command{
		Use:   "inspect FILE",
		Short: "Says what a plugin binary is, without serving it",
		Long: `Says what a plugin binary is: its size and SHA-256, the machine that it is built
for, what Go knows of its build, and what it says of itself by FILE describe, which is
run as conduit-host describe FILE runs it: with nothing of this environment, and ten
seconds at most.

What the file itself tells is printed also when it cannot describe itself here, for
example since it is built for another machine; why it cannot is an error then.`,
		Example: "  conduit-host plugin inspect ./deployments/echo\n  conduit-host plugin inspect ./deployments/echo -o json",
		Args:    takes(1, 1, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return blame(ctx, a.inspectFile(ctx, args[0]))
		},
	}
}

// inspection is what there is to know of a binary. In JSON its names only grow.
type inspection struct {
	File   string `json:"file"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	// Format and Machine are empty for what is no ELF file.
	Format      string             `json:"format,omitempty"`
	Machine     string             `json:"machine,omitempty"`
	Go          *goBuild           `json:"go,omitempty"`
	Protocol    protocols          `json:"protocol"`
	Description *binaryDescription `json:"description,omitempty"`
}

// protocols are the versions of the protocol between host and plugin. Which one a
// plugin speaks it says at its start alone.
type protocols struct {
	HostOldest int `json:"host_oldest"`
	HostNewest int `json:"host_newest"`
}

// goBuild is what Go's linker wrote into a binary.
type goBuild struct {
	Version  string `json:"version"`
	Path     string `json:"path,omitempty"`
	Module   string `json:"module,omitempty"`
	Release  string `json:"module_version,omitempty"`
	SDK      string `json:"sdk,omitempty"`
	System   string `json:"system,omitempty"`
	Revision string `json:"vcs_revision,omitempty"`
	Time     string `json:"vcs_time,omitempty"`
	Modified bool   `json:"vcs_modified,omitempty"`
}

func (a *app) inspectFile(ctx context.Context, file string) error {
	v, err := inspect(file)
	if err != nil {
		return err
	}
	d, failed := runDescribe(ctx, file)
	if failed == nil {
		described := binaryDescriptionOf(file, d)
		v.Description = &described
	}
	return errors.Join(a.print(v, func(w io.Writer) { inspectionTable(w, v) }), failed)
}

func inspect(file string) (*inspection, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0) // of a named pipe, no wait for who writes
	if err != nil {
		if pe, ok := errors.AsType[*fs.PathError](err); ok {
			err = pe.Err
		}
		return nil, usagef("%s cannot be read: %v", file, err)
	}
	defer f.Close() //nolint:errcheck // read only
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, usagef("%s is no plugin binary: it is not a regular file", file)
	}
	hash := sha256.New()
	size, err := io.Copy(hash, f)
	if err != nil {
		return nil, err
	}
	v := &inspection{File: file, Size: size, SHA256: hex.EncodeToString(hash.Sum(nil))}
	v.Protocol.HostOldest, v.Protocol.HostNewest = pluginlink.Versions()
	if e, err := elf.NewFile(f); err == nil {
		v.Format = fmt.Sprintf("ELF %s, %s", strings.TrimPrefix(e.Class.String(), "ELFCLASS")+" bit", strings.ToLower(strings.TrimPrefix(e.Type.String(), "ET_")))
		v.Machine = strings.ToLower(strings.TrimPrefix(e.Machine.String(), "EM_"))
	}
	if b, err := buildinfo.Read(f); err == nil {
		v.Go = goBuildOf(b)
	}
	return v, nil
}

func goBuildOf(b *debug.BuildInfo) *goBuild {
	g := &goBuild{Version: b.GoVersion, Path: b.Path, Module: b.Main.Path, Release: b.Main.Version}
	for _, m := range append([]*debug.Module{&b.Main}, b.Deps...) {
		if m.Path == sdkModule {
			g.SDK = m.Version
			if r := m.Replace; r != nil {
				g.SDK = strings.TrimSpace(r.Path + " " + r.Version)
			}
		}
	}
	settings := map[string]string{}
	for _, s := range b.Settings {
		settings[s.Key] = s.Value
	}
	if os, arch := settings["GOOS"], settings["GOARCH"]; os != "" {
		g.System = os + "/" + arch
	}
	g.Revision, g.Time, g.Modified = settings["vcs.revision"], settings["vcs.time"], settings["vcs.modified"] == "true"
	return g
}

func inspectionTable(w io.Writer, v *inspection) {
	valueLine(w, "file", v.File)
	valueLine(w, "size", fmt.Sprintf("%d bytes", v.Size))
	valueLine(w, "sha256", v.SHA256)
	if v.Format != "" {
		valueLine(w, "format", v.Format+", "+v.Machine)
	} else {
		valueLine(w, "format", "no ELF file")
	}
	if g := v.Go; g != nil {
		valueLine(w, "go", strings.TrimSpace(g.Version+" "+g.System))
		valueLine(w, "module", strings.TrimSpace(g.Module+" "+g.Release))
		if g.SDK != "" {
			valueLine(w, "pluginapi", g.SDK)
		}
		if g.Revision != "" {
			modified := ""
			if g.Modified {
				modified = ", modified"
			}
			valueLine(w, "revision", g.Revision+" of "+g.Time+modified)
		}
	}
	valueLine(w, "host protocol", fmt.Sprintf("%d to %d", v.Protocol.HostOldest, v.Protocol.HostNewest))
	if d := v.Description; d != nil {
		offersTable(w, d)
	}
}
