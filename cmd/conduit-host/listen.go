package main

import (
	"context"
	"errors"
	"net"
	"strconv"
	"syscall"

	"github.com/elemental-conduit/conduit/internal/config"
)

// portsTried is how many ports a default one may move up: it stays below the next
// default, so that instances do not take each other's.
const portsTried = 64

// listen opens the listener of a key. A port that was asked for is that port or
// none: who asked for it told others. A default one that is taken moves to the
// next that is free, so that a second instance just runs.
func listen(ctx context.Context, c *config.Config, key string) (net.Listener, error) {
	v := c.Value(key)
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", v.Text)
	if err == nil {
		return l, nil
	}
	taken := errors.Is(err, syscall.EADDRINUSE)
	if taken && !c.IsSet(key) {
		host, service, splitErr := net.SplitHostPort(v.Text)
		port, atoiErr := strconv.Atoi(service)
		if splitErr != nil || atoiErr != nil {
			return nil, errors.Join(splitErr, atoiErr)
		}
		for next := port + 1; next < port+portsTried; next++ {
			if l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(next))); err == nil {
				return l, nil
			}
		}
		return nil, configf("%s: %s and the %d ports after it are taken; name a free one with --%s, or %s to take any", key, v.Text, portsTried-1, v.Key.Flag(), net.JoinHostPort(host, "0"))
	}
	if taken {
		return nil, configf("%s: %s is in use by another process; stop that, or name another port with --%s", key, v.Text, v.Key.Flag())
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err
	}
	return nil, configf("%s: cannot listen on %s: %v; name another address with --%s", key, v.Text, err, v.Key.Flag())
}
