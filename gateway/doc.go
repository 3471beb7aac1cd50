// Package gateway is the outward door over HTTP: one request is one call.
//
//	POST /v1/call/{deployment}/{element}/{service}/{method}
//
// It turns a request into a [conduit.Invocation], and what comes back into JSON,
// lines of JSON, server-sent events or bytes; errors become problem details
// (RFC 9457). docs/gateway.md is the page for those who call.
//
// The package owns the rules of HTTP: which paths, hosts, origins, methods and
// content types there are, how large, slow and many requests may be, and which
// status says what. It owns no listener: the server that the [Gateway] is put in
// sets the time for headers and the size of them.
//
// It calls as any client does, through an Invoker that it is given; it imports no
// transport, no registry and no host. Who calls is a func that it is given, too.
//
// To read it in the order in which a request meets it: gateway.go, door.go,
// route.go, accept.go, body.go, call.go, events.go, reply.go, problem.go.
package gateway
