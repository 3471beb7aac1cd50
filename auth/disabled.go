package auth

import (
	"net/http"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
)

// Disabled is auth.mode: disabled: everybody is superuser, whatever they say.
// Whoever uses it must listen on loopback only, and warn.
//
// All methods may be called concurrently.
type Disabled struct{}

// disabledUser is the name that everybody has.
const disabledUser = "anyone"

// Authenticate returns who opens a link. Credentials are not looked at.
func (Disabled) Authenticate(*http.Request) (Principal, error) { return everybody(), nil }

// Resolve returns as whom a call runs: superuser. The parameters are those that
// the rule of [ResolveAs] needs; none counts.
func (Disabled) Resolve(_ string, _ conduit.Level, _ bool, _ *frame.AsWhom) (Principal, *conduit.Error) {
	return everybody(), nil
}

func everybody() Principal { return Principal{User: disabledUser, Level: conduit.Superuser} }
