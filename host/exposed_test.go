package host

import (
	"errors"
	"io"
	"testing"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
)

// TestNothingElseAnswers is SEC-09: what an element, its process or its library has
// besides the methods that its author has marked answers nobody, whoever asks.
func TestNothingElseAnswers(t *testing.T) {
	r := newRig(t, "echo")
	r.ready()
	const own = "test.Fixture"
	names := []struct{ deployment, element, service, method, reason string }{
		{"echo", "echo", own, "Hidden", conduit.ReasonNotRemote}, // its author has not marked it
		{"echo", "echo", own, "", conduit.ReasonMethodNotFound},
		{"echo", "echo", own, "echo", conduit.ReasonMethodNotFound},
		{"echo", "echo", own, "Echo ", conduit.ReasonMethodNotFound},
		{"echo", "echo", own, "Echo\x00", conduit.ReasonMethodNotFound},
		{"echo", "echo", own, "__init", conduit.ReasonMethodNotFound},
		{"echo", "echo", own, "Shutdown", conduit.ReasonMethodNotFound},
		{"echo", "echo", own, "Handle", conduit.ReasonMethodNotFound}, // of the Go type behind it
		{"echo", "echo", own, "*", conduit.ReasonMethodNotFound},
		{"echo", "echo", own, "/plugin.GRPCController/Shutdown", conduit.ReasonMethodNotFound},
		{"echo", "echo", "Test.Fixture", "Echo", conduit.ReasonServiceNotFound},
		{"echo", "echo", "plugin.GRPCController", "Shutdown", conduit.ReasonServiceNotFound},
		{"echo", "echo", "plugin.GRPCBroker", "StartStream", conduit.ReasonServiceNotFound},
		{"echo", "echo", "grpc.health.v1.Health", "Check", conduit.ReasonServiceNotFound},
		{"echo", "echo", "grpc.reflection.v1.ServerReflection", "ServerReflectionInfo", conduit.ReasonServiceNotFound},
		{"echo", "echo", "conduit.v1.Plugin", "Configure", conduit.ReasonServiceNotFound},
		{"echo", "echo", "conduit.v1.Plugin", "Shutdown", conduit.ReasonServiceNotFound},
		{"echo", "echo", "conduit.v1.Plugin", "Link", conduit.ReasonServiceNotFound},
		// What a host serves to its own elements, for one that is none of them.
		{"echo", "echo", "conduit.Host", "Claim", conduit.ReasonServiceNotFound},
		{"conduit", "conduit", "conduit.Host", "Claim", conduit.ReasonDeploymentNotFound},
		{"conduit", "conduit", "conduit.Host", "Attributes", conduit.ReasonDeploymentNotFound},
	}
	for _, level := range []conduit.Level{conduit.Anonymous, conduit.User, conduit.Superuser, conduit.System} {
		c := r.dial("somebody", level)
		for _, n := range names {
			to := address.MustParse("*://" + n.deployment + "/" + n.element + "/" + n.service)
			x := c.Invoke(r.ctx, link.NewRoute(to), &conduit.Invocation{Method: n.method, ContentType: conduit.ContentBytes, HasRequest: true, Last: true})
			_, err := x.Recv(r.ctx)
			e, ok := errors.AsType[*conduit.Error](err)
			if !ok || e.Reason != n.reason || e.Outcome != conduit.Refused {
				t.Errorf("%s/%s %q %q as %v: %v, want %s, refused", n.deployment, n.element, n.service, n.method, level, err, n.reason)
			}
		}
		// And what is marked does, for who may: the level is looked at here, before the
		// element hears of the call.
		_, err := invoke(r.ctx, c, echo, "Own", "").Recv(r.ctx)
		if level < conduit.Superuser {
			wantReason(t, err, conduit.ReasonLevelTooLow, conduit.Refused)
		} else if err != nil && !errors.Is(err, io.EOF) {
			if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Outcome == conduit.Refused {
				t.Errorf("Own as %v: %v", level, err)
			}
		}
		c.Close(link.CloseDone, "")
	}
	if s := r.elements()["echo"]; s.Generation != 1 || s.Restarts != 0 || s.State != Ready {
		t.Errorf("the element is %+v", s)
	}
}
