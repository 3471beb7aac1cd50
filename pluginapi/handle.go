package pluginapi

import (
	"context"
	"io"
	"reflect"

	"github.com/elemental-conduit/conduit"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// Sender sends one item to the caller and returns when it has been handed to the
// link: a slow caller makes it wait. Its error says that the call is over, or that
// the item cannot be sent; a handler normally returns it. It may be called from
// several goroutines, until the handler returns.
type Sender[T any] func(item T) error

// Receiver yields what the caller sends, in order, to the end of the upload:
//
//	for item, err := range items {
//		if err != nil {
//			return err
//		}
//		...
//	}
//
// An error is the last that a loop yields. Leaving a loop loses nothing: the next
// one, or Next, goes on from there. One goroutine at a time may receive.
type Receiver[T any] func(yield func(T, error) bool)

// Next returns the next item, or io.EOF at the end of the upload.
func (r Receiver[T]) Next() (T, error) {
	for v, err := range r {
		return v, err
	}
	var zero T
	return zero, io.EOF
}

// Handle adds a method that takes one message and returns one.
func Handle[Request, Reply any](s *Service, name string, fn func(context.Context, Request) (Reply, error), opts ...MethodOption) {
	m := newMethod[Request, Reply](name, conduitv1.Shape_SHAPE_UNARY)
	if fn != nil {
		m.run = func(ctx context.Context, c *call) error {
			in, err := request[Request](ctx, c)
			if err != nil {
				return err
			}
			out, err := fn(ctx, in)
			if err != nil {
				return c.failed(ctx, err)
			}
			return c.reply(out)
		}
	}
	s.add(m, opts)
}

// HandleStream adds a method that takes one message and yields many. The call ends
// when fn returns.
func HandleStream[Request, Item any](s *Service, name string, fn func(context.Context, Request, Sender[Item]) error, opts ...MethodOption) {
	m := newMethod[Request, Item](name, conduitv1.Shape_SHAPE_SERVER_STREAM)
	if fn != nil {
		m.run = func(ctx context.Context, c *call) error {
			in, err := request[Request](ctx, c)
			if err != nil {
				return err
			}
			return c.failed(ctx, fn(ctx, in, sender[Item](ctx, c)))
		}
	}
	s.add(m, opts)
}

// HandleUpload adds a method that takes many messages and returns one.
func HandleUpload[Item, Reply any](s *Service, name string, fn func(context.Context, Receiver[Item]) (Reply, error), opts ...MethodOption) {
	m := newMethod[Item, Reply](name, conduitv1.Shape_SHAPE_CLIENT_STREAM)
	if fn != nil {
		m.run = func(ctx context.Context, c *call) error {
			out, err := fn(ctx, receiver[Item](ctx, c))
			if err != nil {
				return c.failed(ctx, err)
			}
			return c.reply(out)
		}
	}
	s.add(m, opts)
}

// HandleDuplex adds a method that takes and yields many messages. The call ends
// when fn returns, whether or not the caller has more to send.
func HandleDuplex[Up, Down any](s *Service, name string, fn func(context.Context, Receiver[Up], Sender[Down]) error, opts ...MethodOption) {
	m := newMethod[Up, Down](name, conduitv1.Shape_SHAPE_DUPLEX)
	if fn != nil {
		m.run = func(ctx context.Context, c *call) error {
			return c.failed(ctx, fn(ctx, receiver[Up](ctx, c), sender[Down](ctx, c)))
		}
	}
	s.add(m, opts)
}

func newMethod[Request, Reply any](name string, shape conduitv1.Shape) *method {
	return &method{name: name, shape: shape, request: reflect.TypeFor[Request](), reply: reflect.TypeFor[Reply]()}
}

// request receives the one message of a unary call or a server stream. Whatever is
// wrong with it refuses the call, since the handler has not started.
func request[T any](ctx context.Context, c *call) (T, error) {
	var zero T
	m, err := c.s.Recv(ctx)
	if err == io.EOF {
		if _, none := any(zero).(struct{}); none {
			return zero, nil
		}
		return zero, conduit.Errorf(InvalidArgument, conduit.ReasonBadContent, conduit.Refused,
			"the method needs a request and there is none; it takes %s", conduit.TypeName(reflect.TypeFor[T]()))
	}
	if err != nil {
		return zero, notBegun(err)
	}
	if !m.Last {
		switch _, err := c.s.Recv(ctx); {
		case err == nil:
			return zero, conduit.Errorf(InvalidArgument, conduit.ReasonWrongShape, conduit.Refused,
				"the method takes one message, and more were sent")
		case err != io.EOF:
			return zero, notBegun(err)
		}
	}
	v, err := conduit.Decode[T](m)
	if err != nil {
		return zero, notBegun(err)
	}
	return v, nil
}

// notBegun says of an error that it came before the handler.
func notBegun(err error) error {
	e := *conduit.AsError(err, conduit.Refused)
	e.Outcome = conduit.Refused
	return &e
}

// receiver yields the messages up, decoded. Its error, once met, stays.
func receiver[T any](ctx context.Context, c *call) Receiver[T] {
	var ended error
	return func(yield func(T, error) bool) {
		var zero T
		for {
			if ended == nil {
				var m conduit.Message
				if m, ended = c.s.Recv(ctx); ended == nil {
					v, err := conduit.Decode[T](m)
					if err == nil {
						if !yield(v, nil) {
							return
						}
						continue
					}
					ended = err
				}
			}
			if ended != io.EOF {
				yield(zero, ended)
			}
			return
		}
	}
}

func sender[T any](ctx context.Context, c *call) Sender[T] {
	return func(item T) error { return c.send(ctx, 0, item) }
}
