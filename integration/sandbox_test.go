package integration

import (
	"strings"
	"testing"
)

// TestSandboxedInstance: a program confines its plugins by starting itself once more. They
// serve as ever, say what confines them, and end with a host that is killed.
func TestSandboxedInstance(t *testing.T) {
	t.Parallel()
	i := start(t, []string{built.echo, built.greeter}, "--host-sandbox=best-effort")
	i.call(echoAddr, "Upper", `"inside"`).want(t, 0, `"INSIDE"`+"\n")
	rows := i.rows("ls", "elements")
	for _, row := range rows {
		if in, _ := row["sandbox"].(string); !strings.Contains(in, "no_new_privs, no capabilities, rlimits") {
			t.Errorf("%v is confined by %q", row["element"], in)
		}
	}
	if n := len(i.plugins()); n != 2 || len(rows) != 2 {
		t.Fatalf("%d plugin processes and %d elements, want 2", n, len(rows))
	}
	if r := i.ask("describe", echoAddr); !strings.Contains(r.out, "no_new_privs") {
		t.Errorf("describe does not say how it is confined: %s%s", r.out, r.err)
	}
	i.kill()
	i.noneLeft()
}
