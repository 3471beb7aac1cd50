package address

// NodeIDSize is the length of a NodeID's binary form in bytes.
const NodeIDSize = 1 + 2*fieldSize

// NodeID names one deployment on one instance. It is a value: comparable,
// safe for concurrent use.
type NodeID struct {
	instance   InstanceID
	deployment DeploymentID
}

// NewNodeID returns the node of a deployment on an instance.
func NewNodeID(instance InstanceID, deployment DeploymentID) NodeID {
	return NodeID{instance, deployment}
}

// MasterNodeID returns the node that stands for the instance itself: its
// deployment has the UUID of the instance.
func MasterNodeID(instance InstanceID) NodeID {
	return NodeID{instance, DeploymentID(instance)}
}

// Instance returns the instance that the node is on.
func (id NodeID) Instance() InstanceID { return id.instance }

// Deployment returns the deployment that the node runs.
func (id NodeID) Deployment() DeploymentID { return id.deployment }

// Node returns id itself, so that everything with a node answers to Node. In
// the original a NodeId has no node of its own, which breaks its callers.
func (id NodeID) Node() NodeID { return id }

// IsMaster reports whether instance and deployment have the same UUID.
func (id NodeID) IsMaster() bool { return id.instance.u == id.deployment.u }

func (id NodeID) fields() fields {
	return fields{ordinalInstance: id.instance.u, ordinalDeployment: id.deployment.u}
}

func nodeFromFields(f fields) NodeID {
	return NodeID{InstanceID{f[ordinalInstance]}, DeploymentID{f[ordinalDeployment]}}
}

// ParseNodeID reads the text form, hex in either case. The error is an
// [*Error] of [KindNodeID].
func ParseNodeID(s string) (NodeID, error) {
	f, err := decodeFieldsHex(KindNodeID, nodeFields, s)
	if err != nil {
		return NodeID{}, err
	}
	return nodeFromFields(f), nil
}

// NodeIDFromBytes reads the binary form and keeps no reference to b. The
// error is an [*Error] of [KindNodeID].
func NodeIDFromBytes(b []byte) (NodeID, error) {
	f, err := decodeFields(KindNodeID, nodeFields, b)
	if err != nil {
		return NodeID{}, err
	}
	return nodeFromFields(f), nil
}

// IsZero reports whether id is the zero value, whose UUIDs are all nil.
func (id NodeID) IsZero() bool { return id == NodeID{} }

// Compare is -1, 0 or +1 in the unsigned order of the bytes.
func (id NodeID) Compare(other NodeID) int { return compareFields(id.fields(), other.fields()) }

// String returns the text form, 70 lower-case hex digits.
func (id NodeID) String() string { return string(appendFieldsHex(nil, nodeFields, id.fields())) }

// Bytes returns the binary form, 35 bytes in a new slice.
func (id NodeID) Bytes() []byte { return appendFields(nil, nodeFields, id.fields()) }

// AppendText implements [encoding.TextAppender] with the text form.
func (id NodeID) AppendText(b []byte) ([]byte, error) {
	return appendFieldsHex(b, nodeFields, id.fields()), nil
}

// MarshalText implements [encoding.TextMarshaler]; JSON goes through it.
func (id NodeID) MarshalText() ([]byte, error) { return id.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler], as ParseNodeID.
func (id *NodeID) UnmarshalText(text []byte) error {
	return setParsed(id, ParseNodeID, string(text))
}

// AppendBinary implements [encoding.BinaryAppender] with the binary form.
func (id NodeID) AppendBinary(b []byte) ([]byte, error) {
	return appendFields(b, nodeFields, id.fields()), nil
}

// MarshalBinary implements [encoding.BinaryMarshaler].
func (id NodeID) MarshalBinary() ([]byte, error) { return id.Bytes(), nil }

// UnmarshalBinary implements [encoding.BinaryUnmarshaler], as
// NodeIDFromBytes.
func (id *NodeID) UnmarshalBinary(data []byte) error {
	return setParsed(id, NodeIDFromBytes, data)
}
