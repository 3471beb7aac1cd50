package config

import "strings"

// EnvPrefix begins the name of every environment variable that is a key.
const EnvPrefix = "CONDUIT_CFG_"

// Kind says how the value of a key is written.
type Kind uint8

// The kinds of values.
const (
	String   Kind = iota
	Bool          // true or false
	Int           // decimal digits
	Duration      // a number with its unit, such as 1m30s
	Size          // a number of KiB, MiB or GiB, such as 10MiB
	List          // texts; separated by commas outside of the file
	Map           // name=value; separated by commas outside of the file
	Enum          // one of Key.Enum
)

// String returns the kind's name, as help and documentation show it.
func (k Kind) String() string {
	switch k {
	case Bool:
		return "bool"
	case Int:
		return "int"
	case Duration:
		return "duration"
	case Size:
		return "size"
	case List:
		return "list"
	case Map:
		return "map"
	case Enum:
		return "enum"
	default:
		return "string"
	}
}

// Key is one row of the table.
type Key struct {
	// Name is the path in the file, such as "cluster.dial_timeout".
	Name string
	Kind Kind
	// Default is the value's text where no layer says anything.
	Default string
	// Computed tells a reader of the documentation what the default is when it
	// depends on the machine or on other keys; then compute makes it.
	Computed string
	// Doc is one sentence without a full stop.
	Doc string
	// Enum lists what an Enum may be.
	Enum []string
	// Min and Max bound an Int, a Duration (in nanoseconds) or a Size (in
	// bytes); a Max of 0 is the kind's own.
	Min, Max int64
	// Optional says that a String may be empty, which is its way to say "none".
	Optional bool
	// Reloadable says that a running instance takes a new value on SIGHUP.
	Reloadable bool
	// Later says that what the key is for is not part of this version. Then only
	// the default may be asked for: anything else would be silently ignored.
	Later bool

	compute func(c *Config, m Machine) string
	check   func(v Value) (why string)
}

// Env returns the name of the environment variable, CONDUIT_CFG_CLUSTER_LISTEN
// for cluster.listen. A test says that no two keys share one.
func (k *Key) Env() string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(k.Name, ".", "_"))
}

// Flag returns the name of the flag without its dashes, cluster-listen for
// cluster.listen.
func (k *Key) Flag() string {
	return strings.NewReplacer(".", "-", "_", "-").Replace(k.Name)
}

// example is a value that would be right, for messages.
func (k *Key) example() string {
	if k.Default != "" {
		return k.Default
	}
	switch k.Kind {
	case Duration:
		return "30s"
	case Size:
		return "10MiB"
	case Int:
		return "1"
	case Bool:
		return "true"
	case Map:
		return "name=value"
	default:
		return ""
	}
}

// Meaning is what the key is for, as documentation and explain show it: Doc, and when a
// new value counts, if not at the next start.
func (k *Key) Meaning() string {
	if k.Reloadable {
		return k.Doc + "; read again when the file changes, and on SIGHUP"
	}
	return k.Doc
}
