package gateway

import (
	"net/http"
	"strings"
)

// trace is the W3C trace context of a request, empty where there is none or it
// cannot be read: a bad header never stops a call.
type trace struct{ parent, state string }

// maxTraceState is more than the 512 bytes that everyone must pass on.
const maxTraceState = 2 << 10

// parseTrace reads the headers of https://www.w3.org/TR/trace-context/. A bad state
// is dropped, and the parent kept.
func parseTrace(h http.Header) trace {
	parents := h.Values("Traceparent")
	if len(parents) != 1 {
		return trace{}
	}
	parent, ok := parseParent(parents[0])
	if !ok {
		return trace{}
	}
	state := strings.Join(h.Values("Tracestate"), ",")
	if !validState(state) {
		state = ""
	}
	return trace{parent: parent, state: state}
}

// id is the trace's, "" for none.
func (t trace) id() string {
	if t.parent == "" {
		return ""
	}
	return t.parent[3:35]
}

// parseParent checks a traceparent. One of a later version is read as far as ours
// goes, and passed on as ours.
func parseParent(s string) (string, bool) {
	const size = 55 // 00-{32}-{16}-{2}
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

// validState checks a tracestate: up to 32 members key=value, no key twice.
func validState(s string) bool {
	if len(s) > maxTraceState {
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
