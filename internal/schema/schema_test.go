package schema

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/elemental-conduit/conduit"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

type base struct {
	ID   string `json:"id"`
	Name int    `json:"name"` // hidden
}

type tree struct {
	base

	Name     string            `json:"name"`
	Left     *tree             `json:"left,omitempty"`
	Others   []tree            `json:"others"`
	Raw      json.RawMessage   `json:"raw"`
	Bytes    []byte            `json:"bytes"`
	At       time.Time         `json:"at"`
	Level    conduit.Level     `json:"level"`
	Count    uint8             `json:"count,string"`
	Ratio    float32           // by its own name
	Sizes    map[int][2]bool   `json:"sizes"`
	Any      any               `json:"any"`
	Skip     chan int          `json:"-"`
	Dash     string            `json:"-,"` //nolint:staticcheck // that is its name
	Inner    struct{ X int16 } `json:"inner"`
	unseen   int
	Optional *int `json:"optional"`
}

func TestOf(t *testing.T) {
	_ = tree{}.unseen
	for _, tt := range []struct {
		of   reflect.Type
		want string
	}{
		{reflect.TypeFor[string](), `{"type":"string"}`},
		{reflect.TypeFor[int](), `{"type":"integer"}`},
		{reflect.TypeFor[[]string](), `{"items":{"type":"string"},"type":["array","null"]}`},
		{reflect.TypeFor[*bool](), `{"type":["boolean","null"]}`},
		{reflect.TypeFor[struct{}](), ``},
		{reflect.TypeFor[[]byte](), ``},
		{reflect.TypeFor[any](), ``},
		{reflect.TypeFor[json.RawMessage](), ``},
		{reflect.TypeFor[conduit.Message](), `{"$ref":"#/$defs/conduit.Message"}`},
		{reflect.TypeFor[*structpb.Struct](), `{"type":"object"}`},
	} {
		if got := new(Set).Of(tt.of); got != tt.want {
			t.Errorf("%v: %s; want %s", tt.of, got, tt.want)
		}
	}
	var s Set
	if got := s.Of(reflect.TypeFor[tree]()); got != `{"$ref":"#/$defs/schema.tree"}` {
		t.Error(got)
	}
	want := `{"properties":{"-":{"type":"string"},"Ratio":{"type":"number"},"any":{},"at":{"format":"date-time","type":"string"},` +
		`"bytes":{"contentEncoding":"base64","type":["string","null"]},"count":{"type":"string"},"id":{"type":"string"},` +
		`"inner":{"properties":{"X":{"type":"integer"}},"type":"object"},"left":{"anyOf":[{"$ref":"#/$defs/schema.tree"},{"type":"null"}]},` +
		`"level":{"type":"string"},"name":{"type":"string"},"optional":{"type":["integer","null"]},` +
		`"others":{"items":{"$ref":"#/$defs/schema.tree"},"type":["array","null"]},"raw":{},` +
		`"sizes":{"additionalProperties":{"items":{"type":"boolean"},"type":"array"},"type":["object","null"]}},"type":"object"}`
	if got := s.Definitions()["schema.tree"]; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestMessages(t *testing.T) {
	var s Set
	if got := s.Of(reflect.TypeFor[*conduitv1.HealthResponse]()); got != `{"$ref":"#/$defs/conduit.v1.HealthResponse"}` {
		t.Error(got)
	}
	if s.Of(reflect.TypeFor[*conduitv1.LogRecord]()) == "" {
		t.Error("no second one")
	}
	defs := s.Definitions()
	for name, want := range map[string]string{
		"conduit.v1.HealthResponse": `"details":{"additionalProperties":{"type":"string"},"type":"object"}`,
		"conduit.v1.Metric":         `"value":{"type":["number","string"]}`,
		"conduit.v1.LogRecord":      `"unixMicros":{"type":["string","integer"]}`,
	} {
		if !strings.Contains(defs[name], want) {
			t.Errorf("%s: %s", name, defs[name])
		}
	}
	if !strings.Contains(defs["conduit.v1.HealthResponse"], `"enum":["STATE_UNSPECIFIED","STATE_HEALTHY"`) {
		t.Error(defs["conduit.v1.HealthResponse"])
	}
}
