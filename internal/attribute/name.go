// Package attribute has the one rule of what an attribute of an element may be called:
// who declares one, who gives it a value, and who writes it into deployment.yaml ask here.
package attribute

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxName is in bytes.
const maxName = 256

// NameFault says why an attribute cannot have a name, "" if it can: names are
// held to what a file, a flag and a log line can carry. It is a phrase that follows
// the name.
func NameFault(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > maxName:
		return fmt.Sprintf("has more than %d bytes", maxName)
	case !utf8.ValidString(name):
		return "is not UTF-8"
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`=,\`, r) }):
		return `has a space, a control character, '=', ',' or '\' in it`
	}
	return ""
}
