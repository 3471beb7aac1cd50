// Package conformance checks whether a plugin, in whatever language it is written,
// does what a host relies on.
//
// [Checks] is the list; each check starts the binary by the way that a host does,
// through internal/pluginlink, and looks at what comes back. Some need nothing of
// the plugin but that it is one. The others call the service
// conduit.conformance.v1.Conformance, which docs/plugins.md describes and package
// pluginapi/conformance has for elements in Go: an element in another language
// exports it for the time of its tests.
//
// It knows no testing.T: plugintest.Conformance and `conduit-host plugin verify`
// both run it.
package conformance
