package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
)

// methodsOnly is a Directory that tells of methods.
type methodsOnly struct {
	shelf

	list []Method
}

func (m methodsOnly) Methods(context.Context, conduit.AsWhom) ([]Method, error) { return m.list, nil }

func sampleMethods() []Method {
	return []Method{
		{
			Deployment: "d", Element: "e", Service: "s.S#n", Name: "Do", Level: conduit.User, Units: 3, Idempotent: true, Deprecated: "use Other", Timeout: time.Second,
			RequestType: "main.In", ReplyType: "main.Out", ContentTypes: []string{conduit.ContentJSON},
			Request: json.RawMessage(`{"$ref":"#/$defs/main.In"}`), Reply: json.RawMessage(`{"type":"array","items":{"$ref":"#/$defs/main.In"}}`),
			Definitions: map[string]json.RawMessage{
				"main.In": json.RawMessage(`{"type":"object","properties":{"next":{"$ref":"#/$defs/main.In"},"odd":{"$ref":"https://evil.example/x"},"lost":{"$ref":"#/$defs/none"}},"$id":"https://evil.example/"}`),
			},
		},
		{Deployment: "d", Element: "e", Service: "s.S#n", Name: "Do", Level: conduit.User}, // of another instance
		{Deployment: "d", Element: "e", Service: "s.S#n", Name: "Watch", ManyResults: true, ReplyType: "int", Reply: json.RawMessage(`{"type":"integer"}`)},
		{Deployment: "d", Element: "e", Service: "s.S#n", Name: "Put", ManyMessages: true, RequestType: "bytes", ContentTypes: []string{conduit.ContentBytes}, Request: json.RawMessage(`no JSON`)},
	}
}

func TestDocument(t *testing.T) {
	g := answering(t, Options{Sessions: &desk{}, Directory: methodsOnly{list: sampleMethods()}}, `1`)
	res := do(g, get("/v1/openapi.json"))
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != conduit.ContentJSON {
		t.Fatal(res.Status)
	}
	text := bodyOf(t, res)
	var doc struct {
		OpenAPI    string
		Paths      map[string]map[string]map[string]any
		Components struct{ Schemas map[string]map[string]any }
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil || doc.OpenAPI != "3.1.0" {
		t.Fatalf("%v, %s", err, text)
	}
	op := doc.Paths["/v1/call/d/e/s.S%23n/Do"]["post"]
	if op["deprecated"] != true || op["x-conduit-min-level"] != "user" || op["x-conduit-idempotent"] != true || op["x-conduit-units"] != 3.0 || op["x-conduit-timeout"] != "1s" {
		t.Errorf("%v", op)
	}
	in, err := json.Marshal(doc.Components.Schemas["d.e.main.In"])
	if want := `{"properties":{"lost":{},"next":{"$ref":"#/components/schemas/d.e.main.In"},"odd":{}},"type":"object"}`; err != nil || string(in) != want {
		t.Errorf("%s, %v; want %s", in, err, want)
	}
	if strings.Contains(text, "evil.example") || strings.Contains(text, "$defs") {
		t.Error("what an element refers to is in the document")
	}
	for _, path := range []string{"/v1/call/d/e/s.S%23n/Watch", "/v1/call/d/e/s.S%23n/Put", "/v1/sessions", "/v1/sessions/current", "/v1/events", "/v1/methods", "/v1/openapi.json"} {
		if len(doc.Paths[path]) != 1 {
			t.Errorf("%s: %v", path, doc.Paths[path])
		}
	}
	if res := do(g, get("/v1/openapi.json?x=1")); res.StatusCode != http.StatusBadRequest {
		t.Error(res.Status)
	}
	many := make([]Method, maxOperations+5)
	for k := range many {
		many[k] = Method{Deployment: "d", Element: "e", Service: "s.S", Name: "M" + string(rune('a'+k%26)) + strings.Repeat("x", k/26)}
	}
	if b, err := json.Marshal(Document(many, false)); err != nil || !strings.Contains(string(b), "5 methods are left out") || strings.Contains(string(b), `"/v1/sessions"`) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}
