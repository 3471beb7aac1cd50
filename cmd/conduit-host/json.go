package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/elemental-conduit/conduit"
)

// checkJSON refuses what is not exactly one JSON value, and says where it stops
// being one.
func checkJSON(data []byte, where string) error {
	if len(data) == 0 {
		return usagef("%s is empty; leave it out to send no argument, or write null", where)
	}
	// encoding/json would take it, and put U+FFFD in its place when it is decoded.
	if at := notUTF8(data); at >= 0 {
		return usagef("%s is not JSON: it is not UTF-8, at %s (byte 0x%02x at offset %d)", where, position(data, at), data[at], at)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	var v json.RawMessage
	err := dec.Decode(&v)
	if err == nil {
		rest := bytes.TrimLeft(data[dec.InputOffset():], " \t\r\n")
		if len(rest) == 0 {
			return nil
		}
		return usagef("%s goes on after its JSON value, at %s", where, position(data, len(data)-len(rest)))
	}
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		// The offset is that behind the byte that was wrong.
		return usagef("%s is not JSON: %s, at %s%s", where, syntax, position(data, int(syntax.Offset)-1), hint(data))
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return usagef("%s is not JSON: it ends too early, at %s", where, position(data, len(data)))
	}
	return usagef("%s is not JSON: %v", where, err)
}

// notUTF8 is the offset of the first byte that is not UTF-8; -1 if there is none.
func notUTF8(data []byte) int {
	if utf8.Valid(data) {
		return -1
	}
	for at := 0; ; {
		r, size := utf8.DecodeRune(data[at:])
		if r == utf8.RuneError && size <= 1 {
			return at
		}
		at += size
	}
}

// position writes an offset as a person counts: lines and characters from 1.
func position(data []byte, offset int) string {
	offset = min(max(offset, 0), len(data))
	before := string(data[:offset])
	line := strings.Count(before, "\n")
	column := utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:])
	return "line " + strconv.Itoa(line+1) + ", column " + strconv.Itoa(column+1)
}

// hint knows the commonest slip: text without quotes, which the shell took.
func hint(data []byte) string {
	if c := data[0]; c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' {
		return `; a text needs quotes that the shell leaves alone, such as '"Ada"'`
	}
	return ""
}

// asJSON is a result as one line of JSON, whatever it is made of.
func asJSON(m conduit.Message) ([]byte, error) {
	if m.ContentType != conduit.ContentJSON && m.ContentType != "" {
		return json.Marshal(m.Data) // base64, as Go writes bytes
	}
	if len(m.Data) == 0 {
		return []byte("null"), nil
	}
	if at := notUTF8(m.Data); at >= 0 {
		return nil, conduit.Errorf(conduit.DataLoss, conduit.ReasonBadContent, conduit.OutcomeUnknown,
			"a result says that it is JSON and is not UTF-8 (byte 0x%02x at offset %d); --raw prints it as it is", m.Data[at], at)
	}
	if bytes.IndexByte(m.Data, '\n') < 0 && bytes.IndexByte(m.Data, '\r') < 0 && json.Valid(m.Data) {
		return m.Data, nil
	}
	var b bytes.Buffer
	if err := json.Compact(&b, m.Data); err != nil {
		return nil, conduit.Errorf(conduit.DataLoss, conduit.ReasonBadContent, conduit.OutcomeUnknown, "a result says that it is JSON and is not: %v", err)
	}
	return b.Bytes(), nil
}
