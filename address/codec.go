package address

import (
	"bytes"
	"crypto/md5" //nolint:gosec // names hash to ids by UUID version 3, which is MD5; nothing is secured by it
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
)

// idVersion is the first byte of every id. Never change it.
const idVersion byte = 0x01

// The ordinals of the fields of an id. They are stored and sent; never
// change or reuse one.
const (
	ordinalInstance   = 0
	ordinalDeployment = 1 // APPLICATION in the original
	ordinalResource   = 2
	ordinalTask       = 3
	ordinals          = 4
)

const (
	uuidSize  = 16
	fieldSize = 1 + uuidSize
)

type uuid [uuidSize]byte

// fields holds the UUIDs of an id by ordinal; those that the type lacks are
// zero.
type fields [ordinals]uuid

// fieldSet says which fields a type of id has: bit n for ordinal n.
type fieldSet uint8

const (
	instanceFields   fieldSet = 1 << ordinalInstance
	deploymentFields fieldSet = 1 << ordinalDeployment
	nodeFields                = instanceFields | deploymentFields
	resourceFields            = nodeFields | 1<<ordinalResource
	taskFields                = resourceFields | 1<<ordinalTask
)

func (s fieldSet) has(ordinal int) bool { return s&(1<<ordinal) != 0 }

// ordinalName is the word that errors use for a field.
func ordinalName(ordinal int) string {
	return [ordinals]string{"instance", "deployment", "resource", "task"}[ordinal]
}

// appendFields appends the canonical encoding: version, then the fields of
// the set in ascending order.
func appendFields(b []byte, set fieldSet, f fields) []byte {
	b = append(b, idVersion)
	for ordinal := range ordinals {
		if set.has(ordinal) {
			b = append(b, byte(ordinal))
			b = append(b, f[ordinal][:]...)
		}
	}
	return b
}

func appendFieldsHex(b []byte, set fieldSet, f fields) []byte {
	var buf [1 + ordinals*fieldSize]byte
	return hex.AppendEncode(b, appendFields(buf[:0], set, f))
}

// decodeFields reads an encoding that has exactly the fields of the set, in
// any order; the last of a repeated field wins. A missing field is invalid
// here; in the original it comes to light only when the field is first read.
func decodeFields(kind Kind, set fieldSet, b []byte) (fields, error) {
	f, why := readFields(set, b)
	if why != "" {
		return fields{}, refuse(kind, hex.EncodeToString(b[:min(len(b), maxErrorInput)]), why)
	}
	return f, nil
}

// decodeFieldsHex is decodeFields for the text form, in either case of
// letters.
func decodeFieldsHex(kind Kind, set fieldSet, s string) (fields, error) {
	b, err := hex.DecodeString(s)
	if err != nil {
		why := fmt.Sprintf("it has %d digits, an odd number", len(s))
		if bad, ok := errors.AsType[hex.InvalidByteError](err); ok {
			why = fmt.Sprintf("%q is not a hex digit", byte(bad))
		}
		return fields{}, refuse(kind, s, why)
	}
	f, why := readFields(set, b)
	if why != "" {
		return fields{}, refuse(kind, s, why)
	}
	return f, nil
}

// readFields returns the fields, or why there are none.
func readFields(set fieldSet, b []byte) (f fields, why string) {
	if len(b) == 0 {
		return f, "it is empty"
	}
	if b[0] != idVersion {
		return f, fmt.Sprintf("it begins with %02x, not with the version %02x", b[0], idVersion)
	}
	var seen fieldSet
	for b = b[1:]; len(b) > 0; b = b[fieldSize:] {
		ordinal := int(b[0])
		if ordinal >= ordinals {
			return f, fmt.Sprintf("it has a field of unknown ordinal %02x", b[0])
		}
		if !set.has(ordinal) {
			return f, "it has an unexpected field: " + ordinalName(ordinal)
		}
		if len(b) < fieldSize {
			return f, fmt.Sprintf("its %s field is cut short: %d bytes of %d", ordinalName(ordinal), len(b)-1, uuidSize)
		}
		copy(f[ordinal][:], b[1:fieldSize])
		seen |= 1 << ordinal
	}
	for ordinal := range ordinals {
		if set.has(ordinal) && !seen.has(ordinal) {
			return f, "its " + ordinalName(ordinal) + " field is missing"
		}
	}
	return f, ""
}

// compareFields orders by unsigned bytes, which is the order of the
// encodings. The original compares UUIDs as two signed 64-bit halves;
// nothing stored depends on that, and unsigned order is the order that a
// key-value store gives.
func compareFields(a, b fields) int {
	for ordinal := range ordinals {
		if c := bytes.Compare(a[ordinal][:], b[ordinal][:]); c != 0 {
			return c
		}
	}
	return 0
}

// nameUUID is UUID version 3 of the UTF-8 bytes of the name alone, without
// the bytes of a namespace in front.
func nameUUID(name string) uuid {
	u := uuid(md5.Sum([]byte(name))) //nolint:gosec // see the import
	return u.withVersion(3)
}

// randomUUID is UUID version 4 from the system's secure source.
func randomUUID() uuid {
	var u uuid
	_, _ = rand.Read(u[:]) // never fails: it ends the process instead
	return u.withVersion(4)
}

func (u uuid) withVersion(v byte) uuid {
	u[6] = u[6]&0x0f | v<<4
	u[8] = u[8]&0x3f | 0x80
	return u
}

// String is the usual form with dashes, 36 characters.
func (u uuid) String() string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:])
}
