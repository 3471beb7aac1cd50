package config

import (
	"strings"

	"github.com/spf13/pflag"
)

// Flags is the flag layer: what was given on the command line, not yet
// understood, so that a bad value gets the same message as in a file.
type Flags struct{ values map[string]*flagValue }

// AddFlags declares a flag for each key that want accepts. Several sets may have
// a flag of one key, as the commands of a program do: they share its value. Flags
// of keys that are for later are hidden from help.
func (f *Flags) AddFlags(set *pflag.FlagSet, want func(*Key) bool) {
	if f.values == nil {
		f.values = map[string]*flagValue{}
	}
	for _, key := range Keys() {
		if !want(&key) {
			continue
		}
		v, ok := f.values[key.Name]
		if !ok {
			v = &flagValue{kind: key.Kind}
			f.values[key.Name] = v
		}
		flag := set.VarPF(v, key.Flag(), "", key.usage())
		flag.Hidden = key.Later
		if key.Kind == Bool {
			flag.NoOptDefVal = "true"
		}
	}
}

func (f *Flags) read() map[string]text {
	values := map[string]text{}
	for name, v := range f.values {
		if v.set {
			key := Key{Name: name}
			values[name] = text{text: v.text, where: "--" + key.Flag()}
		}
	}
	return values
}

// usage is the flag's line of help.
func (k *Key) usage() string {
	s := strings.ReplaceAll(k.Doc, "`", "")
	if k.Kind == Enum {
		s += " (" + strings.Join(k.Enum, ", ") + ")"
	}
	if d := k.defaultDoc(); d != "" {
		s += " (default " + strings.ReplaceAll(d, "`", "") + ")"
	}
	return s
}

// defaultDoc is the default as a reader is told it.
func (k *Key) defaultDoc() string {
	if k.Computed != "" {
		return k.Computed
	}
	return k.Default
}

type flagValue struct {
	kind Kind
	text string
	set  bool
}

// String is empty: the help says the default in its own words.
func (*flagValue) String() string { return "" }

// Type is what help shows after the flag's name.
func (v *flagValue) Type() string {
	switch v.kind {
	case Bool:
		return "bool"
	case List:
		return "list"
	case Map:
		return "name=value"
	case Enum:
		return "string"
	default:
		return v.kind.String()
	}
}

// Set keeps the text. A list or a map may be given in pieces; of anything else the
// last one counts.
func (v *flagValue) Set(s string) error {
	if (v.kind == List || v.kind == Map) && v.set && v.text != "" {
		s = v.text + "," + s
	}
	v.text, v.set = s, true
	return nil
}
