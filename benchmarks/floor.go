package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// floorChunk is how much the floor's processes move at once, at most.
const floorChunk = 256 << 10

func startFloor(ctx context.Context, l *lab) (fixture, error) {
	echo, socket, err := l.role(ctx, "floor-echo", "floor-echo", filepath.Join(l.dir, "floor.sock"))
	if err != nil {
		return fixture{}, err
	}
	relay, addr, err := l.role(ctx, "floor-relay", "floor-relay", socket)
	if err != nil {
		return fixture{}, err
	}
	return fixture{target: addr, pids: []int{echo.pid(), relay.pid()}}, nil
}

// playEcho returns what comes in on a Unix socket.
func playEcho(args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) != 1 {
		return errors.New("usage: floor-echo SOCKET")
	}
	return serve("unix", args[0], stdin, stdout, func(c net.Conn) { move(c, c) })
}

// playRelay connects each TCP connection with one of its own to the echo.
func playRelay(args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) != 1 {
		return errors.New("usage: floor-relay SOCKET")
	}
	return serve("tcp", "127.0.0.1:0", stdin, stdout, func(c net.Conn) {
		var d net.Dialer
		echo, err := d.DialContext(context.Background(), "unix", args[0])
		if err != nil {
			return // the caller sees its connection close
		}
		defer func() { _ = echo.Close() }()
		go move(c, echo)
		move(echo, c)
	})
}

// serve runs handle for each connection until the parent ends.
func serve(network, addr string, stdin io.Reader, stdout io.Writer, handle func(net.Conn)) error {
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), network, addr)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // the process ends with it
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }() // nothing is left to lose
				handle(c)
			}()
		}
	}()
	fmt.Fprintln(stdout, "ready", l.Addr())
	return untilEOF(stdin)
}

// move copies through memory of this process: io.Copy would have the kernel do it,
// which nothing that looks at what it forwards can.
func move(from io.Reader, to io.Writer) {
	buf := make([]byte, floorChunk)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// floorLoad keeps payloads under way on one connection, back to back. Replies come
// in order, so it needs no goroutine for each.
type floorLoad struct {
	conn net.Conn
	next uint64 // number of the next call
}

func dialFloor(ctx context.Context, target string) (load, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", target)
	if err != nil {
		return nil, err
	}
	return &floorLoad{conn: c}, nil
}

func (f *floorLoad) Close() error { return f.conn.Close() }

func (f *floorLoad) keep(ctx context.Context, size, inFlight int, w *window) error {
	g, ctx := errgroup.WithContext(ctx)
	first := f.next
	started := make([]atomic.Int64, inFlight) // by number modulo inFlight
	room := make(chan int, inFlight)          // how many more may be sent
	room <- inFlight
	// A half that fails closes the connection, so that the other does not wait on.
	half := func(run func() error) func() error {
		return func() error {
			err := run()
			if err != nil {
				err = errors.Join(err, f.conn.Close())
			}
			return err
		}
	}
	g.Go(half(func() error { return f.send(ctx, size, first, started, room) }))
	g.Go(half(func() error { return f.receive(size, first, started, room, w) }))
	return g.Wait()
}

func (f *floorLoad) send(ctx context.Context, size int, number uint64, started []atomic.Int64, room <-chan int) error {
	payload := make([]byte, size)
	batch := make([]byte, 0, floorChunk+size)
	for {
		var n int
		var more bool
		select {
		case n, more = <-room:
		case <-ctx.Done():
			return nil // the other half says why
		}
		if !more {
			return nil
		}
		for ; n > 0; n-- {
			mark(payload, number)
			started[number%uint64(len(started))].Store(time.Now().UnixNano())
			number++
			batch = append(batch, payload...)
			if n > 1 && len(batch) < floorChunk {
				continue
			}
			if _, err := f.conn.Write(batch); err != nil {
				return err
			}
			batch = batch[:0]
		}
	}
}

func (f *floorLoad) receive(size int, number uint64, started []atomic.Int64, room chan<- int, w *window) error {
	defer close(room)
	r := w.recorder()
	underWay := len(started)
	buf := make([]byte, 2*max(size, floorChunk))
	from, to := 0, 0
	for underWay > 0 {
		if len(buf)-from < size+floorChunk/2 { // little room for the rest of a reply: move it to the front
			to = copy(buf, buf[from:to])
			from = 0
		}
		n, err := f.conn.Read(buf[to:])
		if err != nil {
			return err
		}
		to += n
		ended := 0
		now := time.Now().UnixNano()
		for ; to-from >= size; from += size {
			if err := check(buf[from:from+size], size, number); err != nil {
				return err
			}
			r.done(time.Duration(now - started[number%uint64(len(started))].Load()))
			number++
			ended++
		}
		if from == to {
			from, to = 0, 0
		}
		if ended == 0 {
			continue
		}
		if w.stopped() {
			underWay -= ended
			continue
		}
		room <- ended
	}
	f.next = number
	return nil
}
