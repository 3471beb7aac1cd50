package gateway

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
)

const (
	callPrefix = "/v1/call/"
	callForm   = callPrefix + "{deployment}/{element}/{service}/{method}"

	// maxMethodName is how long a method's name can be.
	maxMethodName = 128
)

// Headers of our own.
const (
	headerTimeout     = "Conduit-Timeout"
	headerContentType = "Conduit-Content-Type"
	headerAuthStore   = "Conduit-Auth-Store"
	headerTraceID     = "Conduit-Trace-Id"
)

// route is what a request calls.
type route struct {
	addr   address.Address
	method string
	// parts says that the messages of further result handlers are wanted, too.
	parts bool
}

// parseRoute reads the path behind /v1/call/ as it came, still encoded. Each
// segment is decoded once and must be one part of an address: nothing is cleaned
// up, so no other path means the same.
func parseRoute(rest string) (route, *fault) {
	segments := strings.Split(rest, "/")
	if len(segments) != 4 {
		return route{}, refuse(http.StatusNotFound, conduit.NotFound, reasonPath, "the path of a call is %s", callForm)
	}
	for i, s := range segments {
		var err error
		if segments[i], err = url.PathUnescape(s); err != nil {
			return route{}, badAddress("the path is not well encoded: %s", err)
		}
		if strings.Contains(segments[i], "/") {
			return route{}, badAddress(`a segment of the path has a "/" in it, which no name can have`)
		}
	}
	a, err := address.Parse("*://" + strings.Join(segments[:3], "/"))
	if err != nil {
		return route{}, badAddress("%s", err)
	}
	if why := checkMethod(segments[3]); why != "" {
		return route{}, badAddress("the method's name %s", why)
	}
	return route{addr: a, method: segments[3]}, nil
}

// checkMethod holds a name to the grammar that authors are held to.
func checkMethod(name string) (why string) {
	if name == "" {
		return "is empty"
	}
	if len(name) > maxMethodName {
		return "has more than " + strconv.Itoa(maxMethodName) + " bytes"
	}
	for i, r := range name {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_'
		if !letter && (i == 0 || (r < '0' || r > '9') && r != '.' && r != '-') {
			return "must be a letter followed by letters, digits, '_', '.' and '-'"
		}
	}
	return ""
}

// readQuery reads what stands behind the "?". What it does not know it refuses: a
// misspelt "instance" would call any.
func (t *route) readQuery(raw string) *fault {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return badRequest("the query is not well encoded")
	}
	for name, values := range query {
		if len(values) != 1 {
			return badRequest("the query has %d values for one name", len(values))
		}
		switch v := values[0]; name {
		case "instance":
			_, rest, _ := strings.Cut(t.addr.String(), "://")
			a, err := address.Parse(v + "://" + rest)
			if err != nil {
				return badAddress("%s", err)
			}
			t.addr = a
		case "parts":
			if t.parts, err = strconv.ParseBool(v); err != nil {
				return badRequest("parts is 1 or 0")
			}
		default:
			return badRequest("the query has a name that is neither instance nor parts")
		}
	}
	return nil
}

// timeoutOf reads the client's deadline; 0 = it has none.
func timeoutOf(h http.Header) (time.Duration, *fault) {
	switch list := h.Values(headerTimeout); len(list) {
	case 0:
		return 0, nil
	case 1:
		if d, err := time.ParseDuration(list[0]); err == nil && d > 0 {
			return d, nil
		}
	}
	return 0, badRequest("%s is one duration above zero with a unit, such as 1500ms", headerTimeout)
}
