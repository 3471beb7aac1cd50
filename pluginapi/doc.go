// Package pluginapi is what the author of an element imports.
//
// An element is a program that calls [Main] with its services:
//
//	func main() {
//		greeter := pluginapi.NewService("example.Greeter")
//		pluginapi.Handle(greeter, "Greet", greet, pluginapi.Remote())
//		pluginapi.Main(pluginapi.Element{Name: "greeter", Version: "1.0.0", Services: []*pluginapi.Service{greeter}})
//	}
//
//	func greet(ctx context.Context, in GreetRequest) (GreetReply, error) { ... }
//
// # Methods
//
// [Handle] adds a method that takes one message and returns one, [HandleStream]
// one that yields many, [HandleUpload] one that takes many, [HandleDuplex] one
// with many both ways. A handler's types say how its messages travel: []byte raw,
// a generated proto message as protobuf or JSON, anything else as JSON, and
// struct{} as no message at all. A method can be called from other processes, and
// so at all, only with [Remote].
//
// Every call runs its handler on a goroutine of its own; any number run at once.
// The handler's context ends with the caller's deadline, when the caller leaves,
// when the host cancels the call, and when the handler has returned. To go on
// after the return, use context.WithoutCancel: such work has no caller any more
// and can send nothing.
//
// # Errors
//
// What a handler returns as an error ends the call with outcome "executed": use
// [Errorf] to give it a code. A handler that finds before it did anything that it
// cannot do the work returns [Refuse], and the call may be tried elsewhere. A
// handler that panics ends its own call only; a panic on a goroutine that a
// handler started ends the process, as in any Go program.
//
// # Walls
//
// Whatever this package imports, every plugin compiles in: the link engine,
// protobuf, and internal/pluginlink, which alone knows go-plugin and gRPC. It
// never imports the host or the cluster's transport.
package pluginapi
