package link

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/elemental-conduit/conduit/internal/frame"
)

// The numbers that docs/protocol.md tells others are those of the code.
func TestProtocolPage(t *testing.T) {
	raw, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	for _, want := range []string{
		fmt.Sprintf("| `max_message` | %d | 1 |", DefaultMaxMessage),
		fmt.Sprintf("| `max_packet` | %d | %d |", DefaultMaxPacket, minPacket),
		fmt.Sprintf("| `max_calls` | %d | 1 |", DefaultMaxCalls),
		fmt.Sprintf("| `link_credit` | %d | %d |", DefaultLinkCredit, minLinkCredit),
		fmt.Sprintf("| `call_credit` | %d | %d |", DefaultRequestCredit, minCallCredit),
		fmt.Sprintf("must not take more than %d bytes encoded; a caller that others pass on should keep to %d", maxInvoke, maxHeader),
		fmt.Sprintf("an Invoke with over %d bytes beside its payload", maxInvoke),
		fmt.Sprintf("ours are %d at most", chunk),
		fmt.Sprintf("It is at most %d bytes", maxName),
		fmt.Sprintf("a content type over %d bytes", maxName),
		fmt.Sprintf("A Failure should take no more than %d bytes", maxFailure),
		fmt.Sprintf("a quarter of its `link_credit` or %d bytes are due", creditAlone),
		fmt.Sprintf("`len(bytes) + %d`", dataCost),
		fmt.Sprintf("we ask for %d, less when memory is short, never below\n%d, and take nothing below %d", DefaultReplyCredit, minWindow, dataCost+1),
		fmt.Sprintf("at once the %d of each piece", dataCost),
		fmt.Sprintf("above the window less %d", 2*dataCost),
		fmt.Sprintf("a reply credit below %d", dataCost+1),
		fmt.Sprintf("has %d bytes of payload or less", smallFrame),
		fmt.Sprintf("after %d bytes of small frames", 7*chunk),
		fmt.Sprintf("a short reason (%d bytes at most", maxReason),
		fmt.Sprintf("no Hello after %d s", int(DefaultHelloTimeout.Seconds())),
		fmt.Sprintf("has read nothing for %d s sends a ping each second; any other, each %d s", int(DefaultProbeInterval.Seconds()), int(DefaultPingInterval.Seconds())),
		fmt.Sprintf("%d s after the first ping", int(DefaultDeadAfter.Seconds())),
		fmt.Sprintf("keep the link from being read for %d s, which it gets back at a tenth", int(stallMost.Seconds())),
		fmt.Sprintf("the receiver's `max_message` and %d bytes", packetRoom),
		fmt.Sprintf("| %d (`cluster.link_memory`) |", DefaultLinkMemory),
		fmt.Sprintf("| %d (`cluster.memory`) |", DefaultMemory),
		fmt.Sprintf("chains of over %d entries", frame.MaxChain),
		fmt.Sprintf("This page is version %d.", Version),
	} {
		if !strings.Contains(page, want) {
			t.Errorf("docs/protocol.md does not say %q", want)
		}
	}
	for _, code := range []CloseCode{CloseDone, CloseGoingAway, CloseProtocol, CloseText, CloseAuth, CloseTooBig, CloseBug, CloseTryLater} {
		if !strings.Contains(page, fmt.Sprintf("| %d | ", code)) {
			t.Errorf("docs/protocol.md does not list close code %d", code)
		}
	}
}
