package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/config"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// items are the messages of a call that sends several: JSON values, one on a line. They
// are read as they come, so that somebody may type them and see the answers between.
type items struct {
	in    *bufio.Reader
	where string
	line  int
	most  int64
	// encoded: the method takes bytes, and each line is a text in base64.
	encoded bool
}

// openItems opens the argument of call --items.
func (a *app) openItems(f *callFlags, args []string) (*items, func(), error) {
	switch {
	case len(args) < 3 || args[2] != "-" && !strings.HasPrefix(args[2], "@"):
		return nil, nil, usagef("--items sends each line of @FILE or standard input (-) as a message, so one of them is the argument; a single message needs no --items")
	case f.all:
		return nil, nil, usagef("--items sends what it reads to one element, and --all calls every node; give one of them")
	case f.typed:
		return nil, nil, usagef("--items takes JSON values, one on a line, and bytes as text in base64, so --content-type has no place; give one of them")
	case args[2] == "-" && a.session == "-":
		return nil, nil, usagef("the argument and --session cannot both come from standard input")
	}
	c, err := config.Load(config.Sources{File: a.configFile, Environ: a.environ, Flags: &a.keys, Machine: config.ThisMachine(false)})
	if err := only(err, argumentKey); err != nil {
		return nil, nil, err
	}
	from := &items{in: bufio.NewReader(a.stdin), where: "standard input", most: c.Size(argumentKey)}
	if args[2] == "-" {
		return from, func() {}, nil
	}
	file, err := os.Open(args[2][1:])
	if err != nil {
		return nil, nil, usagef("the argument cannot be read: %v", err)
	}
	from.in, from.where = bufio.NewReader(file), args[2][1:]
	return from, func() { _ = file.Close() }, nil
}

// next returns the next message, or io.EOF.
func (s *items) next() ([]byte, error) {
	for {
		line, err := s.readLine()
		data := bytes.TrimSpace(line)
		if err != nil && (!errors.Is(err, io.EOF) || len(data) == 0) {
			return nil, err
		}
		s.line++
		if len(data) == 0 {
			continue
		}
		where := fmt.Sprintf("line %d of %s", s.line, s.where)
		if err := checkJSON(data, where); err != nil {
			return nil, err
		}
		if !s.encoded {
			return data, nil
		}
		return fromBase64(data, where)
	}
}

// readLine reads a line that is no longer than a message may be; of one without an end
// it takes no more than that.
func (s *items) readLine() ([]byte, error) {
	var line []byte
	for {
		part, err := s.in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case int64(len(line)) > s.most+1:
			return nil, errArgumentTooLarge(fmt.Sprintf("line %d of %s", s.line+1, s.where), "more than "+strconv.FormatInt(s.most, 10), s.most)
		case errors.Is(err, bufio.ErrBufferFull):
		case err == nil || errors.Is(err, io.EOF):
			return line, err
		default:
			return nil, usagef("the argument cannot be read from %s: %v", s.where, err)
		}
	}
}

func fromBase64(data []byte, where string) ([]byte, error) {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return nil, usagef("the method takes bytes, which are written as a JSON string in base64, and %s is no string", where)
	}
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil, usagef("the method takes bytes, which are written as a JSON string in base64, and %s is not that: %v", where, err)
	}
	return b, nil
}

// callItems makes a call that sends what it reads, and prints what comes back meanwhile.
func (a *app) callItems(ctx context.Context, addr address.Address, in *conduit.Invocation, from *items, f *callFlags) error {
	t, err := a.target(ctx)
	if err != nil {
		return err
	}
	c, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // the call is over; how its link ends changes nothing
	if from.encoded = a.takesBytes(ctx, c, addr, in.Method); from.encoded {
		in.ContentType = conduit.ContentBytes
	}
	in.Last = false
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	x := c.At(addr.String()).Invoke(ctx, in)
	// Nobody waits for the sender: it may wait for a person who types, while the call is
	// long over. It ends with what it reads, or with the program.
	failed := make(chan error, 1)
	go func() {
		if err := sendItems(ctx, x, from); err != nil {
			failed <- err
			x.Cancel(err)
		}
	}()
	out := &resultPrinter{w: a.stdout, format: a.output, raw: f.raw, parts: f.parts}
	err = receive(ctx, x, out)
	a.tellSkipped(out)
	select {
	case why := <-failed:
		if err == nil {
			return nil // it ended by itself, and well, before that
		}
		e := *conduit.AsError(why, conduit.OutcomeUnknown)
		e.Outcome = conduit.OutcomeUnknown
		e.Message = errorMessage(&e) + "; the call was under way and is cancelled: what it has done stays done"
		return &e
	default:
		return adviseCall(err, addr, in.Method, func() []*conduitv1.InstanceInfo { return a.infosFor(ctx, c, addr) })
	}
}

// sendItems sends until there is no more, or the call has ended.
func sendItems(ctx context.Context, x conduit.Exchange, from *items) error {
	for {
		data, err := from.next()
		if errors.Is(err, io.EOF) {
			err = x.CloseSend()
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err != nil {
			return err
		}
		if err := x.Send(ctx, data); errors.Is(err, io.EOF) {
			return nil // Recv tells how
		} else if err != nil {
			return err
		}
	}
}
