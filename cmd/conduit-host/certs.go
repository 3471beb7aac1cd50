package main

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/internal/certs"
	"github.com/elemental-conduit/conduit/internal/config"
)

const (
	// certsEvery is how often the files of certificates are looked at: what renews them
	// need not know how to send a signal.
	certsEvery = 30 * time.Second
	// expiresSoon is from when on it is warned of a certificate's end, once a day.
	expiresSoon = 7 * 24 * time.Hour
)

// tlsDoors are the listeners that can speak TLS, by the first part of their keys.
func tlsDoors() []string { return []string{"cluster", "gateway", "ops"} }

// certificates are the keepers of an instance, by the first part of the keys that name
// their files.
type certificates map[string]*keptCerts

type keptCerts struct {
	*certs.Keeper
	broken bool // the files did not make sense when they were read last
	warned time.Time
}

// openCerts reads the files that the configuration names.
func openCerts(c *config.Config) (certificates, error) {
	cs := certificates{}
	for _, door := range tlsDoors() {
		k, err := openCertsOf(c, door)
		if err != nil {
			return nil, err
		}
		cs[door] = &keptCerts{Keeper: k}
	}
	return cs, nil
}

// openCertsOf reads the files of one listener's keys, and with those of the cluster's
// what is needed to dial.
func openCertsOf(c *config.Config, door string) (*certs.Keeper, error) {
	prefix := door + ".tls."
	f := certs.Files{Cert: c.String(prefix + "cert"), Key: c.String(prefix + "key")}
	if door == "cluster" {
		f.ClientCA, f.CA = c.String(prefix+"client_ca"), c.String(prefix+"ca")
	}
	k, err := certs.Open(f)
	if err != nil {
		return nil, configf("%s*: %v", prefix, err)
	}
	return k, nil
}

// wrap has a listener speak TLS if there is a certificate for it, and says whether it
// does.
func (cs certificates) wrap(door string, l net.Listener) (net.Listener, bool) {
	k := cs[door]
	if k == nil || !k.Serves() {
		return l, false
	}
	return tls.NewListener(l, k.Server()), true
}

// readCerts reads the files again: links and requests that are open go on as they are,
// new ones go by what the files say now. It is for one goroutine at a time.
func (i *instance) readCerts(now time.Time) {
	for _, door := range tlsDoors() {
		k := i.certs[door]
		changed, err := k.Reload()
		switch {
		case err != nil && !k.broken: // it may be half written: the next look tells
			i.log.Warn("certificates: what was read before holds on", "listener", door, "error", err)
		case changed:
			i.log.Info("certificates were read again", "listener", door)
			k.warned = time.Time{}
		}
		k.broken = err != nil
		if at := k.Expires(); !at.IsZero() && at.Sub(now) < expiresSoon && now.Sub(k.warned) > 24*time.Hour {
			k.warned = now
			i.log.Warn("a certificate ends soon, or has ended; whoever checks it will refuse this instance", "listener", door, "ends", at.UTC().Format(time.RFC3339))
		}
	}
}

// keepCerts reads the files of certificates again, from time to time and when it is
// asked to, until ctx ends.
func (i *instance) keepCerts(ctx context.Context) {
	tick := time.NewTicker(certsEvery)
	defer tick.Stop()
	for {
		i.readCerts(time.Now())
		select {
		case <-tick.C:
		case <-i.rereadCerts:
		case <-ctx.Done():
			return
		}
	}
}

// certified holds who comes with an instance's session to the certificate that it was
// asked for: one that is another's, however good, does not speak for it.
func certified(r *http.Request, g auth.Grant) error {
	if g.Instance.IsZero() || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil
	}
	name := strings.TrimPrefix(g.User, auth.InstancePrefix)
	if err := r.TLS.PeerCertificates[0].VerifyHostname(name); err != nil {
		return conduit.Errorf(conduit.Unauthenticated, conduit.ReasonUnauthenticated, conduit.Refused,
			"the session is of the instance %s, and the certificate is not: give that instance one with its name among the DNS names", name)
	}
	return nil
}

// dialTLS is how the command line dials --peer: with the keys cluster.tls.ca, cert and
// key. nil = as the system has it.
func (a *app) dialTLS() (*tls.Config, error) {
	keys := dialKeys()
	c, err := config.Load(config.Sources{File: a.configFile, Environ: a.environ, Flags: &a.keys, Machine: config.ThisMachine(false)})
	if err := only(err, keys...); err != nil {
		return nil, err
	}
	named := false
	for _, key := range keys {
		named = named || c.String(key) != ""
	}
	if !named {
		return nil, nil //nolint:nilnil // nothing is wished for
	}
	k, err := openCertsOf(c, "cluster")
	if err != nil {
		return nil, err
	}
	return k.Client(), nil
}
