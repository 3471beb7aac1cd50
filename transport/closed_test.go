package transport

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
)

// TestIdleLinkIsLost: of a link that something on the way cuts while it is idle, the
// log says for how long nothing came, and what to look at. Of others it says no such
// thing.
func TestIdleLinkIsLost(t *testing.T) {
	for _, test := range []struct {
		name string
		end  link.CloseCode
		call bool
		told bool
	}{
		{"idle", link.CloseAbnormal, false, true},
		{"in order", link.CloseDone, false, false},
		{"a call is under way", link.CloseAbnormal, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := link.Pipe(16)
				var log logBuffer
				var conn *link.Conn
				over := make(chan struct{})
				conn = link.New(ours, link.Options{Dialer: true, OnClose: func(err error) {
					logClosed(log.logger(), conn, err, "peer", "ws://p")
					close(over)
				}})
				e := newEcho()
				other := link.New(theirs, link.Options{Handler: e})
				if err := conn.Ready(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(47 * time.Second) // pings are answered after 20 and 40
				if test.call {
					x := conn.Invoke(t.Context(), link.NewRoute(address.MustParse("*://echo/echo/test.Echo")), &conduit.Invocation{Method: "Wait", Last: true})
					defer x.Cancel(nil)
					<-e.started
				}
				_ = theirs.Close(test.end, "")
				<-over
				<-other.Done()
				told := strings.Contains(log.String(), "level=INFO") && strings.Contains(log.String(), "idle=47s silent=7s") &&
					strings.Contains(log.String(), "cluster.ping_interval") && strings.Contains(log.String(), "ws://p")
				if told != test.told || !told && !strings.Contains(log.String(), "level=DEBUG") {
					t.Errorf("%s", log.String())
				}
			})
		})
	}
}
