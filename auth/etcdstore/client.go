package etcdstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/auth"
)

const (
	// keepAlive finds out about a connection that is silent because its other end is
	// gone. etcd ends the connections of those who ask more often than each five seconds.
	keepAlive     = 10 * time.Second
	keepAliveWait = 5 * time.Second
	// maxReconnect bounds the pause before a server that was lost is dialled again.
	maxReconnect = time.Second
	// lostAttempts is how often an operation is tried while no server can be reached at
	// all: whoever asks hears it soon, and may ask again.
	lostAttempts = 3
	firstPause   = 25 * time.Millisecond
	maxPause     = 250 * time.Millisecond
	// maxOps is what one transaction may do, as etcd is set up (--max-txn-ops): so many
	// comparisons, and so many operations.
	maxOps = 128
)

var (
	errPatience = errors.New("the store did not answer in time")
	errConflict = errors.New("what the transaction rests on has changed")
)

// dial makes the client. It connects when it is first used, but for a user and a
// password, which it shows at once.
func dial(o Options) (*clientv3.Client, error) {
	ends := make([]string, len(o.Endpoints))
	for i, e := range o.Endpoints {
		ends[i] = "http://" + e
		if o.TLS != nil {
			ends[i] = "https://" + e
		}
	}
	reconnect := backoff.DefaultConfig
	reconnect.BaseDelay, reconnect.MaxDelay = 100*time.Millisecond, maxReconnect
	return clientv3.New(clientv3.Config{
		Endpoints: ends, TLS: o.TLS, Username: o.User, Password: string(o.Password.Reveal()),
		DialTimeout: o.Patience, DialKeepAliveTime: keepAlive, DialKeepAliveTimeout: keepAliveWait, PermitWithoutStream: true,
		Logger:          zap.NewNop(), // what goes wrong is told by errors
		MaxUnaryRetries: 3,            // a token that has ended is made anew at the second
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: o.Patience}),
			// etcd's client waits for a server as long as it may; then all that is known at
			// the end is that time has passed.
			grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				return invoke(ctx, method, req, reply, cc, append(opts, grpc.WaitForReady(false))...)
			}),
		},
	})
}

// attempt is one of the attempts at an operation.
type attempt struct {
	// unsure: an earlier attempt may have been done, though it failed.
	unsure bool
	// wrote: this one has sent something that changes the store.
	wrote bool
}

// do runs an operation, again if what it rests on has changed meanwhile or etcd could
// not do it just now. fn must bear that an earlier attempt was done: see attempt.
func (s *Store) do(ctx context.Context, fn func(ctx context.Context, a *attempt) error) error {
	if ctx.Err() != nil {
		return conduit.FromContext(ctx, conduit.Refused)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.o.Patience, errPatience)
	defer cancel()
	unsure, lost := false, 0
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		if s.closed.Load() {
			return auth.ErrStoreUnavailable(nil, "the auth store is closed")
		}
		a := &attempt{unsure: unsure}
		err := fn(ctx, a)
		if err == nil {
			return nil
		}
		if f, ok := errors.AsType[final](err); ok {
			return f.error
		}
		wait := rand.N(pause) //nolint:gosec // of those who were in each other's way, not all come back at once
		switch {
		case ctx.Err() != nil || s.closed.Load():
		case errors.Is(err, errConflict):
		case errors.Is(err, rpctypes.ErrLeaseNotFound): // and forgotten: see write
			wait = 0
		case unreachable(err):
			if lost++; lost == lostAttempts {
				return s.fault(ctx, err)
			}
			unsure = unsure || a.wrote
			wait = pause
		case passing(err):
			unsure = unsure || a.wrote
			wait = pause
		default:
			return s.fault(ctx, err)
		}
		if !sleep(ctx, wait) {
			return s.fault(ctx, err)
		}
	}
}

// sleep returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// unreachable says that no server answered.
func unreachable(err error) bool {
	return status.Code(grpcError(err)) == codes.Unavailable && !strings.HasPrefix(rpctypes.ErrorDesc(err), "etcdserver:")
}

// passing says that a server answered that it cannot do it just now: a leader is being
// elected, or there is too much to do.
func passing(err error) bool {
	switch status.Code(grpcError(err)) {
	case codes.Unavailable, codes.ResourceExhausted:
		return !errors.Is(err, rpctypes.ErrNoSpace)
	case codes.DeadlineExceeded: // the server's own; if it were ours, ctx would have ended
		return true
	}
	return errors.Is(err, rpctypes.ErrCompacted) || errors.Is(err, rpctypes.ErrFutureRev)
}

// grpcError undoes what etcd's client makes of an error.
func grpcError(err error) error {
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return status.Error(e.Code(), e.Error())
	}
	return err
}

// fault is the error that a method returns.
func (s *Store) fault(ctx context.Context, err error) error {
	if e, ok := errors.AsType[*conduit.Error](err); ok {
		return e
	}
	if d, ok := errors.AsType[damage](err); ok {
		return auth.ErrBadStore(d, "the auth store %s is damaged: %v; restore it from a snapshot of etcd, or remove what is below its prefix and add the users anew: all sessions end", s, d)
	}
	if s.closed.Load() {
		return auth.ErrStoreUnavailable(nil, "the auth store is closed")
	}
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), errPatience) {
		return conduit.FromContext(ctx, conduit.Refused)
	}
	return s.o.fault(err)
}

// fault says what etcd answered, and what to do about it.
func (o Options) fault(err error) error {
	what := rpctypes.ErrorDesc(err)
	switch code := status.Code(grpcError(err)); {
	case errors.Is(err, rpctypes.ErrAuthFailed) || errors.Is(err, rpctypes.ErrInvalidAuthToken):
		return auth.ErrBadStore(err, "etcd does not let the user %q in (%s); correct auth.etcd.user and its password", o.User, what)
	case errors.Is(err, rpctypes.ErrUserEmpty) || code == codes.PermissionDenied && o.User == "":
		return auth.ErrBadStore(err, "etcd does not say to everybody what is below %s (%s); give auth.etcd.user and its password", o.root(), what)
	case code == codes.PermissionDenied:
		return auth.ErrBadStore(err, "the user %q of etcd may not read and write what is below %s (%s); grant it a role that may", o.User, o.root(), what)
	case code == codes.Canceled || code == codes.DeadlineExceeded || errors.Is(err, errConflict):
		return auth.ErrStoreUnavailable(err, "the auth store %s does not answer within %s", o, o.Patience)
	default:
		return auth.ErrStoreUnavailable(err, "the auth store %s cannot be asked: %s", o, what)
	}
}

// run runs one transaction while the store is the one that was opened. It returns
// errConflict if a comparison does not hold.
func (s *Store) run(ctx context.Context, when []clientv3.Cmp, then []clientv3.Op) (*clientv3.TxnResponse, error) {
	key := s.key(keyStore)
	when = append([]clientv3.Cmp{clientv3.Compare(clientv3.Value(key), "=", s.record)}, when...)
	r, err := s.client.Txn(ctx).If(when...).Then(then...).Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return nil, err
	}
	if r.Succeeded {
		return r, nil
	}
	kvs := r.Responses[0].GetResponseRange().Kvs
	switch {
	case len(kvs) == 0:
		return nil, auth.ErrStoreUnavailable(nil, "the auth store %s is not there any more; restore it, or restart what uses it to begin with an empty one", s)
	case string(kvs[0].Value) != s.record:
		return nil, auth.ErrStoreReplaced("the auth store %s was replaced by another one; restart what uses it", s)
	default:
		return nil, errConflict
	}
}

// write is run for what changes the store.
func (s *Store) write(ctx context.Context, a *attempt, when []clientv3.Cmp, then ...clientv3.Op) error {
	a.wrote = true
	_, err := s.run(ctx, when, then)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		s.leases.forget()
	}
	return err
}
