package discovery

import (
	"context"

	"github.com/miekg/dns"
)

// SetExchange has an SRV ask a func rather than the network, so that tests can wait
// in a bubble.
func (s *SRV) SetExchange(f func(ctx context.Context, network, server string, q *dns.Msg) (*dns.Msg, error)) {
	s.exchange = f
}
