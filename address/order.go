package address

import (
	"cmp"
	"strings"
)

// CompareWildcardFirst orders paths for [slices.SortFunc]: no context before
// any context, then contexts, then fewer components before more, then
// component by component. Wildcards come before literals, "*" before "**",
// in contexts too.
//
// Unlike the original, which compares UTF-16 units, literals compare by
// UTF-8 bytes; only contexts with characters beyond U+FFFF can tell.
func CompareWildcardFirst(a, b Path) int { return comparePaths(a, b, -1) }

// CompareWildcardLast is [CompareWildcardFirst] with wildcards behind
// literals; "*" still comes before "**".
func CompareWildcardLast(a, b Path) int { return comparePaths(a, b, +1) }

// comparePaths compares with wildcards before literals (-1) or behind (+1).
func comparePaths(a, b Path, wildcards int) int {
	if a.HasContext() != b.HasContext() {
		return strings.Compare(a.context, b.context) // "" before any other
	}
	if c := compareComponents(a.context, b.context, wildcards); c != 0 {
		return c
	}
	if c := cmp.Compare(a.Len(), b.Len()); c != 0 {
		return c
	}
	as, bs := a.Components(), b.Components()
	for i := range as {
		if c := compareComponents(as[i], bs[i], wildcards); c != 0 {
			return c
		}
	}
	return 0
}

func compareComponents(a, b string, wildcards int) int {
	switch aWild, bWild := isWildcard(a), isWildcard(b); {
	case aWild == bWild:
		return strings.Compare(a, b) // "*" is a prefix of "**", so before it
	case aWild:
		return wildcards
	default:
		return -wildcards
	}
}
