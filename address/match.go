package address

// Match reports whether some path without wildcards is named by both p and
// q. It is symmetric, so either side may be the pattern.
//
//   - Contexts match if they are equal or one is "*"; that one also matches no
//     context at all.
//   - "*" stands for exactly one component, a trailing "**" for zero or more.
//
// Unlike the original, whose matching compares only as many components as
// the shorter side has, this is a glob: /a does not match /a/b, and /a/*
// matches neither /a nor /a/b/c. Prefix matching made a listing of /a/*
// return /a.
func (p Path) Match(q Path) bool {
	if !matchContext(p.context, q.context) {
		return false
	}
	a, aOpen := p.fixedComponents()
	b, bOpen := q.fixedComponents()
	// The side with fewer fixed components must be able to grow.
	if len(a) < len(b) && !aOpen || len(b) < len(a) && !bOpen {
		return false
	}
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] && a[i] != Wildcard && b[i] != Wildcard {
			return false
		}
	}
	return true
}

// fixedComponents returns the components before a trailing "**", and whether
// there is one.
func (p Path) fixedComponents() (fixed []string, open bool) {
	components := p.Components()
	if p.IsWildcardRecursive() {
		return components[:len(components)-1], true
	}
	return components, false
}

func matchContext(a, b string) bool {
	return a == b || a == Wildcard || b == Wildcard
}
