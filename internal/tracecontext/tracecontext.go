// Package tracecontext reads the W3C trace context that calls carry
// (https://www.w3.org/TR/trace-context/). It keeps no state: spans are made and kept by
// whoever traces, and an instance passes on what it is given.
package tracecontext

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
)

// MaxState is the longest tracestate that is passed on, in bytes; 512 everyone must.
const MaxState = 2 << 10

// size is the length of a traceparent: 00-{32}-{16}-{2}.
const size = 55

// New returns the traceparent of a trace that begins here. It says that nobody keeps it.
func New() string {
	var b [24]byte
	_, _ = rand.Read(b[:]) // it never fails
	b[0] |= 1              // an id of zeros is none
	b[16] |= 1
	return "00-" + hex.EncodeToString(b[:16]) + "-" + hex.EncodeToString(b[16:]) + "-00"
}

// ID returns the id of the trace that a traceparent names, "" if it is malformed.
func ID(parent []byte) string {
	if len(parent) != size {
		return ""
	}
	p, ok := ParseParent(string(parent))
	if !ok {
		return ""
	}
	return p[3:35]
}

// ParseParent checks a traceparent. One of a later version is read as far as ours
// goes, and passed on as ours.
func ParseParent(s string) (string, bool) {
	if len(s) < size || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return "", false
	}
	version, id, span, flags := s[:2], s[3:35], s[36:52], s[53:size]
	if !isHex(version) || !isHex(id) || !isHex(span) || !isHex(flags) || version == "ff" ||
		strings.Trim(id, "0") == "" || strings.Trim(span, "0") == "" {
		return "", false
	}
	if version == "00" {
		return s, len(s) == size
	}
	if len(s) > size && s[size] != '-' {
		return "", false
	}
	return "00" + s[2:size], true
}

// isHex takes lower case only, as the recommendation does.
func isHex(s string) bool {
	return strings.Trim(s, "0123456789abcdef") == ""
}

// ValidState checks a tracestate: up to 32 members key=value, no key twice.
func ValidState(s string) bool {
	if len(s) > MaxState {
		return false
	}
	seen := map[string]bool{}
	for member := range strings.SplitSeq(s, ",") {
		member = strings.Trim(member, " \t")
		if member == "" {
			continue
		}
		key, value, ok := strings.Cut(member, "=")
		if !ok || seen[key] || !validKey(key) || !validValue(value) {
			return false
		}
		seen[key] = true
	}
	return len(seen) <= 32
}

func validKey(s string) bool {
	tenant, system, multi := strings.Cut(s, "@")
	if multi {
		return len(tenant) <= 241 && validName(tenant, true) && len(system) <= 14 && validName(system, false)
	}
	return len(s) <= 256 && validName(s, false)
}

// validName checks part of a key; digit says that it may begin with one.
func validName(s string, digit bool) bool {
	if s == "" {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z':
		case c >= '0' && c <= '9' && (i > 0 || digit):
		case i > 0 && strings.IndexByte("_-*/", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// validValue takes printable ASCII without ',' and '=', and no space at the end.
func validValue(s string) bool {
	if s == "" || len(s) > 256 || s[len(s)-1] == ' ' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == ',' || c == '=' {
			return false
		}
	}
	return true
}
