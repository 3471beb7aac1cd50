//go:build !linux

package transport

import (
	"net"
	"time"
)

// hasUserTimeout says that there is a TCP_USER_TIMEOUT.
const hasUserTimeout = false

// setUserTimeout does nothing here: only Linux has the option. The link's own
// probes and the write timeout find a dead peer all the same.
func setUserTimeout(*net.TCPConn, time.Duration) error { return nil }
