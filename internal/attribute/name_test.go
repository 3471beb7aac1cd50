package attribute

import (
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNameFault(t *testing.T) {
	for name, says := range map[string]string{
		"a": "", "db.password": "", "odd-name/x.y": "", "größe": "", strings.Repeat("n", 256): "",
		"": "is empty", strings.Repeat("n", 257): "more than 256 bytes", "a\xff": "is not UTF-8",
		"a b": "has a space", "a,b": "has a space", "a=b": "has a space", `a\b`: "has a space", "a\nb": "has a space", "a\x7f": "has a space",
	} {
		if got := NameFault(name); (says == "") != (got == "") || !strings.Contains(got, says) {
			t.Errorf("%q: %q, want %q", name, got, says)
		}
	}
}
