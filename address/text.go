package address

import (
	"fmt"
	"strings"
)

// trim strips what the original strips at both ends of a piece: all
// characters up to and including U+0020.
func trim(s string) string {
	return strings.TrimFunc(s, func(r rune) bool { return r <= ' ' })
}

// checkToken says what keeps s from being one piece of a name, as a verb
// phrase, or returns "". A piece is one or more printable ASCII characters
// (0x20-0x7E), none of those in without, and no space at either end. There
// is no escaping.
func checkToken(s, without string) (why string) {
	if s == "" {
		return "is empty"
	}
	for _, r := range s {
		if r < 0x20 || r > 0x7e {
			return fmt.Sprintf("has %q, which is not printable ASCII", r)
		}
		if strings.ContainsRune(without, r) {
			return fmt.Sprintf("has a %q", r)
		}
	}
	if s[0] == ' ' || s[len(s)-1] == ' ' {
		return "begins or ends with a space"
	}
	return ""
}
