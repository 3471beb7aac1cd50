package gateway

import (
	"context"
	"encoding/json"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/elemental-conduit/conduit"
)

const (
	sessionsPath = "/v1/sessions"
	currentPath  = sessionsPath + "/current"
	// maxLogin bounds the body of a login, in bytes.
	maxLogin = 8 << 10
)

// Sessions opens and ends sessions. Its methods are called from many goroutines at
// once. Their errors should be *conduit.Error, whose message the client gets to see.
type Sessions interface {
	// Login makes a session for whoever knows a user's name and password. The request
	// is given for the address that it came from; its body has been read.
	Login(ctx context.Context, r *http.Request, user string, password []byte) (Session, error)
	// Logout ends the session that the request carries.
	Logout(ctx context.Context, r *http.Request) error
}

// Session is what a client that logs in gets. It holds a secret: it is not printed.
type Session struct {
	Secret  string        `json:"secret"`
	User    string        `json:"user"`
	Level   conduit.Level `json:"level"`
	Expires time.Time     `json:"expires"`
}

// String hides the secret.
func (s Session) String() string { return "a session of " + s.User }

// GoString hides the secret.
func (s Session) GoString() string { return s.String() }

// methodOf is the HTTP method of a path, "" if there is nothing at it.
func (g *Gateway) methodOf(path string) string {
	switch {
	case strings.HasPrefix(path, callPrefix):
		return http.MethodPost
	case isDirectory(path):
		if g.o.Directory == nil {
			return ""
		}
		return http.MethodGet
	case g.o.Sessions == nil:
		return ""
	case path == sessionsPath:
		return http.MethodPost
	case path == currentPath:
		return http.MethodDelete
	}
	return ""
}

// login answers POST /v1/sessions.
func (q *request) login(ctx context.Context) *fault {
	// A form of some page cannot say that it is JSON.
	if bare, _, err := mime.ParseMediaType(q.r.Header.Get("Content-Type")); err != nil || bare != conduit.ContentJSON {
		return refuse(http.StatusUnsupportedMediaType, conduit.InvalidArgument, reasonMediaType, `a login is JSON, {"user": "...", "password": "..."}; say so with one Content-Type`)
	}
	if q.g.calls.Add(1) > int64(q.g.o.Concurrency) {
		q.g.calls.Add(-1)
		return overloaded("%d calls are under way, the gateway's limit", q.g.o.Concurrency)
	}
	defer q.g.calls.Add(-1)
	defer q.release()
	body, f := q.readBody(maxLogin)
	if f != nil {
		if f.err.Reason == conduit.ReasonPayloadTooLarge {
			f.err.Message = "the body of a login has more than 8 KiB"
		}
		return f
	}
	var in struct {
		User     *string `json:"user"`
		Password *string `json:"password"`
	}
	// What is wrong with the body is not said by quoting it.
	if err := json.Unmarshal(body, &in); err != nil || in.User == nil || in.Password == nil {
		return badRequest(`the body of a login is {"user": "...", "password": "..."}, both of them texts`)
	}
	s, err := q.g.o.Sessions.Login(ctx, q.r, *in.User, []byte(*in.Password))
	if err != nil {
		return q.foreign(ctx, "the login could not be checked", err, conduit.Refused)
	}
	return wrote(q.reply.answer(http.StatusCreated, conduit.ContentJSON, append(line(s), '\n'), nil)) // never compressed: it is a secret
}

// logout answers DELETE /v1/sessions/current.
func (q *request) logout(ctx context.Context) *fault {
	if err := q.g.o.Sessions.Logout(ctx, q.r); err != nil {
		return q.foreign(ctx, "the session could not be ended", err, conduit.OutcomeUnknown)
	}
	q.reply.begin(http.StatusNoContent)
	return nil
}
