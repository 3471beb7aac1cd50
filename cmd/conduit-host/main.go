// Command conduit-host is an instance of Elemental Conduit, and the command line
// for calling one. `conduit-host --help` lists what it can do; docs/cli.md and
// docs/configuration.md say more.
//
// This is the one place where the packages of the module meet: flags and
// configuration (internal/config), the cluster endpoint (transport), plugins
// (host), the ops listener (internal/ops), signals and exit statuses.
package main

import (
	"os"

	"github.com/elemental-conduit/conduit/host"
)

// version is what the build says it is; the Makefile sets it.
var version = "dev"

func main() {
	host.SandboxEntry() // first: here this process may turn out to be a plugin's that is to confine itself
	a := &app{
		stdin:   os.Stdin,
		stdout:  os.Stdout,
		stderr:  os.Stderr,
		environ: os.Environ(),
		dial:    dialPeers,
	}
	os.Exit(a.run(os.Args[1:]))
}
