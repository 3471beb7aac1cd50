package address

// DeploymentIDSize is the length of a DeploymentID's binary form in bytes.
const DeploymentIDSize = 1 + fieldSize

// DeploymentID names one deployment, on every instance alike: it is a hash
// of the deployment's name. Its bytes are those of the original's
// ApplicationId. The zero value is the id of the nil UUID, which no
// constructor makes. It is a value: comparable, safe for concurrent use.
type DeploymentID struct{ u uuid }

// RandomDeploymentID returns a new id, UUID version 4.
func RandomDeploymentID() DeploymentID { return DeploymentID{randomUUID()} }

// UniqueDeploymentID returns the one id of a name: UUID version 3, the MD5
// of the name's UTF-8 bytes without a namespace. Every string is a name,
// also one that [ValidDeploymentName] refuses.
func UniqueDeploymentID(name string) DeploymentID { return DeploymentID{nameUUID(name)} }

// DeploymentIDFromUUID returns the id with this UUID.
func DeploymentIDFromUUID(u [16]byte) DeploymentID { return DeploymentID{u} }

// UUID returns the id's UUID.
func (id DeploymentID) UUID() [16]byte { return id.u }

func (id DeploymentID) fields() fields { return fields{ordinalDeployment: id.u} }

// ParseDeploymentID reads the text form, hex in either case. The error is an
// [*Error] of [KindDeploymentID].
func ParseDeploymentID(s string) (DeploymentID, error) {
	f, err := decodeFieldsHex(KindDeploymentID, deploymentFields, s)
	if err != nil {
		return DeploymentID{}, err
	}
	return DeploymentID{f[ordinalDeployment]}, nil
}

// DeploymentIDFromBytes reads the binary form and keeps no reference to b.
// The error is an [*Error] of [KindDeploymentID].
func DeploymentIDFromBytes(b []byte) (DeploymentID, error) {
	f, err := decodeFields(KindDeploymentID, deploymentFields, b)
	if err != nil {
		return DeploymentID{}, err
	}
	return DeploymentID{f[ordinalDeployment]}, nil
}

// IsZero reports whether id is the zero value, whose UUIDs are all nil.
func (id DeploymentID) IsZero() bool { return id == DeploymentID{} }

// Compare is -1, 0 or +1 in the unsigned order of the bytes.
func (id DeploymentID) Compare(other DeploymentID) int {
	return compareFields(id.fields(), other.fields())
}

// String returns the text form, 36 lower-case hex digits.
func (id DeploymentID) String() string {
	return string(appendFieldsHex(nil, deploymentFields, id.fields()))
}

// Bytes returns the binary form, 18 bytes in a new slice.
func (id DeploymentID) Bytes() []byte { return appendFields(nil, deploymentFields, id.fields()) }

// AppendText implements [encoding.TextAppender] with the text form.
func (id DeploymentID) AppendText(b []byte) ([]byte, error) {
	return appendFieldsHex(b, deploymentFields, id.fields()), nil
}

// MarshalText implements [encoding.TextMarshaler]; JSON goes through it.
func (id DeploymentID) MarshalText() ([]byte, error) { return id.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler], as ParseDeploymentID.
func (id *DeploymentID) UnmarshalText(text []byte) error {
	return setParsed(id, ParseDeploymentID, string(text))
}

// AppendBinary implements [encoding.BinaryAppender] with the binary form.
func (id DeploymentID) AppendBinary(b []byte) ([]byte, error) {
	return appendFields(b, deploymentFields, id.fields()), nil
}

// MarshalBinary implements [encoding.BinaryMarshaler].
func (id DeploymentID) MarshalBinary() ([]byte, error) { return id.Bytes(), nil }

// UnmarshalBinary implements [encoding.BinaryUnmarshaler], as
// DeploymentIDFromBytes.
func (id *DeploymentID) UnmarshalBinary(data []byte) error {
	return setParsed(id, DeploymentIDFromBytes, data)
}
