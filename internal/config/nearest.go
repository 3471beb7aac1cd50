package config

import (
	"strings"

	"github.com/elemental-conduit/conduit/internal/values"
)

// Nearest is [values.Nearest].
func Nearest(text string, candidates []string) string { return values.Nearest(text, candidates) }

// suggestKey names the key that a path in the file was meant to be: by its whole
// path first, or else one whose last name it has, at another depth.
func suggestKey(path string, keys []Key) string {
	names := make([]string, len(keys))
	for i := range keys {
		names[i] = keys[i].Name
	}
	if near := values.Nearest(path, names); near != "" {
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
