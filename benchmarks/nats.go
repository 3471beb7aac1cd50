package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

const natsSubject = "bench.echo"

func startNATS(ctx context.Context, l *lab) (fixture, error) {
	broker, url, err := l.role(ctx, "nats-server", "nats-server")
	if err != nil {
		return fixture{}, err
	}
	responder, _, err := l.role(ctx, "nats-responder", "nats-responder", url)
	if err != nil {
		return fixture{}, err
	}
	return fixture{target: url, pids: []int{broker.pid(), responder.pid()}}, nil
}

// playNATSServer is a nats-server with its defaults, but for the limits that would
// have it drop a connection with 64 MiB under way.
func playNATSServer(_ []string, stdin io.Reader, stdout io.Writer) error {
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT,
		NoLog: true, NoSigs: true,
		MaxPayload: 8 << 20,
		MaxPending: 512 << 20,
	})
	if err != nil {
		return err
	}
	s.Start()
	defer s.Shutdown()
	if !s.ReadyForConnections(startTimeout / 2) {
		return errors.New("it does not get ready")
	}
	fmt.Fprintln(stdout, "ready", s.ClientURL())
	return untilEOF(stdin)
}

func playNATSResponder(args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) != 1 {
		return errors.New("usage: nats-responder URL")
	}
	c, err := nats.Connect(args[0])
	if err != nil {
		return err
	}
	defer c.Close()
	// On the subscription's one goroutine, which suits an echo best.
	sub, err := c.Subscribe(natsSubject, func(m *nats.Msg) {
		_ = m.Respond(m.Data) // the caller misses it then, and says so
	})
	if err != nil {
		return err
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return err
	}
	if err := c.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(stdout, "ready", args[0])
	return untilEOF(stdin)
}

func dialNATS(_ context.Context, target string) (load, error) {
	c, err := nats.Connect(target)
	if err != nil {
		return nil, err
	}
	return &calls{
		echo: func(ctx context.Context, payload []byte) ([]byte, error) {
			m, err := c.RequestWithContext(ctx, natsSubject, payload)
			if err != nil {
				return nil, err
			}
			return m.Data, nil
		},
		close: func() error { c.Close(); return nil },
	}, nil
}
