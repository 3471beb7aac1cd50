package config

import (
	"strconv"
	"strings"
)

// quoted is what messages quote of a value. Whoever writes a URL may have put a password
// or a session into it, where none is taken; it must not reach a log by the way of
// the message that says so.
func quoted(text string) string { return strconv.Quote(withoutSecrets(text)) }

// withoutSecrets leaves out what stands before an @ and after a ?, whatever the value is
// of: in a list, all from its first entry on to the last @, since a password may hold what
// separates entries.
func withoutSecrets(text string) string {
	if at := strings.LastIndexByte(text, '@'); at > 0 {
		scheme, _, ok := strings.Cut(text[:at], "://")
		if ok && strings.Trim(scheme, "abcdefghijklmnopqrstuvwxyz") == "" {
			scheme += "://"
		} else {
			scheme = ""
		}
		text = scheme + "..." + text[at:]
	}
	if before, _, ok := strings.Cut(text, "?"); ok {
		text = before + "?..."
	}
	return text
}
