package pluginlink

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/elemental-conduit/conduit/internal/link"
)

// TestStranger: a plugin answers its host alone, though others can reach its socket.
func TestStranger(t *testing.T) {
	ctx := testContext(t)
	p, log := begin(ctx, t, "serve")
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), fixtureVar+"=stranger", "STRANGER_SOCKET="+p.child.socketPath())
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "Unavailable" {
		t.Errorf("a stranger is answered with %q, %v", out, err)
	}
	if n := log.count(has("@message", "flushed")); n != 0 {
		t.Error("a stranger has stopped the element")
	}
	up(ctx, t, p) // the host is not kept away
	if _, err := p.OpenLink(ctx, link.Options{}); err != nil {
		t.Error(err)
	}
}
