package auth

import "github.com/elemental-conduit/conduit"

// Principal is who a link belongs to, or as whom a call runs.
type Principal struct {
	// User names it: a user's name, "element:<deployment>" or
	// "operator:<instance>"; empty for anonymous.
	User  string
	Level conduit.Level
}

// denied is the error of a principal that cannot be established. Nothing has
// been started when one is returned, so its outcome is Refused.
func denied(format string, args ...any) *conduit.Error {
	return refusal(conduit.Unauthenticated, conduit.ReasonUnauthenticated, format, args...)
}

// refusal is an error of this package. Nothing has been started when one is
// returned, so its outcome is Refused.
func refusal(code conduit.Code, reason, format string, args ...any) *conduit.Error {
	e := conduit.Errorf(code, reason, conduit.Refused, format, args...)
	e.Op = "auth"
	return e
}

func badUser(format string, args ...any) *conduit.Error {
	return refusal(conduit.InvalidArgument, conduit.ReasonBadUser, format, args...)
}
