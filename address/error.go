package address

import (
	"fmt"
	"unicode/utf8"
)

// Kind says which sort of name an [Error] is about.
type Kind string

// The kinds of names.
const (
	KindInstanceID     Kind = "instance id"
	KindDeploymentID   Kind = "deployment id"
	KindNodeID         Kind = "node id"
	KindResourceID     Kind = "resource id"
	KindTaskID         Kind = "task id"
	KindPath           Kind = "path"
	KindPathOp         Kind = "path operation" // a well-formed path that the operation cannot take
	KindTemplate       Kind = "path template"
	KindServiceKey     Kind = "service key"
	KindAddress        Kind = "address"
	KindDeploymentName Kind = "deployment name"
	KindInstanceFile   Kind = "instance id file" // Input is the file's name
)

// maxErrorInput is how many bytes of a refused input an Error keeps; every
// id fits whole.
const maxErrorInput = 160

// Error is the only error type of this package: a name that was refused, or
// an instance id file that could not be used. Use [errors.As] to reach it.
type Error struct {
	Kind  Kind
	Input string // what was refused; text is cut after 160 bytes, raw bytes are shown as hex
	Why   string // what is wrong with it
	Err   error  // the cause, for example an *fs.PathError; nil when the input itself is at fault
}

// Error says what was refused, what the right form is, and what is wrong.
func (e *Error) Error() string {
	if want := e.Kind.want(); want != "" {
		return fmt.Sprintf("%s %q: want %s: %s", e.Kind, e.Input, want, e.Why)
	}
	return fmt.Sprintf("%s %q: %s", e.Kind, e.Input, e.Why)
}

// Unwrap returns the cause, which may be nil.
func (e *Error) Unwrap() error { return e.Err }

// want is the right form with an example, or "" where there is no one form.
func (k Kind) want() string {
	switch k {
	case KindInstanceID:
		return "36 hex digits, for example 0100acbd18db4cc2385cadef654fccc4a4d8"
	case KindDeploymentID:
		return "36 hex digits, for example 0101acbd18db4cc2385cadef654fccc4a4d8"
	case KindNodeID:
		return "70 hex digits, 0100<instance uuid>01<deployment uuid>"
	case KindResourceID:
		return "104 hex digits, 0100<instance uuid>01<deployment uuid>02<resource uuid>"
	case KindTaskID:
		return "138 hex digits, 0100<instance uuid>01<deployment uuid>02<resource uuid>03<task uuid>"
	case KindPath:
		return "[<context>://]<component>/<component>..., for example /scores/daily or eu://scores/*"
	case KindTemplate:
		return "a path whose variable components are {name}, for example /users/{id}/scores"
	case KindServiceKey:
		return "<type> or <type>#<name>, for example example.Greeter#fast"
	case KindAddress:
		return "<instance>://<deployment>/<element>/<service>, for example *://greeter/greeter/example.Greeter"
	case KindDeploymentName:
		return "1 to 128 letters, digits, '.', '_' or '-' that begin with a letter or a digit, for example greeter"
	default:
		return ""
	}
}

func refuse(kind Kind, input, why string) *Error {
	return &Error{Kind: kind, Input: shorten(input), Why: why}
}

// shorten cuts s to at most maxErrorInput bytes, on a rune boundary, and
// marks the cut.
func shorten(s string) string {
	if len(s) <= maxErrorInput {
		return s
	}
	cut := maxErrorInput
	for cut > maxErrorInput-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}

// setParsed stores what parse makes of in; on an error dst keeps its value.
func setParsed[I, T any](dst *T, parse func(I) (T, error), in I) error {
	v, err := parse(in)
	if err != nil {
		return err
	}
	*dst = v
	return nil
}
