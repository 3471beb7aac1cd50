package manifest

import (
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/attribute"
)

// check says what is wrong with values that are well-formed each.
func (d *decoder) check(m *Manifest) {
	if _, said := d.lines["elements"]; said && len(m.Elements) == 0 && len(d.problems) == 0 {
		d.report(d.lines["elements"], "elements", "is empty; leave it out to run every program in the directory, or say `enabled: false` to run none")
	}
	if len(m.Elements) > MaxElements {
		d.report(d.lines["elements"], "elements", "has %d entries; a deployment has at most %d", len(m.Elements), MaxElements)
		return
	}
	for i := range m.Elements {
		d.checkElement(fmt.Sprintf("elements[%d]", i), &m.Elements[i], m)
	}
	d.checkTwins(m)
	d.checkNames("attributes", m.Attributes, attributeFault)
	if at := "attributes_file"; d.lines[at] != 0 && !d.reported(at) {
		if why := pathFault(m.AttributesFile); why != "" {
			d.report(d.lines[at], at, "%q %s", shorten(m.AttributesFile), why)
		}
	}
	if b := m.Backoff; b.Min > 0 && b.Max > 0 && b.Min > b.Max {
		d.report(d.lines["backoff.min"], "backoff.min", "%s is more than backoff.max, which is %s", b.Min, b.Max)
	}
}

// reported reports whether something is wrong with a key, or below it, already.
func (d *decoder) reported(key string) bool {
	return slices.ContainsFunc(d.problems, func(p Problem) bool {
		return p.Key == key || strings.HasPrefix(p.Key, key+".") || strings.HasPrefix(p.Key, key+"[")
	})
}

func (d *decoder) checkElement(at string, e *Element, m *Manifest) {
	if key := at + ".name"; d.lines[key] != 0 && !d.reported(key) {
		if why := elementFault(e.Name); why != "" {
			d.report(d.lines[key], key, "%q %s", shorten(e.Name), why)
		}
	}
	switch key := at + ".path"; {
	case d.reported(key):
	case d.lines[key] == 0:
		if !d.reported(at) {
			d.report(d.lines[at], at, "has no path; say which program of the directory it is, such as `path: bin/greeter`")
		}
	default:
		if why := pathFault(e.Path); why != "" {
			d.report(d.lines[key], key, "%q %s", shorten(e.Path), why)
		}
	}
	for i, arg := range e.Args {
		if why := textFault(arg); why != "" {
			key := fmt.Sprintf("%s.args[%d]", at, i)
			d.report(d.lines[key], key, "%s", why)
		}
	}
	d.checkNames(at+".env", e.Env, envFault)
	for _, twice := range []struct {
		name, key string
		set       bool
	}{{"GOMAXPROCS", "limits.cpus", m.Limits.CPUs != 0}, {"GOMEMLIMIT", "limits.memory_soft", m.Limits.MemorySoft != 0}} {
		if _, ok := e.Env[twice.name]; ok && twice.set {
			key := at + ".env." + twice.name
			d.report(d.lines[key], key, "is what %s sets; leave one of the two out", twice.key)
		}
	}
	d.checkNames(at+".sha256", e.SHA256, sumFault)
}

// checkTwins refuses an element that is there twice: that is a slip, while two that share
// a name and differ in what they run are told apart by their ordinals.
func (d *decoder) checkTwins(m *Manifest) {
	for i := range m.Elements {
		for j := range i {
			a, b := &m.Elements[j], &m.Elements[i]
			if a.Path != "" && a.Name == b.Name && path.Clean(a.Path) == path.Clean(b.Path) && slices.Equal(a.Args, b.Args) && maps.Equal(a.Env, b.Env) {
				first, second := fmt.Sprintf("elements[%d]", j), fmt.Sprintf("elements[%d]", i)
				d.report(d.lines[second], second, "is the same as %s in line %d: both run %s; leave one out, or have them differ in name, path, args or env", first, d.lines[first], a.Path)
				break
			}
		}
	}
}

// checkNames has a fault say what is wrong with the entries of a mapping.
func (d *decoder) checkNames(at string, m map[string]string, fault func(name, value string) string) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if why := fault(name, m[name]); why != "" {
			key := join(at, name)
			d.report(d.lines[key], key, "%s", why)
		}
	}
}

func textFault(text string) string {
	switch {
	case strings.ContainsRune(text, 0):
		return "holds a NUL, which no process can be given"
	case len(text) > maxText:
		return fmt.Sprintf("has %d bytes, more than %d", len(text), maxText)
	}
	return ""
}

func attributeFault(name, value string) string {
	if why := attribute.NameFault(name); why != "" {
		return "the name of an attribute " + why
	}
	return textFault(value)
}

// The forms of names of variables and machines.
var ( //nolint:gochecknoglobals // compiled once, never changed
	envForm     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	machineForm = regexp.MustCompile(`^[a-z0-9]+-[a-z0-9]+$`)
)

// notForDeployments begin the names of variables that are the protocol's, or would change
// what the dynamic loader runs.
var notForDeployments = []string{"PLUGIN_", "CONDUIT_PLUGIN", "LD_", "DYLD_"} //nolint:gochecknoglobals // a table that nobody writes

func envFault(name, value string) string {
	switch {
	case !envForm.MatchString(name) || len(name) > maxName:
		return "is no name of a variable: it takes letters, digits and '_', and begins with no digit"
	case slices.ContainsFunc(notForDeployments, func(begin string) bool { return strings.HasPrefix(name, begin) }):
		return "may not be set: names that begin with " + strings.Join(notForDeployments, ", ") + " are not free; choose another"
	}
	return textFault(value)
}

func sumFault(machine, sum string) string {
	if !machineForm.MatchString(machine) {
		return "is no system and machine: write them as Go calls them, such as linux-amd64"
	}
	if b, err := hex.DecodeString(sum); err != nil || len(b) != 32 {
		return fmt.Sprintf("%q is no SHA-256: that has 64 hex digits, as sha256sum prints them", shorten(sum))
	}
	return ""
}

// elementFault holds a name to what an element may call itself.
func elementFault(name string) string {
	if _, err := address.FromParts(address.Wildcard, address.Wildcard, name, 0, false, "a.B"); err != nil {
		return "cannot be the name of an element: " + err.Error()
	}
	switch {
	case name == "." || name == ".." || len(name) > maxElement:
		return fmt.Sprintf("cannot be the name of an element: it has more than %d bytes, or is a directory's", maxElement)
	case name == address.BuiltinDeployment:
		return "cannot be the name of an element: it is the instance's own"
	}
	return ""
}

// pathFault holds a path to the inside of the directory, as far as its text shows.
func pathFault(p string) string {
	const example = "; write it relative to the directory, such as bin/greeter"
	switch {
	case p == "":
		return "is empty" + example
	case len(p) > maxPath:
		return fmt.Sprintf("has %d bytes, more than %d", len(p), maxPath)
	case strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "has a control character in it"
	case strings.HasPrefix(p, "/"):
		return "is absolute: what a deployment runs is inside its directory" + example
	case slices.Contains(strings.Split(p, "/"), ".."):
		return "has .. in it: what a deployment runs is inside its directory" + example
	case !filepath.IsLocal(p) || path.Clean(p) == ".":
		return "names no file in the directory" + example
	}
	return ""
}
