package plugintest

import (
	"testing"

	"github.com/elemental-conduit/conduit/internal/conformance"
)

// Generic leaves out of [Conformance] what calls the service
// conduit.conformance.v1.Conformance, for a plugin that does not export it.
func Generic() Option { return func(s *settings) { s.generic = true } }

// Conformance checks that a plugin's binary, in whatever language it is written, does
// what a host relies on. Each check is a subtest, with processes of its own; `go test
// -run 'TestName/cancel'` runs one alone.
//
// About half of the checks need to call methods that wait, fail, crash and so on. They
// are those of the service conduit.conformance.v1.Conformance, which package
// pluginapi/conformance has for elements in Go and docs/plugins.md describes for others;
// export it for the time of the test. A plugin that does not fails these checks; with
// [Generic] they are left out. The options [Attributes] and Generic count, the others
// do not.
func Conformance(t *testing.T, path string, opts ...Option) {
	t.Helper()
	var s settings
	for _, o := range opts {
		o(&s)
	}
	for _, c := range conformance.Checks() {
		if c.Service && s.generic {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			err := c.Run(t.Context(), conformance.Options{
				Path: path, Attributes: s.attributes, Log: func(line string) { t.Logf("element: %s", line) },
			})
			if err != nil {
				t.Errorf("%s.\nIt does not: %v", c.Says, err)
			}
		})
	}
}
