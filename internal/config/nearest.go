package config

import (
	"slices"
	"strings"

	"github.com/elemental-conduit/conduit/internal/values"
)

// Nearest is [values.Nearest].
func Nearest(text string, candidates []string) string { return values.Nearest(text, candidates) }

// groups are the names of the groups that keys are in.
func groups(names []string) (groups []string) {
	for _, name := range names {
		for i, c := range name {
			if c == '.' && !slices.Contains(groups, name[:i]) {
				groups = append(groups, name[:i])
			}
		}
	}
	return groups
}

// suggestKey names the key, or the group of keys, that a path in the file was meant to
// be: by its whole path first, or else one whose last name it has, at another depth.
func suggestKey(path string, keys []Key) string {
	names := make([]string, len(keys))
	for i := range keys {
		names[i] = keys[i].Name
	}
	if near := values.Nearest(path, append(groups(names), names...)); near != "" {
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
