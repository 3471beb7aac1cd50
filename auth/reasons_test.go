package auth_test

import (
	"errors"
	"testing"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/auth/authtest"
)

// TestReasonsOfAccounts provokes the reasons of those who keep users and sessions.
func TestReasonsOfAccounts(t *testing.T) {
	a := auth.NewAccounts(auth.AccountsOptions{Store: authtest.NewMemory(), Hasher: auth.NewHasher(authtest.Cheap, 1)})
	ctx, password := t.Context(), []byte("correct horse battery")
	if _, err := a.AddUser(ctx, "ada", conduit.User, password); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		reason string
		code   conduit.Code
		do     func() error
	}{
		{conduit.ReasonUserExists, conduit.AlreadyExists, func() error {
			_, err := a.AddUser(ctx, "ada", conduit.User, password)
			return err
		}},
		{conduit.ReasonBadUser, conduit.InvalidArgument, func() error {
			_, err := a.AddUser(ctx, "", conduit.User, password)
			return err
		}},
		{conduit.ReasonBadUser, conduit.FailedPrecondition, func() error {
			if err := a.SetDisabled(ctx, "ada", true); err != nil {
				return err
			}
			_, err := a.Mint(ctx, "ada", auth.MintOptions{})
			return err
		}},
		{conduit.ReasonUserNotFound, conduit.NotFound, func() error { return a.RemoveUser(ctx, "nobody") }},
		{conduit.ReasonSessionNotFound, conduit.NotFound, func() error { return a.Revoke(ctx, auth.SessionID{1}) }},
		{conduit.ReasonSessionNotFound, conduit.InvalidArgument, func() error {
			_, err := auth.ParseSessionID("short")
			return err
		}},
	} {
		err := c.do()
		e, ok := errors.AsType[*conduit.Error](err)
		if !ok || e.Reason != c.reason || e.Code != c.code || e.Outcome != conduit.Refused || e.Retryable || e.Message == "" {
			t.Errorf("%s: got %v", c.reason, err)
		}
	}
}
