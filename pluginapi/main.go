package pluginapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/elemental-conduit/conduit/internal/pluginlink"
)

// exitUsage is the exit status of a plugin that is run by hand or was put
// together wrongly (EX_USAGE of sysexits.h).
const exitUsage = 64

// Main serves the element to the host that started this process, and exits when
// the host has stopped it. It is the last call of a plugin's func main.
//
//	<binary>            started by a host: serves; by hand: explains itself, exits 64
//	<binary> describe   prints what the element offers as JSON, starts nothing
//	<binary> debug      serves without a host's launch, as a debugger needs it, until it is ended
//	<binary> --help     explains itself
//
// An element with a mistake in it (see [Element.Check]) exits 64 and says what is
// wrong, in every mode.
func Main(e Element) {
	os.Exit(run(e, os.Args, pluginlink.Launched(), os.Stdout, os.Stderr))
}

// run is Main without the process: it returns the exit status.
func run(e Element, args []string, launched bool, stdout, stderr io.Writer) int {
	name := filepath.Base(args[0])
	if err := e.Check(); err != nil {
		_, _ = fmt.Fprintf(stderr, "%s: the element cannot be served, since its program has mistakes:\n  %s\n",
			name, strings.ReplaceAll(err.Error(), "\n", "\n  "))
		return exitUsage
	}
	switch {
	// A host passes a deployment's own arguments on, so of those only describe is ours.
	case len(args) == 2 && args[1] == "describe":
		if err := writeDescription(stdout, e); err != nil {
			_, _ = fmt.Fprintf(stderr, "%s: describe: %v\n", name, err)
			return 1
		}
		return 0
	case launched:
		return serve(e, stderr)
	case len(args) == 2 && args[1] == "debug":
		return serveDebug(e, stdout, stderr)
	case len(args) == 2 && (args[1] == "--help" || args[1] == "-h" || args[1] == "help"):
		_, _ = io.WriteString(stdout, usage(e, name))
		return 0
	}
	_, _ = io.WriteString(stderr, usage(e, name))
	return exitUsage
}

// serve serves until the host is done. The stderr it is given is the process's
// own: go-plugin puts pipes in place of os.Stdout and os.Stderr later on.
func serve(e Element, stderr io.Writer) int {
	log := slog.New(newLogHandler(stderr, logLevel(pluginlink.LogLevel()), e.Name))
	slog.SetDefault(log) // takes in package log, too
	if err := pluginlink.Serve(newServer(e, log)); err != nil {
		log.Error("the element could not be served", slog.Any("error", err))
		return 1
	}
	return 0
}

// logLevel reads hclog's name of a level; a host that says nothing gets info.
func logLevel(name string) slog.Level {
	switch strings.ToLower(name) {
	case "trace":
		return slog.LevelDebug - 4
	case "off":
		return slog.LevelError + 1000
	}
	var l slog.Level
	if l.UnmarshalText([]byte(name)) != nil {
		return slog.LevelInfo
	}
	return l
}

// writeDescription prints the Description, with the names of plugin.proto.
func writeDescription(w io.Writer, e Element) error {
	raw, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(e.describe())
	if err != nil {
		return err
	}
	// protojson varies its spaces from build to build; a printout should not.
	var buf bytes.Buffer
	if err := json.Indent(&buf, raw, "", "  "); err != nil {
		return err
	}
	buf.WriteByte('\n')
	_, err = w.Write(buf.Bytes())
	return err
}

func usage(e Element, name string) string {
	version := "without a version"
	if e.Version != "" {
		version = "version " + e.Version
	}
	return fmt.Sprintf(`%[1]s is a plugin of Elemental Conduit: element %[2]s, %[3]s.
It is started by a host and does nothing when run by hand.

Put it into a host's deployments directory and call it:
  cp %[1]s deployments/
  conduit-host serve --mode both
  conduit-host call '*://%[1]s/%[2]s/%[4]s

See what it offers:
  ./%[1]s describe

Serve it from a debugger, to a host that attaches to it (plugins.md, A debugger):
  ./%[1]s debug
`, name, e.Name, version, sampleCall(e))
}

// sampleCall is the end of a command line that calls the element: its first method
// that can be called at all, or words in place of one.
func sampleCall(e Element) string {
	for _, s := range e.describe().GetServices() {
		for _, m := range s.GetMethods() {
			switch {
			case !m.GetRemote():
			case m.GetRequestType() == "":
				return s.GetName() + "' " + m.GetName()
			case m.GetRequestType() == "bytes":
				return s.GetName() + "' " + m.GetName() + " @FILE"
			default:
				return s.GetName() + "' " + m.GetName() + ` '{"some":"json"}'`
			}
		}
	}
	return `SERVICE' METHOD '{"some":"json"}'`
}

// apiVersion is the version of this module that the program was built with.
func apiVersion() string {
	const module = "github.com/elemental-conduit/conduit"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	mods := append([]*debug.Module{&info.Main}, info.Deps...)
	for _, m := range mods {
		if m.Path != module {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		if m.Version != "" && m.Version != "(devel)" {
			return m.Version
		}
	}
	return "devel"
}
