package main

import (
	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"
)

// tellManager tells systemd how the instance is, where it was started by a unit of
// Type=notify. Anywhere else there is nobody to tell.
func tellManager(log hclog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("systemd could not be told", "state", state, "error", err)
	}
}
