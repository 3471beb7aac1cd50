package auth

import (
	"net/http"
	"strings"

	"github.com/elemental-conduit/conduit"
)

// The headers that a session's secret may come in.
const (
	HeaderAuthorization = "Authorization"
	HeaderSession       = "Elements-SessionSecret"
	// HeaderSessionOld is the original's older name of HeaderSession.
	HeaderSessionOld = "SocialEngine-SessionSecret"
	// SubProtocolPrefix precedes a secret among a browser's sub-protocols: its
	// WebSocket cannot set headers.
	SubProtocolPrefix = "conduit.session."
)

// maxSecret bounds a secret; a JSON Web Token is the longest there may be.
const maxSecret = 8 << 10

// Credential returns the session's secret that a request carries, or "" if it
// carries none: then the caller is anonymous, if that is allowed. A request that
// tries to carry one, and does so wrongly, is an error and never anonymous.
//
// A secret may stand in any of the headers; if it stands in several they must
// agree. As a sub-protocol it is read only from a request with an Origin, which
// whoever accepted the request has compared with its list, and refused without one. The errors, of code
// unauthenticated, quote nothing of the headers.
func Credential(h http.Header) (secret string, err error) {
	take := func(name string, read func(string) (string, *conduit.Error)) error {
		lines := h.Values(name)
		switch len(lines) {
		case 0:
			return nil
		case 1:
		default:
			return denied("the header %s comes %d times", name, len(lines))
		}
		s, bad := read(lines[0])
		if bad != nil {
			bad.Message = "the header " + name + " " + bad.Message
			return bad
		}
		if secret != "" && s != secret {
			return denied("the header %s holds another secret than a header before it", name)
		}
		secret = s
		return nil
	}
	if err := take(HeaderAuthorization, bearer); err != nil {
		return "", err
	}
	if err := take(HeaderSession, single); err != nil {
		return "", err
	}
	if err := take(HeaderSessionOld, single); err != nil {
		return "", err
	}
	return fromSubProtocols(h, secret)
}

// bearer reads the value of an Authorization header.
func bearer(value string) (string, *conduit.Error) {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(value), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", denied("is not of the form \"Bearer SECRET\", the only one that is read here")
	}
	return single(rest)
}

// single reads a value that is one secret. The original took overrides of user
// and profile behind it, and used them nowhere; here they are refused, so that
// nobody believes they count.
func single(value string) (string, *conduit.Error) {
	fields := strings.Fields(value)
	switch len(fields) {
	case 0:
		return "", denied("is empty")
	case 1:
	default:
		return "", denied("holds more than a secret: overrides of user and profile are not supported")
	}
	return check(fields[0])
}

// check says whether s may be a secret at all, before it costs a lookup.
func check(s string) (string, *conduit.Error) {
	if len(s) > maxSecret {
		return "", denied("holds %d bytes, the longest secret has %d", len(s), maxSecret)
	}
	word := false
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c > '~' {
			return "", denied("holds a byte that no secret has, at %d", i)
		}
		word = word || c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
	}
	if !word {
		return "", denied("holds no letter or digit")
	}
	return s, nil
}

// fromSubProtocols reads a browser's secret, unless a header has named one.
func fromSubProtocols(h http.Header, secret string) (string, error) {
	page := h.Get("Origin") != ""
	for _, line := range h.Values("Sec-Websocket-Protocol") {
		for p := range strings.SplitSeq(line, ",") {
			s, ok := strings.CutPrefix(strings.TrimSpace(p), SubProtocolPrefix)
			if !ok {
				continue
			}
			if !page {
				return "", denied("the sub-protocol %s... is for web pages, and the request has no Origin: send Authorization: Bearer SECRET", SubProtocolPrefix)
			}
			s, bad := check(s)
			switch {
			case bad != nil:
				bad.Message = "the sub-protocol " + SubProtocolPrefix + "... " + bad.Message
				return "", bad
			case secret != "" && s != secret:
				return "", denied("the request holds two secrets")
			}
			secret = s
		}
	}
	return secret, nil
}
