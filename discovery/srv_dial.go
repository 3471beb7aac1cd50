package discovery

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// dialStagger is how long an address may take before the next is tried beside it
// (RFC 8305).
const dialStagger = 250 * time.Millisecond

// A Dial opens a connection, as net.Dialer's DialContext does.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// Addresses returns the addresses of a host that is a peer, or nothing for other
// hosts and for those that were listed by address.
func (s *SRV) Addresses(host string) []netip.Addr {
	all := s.addresses.Load()
	if all == nil {
		return nil
	}
	return slices.Clone((*all)[strings.ToLower(strings.TrimSuffix(host, "."))])
}

// DialContext returns a Dial to the addresses that the source has found for its
// peers, one after the other or beside each other if they are slow; the first
// connection is returned, or else the first error. Other hosts go to next as they are.
//
// The system's resolver would do where it knows the targets. It does not where
// Servers are others than the system's, and it may take a target that is absolute for
// one to complete with a search domain.
func (s *SRV) DialContext(next Dial) Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return next(ctx, network, address)
		}
		addrs := s.Addresses(host)
		if len(addrs) == 0 {
			return next(ctx, network, address)
		}
		return dialFirst(ctx, network, port, addrs, next)
	}
}

// dialFirst has ended all attempts when it returns.
func dialFirst(ctx context.Context, network, port string, addrs []netip.Addr, dial Dial) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result, len(addrs))
	stagger := time.NewTimer(0)
	defer stagger.Stop()
	var first error
	for begun, ended := 0, 0; ended < len(addrs); {
		if begun == len(addrs) {
			stagger.Stop()
		}
		select {
		case <-stagger.C:
			address := net.JoinHostPort(addrs[begun].String(), port)
			begun++
			go func() {
				conn, err := dial(ctx, network, address)
				results <- result{conn, err}
			}()
			stagger.Reset(dialStagger)
		case r := <-results:
			ended++
			if r.err == nil {
				cancel()
				for ; ended < begun; ended++ {
					if late := <-results; late.err == nil {
						_ = late.conn.Close() // one is enough
					}
				}
				return r.conn, nil
			}
			if first == nil {
				first = r.err
			}
			if ctx.Err() != nil && ended == begun {
				return nil, first // the others would fail alike
			}
			stagger.Reset(0)
		}
	}
	return nil, first
}
