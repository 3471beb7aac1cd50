package conformance_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/pluginapi"
	"github.com/elemental-conduit/conduit/pluginapi/conformance"
	"github.com/elemental-conduit/conduit/pluginapi/plugintest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestServiceInProcess: the service is an element's like any other; what the checks make
// of it, tests of internal/conformance and plugintest say.
func TestServiceInProcess(t *testing.T) {
	c := plugintest.Start(t, pluginapi.Element{Name: "e", Services: []*pluginapi.Service{conformance.Service()}})
	s := c.Service("conduit.conformance.v1.Conformance")
	if n, err := conduit.Call[int64](t.Context(), s, "Running", nil); err != nil || n != 0 {
		t.Errorf("%d handlers run, %v", n, err)
	}
	if _, err := conduit.Call[[]byte](t.Context(), s, "Big", -1); conduit.AsError(err, conduit.OutcomeUnknown).Code != conduit.InvalidArgument {
		t.Errorf("a message of -1 bytes: %v", err)
	}
}
