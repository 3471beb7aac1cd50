package conduit

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// How a Go value travels is decided by its type alone:
//
//	[]byte                   application/octet-stream   as it is
//	proto.Message (pointer)  application/protobuf, or application/json by protojson
//	anything else            application/json           by encoding/json; json.RawMessage as it is
//	Message                  as it says of itself
//
// Only []byte itself is raw: a named byte slice is JSON, as base64. The way back
// is stricter in one thing and looser in two: what is read must be of a content
// type that the Go type has, but []byte and Message take bytes of any content
// type, and a message without a content type is of the Go type's own. Unknown
// fields of JSON are ignored, so that either end may be the newer one.
//
// struct{} is the type for nothing: as a request or a return value it sends no
// message, and it is the only type that a missing message can be read into.

// form is how the values of one Go type travel.
type form uint8

const (
	formJSON form = iota
	formBytes
	formProto
	formNone    // struct{}: JSON, if a message is needed
	formMessage // Message: whatever it says
)

// The types that are told apart by identity.
var (
	typeBytes   = reflect.TypeFor[[]byte]()
	typeRaw     = reflect.TypeFor[json.RawMessage]()
	typeNone    = reflect.TypeFor[struct{}]()
	typeMessage = reflect.TypeFor[Message]()
	typeProto   = reflect.TypeFor[proto.Message]()
)

func formOf(t reflect.Type) form {
	switch {
	case t == nil:
		return formNone
	case t == typeBytes:
		return formBytes
	case t == typeNone:
		return formNone
	case t == typeMessage:
		return formMessage
	case t.Implements(typeProto):
		return formProto
	}
	return formJSON
}

// own is the content type that a form has without being asked for another.
func (f form) own() string {
	switch f {
	case formBytes:
		return ContentBytes
	case formProto:
		return ContentProto
	case formMessage:
		return ""
	default:
		return ContentJSON
	}
}

// accept is what a caller who reads into this form asks for; empty = the
// method's own, for those that can take any.
func (f form) accept() string {
	switch f {
	case formBytes, formMessage, formNone:
		return ""
	default:
		return f.own()
	}
}

// Encode returns the content type and the encoded bytes of value, by the type
// of the value. A []byte, a json.RawMessage and the Data of a Message are
// returned as they are, not copied. The error is an [*Error] of reason
// bad_content and outcome not_sent.
func Encode(value any) (contentType string, data []byte, err error) {
	return EncodeFor("", value)
}

// EncodeFor is [Encode] for a reader that asked for the content type accept. A
// value that has no such form is encoded in its own: the reader is told by the
// content type.
func EncodeFor(accept string, value any) (contentType string, data []byte, err error) {
	f := formOf(reflect.TypeOf(value))
	switch v := value.(type) {
	case []byte:
		return ContentBytes, v, nil
	case Message:
		return v.ContentType, v.Data, nil
	case proto.Message:
		if bareType(accept) == ContentJSON {
			data, err = protojson.Marshal(v)
			contentType = ContentJSON
		} else {
			data, err = proto.Marshal(v)
			contentType = ContentProto
		}
	case json.RawMessage:
		// Marshal would compact, and so copy, what is there already.
		if len(v) == 0 {
			v = json.RawMessage("null")
		}
		if !json.Valid(v) {
			err = errors.New("the json.RawMessage is not JSON")
		}
		contentType, data = ContentJSON, v
	default:
		contentType = f.own()
		data, err = json.Marshal(value)
	}
	if err != nil {
		return "", nil, &Error{
			Code: InvalidArgument, Reason: ReasonBadContent, Outcome: NotSent, Op: "conduit.encode", Err: err,
			Message: fmt.Sprintf("a %T cannot be written as %s: %v", value, contentType, err),
		}
	}
	return contentType, data, nil
}

// Decode reads a message as a T. The value may alias m.Data if T is []byte,
// json.RawMessage or Message. The error is an [*Error] of reason bad_content; its
// outcome is for the caller to set.
func Decode[T any](m Message) (T, error) {
	if reflect.TypeFor[T]() == typeBytes { // without the allocation of what decodeInto is pointed to
		v, _ := any(m.Data).(T)
		return v, nil
	}
	var v T
	err := decodeInto(m, &v, reflect.TypeFor[T]())
	if err != nil {
		var zero T
		return zero, err
	}
	return v, nil
}

// decodeInto reads m into v, a pointer to a value of type t.
func decodeInto(m Message, v any, t reflect.Type) error {
	f := formOf(t)
	switch to := v.(type) {
	case *[]byte:
		*to = m.Data
		return nil
	case *Message:
		*to = m
		return nil
	}

	ct := bareType(m.ContentType)
	if ct == "" {
		ct = f.own()
	}
	var err error
	switch {
	case f == formProto && (ct == ContentProto || ct == ContentJSON):
		err = decodeProto(ct, m.Data, v, t)
	case f != formProto && ct == ContentJSON:
		if raw, ok := v.(*json.RawMessage); ok {
			if json.Valid(m.Data) {
				*raw = m.Data
				return nil
			}
		}
		err = json.Unmarshal(m.Data, v)
	default:
		err = fmt.Errorf("its content type is %q; send %s", m.ContentType, strings.Join(f.readable(), " or "))
	}
	if err == nil {
		return nil
	}
	return &Error{
		Code: InvalidArgument, Reason: ReasonBadContent, Op: "conduit.decode", Err: err,
		Message: fmt.Sprintf("a message of %d bytes cannot be read as %s: %v", len(m.Data), typeName(t), err),
	}
}

// decodeProto makes the message that v, a pointer to a message pointer, points
// to, and reads data into it.
func decodeProto(ct string, data []byte, v any, t reflect.Type) error {
	if t.Kind() != reflect.Pointer {
		return fmt.Errorf("%s does not say which message to make; name a generated type", t)
	}
	fresh := reflect.New(t.Elem())
	msg, ok := reflect.TypeAssert[proto.Message](fresh)
	if !ok {
		return fmt.Errorf("%s is not a proto.Message", t)
	}
	reflect.ValueOf(v).Elem().Set(fresh)
	if ct == ContentJSON {
		return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, msg)
	}
	return proto.Unmarshal(data, msg)
}

// readable lists the content types that a form can be read from, its own first.
func (f form) readable() []string {
	switch f {
	case formProto:
		return []string{ContentProto, ContentJSON}
	case formMessage:
		return nil
	default:
		return []string{f.own()}
	}
}

// bareType drops the parameters of a content type and the case of its letters.
func bareType(ct string) string {
	switch ct { // the usual ones, without a copy
	case "", ContentJSON, ContentBytes, ContentProto:
		return ct
	}
	ct, _, _ = strings.Cut(ct, ";")
	return strings.ToLower(strings.TrimSpace(ct))
}

// ContentTypes lists the content types that values of type t can be sent and
// read as, the type's own first. The error says why there is none: t is, or
// holds, something that no message can carry, such as a channel.
func ContentTypes(t reflect.Type) ([]string, error) {
	f := formOf(t)
	switch f {
	case formProto:
		if t.Kind() != reflect.Pointer {
			return nil, fmt.Errorf("%s does not say which message to make; name a generated type", t)
		}
	case formJSON:
		if err := checkJSON(t, nil); err != nil {
			return nil, err
		}
	default:
	}
	return f.readable(), nil
}

// The interfaces by which a type takes its encoding into its own hands.
var (
	typeJSONUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	typeTextUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// checkJSON says why encoding/json could never read a t. Above are the types that
// t was found in, since types recur.
func checkJSON(t reflect.Type, above []reflect.Type) error {
	if t == typeRaw || slices.Contains(above, t) {
		return nil
	}
	if t.Kind() == reflect.Struct && reflect.PointerTo(t).Implements(typeProto) {
		return fmt.Errorf("%s is a proto message by value; use *%s", t, t)
	}
	ptr := reflect.PointerTo(t)
	if ptr.Implements(typeJSONUnmarshaler) || ptr.Implements(typeTextUnmarshaler) ||
		t.Implements(typeJSONUnmarshaler) || t.Implements(typeTextUnmarshaler) {
		return nil
	}
	above = append(above, t)
	switch t.Kind() {
	case reflect.Chan, reflect.Func, reflect.Complex64, reflect.Complex128, reflect.UnsafePointer:
		return fmt.Errorf("JSON cannot carry %s", t)
	case reflect.Interface:
		if t.NumMethod() > 0 {
			return fmt.Errorf("JSON does not say which type to make for the interface %s", t)
		}
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return checkJSON(t.Elem(), above)
	case reflect.Map:
		switch k := t.Key(); k.Kind() {
		case reflect.String, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
			reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		default:
			if !k.Implements(typeTextUnmarshaler) && !reflect.PointerTo(k).Implements(typeTextUnmarshaler) {
				return fmt.Errorf("the keys of %s can be no keys of JSON", t)
			}
		}
		return checkJSON(t.Elem(), above)
	case reflect.Struct:
		for field := range t.Fields() {
			if tag := field.Tag.Get("json"); tag == "-" || !field.IsExported() && !field.Anonymous {
				continue
			}
			if err := checkJSON(field.Type, above); err != nil {
				return fmt.Errorf("field %s of %s: %w", field.Name, t, err)
			}
		}
	default:
	}
	return nil
}

// TypeName names t for people, as descriptions of methods do: a proto message by
// its full name, []byte as "bytes", json.RawMessage as "json", struct{} as "".
func TypeName(t reflect.Type) string {
	switch {
	case t == nil || t == typeNone:
		return ""
	case t == typeBytes:
		return "bytes"
	case t == typeRaw:
		return "json"
	case t == typeMessage:
		return "any"
	case t.Kind() == reflect.Pointer && t.Implements(typeProto):
		if m, ok := reflect.TypeAssert[proto.Message](reflect.Zero(t)); ok {
			return string(m.ProtoReflect().Descriptor().FullName())
		}
	}
	return t.String()
}

// typeName is TypeName with a word for struct{}.
func typeName(t reflect.Type) string {
	if n := TypeName(t); n != "" {
		return n
	}
	return "nothing"
}
