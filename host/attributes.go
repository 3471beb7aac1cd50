package host

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/elemental-conduit/conduit/internal/attribute"
	"github.com/elemental-conduit/conduit/internal/manifest"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	"github.com/elemental-conduit/conduit/internal/safepath"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// Where the value of an attribute comes from, as status shows it.
const (
	FromDefault    = "default"    // the element's own
	FromInstance   = "instance"   // host.attributes and host.attributes_file
	FromDeployment = "deployment" // attributes and attributes_file of the deployment
)

// What attributes may be. All of an element's travel in one message when it starts.
const (
	maxAttributes     = 1024
	maxAttributeValue = 64 << 10  // bytes
	maxAttributeBytes = 512 << 10 // of all names and values
	shownAttribute    = 256       // bytes of a value that status shows
)

// Redacted stands where the value of a sensitive attribute would.
const Redacted = "(redacted)"

// Attribute is the value of one attribute. However it is printed, the value of a
// sensitive one does not show; Value has it.
type Attribute struct {
	Value string
	// Sensitive: neither status nor logs nor errors may show the value.
	Sensitive bool
	// Source is where it comes from: FromDefault, FromInstance or FromDeployment.
	Source string
}

// Attributes are attributes by their names. Whoever has a set does not change it:
// the host keeps and compares those that it is given.
type Attributes map[string]Attribute

// String shows the value, or that it is sensitive.
func (a Attribute) String() string {
	if a.Sensitive {
		return Redacted
	}
	return a.Value
}

// GoString is String, for %#v.
func (a Attribute) GoString() string { return fmt.Sprintf("%q", a.String()) }

// LogValue implements slog.LogValuer.
func (a Attribute) LogValue() slog.Value { return slog.StringValue(a.String()) }

// MarshalText implements encoding.TextMarshaler, which JSON uses.
func (a Attribute) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// NewAttributes makes a set of plain values, or of those of a file that only its
// owner reads, which are sensitive.
func NewAttributes(source string, sensitive bool, values map[string]string) Attributes {
	a := make(Attributes, len(values))
	for name, value := range values {
		a[name] = Attribute{Value: value, Sensitive: sensitive, Source: source}
	}
	return a
}

// MergeAttributes puts sets together; of a name that several have, the last one's value
// holds. What one of them says is sensitive stays so, whoever gives the value.
func MergeAttributes(sets ...Attributes) Attributes {
	all := Attributes{}
	for _, set := range sets {
		for name, a := range set {
			a.Sensitive = a.Sensitive || all[name].Sensitive
			all[name] = a
		}
	}
	return all
}

// Values returns what an element is told.
func (a Attributes) Values() map[string]string {
	values := make(map[string]string, len(a))
	for name, x := range a {
		values[name] = x.Value
	}
	return values
}

// Sensitive returns the names of those that are, in order.
func (a Attributes) Sensitive() []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(a)) {
		if a[name].Sensitive {
			names = append(names, name)
		}
	}
	return names
}

// Check says why a set cannot be told to an element. The error shows no value.
func (a Attributes) Check() error {
	if len(a) > maxAttributes {
		return fmt.Errorf("there are %d attributes; an element takes %d", len(a), maxAttributes)
	}
	total := 0
	for _, name := range slices.Sorted(maps.Keys(a)) {
		if why := attribute.NameFault(name); why != "" {
			return fmt.Errorf("the name of attribute %q %s", pluginlink.Text(name, maxMethodName), why)
		}
		value := a[name].Value
		switch {
		case len(value) > maxAttributeValue:
			return fmt.Errorf("the value of attribute %s has %d bytes; it may have %d: name a file instead, and have the element read it", name, len(value), maxAttributeValue)
		case !utf8.ValidString(value):
			return fmt.Errorf("the value of attribute %s is not UTF-8", name)
		}
		total += len(name) + len(value)
	}
	if total > maxAttributeBytes {
		return fmt.Errorf("all attributes together have %d bytes; they may have %d", total, maxAttributeBytes)
	}
	return nil
}

// digest tells one set from another. It stays in memory: of a short secret it would
// give too much away.
func (a Attributes) digest() string {
	if len(a) == 0 {
		return ""
	}
	h := sha256.New()
	part := func(s string) {
		_, _ = fmt.Fprintf(h, "%d:%s", len(s), s) // a hash takes everything
	}
	for _, name := range slices.Sorted(maps.Keys(a)) {
		part(name)
		part(a[name].Value)
		if a[name].Sensitive {
			part("sensitive")
		}
	}
	return string(h.Sum(nil))
}

// ReadAttributes reads a file of attributes: a YAML mapping of names to values. It
// must be this user's or root's, and nobody else may read it, since what is in it is
// sensitive. The error is for the operator, and shows no value.
func ReadAttributes(path string) (map[string]string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // of a named pipe, no wait for who writes
	if err != nil {
		return nil, fmt.Errorf("the attributes file %s cannot be opened: %w", path, rootCause(err))
	}
	defer f.Close() //nolint:errcheck // read only
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("the attributes file %s: %w", path, rootCause(err))
	}
	owner := signatureOf(info).uid
	switch {
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("the attributes file %s is not a regular file", path)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("the attributes file %s can be read or changed by others (mode %04o), and is for secrets: chmod 600 %s", path, info.Mode().Perm(), path)
	case owner != 0 && owner != uint32(os.Geteuid()): //nolint:gosec // a uid
		return nil, fmt.Errorf("the attributes file %s belongs to %s, who could change it: chown it to %s", path, safepath.UserName(owner), safepath.UserName(uint32(os.Geteuid()))) //nolint:gosec // a uid
	}
	data, err := io.ReadAll(io.LimitReader(f, manifest.MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("the attributes file %s cannot be read: %w", path, rootCause(err))
	}
	values, err := manifest.ParseAttributes(path, data)
	if err != nil {
		return nil, fmt.Errorf("the attributes file is not usable: %w", err)
	}
	if err := NewAttributes("", true, values).Check(); err != nil {
		return nil, fmt.Errorf("the attributes file %s: %w", path, err)
	}
	return values, nil
}

// declared returns what an element declares of attributes, for the lowest place in the
// order: its defaults, and which are sensitive. Of the latter without a value there is
// nothing but the mark.
func declared(d *conduitv1.Description) (defaults Attributes, sensitive map[string]bool) {
	defaults, sensitive = Attributes{}, map[string]bool{}
	for _, a := range d.GetAttributes() {
		if a.Default != nil {
			defaults[a.GetName()] = Attribute{Value: a.GetDefault(), Source: FromDefault}
		}
		if a.GetSensitive() {
			sensitive[a.GetName()] = true
		}
	}
	return defaults, sensitive
}

// attributesFor returns what an element is told, of its own defaults and what its
// operators say; and what is to be said of it.
func attributesFor(d *conduitv1.Description, given Attributes) (all Attributes, warnings []string) {
	defaults, sensitive := declared(d)
	all = MergeAttributes(defaults, given)
	for name := range sensitive {
		if a, ok := all[name]; ok {
			a.Sensitive = true
			all[name] = a
		}
	}
	for _, a := range d.GetAttributes() {
		if _, ok := all[a.GetName()]; a.GetRequired() && !ok {
			warnings = append(warnings, fmt.Sprintf("the attribute %s, which the element requires, has no value", a.GetName()))
		}
	}
	return all, warnings
}

// attributesFault says what is wrong with what an element declares.
func attributesFault(declared []*conduitv1.AttributeDescription) string {
	if len(declared) > maxAttributes {
		return fmt.Sprintf("the element declares more than %d attributes", maxAttributes)
	}
	seen := map[string]bool{}
	for _, a := range declared {
		shown := pluginlink.Text(a.GetName(), maxMethodName)
		why := attribute.NameFault(a.GetName())
		switch {
		case why != "":
			return fmt.Sprintf("the name of attribute %q %s", shown, why)
		case seen[a.GetName()]:
			return fmt.Sprintf("the element declares attribute %s twice", shown)
		case a.GetSensitive() && a.Default != nil:
			return fmt.Sprintf("the element declares attribute %s sensitive and with a default, which whoever has the binary could read", shown)
		}
		seen[a.GetName()] = true
	}
	return ""
}

// AttributeStatus is an attribute as status shows it.
type AttributeStatus struct {
	Name string
	// Value is empty if Sensitive, and cut if it is long.
	Value     string
	Sensitive bool
	Source    string
}

// status returns the attributes as they may be shown, by name.
func (a Attributes) status() []AttributeStatus {
	list := make([]AttributeStatus, 0, len(a))
	for _, name := range slices.Sorted(maps.Keys(a)) {
		x := AttributeStatus{Name: name, Sensitive: a[name].Sensitive, Source: a[name].Source}
		if !x.Sensitive {
			x.Value = pluginlink.Text(a[name].Value, shownAttribute)
		}
		list = append(list, x)
	}
	return list
}

// minScrubbed is from how many bytes on a sensitive value is looked for in texts:
// shorter ones stand in every second line by chance, and hide nothing by then.
const minScrubbed = 4

// scrubber takes sensitive values out of what an element prints and says, for it knows
// them and may show them to its operator without a thought.
type scrubber struct{ r *strings.Replacer }

// scrubber returns nil if nothing is to be taken out. A value of several lines is
// looked for line by line, as it would be printed.
func (a Attributes) scrubber() *scrubber {
	var secrets []string
	for _, x := range a {
		if !x.Sensitive {
			continue
		}
		for line := range strings.Lines(x.Value) {
			if line = strings.TrimSpace(line); len(line) >= minScrubbed {
				secrets = append(secrets, line)
			}
			// As Go and JSON quote it in a record.
			asJSON, _ := json.Marshal(line) // of a string it cannot fail
			for _, quoted := range []string{strconv.Quote(line), string(asJSON)} {
				if quoted = quoted[1 : len(quoted)-1]; quoted != line && len(line) >= minScrubbed {
					secrets = append(secrets, quoted)
				}
			}
		}
	}
	if secrets == nil {
		return nil
	}
	// The longest first: one may be the beginning of another.
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	pairs := make([]string, 0, 2*len(secrets))
	for _, s := range secrets {
		pairs = append(pairs, s, Redacted)
	}
	return &scrubber{strings.NewReplacer(pairs...)}
}

// text returns s without sensitive values.
func (s *scrubber) text(text string) string {
	if s == nil {
		return text
	}
	return s.r.Replace(text)
}

// health is text for an answer to a health check.
func (s *scrubber) health(h health) health {
	if s != nil {
		h.err = s.err(h.err)
		if h.r != nil {
			h.r.Text = s.text(h.r.GetText())
		}
	}
	return h
}

// err hides sensitive values in what an error says, and keeps what it is.
func (s *scrubber) err(err error) error {
	if s == nil || err == nil {
		return err
	}
	said := err.Error()
	if clean := s.text(said); clean != said {
		return &scrubbed{clean, err}
	}
	return err
}

type scrubbed struct {
	text string
	err  error
}

func (e *scrubbed) Error() string { return e.text }
func (e *scrubbed) Unwrap() error { return e.err }

// refusedAttributes is the kind of a deployment whose attributes no element could take.
const refusedAttributes = "bad_attributes"

// withAttributes returns a finding whose binary is to run with the instance's
// attributes and the deployment's, which win. h.mu is held.
func (h *Host) withAttributes(f finding) finding {
	f = h.reattached(f)
	if f.binary == nil {
		return f
	}
	all := MergeAttributes(h.attributes, f.attributes)
	if err := all.Check(); err != nil {
		f.binary, f.refused = nil, &cause{refusedAttributes, err.Error()}
		return f
	}
	b := *f.binary
	b.attributes, b.told = all, all.digest()
	f.binary = &b
	return f
}

// SetAttributes gives other attributes to all deployments of the instance in place of
// Options.Attributes. Elements to which that makes a difference are reloaded: an
// element reads them as it starts. The error says why they cannot be taken; then
// nothing has changed. It does not wait.
func (h *Host) SetAttributes(a Attributes) error {
	if err := a.Check(); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.attributes = maps.Clone(a)
	for name, f := range h.found {
		if e := h.elements[name]; e != nil {
			e.update(h.withAttributes(f))
		}
	}
	for _, e := range h.transients {
		f, _ := e.wanted()
		e.update(h.withAttributes(f))
	}
	return nil
}
