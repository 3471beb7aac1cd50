package auth

import (
	"strings"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/frame"
)

// Prefixes of the names that an instance may vouch for.
const (
	elementPrefix  = "element:"
	operatorPrefix = "operator:"
)

// SessionFunc returns whose a session is. It may block: who calls ResolveAs on a
// link's reader gives one that looks into a cache, and parks the call on a miss.
type SessionFunc func(secret []byte) (Principal, *conduit.Error)

// ResolveAs returns as whom a call runs, by the rules of design section 10:
//
//	as            on a link of level system       on any other link
//	unset         anonymous                       the link's principal
//	link          the link's principal, for       the link's principal
//	              deployment conduit only
//	session       the session's principal         the session's principal
//	anonymous     anonymous                       anonymous
//	vouched       the name that is vouched for,   refused
//	              at most superuser
//	anything else refused                         refused
//
// link is the principal of the link that the call came on, and system whether
// that link is another instance's. deployment is the called one, as the Invoke
// names it: a name or an id. A nil as is unset. The error is of code
// unauthenticated and outcome refused, and quotes no secret.
func ResolveAs(link Principal, system bool, deployment []byte, as *frame.AsWhom, session SessionFunc) (Principal, *conduit.Error) {
	kind := frame.AsUnset
	if as != nil {
		kind = as.Kind
	}
	if kind == frame.AsUnset {
		kind = frame.AsLink
		if system {
			kind = frame.AsAnonymous
		}
	}
	switch kind {
	case frame.AsAnonymous:
		return Principal{Level: conduit.Anonymous}, nil
	case frame.AsLink:
		if system && !isBuiltin(deployment) {
			return Principal{}, denied("an instance calls as itself only the deployment %q: say as whom the call runs", address.BuiltinDeployment)
		}
		return link, nil
	case frame.AsSession:
		if len(as.Session) == 0 {
			return Principal{}, denied("the call says that it runs as a session, and names none")
		}
		if session == nil {
			return Principal{}, denied("this instance knows no sessions")
		}
		return session(as.Session)
	case frame.AsVouched:
		return vouched(system, as)
	default: // AsCaller and AsSelf are said by plugins to their host only; enums are open
		return Principal{}, denied("as whom the call runs (kind %d) cannot be said on this link", kind)
	}
}

// vouched returns the principal that an instance vouches for.
func vouched(system bool, as *frame.AsWhom) (Principal, *conduit.Error) {
	if !system {
		return Principal{}, denied("only an instance may vouch for others")
	}
	name := string(as.Name)
	what, ok := strings.CutPrefix(name, elementPrefix)
	if !ok {
		what, ok = strings.CutPrefix(name, operatorPrefix)
	}
	if !ok || what == "" {
		return Principal{}, denied("an instance vouches for element:DEPLOYMENT or operator:INSTANCE, and for nobody else")
	}
	level := conduit.Level(as.Level)
	if level > conduit.System {
		return Principal{}, denied("level %d is none", as.Level)
	}
	return Principal{User: name, Level: min(level, conduit.Superuser)}, nil
}

// isBuiltin says whether an Invoke's deployment is that of the built-in
// services; "*" is not, since it may be any.
func isBuiltin(deployment []byte) bool {
	return string(deployment) == address.BuiltinDeployment ||
		strings.EqualFold(string(deployment), address.UniqueDeploymentID(address.BuiltinDeployment).String())
}
