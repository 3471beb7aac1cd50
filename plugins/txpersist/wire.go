package main

import (
	"context"

	"github.com/elemental-conduit/conduit/pluginapi"
	"github.com/elemental-conduit/conduit/plugins/txpersist/store"
)

// The handlers work with the types of plugins/txpersist/api, the methods with the
// messages of proto/conduit/persist, so that each takes protobuf and JSON. What is here
// stands between the two.

// wire is a type that travels as an M.
type wire[M any] interface{ Proto() M }

// taken reads what came. What is no path or id is the caller's mistake.
func taken[M, T any](of func(M) (T, error), m M) (T, error) {
	v, err := of(m)
	if err != nil {
		err = failure(&store.Error{Kind: store.KindArgument, Why: err.Error()})
	}
	return v, err
}

// sending sends values as messages.
func sending[M any, T wire[M]](send pluginapi.Sender[M]) pluginapi.Sender[T] {
	return func(v T) error { return send(v.Proto()) }
}

// receiving receives values that come as messages.
func receiving[M, T any](of func(M) (T, error), items pluginapi.Receiver[M]) pluginapi.Receiver[T] {
	return func(yield func(T, error) bool) {
		for m, err := range items {
			var v T
			if err == nil {
				v, err = taken(of, m)
			}
			if !yield(v, err) || err != nil {
				return
			}
		}
	}
}

func unary[In, Out, T any, R wire[Out]](s *pluginapi.Service, name string, of func(In) (T, error), fn func(context.Context, T) (R, error), opts ...pluginapi.MethodOption) {
	pluginapi.Handle(s, name, func(ctx context.Context, m In) (out Out, err error) {
		in, err := taken(of, m)
		if err != nil {
			return out, err
		}
		r, err := fn(ctx, in)
		if err != nil {
			return out, err
		}
		return r.Proto(), nil
	}, opts...)
}

func stream[In, Out, T any, R wire[Out]](s *pluginapi.Service, name string, of func(In) (T, error), fn func(context.Context, T, pluginapi.Sender[R]) error, opts ...pluginapi.MethodOption) {
	pluginapi.HandleStream(s, name, func(ctx context.Context, m In, send pluginapi.Sender[Out]) error {
		in, err := taken(of, m)
		if err != nil {
			return err
		}
		return fn(ctx, in, sending[Out, R](send))
	}, opts...)
}

func upload[In, Out, T any, R wire[Out]](s *pluginapi.Service, name string, of func(In) (T, error), fn func(context.Context, pluginapi.Receiver[T]) (R, error), opts ...pluginapi.MethodOption) {
	pluginapi.HandleUpload(s, name, func(ctx context.Context, items pluginapi.Receiver[In]) (out Out, err error) {
		r, err := fn(ctx, receiving(of, items))
		if err != nil {
			return out, err
		}
		return r.Proto(), nil
	}, opts...)
}

func duplex[In, Out, T any, R wire[Out]](s *pluginapi.Service, name string, of func(In) (T, error), fn func(context.Context, pluginapi.Receiver[T], pluginapi.Sender[R]) error, opts ...pluginapi.MethodOption) {
	pluginapi.HandleDuplex(s, name, func(ctx context.Context, items pluginapi.Receiver[In], send pluginapi.Sender[Out]) error {
		return fn(ctx, receiving(of, items), sending[Out, R](send))
	}, opts...)
}
