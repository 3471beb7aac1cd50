package address

import (
	"fmt"
	"strings"
)

// BuiltinDeployment is the deployment of an instance's built-in services. It
// can stand in an address but not on disk.
const BuiltinDeployment = "conduit"

// MaxDeploymentName is the length of the longest deployment name in bytes.
const MaxDeploymentName = 128

// ValidDeploymentName returns nil if a deployment on disk may have this
// name: [A-Za-z0-9][A-Za-z0-9._-]{0,127}, not 36 hex digits (which would
// read as an id) and not [BuiltinDeployment]. Otherwise it returns an
// [*Error] of [KindDeploymentName].
func ValidDeploymentName(name string) error {
	why := checkDeploymentName(name)
	if name == BuiltinDeployment {
		why = "the built-in services live there; choose another"
	}
	if why != "" {
		return refuse(KindDeploymentName, name, why)
	}
	return nil
}

// checkDeploymentName says what keeps name from being a deployment name in
// an address, or returns "".
func checkDeploymentName(name string) (why string) {
	if name == "" {
		return "it is empty"
	}
	if len(name) > MaxDeploymentName {
		return fmt.Sprintf("it has %d bytes", len(name))
	}
	for i, r := range name {
		switch {
		case isAlphanumeric(r):
		case r != '.' && r != '_' && r != '-':
			return fmt.Sprintf("it has %q", r)
		case i == 0:
			return fmt.Sprintf("it begins with %q", r)
		}
	}
	if isIDLike(name) {
		return "36 hex digits are an id, not a name"
	}
	return ""
}

func isAlphanumeric(r rune) bool {
	return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
}

// isIDLike reports whether s has the shape of an id with one field: 36 hex
// digits.
func isIDLike(s string) bool {
	return len(s) == 2*InstanceIDSize && strings.Trim(s, "0123456789abcdefABCDEF") == ""
}
