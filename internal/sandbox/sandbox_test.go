package sandbox

import (
	"strings"
	"testing"
)

func TestModes(t *testing.T) {
	t.Parallel()
	for i, m := range modes {
		if !m.Valid() || m.Below(m) {
			t.Errorf("%s: valid %t, below itself %t", m, m.Valid(), m.Below(m))
		}
		for _, stronger := range modes[i+1:] {
			if !m.Below(stronger) || stronger.Below(m) {
				t.Errorf("%s and %s are in the wrong order", m, stronger)
			}
		}
	}
	if Mode("").Valid() || Mode("on").Valid() {
		t.Error("what is no mode is one")
	}
}

// TestEffective: what is said is what is in force, and what is missing is never passed
// over.
func TestEffective(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		e       Effective
		text    string
		missing []string // parts, one for each
	}{
		{Effective{}, "nothing", []string{"read and write all files", "set-user-id", "capabilities", "limits"}},
		{Effective{Landlock: 2, NoNewPrivs: true, Capabilities: true, Limits: true}, "landlock v2, no_new_privs, no capabilities, rlimits", []string{"cut files"}},
		{Effective{Landlock: 5, NoNewPrivs: true, Capabilities: true, Limits: true}, "landlock v5, no_new_privs, no capabilities, rlimits", []string{"signal"}},
		{Effective{Landlock: 6, NoNewPrivs: true, Capabilities: true, Limits: true}, "landlock v6, no_new_privs, no capabilities, rlimits", nil},
		{Effective{NoNewPrivs: true, Limits: true}, "no_new_privs, rlimits", []string{"read and write all files", "capabilities"}},
	} {
		if got := tc.e.String(); got != tc.text {
			t.Errorf("%+v is called %q", tc.e, got)
		}
		missing := tc.e.Missing()
		if len(missing) != len(tc.missing) {
			t.Errorf("%s: missing is %q", tc.text, missing)
			continue
		}
		for i, part := range tc.missing {
			if !strings.Contains(missing[i], part) {
				t.Errorf("%s: missing is %q, want %q in it", tc.text, missing[i], part)
			}
		}
	}
}
