package main

import (
	"strings"
	"testing"

	"github.com/elemental-conduit/conduit"
)

func TestCheckJSON(t *testing.T) {
	for text, want := range map[string]string{
		`{}`:                         "",
		`null`:                       "",
		`-5`:                         "",
		`"é"`:                        "",
		"[1,\n2]":                    "",
		``:                           "is empty",
		`{"a":1,}`:                   "line 1, column 8",
		"{\n  \"a\": 1\n  \"b\": 2}": "line 3, column 3",
		`"é`:                         "ends too early, at line 1, column 3",
		`["é"; 1]`:                   "line 1, column 5",
		`1 2`:                        "goes on after its JSON value, at line 1, column 3",
		"{}\n\n{}":                   "at line 3, column 1",
		`Ada`:                        "a text needs quotes",
		`'a'`:                        "line 1, column 1",
		"\xff":                       "it is not UTF-8, at line 1, column 1 (byte 0xff at offset 0)",
		"\"\xff\"":                   "it is not UTF-8, at line 1, column 2 (byte 0xff at offset 1)",
		"[\"é\",\n\"\xed\xa0\x80\"]": "it is not UTF-8, at line 2, column 2 (byte 0xed at offset 8)", // half of a pair, which UTF-8 has not
		"\"é\xc3":                    "it is not UTF-8, at line 1, column 3 (byte 0xc3 at offset 3)", // cut in a character
		"\"\uFFFD\"":                 "",
	} {
		err := checkJSON([]byte(text), "it")
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %q", text, err, want)
		case want != "" && exitStatus(err) != exitUsage:
			t.Errorf("%q: exit %d", text, exitStatus(err))
		}
	}
}

func TestResults(t *testing.T) {
	json := func(part uint32, s string) conduit.Message {
		return conduit.Message{Part: part, ContentType: conduit.ContentJSON, Data: []byte(s)}
	}
	messages := []conduit.Message{
		json(0, `{"a": 1.50}`),
		json(2, `"x"`),
		json(0, "{\n \"a\": 12345678901234567890\n}"),
		{ContentType: conduit.ContentBytes, Data: []byte("\x00\xff\n")},
		json(0, ""),
	}
	for _, tc := range []struct {
		name    string
		p       resultPrinter
		want    string
		skipped int
	}{
		{"lines", resultPrinter{format: formatTable}, "{\"a\": 1.50}\n{\"a\":12345678901234567890}\n\"AP8K\"\nnull\n", 1},
		{"JSON", resultPrinter{format: formatJSON}, "{\"a\": 1.50}\n{\"a\":12345678901234567890}\n\"AP8K\"\nnull\n", 1},
		{"parts", resultPrinter{format: formatTable, parts: true}, "0\t{\"a\": 1.50}\n2\t\"x\"\n0\t{\"a\":12345678901234567890}\n0\t\"AP8K\"\n0\tnull\n", 0},
		{"parts, JSON", resultPrinter{format: formatJSON, parts: true}, `{"part":0,"value":{"a":1.50}}` + "\n" + `{"part":2,"value":"x"}` + "\n" +
			`{"part":0,"value":{"a":12345678901234567890}}` + "\n" + `{"part":0,"value":"AP8K"}` + "\n" + `{"part":0,"value":null}` + "\n", 0},
		{"YAML", resultPrinter{format: formatYAML}, "---\na: 1.50\n---\na: 12345678901234567890\n---\nAP8K\n---\nnull\n", 1},
		{"raw", resultPrinter{raw: true}, "{\"a\": 1.50}{\n \"a\": 12345678901234567890\n}\x00\xff\n", 1},
	} {
		var b strings.Builder
		tc.p.w = &b
		for _, m := range messages {
			if err := tc.p.print(m); err != nil {
				t.Errorf("%s: %v", tc.name, err)
			}
		}
		if b.String() != tc.want || tc.p.skipped != tc.skipped {
			t.Errorf("%s: %d skipped, got\n%q, want\n%q", tc.name, tc.p.skipped, b.String(), tc.want)
		}
	}
	for _, bad := range []string{"{\n", "\"\xff\""} {
		var b strings.Builder
		p := resultPrinter{w: &b}
		if err := p.print(json(0, bad)); err == nil || exitStatus(err) != exitElement || b.String() != "" {
			t.Errorf("a result that is not what it says: %v, %q", err, b.String())
		}
	}
}
