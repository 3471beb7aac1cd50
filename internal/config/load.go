package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Layer says where a value came from. A later layer wins over an earlier one.
type Layer uint8

// The layers, weakest first.
const (
	FromDefault Layer = iota
	FromFile
	FromEnv
	FromFlag
)

// String returns the layer's name.
func (l Layer) String() string {
	switch l {
	case FromFile:
		return "file"
	case FromEnv:
		return "environment"
	case FromFlag:
		return "flag"
	default:
		return "default"
	}
}

// Value is what a key is set to.
type Value struct {
	Key *Key
	// Text is the value as it was written.
	Text string
	// Layer and Where say who wrote it: "conduit.yaml:3", a variable, a flag.
	Layer Layer
	Where string

	parsed any
}

// Sources is everything that a configuration is made from.
type Sources struct {
	// File is the path of the configuration file; empty: none.
	File string
	// Environ is the process's environment, as os.Environ gives it.
	Environ []string
	// Flags may be nil.
	Flags *Flags
	// Machine is what computed defaults depend on.
	Machine Machine
}

// Problem is one thing that is wrong, with what to do about it.
type Problem struct {
	// Key is the name of the key, or empty if the problem is not one key's.
	Key string
	// Where is the place that it was written at; empty for a default.
	Where string
	// Message says what is wrong and what to write instead.
	Message string

	line int // in the file; 0 elsewhere
}

// String returns the problem on one line.
func (p Problem) String() string {
	var b strings.Builder
	if p.Where != "" {
		b.WriteString(p.Where + ": ")
	}
	if p.Key != "" {
		b.WriteString(p.Key + ": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// Error is every problem of a configuration.
type Error struct{ Problems []Problem }

// Error returns the problems on one line.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "; ")
}

// Config is an effective configuration. It does not change once loaded and may
// be used concurrently.
type Config struct {
	// Warnings are for people; none of them keeps the instance from starting.
	Warnings []string

	keys   []Key
	values map[string]Value
}

// Load reads all layers. The error is an [*Error]; the Config is never nil, and
// beside an error it holds what could be understood, for `config explain`.
func Load(src Sources) (*Config, error) {
	c := &Config{keys: Keys(), values: map[string]Value{}}
	var problems []Problem
	layers := make([]map[string]text, FromFlag+1)
	if src.File != "" {
		var found []Problem
		layers[FromFile], found = readFile(src.File, c.keys)
		problems = append(problems, found...)
	}
	layers[FromEnv], c.Warnings = readEnv(src.Environ, c.keys)
	if src.Flags != nil {
		layers[FromFlag] = src.Flags.read()
	}

	for i := range c.keys {
		key := &c.keys[i]
		v := Value{Key: key, Text: key.Default}
		if key.compute != nil {
			v.Text = key.compute(c, src.Machine)
		}
		def := v.Text
		// A weaker layer is checked too: a file with a mistake is one whether or
		// not today's flags hide it. A default that is no good (a machine without a
		// name) matters only when nobody says anything else.
		why := v.understand(def)
		if why == "" {
			c.values[key.Name] = v
		}
		written := false
		for layer := FromFile; layer <= FromFlag; layer++ {
			t, ok := layers[layer][key.Name]
			if !ok {
				continue
			}
			written = true
			v := Value{Key: key, Text: t.text, Layer: layer, Where: t.where}
			if why := v.understand(def); why != "" {
				problems = append(problems, Problem{Key: key.Name, Where: v.Where, Message: why, line: t.line})
				continue
			}
			c.values[key.Name] = v
		}
		if why != "" && !written {
			problems = append(problems, Problem{Key: key.Name, Message: why})
		}
	}
	problems = append(problems, c.crossCheck(problems)...)
	slices.SortStableFunc(problems, inFileOrder)
	if len(problems) > 0 {
		return c, &Error{Problems: problems}
	}
	return c, nil
}

// inFileOrder puts what is wrong with the file first, as one reads it; the rest
// stays in the order of the table.
func inFileOrder(a, b Problem) int {
	switch {
	case a.line != 0 && b.line != 0:
		return cmp.Compare(a.line, b.line)
	case a.line != 0:
		return -1
	case b.line != 0:
		return 1
	default:
		return 0
	}
}

// understand parses the text and reports what is wrong with it.
func (v *Value) understand(def string) (why string) {
	parsed, why := v.Key.parse(v.Text)
	if why != "" {
		return quoted(v.Text) + " " + why
	}
	v.parsed = parsed
	if v.Key.Later && v.Text != def && v.Layer != FromDefault {
		return "is not available in this version, and nothing would come of it; leave it out"
	}
	if v.Key.check != nil {
		if why := v.Key.check(*v); why != "" {
			return quoted(v.Text) + " " + why
		}
	}
	return ""
}

// Values returns all values in the order of the table. Keys that could not be
// understood are left out.
func (c *Config) Values() []Value {
	values := make([]Value, 0, len(c.keys))
	for i := range c.keys {
		if v, ok := c.values[c.keys[i].Name]; ok {
			values = append(values, v)
		}
	}
	return values
}

// Value returns what a key is set to. It panics if there is no such key: the
// name is a constant of the program.
func (c *Config) Value(name string) Value {
	v, ok := c.values[name]
	if !ok && !slices.ContainsFunc(c.keys, func(k Key) bool { return k.Name == name }) {
		panic("config: no key " + name)
	}
	return v
}

// IsSet reports whether a layer other than the defaults set the key.
func (c *Config) IsSet(name string) bool { return c.Value(name).Layer != FromDefault }

// String returns the value of a String or Enum key, "" if it was not understood.
func (c *Config) String(name string) string { return get[string](c, name) }

// Bool returns the value of a Bool key.
func (c *Config) Bool(name string) bool { return get[bool](c, name) }

// Int returns the value of an Int key.
func (c *Config) Int(name string) int { return int(get[int64](c, name)) }

// Size returns the value of a Size key in bytes.
func (c *Config) Size(name string) int64 { return get[int64](c, name) }

// Duration returns the value of a Duration key.
func (c *Config) Duration(name string) time.Duration { return get[time.Duration](c, name) }

// List returns the value of a List key.
func (c *Config) List(name string) []string { return get[[]string](c, name) }

// Map returns the value of a Map key, which must not be changed.
func (c *Config) Map(name string) map[string]string { return get[map[string]string](c, name) }

func get[T any](c *Config, name string) T {
	v := c.Value(name)
	t, ok := v.parsed.(T)
	if !ok && v.parsed != nil {
		panic(fmt.Sprintf("config: %s is a %s", name, v.Key.Kind))
	}
	return t
}

// SuggestKey returns the end of a message about a name that is no key.
func SuggestKey(name string) string { return suggestKey(name, Keys()) }
