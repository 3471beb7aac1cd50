package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/elemental-conduit/conduit/internal/certs"
	"github.com/elemental-conduit/conduit/internal/config"
)

func (a *app) tlsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "tls",
		Short:   "Makes certificates for development",
		Example: "  conduit-host tls dev",
		Args:    cobra.ArbitraryArgs,
		RunE:    group,
	}
	cmd.AddCommand(a.tlsDevCommand())
	return cmd
}

// longestDevCert bounds --valid: some programs refuse certificates that last longer.
const longestDevCert = 397 * 24 * time.Hour

// devCerts are the files that tls dev has made.
type devCerts struct {
	CA     string    `json:"ca"`
	Cert   string    `json:"cert"`
	Key    string    `json:"key"`
	Hosts  []string  `json:"hosts"`
	Ends   time.Time `json:"ends"`
	NewCA  bool      `json:"new_ca"`
	Serves []string  `json:"serve_flags"`
	Calls  []string  `json:"call_flags"`
}

func (a *app) tlsDevCommand() *cobra.Command {
	var dir, valid string
	var hosts []string
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Makes a development CA, and a certificate for this machine",
		Long: `Makes a certificate authority for development in <data_dir>/tls, unless it is there
already, and a certificate by it for this machine: for localhost, the loopback
addresses, this machine's name, the instance's name and every --host. Run it again to
renew the certificate; a running instance takes it over by itself.

Whoever holds ca-key.pem can make certificates that all who trust ca.pem believe. It
is for development: a cluster that matters has certificates from elsewhere.`,
		Example: "  conduit-host tls dev\n" +
			"  conduit-host tls dev --host box.lan --host 192.168.1.20 --valid 2160h",
		Args: takes(0, 0, ""),
		RunE: func(*cobra.Command, []string) error { return a.tlsDev(dir, hosts, valid) },
	}
	cmd.Flags().StringVar(&dir, "dir", "", "where the files go (default <data_dir>/tls)")
	cmd.Flags().StringSliceVar(&hosts, "host", nil, "a name or address more that the certificate is for (repeatable)")
	cmd.Flags().StringVar(&valid, "valid", "2160h", "how long the certificate lasts")
	a.addKeyFlags(cmd, func(k *config.Key) bool { return k.Name == "data_dir" || k.Name == "name" })
	return cmd
}

func (a *app) tlsDev(dir string, hosts []string, valid string) error {
	life, why := config.ParseDuration(valid)
	switch {
	case why != "":
		return usagef("--valid: %q %s", valid, why)
	case life < time.Minute || life > longestDevCert:
		return usagef("--valid: %q is not between 1m and %v", valid, longestDevCert)
	}
	c, err := a.loadConfig()
	if err := only(err, "data_dir", "name"); err != nil {
		return err
	}
	for _, h := range hosts {
		if h == "" || len(h) > 253 || slices.ContainsFunc([]rune(h), func(r rune) bool { return r <= ' ' || r > '~' || r == '/' }) {
			return usagef("--host: %q is neither a DNS name nor an IP address; give it without scheme and port", h)
		}
	}
	if dir == "" {
		dir = filepath.Join(c.String("data_dir"), "tls")
	}
	all := []string{"localhost", "127.0.0.1", "::1", c.String("name")}
	if h, err := os.Hostname(); err == nil && h != "" {
		all = append(all, h)
	}
	for _, h := range hosts {
		if !slices.Contains(all, h) {
			all = append(all, h)
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	now := time.Now()
	isNew, err := certs.Dev{Dir: dir, Hosts: all, Life: life, Now: now}.Make()
	if err != nil {
		return configf("tls dev: %v", err)
	}
	v := devCerts{
		CA: filepath.Join(dir, certs.DevCA), Cert: filepath.Join(dir, certs.DevCert), Key: filepath.Join(dir, certs.DevKey),
		Hosts: all, Ends: now.Add(life).UTC().Truncate(time.Second), NewCA: isNew,
	}
	v.Serves = []string{"--cluster-tls-cert", v.Cert, "--cluster-tls-key", v.Key, "--cluster-tls-ca", v.CA}
	v.Calls = []string{"--cluster-tls-ca", v.CA}
	return a.print(v, func(w io.Writer) {
		valueLine(w, "authority", v.CA)
		valueLine(w, "certificate", v.Cert)
		valueLine(w, "key", v.Key)
		for _, h := range all {
			valueLine(w, "for", h)
		}
		valueLine(w, "until", v.Ends.Format(time.RFC3339))
		fmt.Fprintln(w)
		valueLine(w, "serve with", strings.Join(v.Serves, " "))
		valueLine(w, "call with", strings.Join(v.Calls, " "))
	})
}
