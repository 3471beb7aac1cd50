package metrics

import (
	"strings"
	"unicode/utf8"
)

const (
	// unknown stands for every name that is not known, or not told apart.
	unknown = "unknown"
	// anyDeployment is the deployment of a call that leaves it open.
	anyDeployment = "*"
	// maxLabel is the length of a label's value in bytes, generous to every name
	// that the grammar of addresses allows.
	maxLabel = 256
)

// label makes a name fit for a label: Prometheus takes valid UTF-8 alone, and an
// empty label is none.
func label(name string) string {
	if name == "" {
		return unknown
	}
	if len(name) > maxLabel {
		name = name[:maxLabel]
	}
	return strings.ToValidUTF8(name, "\uFFFD")
}

// declarable reports whether a name can be a label as it is.
func declarable(name string) bool {
	return name != "" && len(name) <= maxLabel && utf8.ValidString(name)
}
