package transport

import (
	"errors"
	"log/slog"
	"time"

	"github.com/elemental-conduit/conduit/internal/link"
)

// worthTelling is for how long nothing may have come on a link before its loss is
// put down to that: less, and something else has ended it.
const worthTelling = time.Second

// logClosed says that a link has ended. One that was lost while it had no call is
// worth more than a word at debug level: nobody else hears of it, and what cuts
// links that are silent cuts all of them. l is nil if the link ended at once.
func logClosed(log *slog.Logger, l *link.Conn, err error, about ...any) {
	about = append(about, "error", err)
	closed, ok := errors.AsType[*link.CloseError](err)
	if inOrder := ok && closed.Code != link.CloseAbnormal; l == nil || err == nil || inOrder {
		log.Debug("link closed", about...)
		return
	}
	since, _ := l.IdleSince() // had there been calls, they would have ended just now
	idle, silent := time.Since(since), time.Since(l.Stats().Heard)
	if idle < worthTelling || silent < worthTelling {
		log.Debug("link closed", about...)
		return
	}
	about = append(about, "idle", idle.Round(time.Millisecond).String(), "silent", silent.Round(time.Millisecond).String(),
		"hint", "if other links end after the same silence, a proxy or firewall on the way cuts idle connections: let it wait longer, or set cluster.ping_interval below its limit")
	log.Info("an idle link was lost", about...)
}
