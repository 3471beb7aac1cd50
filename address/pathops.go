package address

import (
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"strings"
)

// Append returns p with the components of child behind its own. The child
// must have no context or the context of p; an error is an [*Error] of
// [KindPathOp], also when p ends in "**" and so takes nothing behind it.
func (p Path) Append(child Path) (Path, error) {
	if child.HasContext() && child.context != p.context {
		return Path{}, refuse(KindPathOp, p.String(),
			fmt.Sprintf("cannot append %s: it has another context; use its WithoutContext", child))
	}
	return p.AppendComponents(child.Components()...)
}

// AppendComponents returns p with more components and the same context; an
// error is an [*Error] of [KindPathOp].
func (p Path) AppendComponents(components ...string) (Path, error) {
	return p.with(append(p.Components(), components...))
}

// AppendExtension returns p with "."+ext on its last component. Unlike the
// original, which drops the context here, it keeps it. The root has no last
// component: an [*Error] of [KindPathOp], as for an ext that is no component
// text.
func (p Path) AppendExtension(ext string) (Path, error) {
	if p.IsRoot() {
		return Path{}, refuse(KindPathOp, p.String(), "cannot append an extension: the root has no component")
	}
	components := p.Components()
	components[len(components)-1] += "." + ext
	return p.with(components)
}

// with checks new components under the context of p.
func (p Path) with(components []string) (Path, error) {
	q, why := makePath(p.context, components)
	if why != "" {
		return Path{}, refuse(KindPathOp, format(p.context, strings.Join(components, "/")), why)
	}
	return q, nil
}

// Parent returns p without its last component; the root is its own parent.
func (p Path) Parent() Path {
	return Path{p.context, p.rest[:max(strings.LastIndexByte(p.rest, '/'), 0)]}
}

// Hierarchy yields every prefix of p from one component to all of them, with
// the context of p. The root yields nothing.
func (p Path) Hierarchy() iter.Seq[Path] {
	return func(yield func(Path) bool) {
		for i := range len(p.rest) {
			if p.rest[i] == '/' && !yield(Path{p.context, p.rest[:i]}) {
				return
			}
		}
		if !p.IsRoot() {
			yield(p)
		}
	}
}

// Recursive returns the pattern of all that lies under p: it cuts p at its
// last "*" and appends "**". /a gives /a/**, /a/*/b gives /a/**, and
// /a/*/b/* gives /a/*/b/**. A path that ends in "**" stays as it is.
func (p Path) Recursive() Path {
	if p.IsWildcardRecursive() {
		return p
	}
	components := p.Components()
	if i := lastIndex(components, Wildcard); i >= 0 {
		components = components[:i]
	}
	return fromComponents(p.context, append(components, WildcardRecursive))
}

func lastIndex(components []string, c string) int {
	for i, component := range slices.Backward(components) {
		if component == c {
			return i
		}
	}
	return -1
}

// StripWildcard cuts p before its n-th "*", counted from 0, or from the end
// if n is negative. Without any "*" p stays as it is; an n beyond those
// there are is an [*Error] of [KindPathOp].
func (p Path) StripWildcard(n int) (Path, error) {
	components := p.Components()
	var at []int
	for i, c := range components {
		if c == Wildcard {
			at = append(at, i)
		}
	}
	if len(at) == 0 {
		return p, nil
	}
	i := n
	if i < 0 {
		i += len(at)
	}
	if i < 0 || i >= len(at) {
		return Path{}, refuse(KindPathOp, p.String(), fmt.Sprintf("has no wildcard %d, there are %d", n, len(at)))
	}
	return fromComponents(p.context, components[:at[i]]), nil
}

// StripRecursive removes a trailing "**".
func (p Path) StripRecursive() Path {
	if p.IsWildcardRecursive() {
		return p.Parent()
	}
	return p
}

// AppendIfWildcard replaces all wildcards at the end of p by one component:
// /a/*, /a/** and /a/*/** give /a/x. A path that does not end in a wildcard
// stays as it is. A bad component is an [*Error] of [KindPathOp] either way.
func (p Path) AppendIfWildcard(component string) (Path, error) {
	q := p
	for q.IsWildcardTerminated() {
		q = q.Parent()
	}
	r, err := q.AppendComponents(component)
	if err != nil || q == p {
		return p, err
	}
	return r, nil
}

// AppendUUIDIfWildcard is [Path.AppendIfWildcard] with a new random UUID
// (version 4, with dashes).
func (p Path) AppendUUIDIfWildcard() Path {
	q, _ := p.AppendIfWildcard(randomUUID().String()) // a UUID is always a component
	return q
}

// WithContext returns p with another context; a blank one removes it. An
// error is an [*Error] of [KindPath].
func (p Path) WithContext(context string) (Path, error) {
	return NewPath(context, p.Components()...)
}

// WithContextIfAbsent returns p itself if it has a context, else as
// [Path.WithContext].
func (p Path) WithContextIfAbsent(context string) (Path, error) {
	if p.HasContext() {
		return p, nil
	}
	return p.WithContext(context)
}

// WithoutContext returns p without its context.
func (p Path) WithoutContext() Path { return Path{"", p.rest} }

// ContextRoot returns the root of p's context: c://a/b gives c://.
func (p Path) ContextRoot() Path { return Path{p.context, ""} }

// RelativeString joins the components with sep, without one in front; the
// root gives "". A path with a context has no such form: an [*Error] of
// [KindPathOp].
func (p Path) RelativeString(sep string) (string, error) {
	if p.HasContext() {
		return "", refuse(KindPathOp, p.String(), "cannot be relative: it has a context; use WithoutContext")
	}
	return strings.Join(p.Components(), sep), nil
}

// RelativeFile returns p as a relative file name of this system; the root
// gives "". A path with a context is an [*Error] of [KindPathOp]. Unlike the
// original, so is a path that would not name a file of its own below the
// folder it is joined to, such as one with a component "..".
func (p Path) RelativeFile() (string, error) {
	name, err := p.RelativeString(string(filepath.Separator))
	if err != nil || name == "" {
		return "", err
	}
	if name == "." || filepath.Clean(name) != name || !filepath.IsLocal(name) {
		return "", refuse(KindPathOp, p.String(), "cannot be a file name: it has a component that file systems treat specially")
	}
	return name, nil
}

// NodeID returns the node that the context names. Without a context ok is
// false. A context that is not a NodeID, "*" too, is an [*Error] of
// [KindNodeID].
func (p Path) NodeID() (id NodeID, ok bool, err error) {
	if !p.HasContext() {
		return NodeID{}, false, nil
	}
	id, err = ParseNodeID(p.context)
	return id, err == nil, err
}

// OptionalNodeID is [Path.NodeID], except that the context "*" names no node
// and is no error.
func (p Path) OptionalNodeID() (id NodeID, ok bool, err error) {
	if p.IsWildcardContext() {
		return NodeID{}, false, nil
	}
	return p.NodeID()
}
