package tracecontext

import (
	"strings"
	"testing"
)

func TestNew(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		p := New()
		id := ID([]byte(p))
		if parsed, ok := ParseParent(p); !ok || parsed != p || seen[id] || id == "" || !strings.HasSuffix(p, "-00") {
			t.Fatalf("%q", p)
		}
		seen[id] = true
	}
}

func TestID(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for parent, want := range map[string]string{
		good: good[3:35], "": "", "x": "", good + "-x": "", strings.ToUpper(good): "", good[:54] + "\n": "",
		"00-" + strings.Repeat("0", 32) + good[35:]: "",
	} {
		if got := ID([]byte(parent)); got != want {
			t.Errorf("%q: %q", parent, got)
		}
	}
	if n := testing.AllocsPerRun(10, func() { ID([]byte("no trace")) }); n > 0 {
		t.Errorf("%v allocations for none", n)
	}
}
