package pluginlink

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxAttributeName is in bytes.
const maxAttributeName = 256

// AttributeNameFault says why an attribute cannot have a name, "" if it can: names are
// held to what a file, a flag and a log line can carry. It is a phrase that follows
// the name.
func AttributeNameFault(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > maxAttributeName:
		return fmt.Sprintf("has more than %d bytes", maxAttributeName)
	case !utf8.ValidString(name):
		return "is not UTF-8"
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`=,\`, r) }):
		return `has a space, a control character, '=', ',' or '\' in it`
	}
	return ""
}
