// Package openapi holds the gateway's document to what OpenAPI 3.1 says, by a validator
// that knows it. It is a module of its own, so that the validator stays out of go.mod.
package openapi

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/gateway"
	"github.com/elemental-conduit/conduit/internal/schema"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

type node struct {
	Name  string           `json:"name"`
	Left  *node            `json:"left,omitempty"`
	Sizes map[string][]int `json:"sizes"`
	At    time.Time        `json:"at"`
	Bytes []byte           `json:"bytes"`
}

// methods are one of each kind.
func methods() []gateway.Method {
	var set schema.Set
	request, reply, message := set.Of(reflect.TypeFor[node]()), set.Of(reflect.TypeFor[[]node]()), set.Of(reflect.TypeFor[*conduitv1.InstanceInfo]())
	definitions := map[string]json.RawMessage{}
	for name, text := range set.Definitions() {
		definitions[name] = json.RawMessage(text)
	}
	all := []gateway.Method{
		{Name: "Plain", Request: json.RawMessage(request), Reply: json.RawMessage(reply), RequestType: "node", ReplyType: "[]node", ContentTypes: []string{conduit.ContentJSON}},
		{Name: "Proto", Reply: json.RawMessage(message), ReplyType: "conduit.v1.InstanceInfo", ContentTypes: []string{conduit.ContentProto, conduit.ContentJSON}, Idempotent: true, Units: 2, Timeout: time.Second},
		{Name: "Stream", ManyResults: true, RequestType: "int", Request: json.RawMessage(`{"type":"integer"}`), ContentTypes: []string{conduit.ContentJSON}, Deprecated: "it is old"},
		{Name: "Bytes", ManyMessages: true, RequestType: "bytes", ReplyType: "bytes", ContentTypes: []string{conduit.ContentBytes}},
		{Name: "Odd", Reply: json.RawMessage(`{"$ref":"https://example.com/x","$id":"https://example.com/y"}`)},
		{Name: "Nothing"},
	}
	for k := range all {
		all[k].Deployment, all[k].Element, all[k].Service, all[k].Level, all[k].Definitions = "d_1", "e[0]", "example.Service#named", conduit.User, definitions
	}
	return all
}

func TestDocumentIsOpenAPI31(t *testing.T) {
	for name, list := range map[string][]gateway.Method{"one of each": methods(), "nothing": nil} {
		text, err := json.Marshal(gateway.Document(list, name != "nothing"))
		if err != nil {
			t.Fatal(err)
		}
		check(t, name, text, true)
	}
	// What it is held to is held: a document that is wrong is told from one that is right.
	check(t, "one that is wrong", []byte(`{"openapi":"3.1.0","info":{"title":"x"},"paths":{"/a":{"get":{"responses":{"200":{}}}}}}`), false)
}

func check(t *testing.T, name string, text []byte, want bool) {
	t.Helper()
	doc, err := libopenapi.NewDocument(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	v, errs := validator.NewValidator(doc)
	if len(errs) > 0 {
		t.Fatalf("%s: %v", name, errs)
	}
	good, faults := v.ValidateDocument()
	if good == want {
		return
	}
	t.Errorf("%s: valid is %v", name, good)
	for _, f := range faults {
		t.Errorf("%s: %s", f.Message, f.Reason)
		for _, s := range f.SchemaValidationErrors {
			t.Errorf("  line %d: %s", s.Line, s.Reason)
		}
	}
}
