package values

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestForms: the forms that internal/config's tests do not go through a key for.
func TestForms(t *testing.T) {
	if d, why := Duration("1m30s", 0, "1s"); d != 90*time.Second || why != "" {
		t.Error(d, why)
	}
	if n, why := Size("1.5GiB", 0, 0, "1GiB"); n != 3*GiB/2 || why != "" {
		t.Error(n, why)
	}
	if n, why := Int("7", 1, 8, "2"); n != 7 || why != "" {
		t.Error(n, why)
	}
	for text, want := range map[string]string{"": "empty", "30": "no unit", "-1s": "sign", "1s": "the least is 5s", "20y": "not a duration", "999999h": "ten years"} {
		if _, why := Duration(text, 5*time.Second, "30s"); !strings.Contains(why, want) {
			t.Errorf("duration %q: %q does not say %q", text, why, want)
		}
	}
	for text, want := range map[string]string{"": "empty", "30": "no unit", "10MB": "different things", "1KiB": "the least is 2KiB", "2MiB": "the most is 1MiB", "4.0001KiB": "whole number of bytes"} {
		if _, why := Size(text, 2*KiB, MiB, "4KiB"); !strings.Contains(why, want) {
			t.Errorf("size %q: %q does not say %q", text, why, want)
		}
	}
	for text, want := range map[string]string{"": "whole number", "+1": "whole number", "9": "1 to 8", "1.5": "whole number"} {
		if _, why := Int(text, 1, 8, "2"); !strings.Contains(why, want) {
			t.Errorf("number %q: %q does not say %q", text, why, want)
		}
	}
	if got := Suggest("clusters", []string{"args", "cluster"}); got != "; did you mean cluster?" {
		t.Error(got)
	}
	if got := Suggest("zzzzzzzz", []string{"args", "attributes"}); got != "" {
		t.Error(got)
	}
}
