package conduit_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/elemental-conduit/conduit"
)

type blob []byte // no []byte, so JSON

type point struct{ X, Y int }

func TestEncode(t *testing.T) {
	for _, tt := range []struct {
		name   string
		accept string
		value  any
		ct     string
		data   string
	}{
		{"bytes are raw", "", []byte{0, 255}, conduit.ContentBytes, "\x00\xff"},
		{"bytes stay raw for who asks for JSON", conduit.ContentJSON, []byte("x"), conduit.ContentBytes, "x"},
		{"no bytes", "", []byte(nil), conduit.ContentBytes, ""},
		{"a named byte slice is JSON", "", blob("x"), conduit.ContentJSON, `"eA=="`},
		{"raw JSON stays as it is", "", json.RawMessage(`{ "a" : 1 }`), conduit.ContentJSON, `{ "a" : 1 }`},
		{"no raw JSON is null", "", json.RawMessage(nil), conduit.ContentJSON, `null`},
		{"struct", "", point{1, 2}, conduit.ContentJSON, `{"X":1,"Y":2}`},
		{"nothing as a stream item", "", struct{}{}, conduit.ContentJSON, `{}`},
		{"proto", "", wrapperspb.UInt32(7), conduit.ContentProto, "\x08\x07"},
		{"proto for who asks for JSON", "application/JSON; charset=utf-8", wrapperspb.UInt32(7), conduit.ContentJSON, `7`},
		{"proto for who asks for something else", "text/html", wrapperspb.UInt32(7), conduit.ContentProto, "\x08\x07"},
		{"JSON for who asks for proto", conduit.ContentProto, 5, conduit.ContentJSON, `5`},
		{"a message", "", conduit.Message{ContentType: "text/plain", Data: []byte("x")}, "text/plain", "x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ct, data, err := conduit.EncodeFor(tt.accept, tt.value)
			if err != nil || ct != tt.ct || string(data) != tt.data {
				t.Errorf("got %s %q, %v; want %s %q", ct, data, err, tt.ct, tt.data)
			}
		})
	}
	for _, value := range []any{math.NaN(), make(chan int), json.RawMessage("{"), wrapperspb.String("\xff")} {
		_, _, err := conduit.Encode(value)
		if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Code != conduit.InvalidArgument || e.Reason != conduit.ReasonBadContent || e.Outcome != conduit.NotSent {
			t.Errorf("encoding a %T gives %v", value, err)
		}
	}
}

// decode checks one Decode; want nil says that it must fail.
func decode[T any](t *testing.T, ct, data string, want any) {
	t.Helper()
	got, err := conduit.Decode[T](conduit.Message{ContentType: ct, Data: []byte(data)})
	if want == nil {
		e, ok := errors.AsType[*conduit.Error](err)
		if !ok || e.Code != conduit.InvalidArgument || e.Reason != conduit.ReasonBadContent || e.Message == "" {
			t.Errorf("%s %q as %T: got %v, %v; want bad_content", ct, data, got, got, err)
		}
		return
	}
	if err != nil {
		t.Errorf("%s %q as %T: %v", ct, data, got, err)
		return
	}
	if m, ok := any(got).(proto.Message); ok {
		if w, ok := want.(proto.Message); !ok || !proto.Equal(m, w) {
			t.Errorf("%s %q: got %v, want %v", ct, data, got, want)
		}
		return
	}
	if !reflect.DeepEqual(any(got), want) {
		t.Errorf("%s %q: got %v, want %v", ct, data, got, want)
	}
}

func TestDecode(t *testing.T) {
	const js, raw, pb = conduit.ContentJSON, conduit.ContentBytes, conduit.ContentProto

	decode[int](t, js, `5`, 5)
	decode[int](t, "", `5`, 5)
	decode[int](t, "Application/JSON ; charset=utf-8", ` 5 `, 5)
	decode[point](t, js, `{"X":1,"Y":2,"Z":3}`, point{1, 2}) // a newer sender
	decode[*point](t, js, `{"X":1}`, &point{1, 0})
	decode[any](t, js, `[1]`, []any{1.0})
	decode[struct{}](t, js, `{}`, struct{}{})
	decode[json.RawMessage](t, js, `{ }`, json.RawMessage(`{ }`))
	decode[time.Time](t, js, `"2026-01-02T03:04:05Z"`, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	decode[blob](t, js, `"eA=="`, blob("x"))

	for _, ct := range []string{"", js, raw, pb, "text/plain"} {
		decode[[]byte](t, ct, "x", []byte("x"))
		decode[conduit.Message](t, ct, "x", conduit.Message{ContentType: ct, Data: []byte("x")})
	}

	decode[*wrapperspb.UInt32Value](t, pb, "\x08\x07", wrapperspb.UInt32(7))
	decode[*wrapperspb.UInt32Value](t, "", "\x08\x07", wrapperspb.UInt32(7))
	decode[*wrapperspb.UInt32Value](t, pb, "", wrapperspb.UInt32(0))
	decode[*wrapperspb.UInt32Value](t, js, "7", wrapperspb.UInt32(7))

	decode[int](t, js, ``, nil)
	decode[int](t, js, `5 6`, nil)
	decode[int](t, js, `"5"`, nil)
	decode[int](t, raw, `5`, nil)
	decode[int](t, pb, `5`, nil)
	decode[struct{}](t, js, `5`, nil)
	decode[json.RawMessage](t, js, `{`, nil)
	decode[chan int](t, js, `5`, nil)
	decode[io.Reader](t, js, `5`, nil)
	decode[*wrapperspb.UInt32Value](t, pb, "\xff", nil)
	decode[*wrapperspb.UInt32Value](t, js, "{", nil)
	decode[*wrapperspb.UInt32Value](t, raw, "\x08\x07", nil)
	decode[proto.Message](t, pb, "\x08\x07", nil)
	decode[int](t, js, strings.Repeat("[", 1<<20), nil) // depth is bounded
}

func TestContentTypes(t *testing.T) {
	type tree struct {
		Value    int
		Children []*tree
		hidden   chan int
		Skipped  func() `json:"-"`
	}
	type embedsChan struct{ C chan int }
	good := map[reflect.Type]string{
		reflect.TypeFor[[]byte]():                      conduit.ContentBytes,
		reflect.TypeFor[int]():                         conduit.ContentJSON,
		reflect.TypeFor[struct{}]():                    conduit.ContentJSON,
		reflect.TypeFor[tree]():                        conduit.ContentJSON,
		reflect.TypeFor[map[string][]any]():            conduit.ContentJSON,
		reflect.TypeFor[map[int]*tree]():               conduit.ContentJSON,
		reflect.TypeFor[map[conduit.Level]int]():       conduit.ContentJSON,
		reflect.TypeFor[time.Time]():                   conduit.ContentJSON,
		reflect.TypeFor[json.RawMessage]():             conduit.ContentJSON,
		reflect.TypeFor[*durationpb.Duration]():        conduit.ContentProto,
		reflect.TypeFor[struct{ D *structpb.Value }](): conduit.ContentJSON,
	}
	for typ, own := range good {
		types, err := conduit.ContentTypes(typ)
		if err != nil || len(types) == 0 || types[0] != own {
			t.Errorf("%s travels as %v, %v; want %s", typ, types, err, own)
		}
	}
	for _, typ := range []reflect.Type{
		reflect.TypeFor[chan int](),
		reflect.TypeFor[func()](),
		reflect.TypeFor[complex128](),
		reflect.TypeFor[io.Reader](),
		reflect.TypeFor[proto.Message](),
		reflect.TypeFor[durationpb.Duration](),
		reflect.TypeFor[embedsChan](),
		reflect.TypeFor[[]embedsChan](),
		reflect.TypeFor[map[point]int](),
		reflect.TypeFor[map[string]chan int](),
	} {
		if types, err := conduit.ContentTypes(typ); err == nil {
			t.Errorf("%s travels as %v, want an error", typ, types)
		}
	}
	_ = tree{}.hidden
}

func TestTypeName(t *testing.T) {
	for typ, want := range map[reflect.Type]string{
		reflect.TypeFor[[]byte]():               "bytes",
		reflect.TypeFor[json.RawMessage]():      "json",
		reflect.TypeFor[struct{}]():             "",
		reflect.TypeFor[*durationpb.Duration](): "google.protobuf.Duration",
		reflect.TypeFor[int]():                  "int",
	} {
		if got := conduit.TypeName(typ); got != want {
			t.Errorf("%s is called %q, want %q", typ, got, want)
		}
	}
}

// FuzzDecode: whatever arrives, decoding gives a value that encodes again to what
// decodes the same, or a typed error; it never panics.
func FuzzDecode(f *testing.F) {
	for _, ct := range []string{"", conduit.ContentJSON, conduit.ContentProto, conduit.ContentBytes, "text/plain; x"} {
		for _, data := range []string{"", "null", `{"a":[1,"x",null]}`, `"2026-01-02T03:04:05Z"`, "\x08\x07", "\x0a\x05\x0a\x01a\x12\x00", "{", `1e999`} {
			f.Add(ct, []byte(data))
		}
	}
	f.Fuzz(func(t *testing.T, ct string, data []byte) {
		m := conduit.Message{ContentType: ct, Data: data}
		again[any](t, m)
		again[point](t, m)
		again[map[string]json.RawMessage](t, m)
		again[json.RawMessage](t, m)
		again[struct{}](t, m)
		again[[]byte](t, m)
		again[*structpb.Struct](t, m)
		again[*durationpb.Duration](t, m)
	})
}

func again[T any](t *testing.T, m conduit.Message) {
	t.Helper()
	v, err := conduit.Decode[T](m)
	if err != nil {
		if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Reason != conduit.ReasonBadContent {
			t.Errorf("an error of another kind: %v", err)
		}
		return
	}
	ct, data, err := conduit.Encode(v)
	if err != nil {
		// What a value's own JSON takes in, it need not give out again: a Duration
		// out of range is valid protobuf.
		return
	}
	w, err := conduit.Decode[T](conduit.Message{ContentType: ct, Data: data})
	if err != nil {
		t.Fatalf("%T: %q decodes, its encoding %q does not: %v", v, m.Data, data, err)
	}
	if pv, ok := any(v).(proto.Message); ok {
		if pw, ok := any(w).(proto.Message); !ok || !proto.Equal(pv, pw) && !nan(pv) {
			t.Fatalf("%q gives %v, and then %v", m.Data, v, w)
		}
		return
	}
	if !reflect.DeepEqual(v, w) {
		_, data2, err := conduit.Encode(w)
		if err != nil || !bytes.Equal(data, data2) {
			t.Fatalf("%q gives %v, and then %v", m.Data, v, w)
		}
	}
}

// nan reports whether a message may differ from itself.
func nan(m proto.Message) bool {
	_, err := protojson.Marshal(m) // which takes no NaN in a Value
	return err != nil
}
