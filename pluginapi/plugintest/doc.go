// Package plugintest runs an element in its test's process.
//
//	func TestGreet(t *testing.T) {
//		c := plugintest.Start(t, element())
//		reply, err := conduit.Call[GreetReply](t.Context(), c.Service("example.Greeter"), "Greet", GreetRequest{Name: "Ada"})
//		...
//	}
//
// Between the test and the element there is all that a cluster has but processes
// and sockets: the links with their frames, credit, deadlines and cancellation,
// and a host that dispatches by address and says who calls. Only memory carries
// the frames, so that a test may run in a testing/synctest bubble, where waiting
// costs no time.
package plugintest
