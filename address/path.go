package address

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// The wildcards of a [Path].
const (
	Wildcard          = "*"  // one component; as a context, any context or none
	WildcardRecursive = "**" // zero or more components; only as the last
)

const contextSeparator = "://"

// Path is where a resource lives, or a pattern of such places: a list of
// components, and optionally a context in front of it.
//
//	path      = [ context "://" ] components
//	wildcards = "*" one component or any context, "**" the rest, only last
//
// Components are printable ASCII without '/'; nothing is escaped, so %2F,
// '\', ':' and '#' stand for themselves. A context is any text without
// "://".
//
// The zero value is the root without a context, "/". Two paths are equal
// (==) if their contexts and components are; /a and c://a are not. Path is a
// value: safe for concurrent use.
//
// Grammar and operations are the original's, except where a comment says
// "unlike the original".
type Path struct {
	context string // trimmed; "" is none
	rest    string // components joined with '/'; "" is the root
}

// ParsePath reads a path leniently: pieces between slashes are trimmed (of
// all characters up to U+0020) and empty ones dropped, so " a //b/" is /a/b.
// With "://" in the text exactly two non-empty parts must stand around it.
//
// Unlike the original, "ctx://" is read, as the root of the context: there
// it is what that root prints as and yet an error to parse. Here the text of
// every path parses back to the same path. A context that is not UTF-8 is
// refused.
//
// The error is an [*Error] of [KindPath].
func ParsePath(s string) (Path, error) {
	context, rest := "", s
	if strings.Contains(s, contextSeparator) {
		parts := strings.Split(s, contextSeparator)
		for i := range parts {
			parts[i] = trim(parts[i])
		}
		isContextRoot := len(parts) == 2 && parts[0] != "" && parts[1] == ""
		if !isContextRoot {
			parts = slices.DeleteFunc(parts, func(part string) bool { return part == "" })
		}
		if len(parts) != 2 {
			return Path{}, refuse(KindPath, s, `one context must stand before "://" and one list of components after it`)
		}
		context, rest = parts[0], parts[1]
	}
	var components []string
	for piece := range strings.SplitSeq(rest, "/") {
		if piece = trim(piece); piece != "" {
			components = append(components, piece)
		}
	}
	p, why := makePath(context, components)
	if why != "" {
		return Path{}, refuse(KindPath, s, why)
	}
	return p, nil
}

// MustParsePath is [ParsePath] for tests and fixed text; it panics on an
// error.
func MustParsePath(s string) Path {
	p, err := ParsePath(s)
	if err != nil {
		panic(err)
	}
	return p
}

// NewPath makes a path of its parts; "" or a blank context is none.
//
// Unlike the original, which lets them survive here but not in its parser, a
// component with a space at either end is refused; so is a context with
// "://". Neither could be told from another path in its text.
//
// The error is an [*Error] of [KindPath].
func NewPath(context string, components ...string) (Path, error) {
	p, why := makePath(trim(context), components)
	if why != "" {
		return Path{}, refuse(KindPath, format(context, strings.Join(components, "/")), why)
	}
	return p, nil
}

// makePath checks everything that a Path promises; context is trimmed
// already.
func makePath(context string, components []string) (p Path, why string) {
	switch {
	case context == WildcardRecursive:
		return Path{}, "** cannot be the context, * can"
	case !utf8.ValidString(context):
		return Path{}, "the context is not UTF-8"
	case strings.Contains(context, contextSeparator):
		return Path{}, `the context has "://"`
	}
	for i, c := range components {
		if why := checkToken(c, "/"); why != "" {
			return Path{}, fmt.Sprintf("component %d %s", i+1, why)
		}
		if c == WildcardRecursive && i < len(components)-1 {
			return Path{}, "** is not the last component"
		}
	}
	return Path{context, strings.Join(components, "/")}, ""
}

// fromComponents makes a path of components that come from valid paths.
func fromComponents(context string, components []string) Path {
	return Path{context, strings.Join(components, "/")}
}

func format(context, rest string) string {
	if context == "" {
		return "/" + rest
	}
	return context + contextSeparator + rest
}

// String returns the normal form: ctx://a/b with a context, /a/b without.
func (p Path) String() string { return format(p.context, p.rest) }

// Context returns the context, "" if there is none.
func (p Path) Context() string { return p.context }

// HasContext reports whether there is a context.
func (p Path) HasContext() bool { return p.context != "" }

// Len returns the number of components.
func (p Path) Len() int {
	if p.IsRoot() {
		return 0
	}
	return strings.Count(p.rest, "/") + 1
}

// Components returns the components in a new slice.
func (p Path) Components() []string {
	if p.IsRoot() {
		return nil
	}
	return strings.Split(p.rest, "/")
}

// Component returns component i, counted from 0, or from the end if i is
// negative: -1 is the last. ok is false if there is no such component.
func (p Path) Component(i int) (component string, ok bool) {
	components := p.Components()
	if i < 0 {
		i += len(components)
	}
	if i < 0 || i >= len(components) {
		return "", false
	}
	return components[i], true
}

// last returns the last component, "" for the root.
func (p Path) last() string { return p.rest[strings.LastIndexByte(p.rest, '/')+1:] }

// IsRoot reports whether there are no components.
func (p Path) IsRoot() bool { return p.rest == "" }

// IsWildcard reports whether some component is "*"; /** alone is not.
func (p Path) IsWildcard() bool { return slices.Contains(p.Components(), Wildcard) }

// IsWildcardRecursive reports whether the last component is "**".
func (p Path) IsWildcardRecursive() bool { return p.last() == WildcardRecursive }

// IsWildcardTerminated reports whether the last component is "*" or "**".
func (p Path) IsWildcardTerminated() bool { return isWildcard(p.last()) }

// IsWildcardContext reports whether the context is "*".
func (p Path) IsWildcardContext() bool { return p.context == Wildcard }

func isWildcard(component string) bool {
	return component == Wildcard || component == WildcardRecursive
}

// AppendText implements [encoding.TextAppender] with the normal form.
func (p Path) AppendText(b []byte) ([]byte, error) { return append(b, p.String()...), nil }

// MarshalText implements [encoding.TextMarshaler]; JSON goes through it.
func (p Path) MarshalText() ([]byte, error) { return p.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler], as [ParsePath].
func (p *Path) UnmarshalText(text []byte) error { return setParsed(p, ParsePath, string(text)) }

// MarshalBinary implements [encoding.BinaryMarshaler]: the UTF-8 of the
// normal form.
func (p Path) MarshalBinary() ([]byte, error) { return p.AppendText(nil) }

// UnmarshalBinary implements [encoding.BinaryUnmarshaler], as [ParsePath].
func (p *Path) UnmarshalBinary(data []byte) error { return p.UnmarshalText(data) }
