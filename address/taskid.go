package address

// TaskIDSize is the length of a TaskID's binary form in bytes.
const TaskIDSize = 1 + 4*fieldSize

// TaskID names one persisted task of a resource. It is a value: comparable,
// safe for concurrent use.
type TaskID struct {
	resource ResourceID
	u        uuid
}

// RandomTaskID returns a new id on a resource, UUID version 4.
func RandomTaskID(resource ResourceID) TaskID { return TaskID{resource, randomUUID()} }

// TaskIDFromUUID returns the id on a resource with this UUID.
func TaskIDFromUUID(resource ResourceID, u [16]byte) TaskID { return TaskID{resource, u} }

// Resource returns the resource that the task belongs to.
func (id TaskID) Resource() ResourceID { return id.resource }

// Node returns the node that stores the resource.
func (id TaskID) Node() NodeID { return id.resource.node }

// UUID returns the task's own UUID, without its resource.
func (id TaskID) UUID() [16]byte { return id.u }

func (id TaskID) fields() fields {
	f := id.resource.fields()
	f[ordinalTask] = id.u
	return f
}

func taskFromFields(f fields) TaskID {
	return TaskID{resourceFromFields(f), f[ordinalTask]}
}

// ParseTaskID reads the text form, hex in either case. The error is an
// [*Error] of [KindTaskID].
func ParseTaskID(s string) (TaskID, error) {
	f, err := decodeFieldsHex(KindTaskID, taskFields, s)
	if err != nil {
		return TaskID{}, err
	}
	return taskFromFields(f), nil
}

// TaskIDFromBytes reads the binary form and keeps no reference to b. The
// error is an [*Error] of [KindTaskID].
func TaskIDFromBytes(b []byte) (TaskID, error) {
	f, err := decodeFields(KindTaskID, taskFields, b)
	if err != nil {
		return TaskID{}, err
	}
	return taskFromFields(f), nil
}

// IsZero reports whether id is the zero value, whose UUIDs are all nil.
func (id TaskID) IsZero() bool { return id == TaskID{} }

// Compare is -1, 0 or +1 in the unsigned order of the bytes.
func (id TaskID) Compare(other TaskID) int { return compareFields(id.fields(), other.fields()) }

// String returns the text form, 138 lower-case hex digits.
func (id TaskID) String() string { return string(appendFieldsHex(nil, taskFields, id.fields())) }

// Bytes returns the binary form, 69 bytes in a new slice.
func (id TaskID) Bytes() []byte { return appendFields(nil, taskFields, id.fields()) }

// AppendText implements [encoding.TextAppender] with the text form.
func (id TaskID) AppendText(b []byte) ([]byte, error) {
	return appendFieldsHex(b, taskFields, id.fields()), nil
}

// MarshalText implements [encoding.TextMarshaler]; JSON goes through it.
func (id TaskID) MarshalText() ([]byte, error) { return id.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler], as ParseTaskID.
func (id *TaskID) UnmarshalText(text []byte) error {
	return setParsed(id, ParseTaskID, string(text))
}

// AppendBinary implements [encoding.BinaryAppender] with the binary form.
func (id TaskID) AppendBinary(b []byte) ([]byte, error) {
	return appendFields(b, taskFields, id.fields()), nil
}

// MarshalBinary implements [encoding.BinaryMarshaler].
func (id TaskID) MarshalBinary() ([]byte, error) { return id.Bytes(), nil }

// UnmarshalBinary implements [encoding.BinaryUnmarshaler], as
// TaskIDFromBytes.
func (id *TaskID) UnmarshalBinary(data []byte) error {
	return setParsed(id, TaskIDFromBytes, data)
}
