package address

// InstanceIDSize is the length of an InstanceID's binary form in bytes.
const InstanceIDSize = 1 + fieldSize

// InstanceID names one running host. It is kept in a file by instances that
// store resources, because it is inside every ResourceID; see
// [LoadOrCreateInstanceID]. The zero value is the id of the nil UUID, which
// no constructor makes. It is a value: comparable, safe for concurrent use.
type InstanceID struct{ u uuid }

// RandomInstanceID returns a new id, UUID version 4.
func RandomInstanceID() InstanceID { return InstanceID{randomUUID()} }

// UniqueInstanceID returns the one id of a name: UUID version 3, the MD5 of
// the name's UTF-8 bytes without a namespace. Every string is a name, ""
// too.
func UniqueInstanceID(name string) InstanceID { return InstanceID{nameUUID(name)} }

// InstanceIDFromUUID returns the id with this UUID.
func InstanceIDFromUUID(u [16]byte) InstanceID { return InstanceID{u} }

// UUID returns the id's UUID.
func (id InstanceID) UUID() [16]byte { return id.u }

func (id InstanceID) fields() fields { return fields{ordinalInstance: id.u} }

// ParseInstanceID reads the text form, hex in either case. The error is an
// [*Error] of [KindInstanceID].
func ParseInstanceID(s string) (InstanceID, error) {
	f, err := decodeFieldsHex(KindInstanceID, instanceFields, s)
	if err != nil {
		return InstanceID{}, err
	}
	return InstanceID{f[ordinalInstance]}, nil
}

// InstanceIDFromBytes reads the binary form and keeps no reference to b. The
// error is an [*Error] of [KindInstanceID].
func InstanceIDFromBytes(b []byte) (InstanceID, error) {
	f, err := decodeFields(KindInstanceID, instanceFields, b)
	if err != nil {
		return InstanceID{}, err
	}
	return InstanceID{f[ordinalInstance]}, nil
}

// IsZero reports whether id is the zero value, whose UUIDs are all nil.
func (id InstanceID) IsZero() bool { return id == InstanceID{} }

// Compare is -1, 0 or +1 in the unsigned order of the bytes.
func (id InstanceID) Compare(other InstanceID) int { return compareFields(id.fields(), other.fields()) }

// String returns the text form, 36 lower-case hex digits.
func (id InstanceID) String() string {
	return string(appendFieldsHex(nil, instanceFields, id.fields()))
}

// Bytes returns the binary form, 18 bytes in a new slice.
func (id InstanceID) Bytes() []byte { return appendFields(nil, instanceFields, id.fields()) }

// AppendText implements [encoding.TextAppender] with the text form.
func (id InstanceID) AppendText(b []byte) ([]byte, error) {
	return appendFieldsHex(b, instanceFields, id.fields()), nil
}

// MarshalText implements [encoding.TextMarshaler]; JSON goes through it.
func (id InstanceID) MarshalText() ([]byte, error) { return id.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler], as ParseInstanceID.
func (id *InstanceID) UnmarshalText(text []byte) error {
	return setParsed(id, ParseInstanceID, string(text))
}

// AppendBinary implements [encoding.BinaryAppender] with the binary form.
func (id InstanceID) AppendBinary(b []byte) ([]byte, error) {
	return appendFields(b, instanceFields, id.fields()), nil
}

// MarshalBinary implements [encoding.BinaryMarshaler].
func (id InstanceID) MarshalBinary() ([]byte, error) { return id.Bytes(), nil }

// UnmarshalBinary implements [encoding.BinaryUnmarshaler], as
// InstanceIDFromBytes.
func (id *InstanceID) UnmarshalBinary(data []byte) error {
	return setParsed(id, InstanceIDFromBytes, data)
}
