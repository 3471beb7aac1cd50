package main

import (
	"testing"

	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

func TestSampleRequest(t *testing.T) {
	d := &conduitv1.Description{Schemas: &conduitv1.Schemas{
		Methods: []*conduitv1.MethodSchema{
			{Service: "a.B", Method: "Greet", Request: `{"$ref":"#/$defs/Greet"}`},
			{Service: "a.B", Method: "Count", Request: `{"type":"integer"}`},
			{Service: "a.B", Method: "Tree", Request: `{"$ref":"#/$defs/Tree"}`},
			{Service: "a.B", Method: "Any", Request: `{}`},
			{Service: "a.B", Method: "None"},
			{Service: "a.B", Method: "Quoted", Request: `{"type":"object","properties":{"it's":{"type":"string"}}}`},
			{Service: "a.B", Method: "Broken", Request: `{`},
		},
		Definitions: map[string]string{
			"Greet": `{"type":"object","properties":{"name":{"type":"string"},"at":{"type":"string","format":"date-time"},"raw":{"type":["string","null"],"contentEncoding":"base64"},` +
				`"loud":{"type":"boolean"},"of":{"type":["array","null"],"items":{"type":"string"}},"n":{"type":"number"},"x":{}}}`,
			"Tree": `{"type":"object","properties":{"next":{"$ref":"#/$defs/Tree"}}}`,
		},
	}}
	for method, want := range map[string]string{
		"Greet": `{"at":"2026-01-31T12:00:00Z","loud":true,"n":1,"name":"text","of":[],"raw":"AQID","x":{}}`,
		"Count": `1`,
		"Tree":  `{"next":{"next":{}}}`,
		"Any":   `{}`,
		"None":  "", "Quoted": "", "Broken": "", "NotThere": "",
	} {
		if got := sampleRequest(d, "a.B", method); got != want {
			t.Errorf("%s: got %s, want %s", method, got, want)
		}
	}
}
