package address

import "strings"

// ServiceKey names an exported service: its type, and its name if the
// element exports the type more than once.
//
//	key = type [ "#" name ]
//
// Both are printable ASCII without '/' and '#', and without a space at
// either end; the type cannot be a wildcard. "type#" is the unnamed service
// of the type, as "type" is. This is a codec of our own: the original's
// parser never succeeds.
//
// The zero value names nothing. ServiceKey is a value: comparable with ==,
// safe for concurrent use.
type ServiceKey struct{ typ, name string }

// ParseServiceKey reads a key strictly; nothing is trimmed. The error is an
// [*Error] of [KindServiceKey].
func ParseServiceKey(s string) (ServiceKey, error) {
	k, why := splitServiceKey(s)
	if why != "" {
		return ServiceKey{}, refuse(KindServiceKey, s, why)
	}
	return k, nil
}

// NewServiceKey makes a key of its parts; the name may be "". The error is
// an [*Error] of [KindServiceKey].
func NewServiceKey(typ, name string) (ServiceKey, error) {
	k, why := makeServiceKey(typ, name)
	if why != "" {
		return ServiceKey{}, refuse(KindServiceKey, ServiceKey{typ, name}.String(), why)
	}
	return k, nil
}

func splitServiceKey(s string) (k ServiceKey, why string) {
	typ, name, _ := strings.Cut(s, "#")
	if strings.Contains(name, "#") {
		return ServiceKey{}, `there is more than one "#"`
	}
	return makeServiceKey(typ, name)
}

func makeServiceKey(typ, name string) (k ServiceKey, why string) {
	if why := checkToken(typ, "/#"); why != "" {
		return ServiceKey{}, "the service type " + why
	}
	if isWildcard(typ) {
		return ServiceKey{}, "the service type is " + typ + "; only an instance and a deployment can be *"
	}
	if name != "" {
		if why := checkToken(name, "/#"); why != "" {
			return ServiceKey{}, "the service name " + why
		}
	}
	return ServiceKey{typ, name}, ""
}

// Type returns the fully qualified type.
func (k ServiceKey) Type() string { return k.typ }

// Name returns the name, "" if there is none.
func (k ServiceKey) Name() string { return k.name }

// IsNamed reports whether there is a name.
func (k ServiceKey) IsNamed() bool { return k.name != "" }

// IsZero reports whether k is the zero value.
func (k ServiceKey) IsZero() bool { return k == ServiceKey{} }

// Compare is -1, 0 or +1 by type, then by name, in the order of bytes.
func (k ServiceKey) Compare(other ServiceKey) int {
	if c := strings.Compare(k.typ, other.typ); c != 0 {
		return c
	}
	return strings.Compare(k.name, other.name)
}

// String returns type or type#name, and "" for the zero value.
func (k ServiceKey) String() string {
	if k.name == "" {
		return k.typ
	}
	return k.typ + "#" + k.name
}

// AppendText implements [encoding.TextAppender] with the form of String.
func (k ServiceKey) AppendText(b []byte) ([]byte, error) { return append(b, k.String()...), nil }

// MarshalText implements [encoding.TextMarshaler]; JSON goes through it.
func (k ServiceKey) MarshalText() ([]byte, error) { return k.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler], as [ParseServiceKey];
// empty text gives the zero value.
func (k *ServiceKey) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*k = ServiceKey{}
		return nil
	}
	return setParsed(k, ParseServiceKey, string(text))
}

// MarshalBinary implements [encoding.BinaryMarshaler], as MarshalText.
func (k ServiceKey) MarshalBinary() ([]byte, error) { return k.AppendText(nil) }

// UnmarshalBinary implements [encoding.BinaryUnmarshaler], as UnmarshalText.
func (k *ServiceKey) UnmarshalBinary(data []byte) error { return k.UnmarshalText(data) }
