// Package address owns every name in the fabric: the ids of instances,
// deployments, nodes, resources and tasks; the [Path] that stored resources
// live at; the [ServiceKey] of an exported service; and the [Address] that a
// call is sent to. Each is parsed once into an opaque value. A value that
// was parsed or constructed without an error is well formed for ever, so no
// other package looks at the text again.
//
// All types here are immutable values: they are comparable, they may be
// copied, and all their methods are safe for concurrent use. The Unmarshal
// methods, as always, write to their receiver and leave it alone when they
// fail.
//
// # Byte layout of ids
//
// The layout is part of what is stored and sent; it should never be changed.
//
//	id    = 0x01 field...
//	field = ordinal (1B) UUID (16B, big-endian)
//
//	ordinal 0 instance, 1 deployment, 2 resource, 3 task
//
//	InstanceID    I          18 bytes   36 hex digits, 0100...
//	DeploymentID  D          18 bytes   36 hex digits, 0101...
//	NodeID        I D        35 bytes   70 hex digits
//	ResourceID    I D R      52 bytes  104 hex digits
//	TaskID        I D R T    69 bytes  138 hex digits
//
// Fields are written in ascending ordinal order and read in any order; the
// last of a repeated field wins. The text form is lower-case hex; upper case
// is read too. The original system calls the deployment field "application";
// the bytes are the same.
//
// # Walls
//
// The package imports the standard library and nothing else: no other
// package of this module, no network, no logger. Only instancefile.go
// touches the disk.
package address
