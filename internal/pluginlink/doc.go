// Package pluginlink runs a plugin as a process and carries its link: both
// ends, the handshake between them, and everything that go-plugin needs help
// with. No other package imports go-plugin.
//
// The host's side is [Launch]: it starts a binary through a runner of its own
// and gives a [Process], which answers Describe, Configure, Health and Stop and
// opens the one link over which calls go. The plugin's side is [Serve]. Between
// them, on a Unix socket in a private directory:
//
//	host                                   plugin
//	 | -- fork, exec (Spawner) ------------> |  cookie, token, host's pid by environment
//	 | <- 1|1|unix|<socket>|grpc| ---------- |  one line on stdout
//	 | -- Describe, Configure, Health -----> |  unary, each with a deadline
//	 | -- Link: stream of Packets ---------> |  Hello carries the token; one link is accepted
//	 | -- Stop, then Shutdown, then SIGKILL  |
//
// A process never outlives its host, cannot make it hang or crash, and gets
// nothing of its environment but a short list.
package pluginlink
