package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit/internal/pluginlink"
	"github.com/elemental-conduit/conduit/internal/sandbox"
)

const (
	// debuggerLooks is between two looks for a debug process that is not there.
	debuggerLooks = 500 * time.Millisecond
	// debuggerPatience bounds what else has a shorter time, where somebody may stand at a
	// breakpoint.
	debuggerPatience = 365 * 24 * time.Hour
)

// debuggedNote is what is said of an element at each start of one that is reattached.
const debuggedNote = "for development only: it is served by a debug process, whose checksum, sandbox, environment, limits and health this host does not look after"

// checkReattach looks at Options.Reattach by itself.
func checkReattach(entries map[string]string) error {
	of := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		socket := entries[name]
		if !filepath.IsAbs(socket) || filepath.Clean(socket) != socket {
			return fmt.Errorf("host.reattach: %s is to be served at %q, which is no absolute path: name the socket as `<binary> debug` has printed it", name, socket)
		}
		if other, twice := of[socket]; twice {
			return fmt.Errorf("host.reattach: %s and %s are both to be served at %s; a debug process serves one deployment", other, name, socket)
		}
		of[socket] = name
	}
	return nil
}

// reattachKey returns the entry that an element is named by, if there is one.
func (h *Host) reattachKey(name, slot string) (key string, ok bool) {
	for _, key := range []string{keyOf(name, slot), name} {
		if _, ok := h.o.Reattach[key]; ok {
			return key, true
		}
	}
	return "", false
}

// reattached returns a finding with a debug process in the place of its binary, if it is
// named by Options.Reattach: nothing of the file is looked at then.
func (h *Host) reattached(f finding) finding {
	key, ok := h.reattachKey(f.name, f.slot)
	if !ok || f.disabled {
		return f
	}
	socket := h.o.Reattach[key]
	f.binary, f.refused, f.stale = &binary{source: socket, socket: socket, key: "reattached to " + socket}, nil, ""
	return f
}

// checkReattached says which entries of Options.Reattach name nothing that is deployed, or
// more than one element. It looks once, at the first scan for which nothing waits.
func (h *Host) checkReattached(found []finding, waiting int) error {
	if len(h.o.Reattach) == 0 || waiting > 0 {
		return nil // what is still being copied may be it
	}
	h.mu.Lock()
	once := !h.reattach
	h.reattach = true
	h.mu.Unlock()
	if !once {
		return nil // what is removed later is removed
	}
	elements := map[string][]string{}
	var known []string
	for _, f := range found {
		known = append(known, keyOf(f.name, f.slot))
		if key, ok := h.reattachKey(f.name, f.slot); ok {
			elements[key] = append(elements[key], keyOf(f.name, f.slot))
		}
	}
	var wrong []error
	for _, name := range slices.Sorted(maps.Keys(h.o.Reattach)) {
		switch list := elements[name]; {
		case len(list) == 0 && len(known) == 0:
			wrong = append(wrong, fmt.Errorf("host.reattach names %q, and nothing is deployed in %s: put its binary there, whose place the debug process takes", name, h.o.Dir))
		case len(list) == 0:
			wrong = append(wrong, fmt.Errorf("host.reattach names %q, which is not deployed in %s; there is: %s", name, h.o.Dir, strings.Join(known, ", ")))
		case len(list) > 1:
			wrong = append(wrong, fmt.Errorf("host.reattach names %q, which has several elements; name one: %s", name, strings.Join(list, ", ")))
		}
	}
	return errors.Join(wrong...)
}

// attach is launch where the process is there already, and somebody else's.
func (e *element) attach(ctx context.Context, b *binary, beside bool) (*pluginlink.Process, *box, error) {
	p, err := pluginlink.Attach(ctx, pluginlink.AttachConfig{Name: e.key(), Socket: b.socket, MaxMessage: e.h.o.MaxMessage, Log: e.log})
	if err != nil {
		return nil, nil, err
	}
	e.log.Warn("attached to a debug process; "+debuggedNote, "pid", p.Pid(), "socket", b.socket)
	if !beside {
		e.takeProcess(p)
	}
	return p, &box{note: debuggedNote + " (" + b.socket + ")", spec: sandbox.Spec{Mode: SandboxOff}}, nil
}

// readyTimeout is how long a process of a binary may take until it serves.
func (e *element) readyTimeout(b *binary) time.Duration {
	if b.socket != "" {
		return debuggerPatience
	}
	return e.o().ReadyTimeout
}

// debuggerGone takes the failure of an element whose process is not this host's: nothing
// is held against it, and it is looked for again soon. It reports whether it is one.
func (e *element) debuggerGone(err error) (wait time.Duration, debugged bool) {
	e.mu.Lock()
	debugged = e.want.binary != nil && e.want.binary.socket != ""
	said := e.status.LastError
	e.mu.Unlock()
	if !debugged {
		return 0, false
	}
	kind, reason, _, _ := explain(err)
	if said != reason {
		e.tell(hclog.Warn, "no debug process serves the element; it is looked for again and again", "kind", kind, "reason", reason)
	}
	e.mu.Lock()
	e.status.LastError = reason
	e.proc = nil
	e.mu.Unlock()
	e.set(Backoff, kind, reason)
	return debuggerLooks, true
}
