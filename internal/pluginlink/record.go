package pluginlink

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
)

// record is one line of a plugin's log, made safe to log. go-plugin's own
// parser asserts types that a plugin chooses: {"@message":5} ends the host. It
// never sees a plugin's output.
type record struct {
	level   hclog.Level
	message string
	args    []any
}

// ours are the keys that the host's own fields have; a plugin's are renamed.
var ours = []string{"deployment", "element", "pid", "source", "truncated", "lost_bytes", "generation", "dropped", "per_second"} //nolint:gochecknoglobals // a table that nobody writes

// parseRecord reads a line of hclog's JSON. ok is false if it is none.
func parseRecord(line []byte) (r record, ok bool) {
	if len(line) == 0 || line[0] != '{' {
		return record{}, false
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(line, &fields) != nil {
		return record{}, false
	}
	message, ok := fields["@message"]
	if !ok {
		return record{}, false
	}
	r = record{level: hclog.Info, message: text(message)}
	if l, ok := fields["@level"]; ok {
		r.level = levelOr(text(l), hclog.Info)
	}
	keys := make([]string, 0, len(fields))
	for k := range fields {
		if k != "@message" && k != "@level" && k != "@timestamp" {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		name := clean(strings.TrimPrefix(k, "@"))
		value := text(fields[k])
		switch {
		case name == stackField:
			value = stack(fields[k])
		case slices.Contains(ours, name):
			name = "plugin." + name
		}
		r.args = append(r.args, name, value)
	}
	return r, true
}

// text gives a JSON value as a string: a string's own text, else the JSON.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return clean(s)
	}
	return clean(string(raw))
}

// stackField is the one field that keeps its lines: of a panic, by whoever wrote it.
const stackField = "stack"

// stack gives a JSON value as text in which the ends of lines are left.
func stack(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return text(raw)
	}
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	for i, line := range lines {
		lines[i] = clean(line)
	}
	return strings.Join(lines, "\n")
}

func levelOr(name string, other hclog.Level) hclog.Level {
	if l := hclog.LevelFromString(name); l != hclog.NoLevel && l != hclog.Off {
		return l
	}
	return other
}

// plainRecord reads a line that is no JSON. "[WARN] text" has a level; any other
// is at info, so that an operator sees it without asking.
func plainRecord(line []byte, cut int) record {
	r := record{level: hclog.Info, message: clean(string(line))}
	if cut > 0 && bytes.HasPrefix(line, []byte("{")) {
		// A cut JSON line does not parse; its level need not be lost.
		if _, rest, ok := bytes.Cut(line, []byte(`"@level":"`)); ok {
			name, _, _ := bytes.Cut(rest[:min(len(rest), 16)], []byte(`"`))
			r.level = levelOr(string(name), hclog.Info)
		}
		return r
	}
	if rest, ok := strings.CutPrefix(r.message, "["); ok {
		if name, rest, ok := strings.Cut(rest, "]"); ok && len(name) <= 5 {
			if l := levelOr(name, hclog.NoLevel); l != hclog.NoLevel {
				r.level, r.message = l, strings.TrimSpace(rest)
			}
		}
	}
	return r
}

// clean makes text safe for a terminal and a log: control characters and what
// is not UTF-8 are escaped, so that a plugin can neither forge a line nor move a
// cursor.
func clean(s string) string {
	if !strings.ContainsFunc(s, unsafeRune) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + 16)
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			writeHex(&b, s[i])
		case r == '\n':
			b.WriteString(`\n`)
		case unsafeRune(r):
			for _, c := range []byte(s[i : i+n]) {
				writeHex(&b, c)
			}
		default:
			b.WriteString(s[i : i+n])
		}
		i += n
	}
	return b.String()
}

// unsafeRune reports control and format characters (the latter reorder text).
func unsafeRune(r rune) bool {
	return r != '\t' && (r == utf8.RuneError || unicode.Is(unicode.Cc, r) || unicode.Is(unicode.Cf, r))
}

func writeHex(b *strings.Builder, c byte) {
	const digits = "0123456789abcdef"
	b.WriteString(`\x`)
	b.WriteByte(digits[c>>4])
	b.WriteByte(digits[c&15])
}

// shorten keeps the first n bytes of s, cut at a character.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// Text makes a text of a plugin's fit to be shown and kept: at most n bytes of it, cut
// at a character and marked, without control characters.
func Text(s string, n int) string { return shorten(clean(shorten(s, n)), n) }
