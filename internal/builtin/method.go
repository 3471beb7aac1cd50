package builtin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
)

// reasonUnimplemented is the reason of a method whose part this instance lacks;
// docs/errors.md lists it.
const reasonUnimplemented = "unimplemented"

// method is one method of a service.
type method struct {
	// admin: it is for operators.
	admin bool
	serve func(s *Services, who asker) link.ServeFunc
}

// unary makes a method of a func that takes one message and gives one.
func unary[Req, Res proto.Message](empty func() Req, f func(ctx context.Context, s *Services, who asker, in Req) (Res, error)) method {
	return method{serve: func(s *Services, who asker) link.ServeFunc {
		return func(ctx context.Context, call *link.ServerCall) error {
			in, err := request(ctx, call, empty)
			if err != nil {
				return err
			}
			out, err := f(ctx, s, who, in)
			if err != nil {
				return err
			}
			return reply(call, out)
		}
	}}
}

// stream makes a method of a func that takes one message and gives many.
func stream[Req, Res proto.Message](empty func() Req, f func(ctx context.Context, s *Services, background bool, in Req, send func(Res) error) error) method {
	return method{serve: func(s *Services, _ asker) link.ServeFunc {
		return func(ctx context.Context, call *link.ServerCall) error {
			in, err := request(ctx, call, empty)
			if err != nil {
				return err
			}
			err = f(ctx, s, call.Invoke().Background, in, func(out Res) error {
				m, err := encode(call, out)
				if err != nil {
					return err
				}
				return call.Send(ctx, m)
			})
			if err != nil && ctx.Err() != nil {
				return ctx.Err() // the link knows why, and that nobody knows how far it came
			}
			return err
		}
	}}
}

// request reads the call's one message; none at all, or a JSON null, is an empty
// one.
func request[Req proto.Message](ctx context.Context, call *link.ServerCall, empty func() Req) (Req, error) {
	m, err := call.Recv(ctx)
	if errors.Is(err, io.EOF) {
		return empty(), nil
	}
	if err != nil {
		return empty(), err
	}
	if isJSON(m.ContentType) {
		if text := bytes.TrimSpace(m.Data); len(text) == 0 || string(text) == "null" {
			return empty(), nil
		}
	}
	in, err := conduit.Decode[Req](m)
	if err != nil {
		e := *conduit.AsError(err, conduit.Refused)
		e.Outcome = conduit.Refused // nothing has been done
		return empty(), &e
	}
	return in, nil
}

// reply returns a message in the form that the caller accepts; who says nothing
// gets what he sent.
func reply(call *link.ServerCall, out proto.Message) error {
	m, err := encode(call, out)
	if err == nil {
		call.Return(m)
	}
	return err
}

func encode(call *link.ServerCall, out proto.Message) (conduit.Message, error) {
	inv := call.Invoke()
	accept := string(inv.Accept)
	if accept == "" {
		accept = string(inv.ContentType)
	}
	contentType, data, err := conduit.EncodeFor(accept, out)
	if err != nil {
		return conduit.Message{}, conduit.Errorf(conduit.Internal, conduit.ReasonInternal, conduit.Executed, "the answer cannot be written: %v", err)
	}
	if contentType == conduit.ContentJSON { // protojson varies its spaces from build to build
		var b bytes.Buffer
		if err := json.Compact(&b, data); err != nil {
			return conduit.Message{}, err
		}
		data = b.Bytes()
	}
	return conduit.Message{ContentType: contentType, Data: data}, nil
}

func isJSON(contentType string) bool {
	bare, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(bare), conduit.ContentJSON)
}

// lacking is the error of a method whose part this instance does not have.
func lacking(what string) error {
	return conduit.Errorf(conduit.Unimplemented, reasonUnimplemented, conduit.Refused, "this instance has no %s: its version or its mode is without it", what)
}
