package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/gateway"
	"github.com/elemental-conduit/conduit/internal/config"
)

// The gateway's server. There is no time for a whole request or answer: streams
// have none, and the gateway itself cuts off who stalls.
const (
	gatewayHeaderTimeout = 10 * time.Second
	gatewayIdleTimeout   = 2 * time.Minute
	gatewayHeaderBytes   = 32 << 10
)

// httpGateway is the instance's outward door over HTTP.
type httpGateway struct {
	server *http.Server
}

func (i *instance) serveGateway(l net.Listener) error {
	log := slogTo(i.log.Named("gateway"))
	o := gateway.Options{
		Locate:  func(addr string) conduit.Invoker { return i.counted(i.fabric.locator.At(addr)) },
		MaxBody: i.c.Size("gateway.max_body"),
		Timeout: i.c.Duration("cluster.call_timeout"),
		Origins: i.c.List("gateway.cors"),
		Log:     log,

		Authenticate: i.access.caller,
		Watch:        i.access.watch,
		AuthStore:    i.access.storeID(),
		Directory:    directory{i},
		Observe:      i.requestLog(),
	}
	if i.access.sessions != nil {
		o.Sessions = logins{i.access}
		if at, ok := l.Addr().(*net.TCPAddr); ok && !at.IP.IsLoopback() && !i.certs["gateway"].Serves() {
			i.log.Warn("gateway.listen is not loopback, and the gateway speaks plain HTTP: passwords, sessions and payloads can be read on the way; give it a certificate with --gateway-tls-cert and --gateway-tls-key, or put a proxy that speaks TLS before it")
		}
	}
	proxies, why := config.ParseNetworks(i.c.List("gateway.trusted_proxies"))
	if why != "" { // it was checked when it was read
		return configf("gateway.trusted_proxies: %s", why)
	}
	g, err := gateway.New(o)
	if err != nil {
		return configf("gateway: %v", err)
	}
	i.gateway = &httpGateway{server: &http.Server{
		Handler:           i.lastRequests(auth.Proxies(proxies).Mark(g)),
		ReadHeaderTimeout: gatewayHeaderTimeout,
		IdleTimeout:       gatewayIdleTimeout,
		MaxHeaderBytes:    gatewayHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}
	i.run("gateway listener", func() error {
		if err := i.gateway.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	return nil
}

// lastRequests closes, while the instance drains, each connection with its answer. Whoever
// goes on using one would send a request into its end, and not know what became of it.
func (i *instance) lastRequests(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if i.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// drain takes no more requests and waits for those under way, until ctx ends;
// then it cuts them off.
func (g *httpGateway) drain(ctx context.Context) error {
	err := g.server.Shutdown(ctx)
	if err != nil {
		_ = g.server.Close()
	}
	return err
}
