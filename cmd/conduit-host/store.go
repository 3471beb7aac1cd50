package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/auth/boltstore"
	"github.com/elemental-conduit/conduit/internal/config"
)

// storeKeys are the keys that say which store a command works on, and how.
//
//nolint:gochecknoglobals // a table, never changed
var storeKeys = []string{"data_dir", "auth.store", "auth.session_timeout"}

// addStoreFlags gives a command what it needs, beside the global flags, to find the
// store that serve has with the same configuration.
func (a *app) addStoreFlags(cmd *cobra.Command) {
	a.addKeyFlags(cmd, func(k *config.Key) bool { return k.Name == "data_dir" || k.Name == "auth.store" })
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
		if bad := auditCommand(c.StorePath(), r); bad != nil {
			a.warn("no record was made of this in %s.audit: %v", c.StorePath(), bad)
		}
		return err
	})
}

// openStore opens the store that the configuration names.
func openStore(ctx context.Context, c *config.Config, create bool) (*boltstore.Store, error) {
	path := c.StorePath()
	if create {
		// The data directory is made for whoever comes first; any other is the
		// operator's, who would not want a misspelt one made.
		if dir := filepath.Dir(path); filepath.Clean(dir) == filepath.Clean(c.String("data_dir")) {
			if err := os.MkdirAll(dir, 0o750); err != nil {
				return nil, configf("data_dir: it cannot be made: %v; name another directory with --data-dir", err)
			}
		}
	} else if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, configf("auth.store: there is no %s; an instance makes it when it starts, and so does `conduit-host user add`; say where it is with --auth-store or --data-dir, as for serve", path)
	}
	return boltstore.Open(ctx, path, boltstore.Options{MustExist: !create})
}
