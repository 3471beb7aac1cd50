package conduit

import (
	"context"
	"io"
)

// FailedExchange returns an Exchange of a call that failed before it began:
// every Recv returns err. An [Invoker] uses it to keep its promise that
// whatever is wrong surfaces at Recv.
func FailedExchange(err *Error) Exchange { return failedExchange{err} }

type failedExchange struct{ err *Error }

func (failedExchange) Send(context.Context, []byte) error { return io.EOF }

func (failedExchange) CloseSend() error { return nil }

func (f failedExchange) Recv(context.Context) (Message, error) { return Message{}, f.err }

func (failedExchange) Cancel(error) {}
