package safepath

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// What the path of a file inside a directory may be at most: so much fits into a path of
// any system's, behind that of the directory.
const (
	maxInside = 1024 // bytes
	maxPart   = 255  // bytes of one of its names
	maxDepth  = 16   // names
)

// Inside says why path, as somebody else writes it, is not that of a file inside a
// directory: names with "/" between them, none of them "." or "..", in UTF-8, and without
// what could pass for something else where it is shown. It looks at the text alone. The
// error is a phrase that continues what is said of the path; nil = it is one.
func Inside(path string) error {
	switch {
	case path == "":
		return errors.New("has no name")
	case len(path) > maxInside:
		return fmt.Errorf("is %d bytes long, and may be %d", len(path), maxInside)
	case !utf8.ValidString(path):
		return errors.New("is not UTF-8")
	case strings.ContainsFunc(path, func(r rune) bool { return r == '\\' || !unicode.IsPrint(r) }):
		return errors.New(`has a character that is none of a name's: a backslash, or one that cannot be printed`)
	}
	parts := strings.Split(path, "/")
	if len(parts) > maxDepth {
		return fmt.Errorf("is %d directories deep, and may be %d", len(parts)-1, maxDepth-1)
	}
	for _, part := range parts {
		switch {
		case part == "" || part == "." || part == "..":
			return errors.New("leads elsewhere, or has a name that is none: write it from the directory on, with a / between two names")
		case len(part) > maxPart:
			return fmt.Errorf("has a name of %d bytes, and one may have %d", len(part), maxPart)
		}
	}
	return nil
}
