// Package schema says of Go types and protobuf messages what their JSON looks like, as
// JSON Schemas of 2020-12. It says what encoding/json and protojson read and write, and of
// what it cannot know, such as a type that writes itself, that anything may come.
//
// No field is required: both read messages that lack some, and many writers leave out what
// is empty.
package schema

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// maxDepth bounds how deep types are followed that have no name.
	maxDepth = 32
	// maxDefinitions bounds how many types with a name are followed; further ones may be
	// anything.
	maxDefinitions = 512
)

// node is a JSON Schema; maps are written in the order of their keys.
type node = map[string]any

// Set makes schemas that share their definitions. The zero Set is ready. It is for one
// goroutine.
type Set struct {
	defs  map[string]node
	names map[any]string // by reflect.Type or the name of a message
}

// Of returns the schema of the messages of a type as text, empty for one that has no JSON
// or of which nothing is known.
func (s *Set) Of(t reflect.Type) string {
	if t == nil || t == reflect.TypeFor[struct{}]() || t == reflect.TypeFor[[]byte]() || t.Kind() == reflect.Interface {
		return ""
	}
	n := s.of(t, 0)
	if len(n) == 0 {
		return ""
	}
	return text(n)
}

// Definitions returns what the schemas refer to as #/$defs/NAME, by NAME.
func (s *Set) Definitions() map[string]string {
	if len(s.defs) == 0 {
		return nil
	}
	all := make(map[string]string, len(s.defs))
	for name, n := range s.defs {
		all[name] = text(n)
	}
	return all
}

func text(n node) string {
	b, err := json.Marshal(n)
	if err != nil { // there are texts, numbers and lists in it alone
		panic("schema: " + err.Error())
	}
	return string(b)
}

// define returns a reference to what has a name, which body makes unless it is there.
func (s *Set) define(key any, name string, body func() node) node {
	if known, ok := s.names[key]; ok {
		return node{"$ref": "#/$defs/" + known}
	}
	if len(s.defs) >= maxDefinitions {
		return node{}
	}
	if s.defs == nil {
		s.defs, s.names = map[string]node{}, map[any]string{}
	}
	unique := name
	for n := 2; s.defs[unique] != nil; n++ {
		unique = name + "_" + strconv.Itoa(n)
	}
	s.names[key], s.defs[unique] = unique, node{} // before it is made: it may be in itself
	s.defs[unique] = body()
	return node{"$ref": "#/$defs/" + unique}
}

// nameOf makes a name that may stand in a reference and in a document.
func nameOf(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, text)
}

func nullable(n node) node {
	switch t := n["type"].(type) {
	case string:
		n["type"] = []string{t, "null"}
	case nil:
		if n["$ref"] != nil {
			return node{"anyOf": []any{n, node{"type": "null"}}}
		}
	}
	return n
}

func (s *Set) of(t reflect.Type, depth int) node {
	if depth > maxDepth {
		return node{}
	}
	if t.Kind() == reflect.Pointer && t.Implements(reflect.TypeFor[proto.Message]()) {
		if m, ok := reflect.TypeAssert[proto.Message](reflect.Zero(t)); ok {
			return s.message(m.ProtoReflect().Descriptor())
		}
	}
	switch t {
	case reflect.TypeFor[time.Time]():
		return node{"type": "string", "format": "date-time"}
	case reflect.TypeFor[json.RawMessage]():
		return node{}
	case reflect.TypeFor[json.Number]():
		return node{"type": "number"}
	}
	// A type that writes itself, by value or by pointer.
	if implements[json.Marshaler](t) || implements[json.Unmarshaler](t) {
		return node{}
	}
	if implements[encoding.TextMarshaler](t) || implements[encoding.TextUnmarshaler](t) {
		return node{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Bool:
		return node{"type": "boolean"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return node{"type": "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return node{"type": "integer", "minimum": 0}
	case reflect.Float32, reflect.Float64:
		return node{"type": "number"}
	case reflect.String:
		return node{"type": "string"}
	case reflect.Pointer:
		return nullable(s.of(t.Elem(), depth+1))
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 && !implements[encoding.TextMarshaler](t.Elem()) && !implements[json.Marshaler](t.Elem()) {
			return node{"type": []string{"string", "null"}, "contentEncoding": "base64"}
		}
		return node{"type": []string{"array", "null"}, "items": s.of(t.Elem(), depth+1)}
	case reflect.Array:
		return node{"type": "array", "items": s.of(t.Elem(), depth+1)}
	case reflect.Map:
		return node{"type": []string{"object", "null"}, "additionalProperties": s.of(t.Elem(), depth+1)}
	case reflect.Struct:
		if t.Name() == "" {
			return s.structure(t, depth)
		}
		return s.define(t, nameOf(t.String()), func() node { return s.structure(t, depth) })
	default:
		return node{} // an interface; or what JSON cannot carry, which never comes
	}
}

func implements[T any](t reflect.Type) bool {
	return t.Kind() != reflect.Interface && (t.Implements(reflect.TypeFor[T]()) || reflect.PointerTo(t).Implements(reflect.TypeFor[T]()))
}

func (s *Set) structure(t reflect.Type, depth int) node {
	properties := node{}
	s.fields(t, properties, depth)
	return node{"type": "object", "properties": properties}
}

// fields adds the fields of a struct; what is embedded is under what embeds it, which
// hides fields of the same name.
func (s *Set) fields(t reflect.Type, properties node, depth int) {
	var embedded []reflect.Type
	for f := range t.Fields() {
		tag := f.Tag.Get("json")
		name, options, _ := strings.Cut(tag, ",")
		if tag == "-" {
			continue
		}
		if f.Anonymous && name == "" {
			in := f.Type
			if in.Kind() == reflect.Pointer {
				in = in.Elem()
			}
			if in.Kind() == reflect.Struct && !implements[json.Marshaler](in) && !implements[encoding.TextMarshaler](in) {
				embedded = append(embedded, in)
				continue
			}
		}
		if !f.IsExported() {
			continue
		}
		if name == "" {
			name = f.Name
		}
		if _, hidden := properties[name]; hidden {
			continue
		}
		n := s.of(f.Type, depth+1)
		if hasOption(options, "string") && n["type"] != nil {
			n = node{"type": "string"}
		}
		properties[name] = n
	}
	for _, in := range embedded {
		if depth < maxDepth {
			s.fields(in, properties, depth+1)
		}
	}
}

func hasOption(options, want string) bool {
	for o := range strings.SplitSeq(options, ",") {
		if o == want {
			return true
		}
	}
	return false
}

// message is a protobuf message as protojson writes it.
func (s *Set) message(d protoreflect.MessageDescriptor) node {
	switch d.FullName() {
	case "google.protobuf.Timestamp":
		return node{"type": "string", "format": "date-time"}
	case "google.protobuf.Duration":
		return node{"type": "string", "pattern": `^-?[0-9]+(\.[0-9]{1,9})?s$`}
	case "google.protobuf.FieldMask":
		return node{"type": "string"}
	case "google.protobuf.Struct", "google.protobuf.Any", "google.protobuf.Empty":
		return node{"type": "object"}
	case "google.protobuf.ListValue":
		return node{"type": "array"}
	case "google.protobuf.Value":
		return node{}
	case "google.protobuf.DoubleValue", "google.protobuf.FloatValue", "google.protobuf.Int64Value", "google.protobuf.UInt64Value", "google.protobuf.Int32Value",
		"google.protobuf.UInt32Value", "google.protobuf.BoolValue", "google.protobuf.StringValue", "google.protobuf.BytesValue":
		return s.value(d.Fields().ByName("value"))
	}
	return s.define(string(d.FullName()), nameOf(string(d.FullName())), func() node {
		properties := node{}
		fields := d.Fields()
		for i := range fields.Len() {
			f := fields.Get(i)
			var n node
			switch {
			case f.IsMap():
				n = node{"type": "object", "additionalProperties": s.value(f.MapValue())}
			case f.IsList():
				n = node{"type": "array", "items": s.value(f)}
			default:
				n = s.value(f)
			}
			properties[f.JSONName()] = n
		}
		return node{"type": "object", "properties": properties}
	})
}

// value is one value of a field.
func (s *Set) value(f protoreflect.FieldDescriptor) node {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return node{"type": "boolean"}
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return node{"type": "integer"}
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return node{"type": "integer", "minimum": 0}
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return node{"type": []string{"string", "integer"}} // written as text, since JavaScript has no 64 bits
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return node{"type": []string{"number", "string"}} // "NaN"
	case protoreflect.StringKind:
		return node{"type": "string"}
	case protoreflect.BytesKind:
		return node{"type": "string", "contentEncoding": "base64"}
	case protoreflect.EnumKind:
		if f.Enum().FullName() == "google.protobuf.NullValue" {
			return node{"type": "null"}
		}
		var names []string
		for i := range f.Enum().Values().Len() {
			names = append(names, string(f.Enum().Values().Get(i).Name()))
		}
		return node{"anyOf": []any{node{"type": "string", "enum": names}, node{"type": "integer"}}}
	default:
		return s.message(f.Message())
	}
}
