package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/auth/boltstore"
	"github.com/elemental-conduit/conduit/auth/etcdstore"
	"github.com/elemental-conduit/conduit/internal/certs"
	"github.com/elemental-conduit/conduit/internal/config"
)

// storeKeys are the keys that say which store a command works on, and how.
//
//nolint:gochecknoglobals // a table, never changed
var storeKeys = []string{
	"data_dir", "auth.store", "auth.etcd.user", "auth.etcd.password_file", "auth.etcd.tls.ca", "auth.etcd.tls.cert", "auth.etcd.tls.key", "auth.etcd.insecure",
	"auth.session_timeout",
}

// isStoreKey says whether a key names the store that a command works on.
func isStoreKey(k *config.Key) bool {
	return k.Name != "auth.session_timeout" && slices.Contains(storeKeys, k.Name)
}

// addStoreFlags gives a command what it needs, beside the global flags, to find the
// store that serve has with the same configuration.
func (a *app) addStoreFlags(cmd *cobra.Command) {
	a.addKeyFlags(cmd, isStoreKey)
}

// withAccounts runs a command on the auth store itself, whether or not an instance
// runs. With create, a store that is not there is made.
func (a *app) withAccounts(ctx context.Context, create bool, do func(ctx context.Context, accounts *auth.Accounts) error) error {
	ctx, stop := interruptible(ctx)
	defer stop()
	c, err := a.loadConfig()
	if err := only(err, storeKeys...); err != nil {
		return err
	}
	store, err := openStore(ctx, c, create)
	if err != nil {
		return blame(ctx, err)
	}
	defer store.Close() //nolint:errcheck // nothing is open between two operations
	accounts := auth.NewAccounts(auth.AccountsOptions{
		Store: store, Hasher: auth.NewHasher(auth.PasswordCost{}, 1), Life: c.Duration("auth.session_timeout"),
	})
	return blame(ctx, do(ctx, accounts))
}

// changeAccounts is withAccounts for a command that changes something, with a record of
// it: do completes the one that it is given.
func (a *app) changeAccounts(ctx context.Context, create bool, r auditRecord, do func(ctx context.Context, accounts *auth.Accounts, r *auditRecord) error) error {
	return a.withAccounts(ctx, create, func(ctx context.Context, accounts *auth.Accounts) error {
		err := do(ctx, accounts, &r)
		r.result = auditResult(err)
		c, bad := a.loadConfig()
		if bad := only(bad, storeKeys...); bad != nil {
			return errors.Join(err, bad)
		}
		if path, bad := auditPath(c); bad != nil {
			a.warn("no record was made of this in %s: %v", path, bad)
		} else if bad := auditCommand(path, r); bad != nil {
			a.warn("no record was made of this in %s: %v", path, bad)
		}
		return err
	})
}

// auditPath is the file that records what commands do: beside a store that is a file; of
// one in etcd, in the data directory of the machine that the command runs on.
func auditPath(c *config.Config) (string, error) {
	if !c.InEtcd() {
		return c.StorePath() + ".audit", nil
	}
	path := filepath.Join(c.String("data_dir"), "auth-etcd.audit")
	return path, makeDataDir(c)
}

func makeDataDir(c *config.Config) error {
	if err := os.MkdirAll(c.String("data_dir"), 0o750); err != nil {
		return configf("data_dir: it cannot be made: %v; name another directory with --data-dir", err)
	}
	return nil
}

// openStore opens the store that the configuration names.
func openStore(ctx context.Context, c *config.Config, create bool) (auth.Store, error) {
	if c.InEtcd() {
		return openEtcd(ctx, c, create)
	}
	path := c.StorePath()
	if create {
		// The data directory is made for whoever comes first; any other is the
		// operator's, who would not want a misspelt one made.
		if dir := filepath.Dir(path); filepath.Clean(dir) == filepath.Clean(c.String("data_dir")) {
			if err := makeDataDir(c); err != nil {
				return nil, err
			}
		}
	} else if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, configf("auth.store: there is no %s; an instance makes it when it starts, and so does `conduit-host user add`; say where it is with --auth-store or --data-dir, as for serve", path)
	}
	s, err := boltstore.Open(ctx, path, boltstore.Options{MustExist: !create})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// openEtcd opens a store in etcd.
func openEtcd(ctx context.Context, c *config.Config, create bool) (auth.Store, error) {
	o := etcdstore.Options{User: c.String("auth.etcd.user"), MustExist: !create}
	o.Endpoints, o.Prefix = c.Etcd()
	var err error
	if o.Password, err = etcdPassword(c, os.Getenv); err != nil {
		return nil, err
	}
	if c.EtcdTLS() {
		if o.TLS, err = etcdTLS(c); err != nil {
			return nil, err
		}
	}
	s, err := etcdstore.Open(ctx, o)
	switch {
	case errors.Is(err, etcdstore.ErrNone):
		return nil, configf("auth.store: %s, with the --auth-store of serve", conduit.AsError(err, conduit.NotSent).Message)
	case err != nil:
		return nil, err
	}
	return s, nil
}

// etcdTLS reads the files of auth.etcd.tls. The certificate to show is read again for each
// connection, so that a renewed one is shown without a restart.
func etcdTLS(c *config.Config) (*tls.Config, error) {
	k, err := certs.Open(certs.Files{CA: c.String("auth.etcd.tls.ca"), Cert: c.String("auth.etcd.tls.cert"), Key: c.String("auth.etcd.tls.key")})
	if err != nil {
		return nil, configf("auth.etcd.tls.*: %v", err)
	}
	t := k.Client()
	if len(t.Certificates) > 0 {
		t.Certificates = nil
		t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			_, _ = k.Reload() // half written files leave it as it was
			return &k.Client().Certificates[0], nil
		}
	}
	return t, nil
}

// maxEtcdPassword bounds what is read for one, in bytes.
const maxEtcdPassword = 4 << 10

// etcdPassword is the password of auth.etcd.user. Errors hold nothing of it.
func etcdPassword(c *config.Config, environ func(string) string) (auth.Sealed, error) {
	user, path := c.String("auth.etcd.user"), c.String("auth.etcd.password_file")
	text := environ(config.EtcdPasswordEnv)
	switch {
	case text != "" && path != "":
		return auth.Sealed{}, configf("auth.etcd.password_file: %s has a password as well; leave out one of the two", config.EtcdPasswordEnv)
	case text != "" && user == "":
		return auth.Sealed{}, configf("auth.etcd.user: %s has the password of nobody; name the user with --auth-etcd-user", config.EtcdPasswordEnv)
	case path != "":
		b, err := readPrivate(path, maxEtcdPassword)
		if err != nil {
			return auth.Sealed{}, configf("auth.etcd.password_file: %v", err)
		}
		text = strings.TrimRight(string(b), "\r\n")
	}
	if user != "" && text == "" {
		return auth.Sealed{}, configf("auth.etcd.user: there is no password of %q; give it in a file (--auth-etcd-password-file) or in %s", user, config.EtcdPasswordEnv)
	}
	return auth.Seal([]byte(text)), nil
}

// readPrivate reads a file that others may not.
func readPrivate(path string, most int64) ([]byte, error) {
	// A pipe would keep whoever opens it waiting.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no file", path)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s may be read or written by others (mode %04o); chmod 600 %s", path, info.Mode().Perm(), path)
	case info.Size() > most:
		return nil, fmt.Errorf("%s has %d bytes, which is no password", path, info.Size())
	}
	return io.ReadAll(io.LimitReader(f, most))
}
