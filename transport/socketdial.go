package transport

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
)

// DialSocket makes a link to the instance whose management socket has this path.
// The token is that of the file beside the socket. It returns once the instance
// has taken the token, or an *conduit.Error, with outcome not_sent, that says
// what to do: no instance runs there, this user may not connect, the token is
// another instance's. ctx bounds all of it.
//
// o is the template of the link's options, as ClientOptions.Link is. The caller
// owns the link and closes it.
func DialSocket(ctx context.Context, path string, token []byte, o link.Options) (*link.Conn, error) {
	if len(token) == 0 {
		return nil, socketError(path, conduit.Unauthenticated, conduit.ReasonUnauthenticated, nil,
			"the token is empty; it is in the file beside the socket")
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, explainSocket(ctx, path, err)
	}
	o.Dialer, o.Duplex, o.Handler = true, false, nil
	o.Hello.Token = token
	if o.Peer.Name == "" {
		o.Peer.Name = path
	}
	if o.Op == "" {
		o.Op = "management"
	}
	c := newSocketCarrier(conn, o.Hello.MaxPacket, 0)
	c.reading.Lock() // until the knock is in the queue, so that a refusal of the link finds it there
	l := link.New(c, o)
	x := knock(ctx, l)
	c.reading.Unlock()
	if err := answered(ctx, l, x); err != nil {
		l.Close(link.CloseDone, "not let in")
		select {
		case <-l.Done():
		case <-ctx.Done(): // it ends by itself, a second later at most
		}
		return nil, explainKnock(ctx, path, err)
	}
	return l, nil
}

// knock asks the other end for something that no handler serves. A Hello that is
// accepted is not answered: but if this is, by whatever error, the link was
// accepted.
func knock(ctx context.Context, l *link.Conn) conduit.Exchange {
	route := link.NewRoute(address.MustParse("*://conduit/conduit/conduit.v1.Door"))
	return l.Invoke(ctx, route, &conduit.Invocation{Method: "Knock", Last: true})
}

// answered waits until the other end has judged this end's Hello.
func answered(ctx context.Context, l *link.Conn, x conduit.Exchange) *conduit.Error {
	_, err := x.Recv(ctx)
	switch {
	case ctx.Err() != nil: // it may not have been an answer that ended the call
		return conduit.FromContext(ctx, conduit.NotSent)
	case l.Usable():
		return nil
	}
	x.Cancel(nil)
	return conduit.AsError(err, conduit.NotSent)
}

// explainKnock says why a link that could be made was of no use.
func explainKnock(ctx context.Context, path string, err *conduit.Error) *conduit.Error {
	switch {
	case ctx.Err() != nil:
		return socketError(path, conduit.Unavailable, conduit.ReasonPeerUnreachable, err,
			"the instance does not answer; is its process stopped?")
	case err.Code == conduit.FailedPrecondition && err.Reason == conduit.ReasonProtocol:
		// Both ends hold versions and limits against each other's, and this end
		// had no objection: what the other refuses is who dials.
		return socketError(path, conduit.Unauthenticated, conduit.ReasonUnauthenticated, err, "%s", err.Message)
	case err.Reason == conduit.ReasonDraining, err.Reason == conduit.ReasonOverloaded:
		e := socketError(path, err.Code, err.Reason, err, "the instance takes no link now: %s", err.Reason)
		e.Retryable, e.RetryAfter = true, err.RetryAfter
		return e
	}
	return socketError(path, conduit.Unavailable, conduit.ReasonPeerUnreachable, err,
		"what listens there is no instance, or one that ended: %s", err.Message)
}

// startOne is the command that starts the instance whose socket is not there.
func startOne(path string) string {
	command := "conduit-host serve --mode worker"
	if name, ok := strings.CutSuffix(filepath.Base(path), ".sock"); ok && name != "" {
		command += " --name " + name
	}
	return command
}

// explainSocket says why a socket cannot be connected to.
func explainSocket(ctx context.Context, path string, err error) *conduit.Error {
	why := err.Error()
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Err != nil {
		why = e.Err.Error()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		why = "no instance runs here: there is no such socket; `" + startOne(path) + "` starts one"
	case errors.Is(err, syscall.ECONNREFUSED):
		why = "no instance runs here: the one that made the socket is gone; `" + startOne(path) + "` starts one, and replaces it"
	case errors.Is(err, fs.ErrPermission):
		return socketError(path, conduit.PermissionDenied, reasonPermissionDenied, err,
			"this user may not open the socket; it is for the user that runs the instance")
	case ctx.Err() != nil, errors.Is(err, syscall.EAGAIN):
		why = "the instance takes no connection; is its process stopped?"
	}
	return socketError(path, conduit.Unavailable, conduit.ReasonPeerUnreachable, err, "%s", why)
}

func socketError(path string, code conduit.Code, reason string, cause error, format string, args ...any) *conduit.Error {
	return &conduit.Error{
		Code: code, Reason: reason, Outcome: conduit.NotSent,
		Message: path + ": " + fmt.Sprintf(format, args...), Op: "transport.socket", Err: cause,
	}
}
