package gateway

import (
	"net/http"
	"testing"

	"github.com/elemental-conduit/conduit"
)

func TestNegotiate(t *testing.T) {
	for _, tt := range []struct {
		accept string
		want   form
	}{
		{"", formJSON},
		{"*/*", formJSON},
		{"application/json", formJSON},
		{"application/*", formJSON},
		{"application/x-ndjson", formLines},
		{"text/event-stream", formEvents},
		{"text/*", formEvents},
		{"application/octet-stream", formBytes},
		{"application/protobuf", formProto},
		{"Text/Event-Stream; charset=utf-8", formEvents},
		{"text/event-stream, */*", formEvents},
		{"*/*, text/event-stream", formEvents},
		{"text/html,application/xhtml+xml,*/*;q=0.8", formJSON},
		{"application/json, text/event-stream", formJSON},
		{"text/event-stream, application/json", formEvents},
		{"text/event-stream;q=0.5, application/json", formJSON},
		{"application/json;q=0, */*", formBytes},
		{"application/x-ndjson;q=0.2, text/event-stream;q=0.3", formEvents},
		{"application/x-ndjson;q=2", formJSON}, // cannot be read
		{"application/x-ndjson;q=NaN", formJSON},
		{";;;", formJSON},
	} {
		var headers []string
		if tt.accept != "" {
			headers = []string{tt.accept}
		}
		if got, f := negotiate(headers); f != nil || got != tt.want {
			t.Errorf("%q: %s, %v; want %s", tt.accept, got.mediaType(), f, tt.want.mediaType())
		}
	}
	if got, _ := negotiate([]string{"application/json;q=0.1", "text/event-stream"}); got != formEvents {
		t.Errorf("of two headers: %s", got.mediaType())
	}
}

func TestNotAcceptable(t *testing.T) {
	s := newScript()
	g := newGateway(t, Options{Locate: s.locate})
	for _, accept := range []string{"image/png", "application/json;q=0", "*/*;q=0", "text/html, application/xml"} {
		wantProblem(t, do(g, post(callPath, "", "Accept", accept)), http.StatusNotAcceptable, reasonAccept)
	}
	if s.count() != 0 {
		t.Error("a call was made whose answer nobody would read")
	}
}

func TestWhatTheMethodIsAskedFor(t *testing.T) {
	for accept, want := range map[string]struct {
		content   string
		streaming bool
	}{
		"":                         {conduit.ContentJSON, false},
		"application/x-ndjson":     {conduit.ContentJSON, true},
		"text/event-stream":        {conduit.ContentJSON, true},
		"application/octet-stream": {conduit.ContentBytes, false},
		"application/protobuf":     {conduit.ContentProto, false},
	} {
		var in conduit.Invocation
		g := newGateway(t, Options{Locate: func(string) conduit.Invoker {
			return invokerFunc(func(i *conduit.Invocation) []any { in = *i; return []any{`1`} })
		}})
		do(g, post(callPath, "", "Accept", accept))
		if in.Accept != want.content || in.Streaming != want.streaming || !in.Last {
			t.Errorf("%q: %+v", accept, in)
		}
	}
}
