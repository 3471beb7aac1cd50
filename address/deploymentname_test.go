package address

import (
	"strings"
	"testing"
)

func TestValidDeploymentName(t *testing.T) {
	for _, name := range []string{"a", "0", "Greeter-2.0_x", "conduit2", "Conduit", strings.Repeat("a", 128), strings.Repeat("a", 35), "a..", strings.Repeat("a", 35) + "g"} {
		if err := ValidDeploymentName(name); err != nil {
			t.Errorf("ValidDeploymentName(%q): %v", name, err)
		}
	}
	for name, why := range map[string]string{
		"":                              "it is empty",
		"conduit":                       "the built-in services live there",
		".hidden":                       "it begins with '.'",
		"-x":                            "it begins with '-'",
		"_x":                            "it begins with '_'",
		"..":                            "it begins with '.'",
		"a/b":                           "it has '/'",
		"a b":                           "it has ' '",
		"a\x00":                         `it has '\x00'`,
		"日本":                            "it has '日'",
		"*":                             "it has '*'",
		strings.Repeat("a", 129):        "it has 129 bytes",
		goldenDeployment:                "36 hex digits are an id",
		strings.ToUpper(goldenInstance): "36 hex digits are an id",
		strings.Repeat("a", 36):         "36 hex digits are an id",
	} {
		testError(t, "ValidDeploymentName", name, ValidDeploymentName(name), KindDeploymentName, why)
	}
}
