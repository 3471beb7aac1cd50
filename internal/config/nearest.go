package config

import (
	"strings"

	"github.com/agnivade/levenshtein"
)

// Nearest returns the candidate that text was most likely meant to be, or "" if
// none is near. A wrong case alone is always near.
func Nearest(text string, candidates []string) string {
	best, bound := "", max(2, len(text)/3)+1
	for _, c := range candidates {
		// The distance allocates by the length: what is that far off needs no look.
		if len(c)-len(text) >= bound || len(text)-len(c) >= bound {
			continue
		}
		d := levenshtein.ComputeDistance(strings.ToLower(text), strings.ToLower(c))
		if d < bound {
			best, bound = c, d
		}
	}
	return best
}

// suggest returns the end of a message that names the nearest candidate.
func suggest(text string, candidates []string) string {
	if near := Nearest(text, candidates); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}

// suggestKey names the key that a path in the file was meant to be: by its whole
// path first, or else one whose last name it has, at another depth.
func suggestKey(path string, keys []Key) string {
	names := make([]string, len(keys))
	for i := range keys {
		names[i] = keys[i].Name
	}
	if near := Nearest(path, names); near != "" {
		return "; did you mean " + near + "?"
	}
	last := path[strings.LastIndexByte(path, '.')+1:]
	var ends []string
	for _, name := range names {
		if strings.EqualFold(name[strings.LastIndexByte(name, '.')+1:], last) {
			ends = append(ends, name)
		}
	}
	if len(ends) > 0 && len(ends) <= 4 {
		return "; did you mean " + strings.Join(ends, " or ") + "?"
	}
	return ""
}
