package address

// ResourceIDSize is the length of a ResourceID's binary form in bytes.
const ResourceIDSize = 1 + 3*fieldSize

// ResourceID names one stored resource and, with it, the node that stores
// it. It is a value: comparable, safe for concurrent use.
type ResourceID struct {
	node NodeID
	u    uuid
}

// RandomResourceID returns a new id on a node, UUID version 4.
func RandomResourceID(node NodeID) ResourceID { return ResourceID{node, randomUUID()} }

// ResourceIDFromUUID returns the id on a node with this UUID.
func ResourceIDFromUUID(node NodeID, u [16]byte) ResourceID { return ResourceID{node, u} }

// Node returns the node that stores the resource.
func (id ResourceID) Node() NodeID { return id.node }

// UUID returns the resource's own UUID, without its node.
func (id ResourceID) UUID() [16]byte { return id.u }

func (id ResourceID) fields() fields {
	f := id.node.fields()
	f[ordinalResource] = id.u
	return f
}

func resourceFromFields(f fields) ResourceID {
	return ResourceID{nodeFromFields(f), f[ordinalResource]}
}

// ParseResourceID reads the text form, hex in either case. The error is an
// [*Error] of [KindResourceID].
func ParseResourceID(s string) (ResourceID, error) {
	f, err := decodeFieldsHex(KindResourceID, resourceFields, s)
	if err != nil {
		return ResourceID{}, err
	}
	return resourceFromFields(f), nil
}

// ResourceIDFromBytes reads the binary form and keeps no reference to b. The
// error is an [*Error] of [KindResourceID].
func ResourceIDFromBytes(b []byte) (ResourceID, error) {
	f, err := decodeFields(KindResourceID, resourceFields, b)
	if err != nil {
		return ResourceID{}, err
	}
	return resourceFromFields(f), nil
}

// IsZero reports whether id is the zero value, whose UUIDs are all nil.
func (id ResourceID) IsZero() bool { return id == ResourceID{} }

// Compare is -1, 0 or +1 in the unsigned order of the bytes.
func (id ResourceID) Compare(other ResourceID) int { return compareFields(id.fields(), other.fields()) }

// String returns the text form, 104 lower-case hex digits.
func (id ResourceID) String() string {
	return string(appendFieldsHex(nil, resourceFields, id.fields()))
}

// Bytes returns the binary form, 52 bytes in a new slice.
func (id ResourceID) Bytes() []byte { return appendFields(nil, resourceFields, id.fields()) }

// AppendText implements [encoding.TextAppender] with the text form.
func (id ResourceID) AppendText(b []byte) ([]byte, error) {
	return appendFieldsHex(b, resourceFields, id.fields()), nil
}

// MarshalText implements [encoding.TextMarshaler]; JSON goes through it.
func (id ResourceID) MarshalText() ([]byte, error) { return id.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler], as ParseResourceID.
func (id *ResourceID) UnmarshalText(text []byte) error {
	return setParsed(id, ParseResourceID, string(text))
}

// AppendBinary implements [encoding.BinaryAppender] with the binary form.
func (id ResourceID) AppendBinary(b []byte) ([]byte, error) {
	return appendFields(b, resourceFields, id.fields()), nil
}

// MarshalBinary implements [encoding.BinaryMarshaler].
func (id ResourceID) MarshalBinary() ([]byte, error) { return id.Bytes(), nil }

// UnmarshalBinary implements [encoding.BinaryUnmarshaler], as
// ResourceIDFromBytes.
func (id *ResourceID) UnmarshalBinary(data []byte) error {
	return setParsed(id, ResourceIDFromBytes, data)
}
