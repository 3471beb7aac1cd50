package gateway

import (
	"context"
	"io"
	"strconv"
	"sync"
	"time"
)

// events writes the results as server-sent events until the call ends:
//
//	id: 1                  a result
//	data: {"x":1}
//
//	id: 2                  a message of a further result handler
//	event: part
//	data: {"part":1,"value":"..."}
//
//	event: end             the good end, or
//	data: {"results":1}
//
//	event: error           the call's error, if there was an event before it
//	data: {"type":...}
func (c *receiver) events(ctx context.Context) *fault {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := sync.OnceFunc(c.q.keepAlive(cancel))
	defer stop()
	// A comment begins the answer, so whether that was done is known without it.
	failed := func(err error) *fault {
		stop()
		return c.lastEvent(c.failed(ctx, err))
	}

	seq := 0
	for {
		m, err := c.next(ctx, true)
		if err == io.EOF {
			if err := c.q.reply.start(typeEvents); err != nil {
				return wrote(err)
			}
			return wrote(c.q.reply.write(event("end", 0, line(map[string]int{"results": c.q.reply.results}))))
		}
		if err != nil {
			return failed(err)
		}
		release := c.hold(m)
		text, err := asJSON(m)
		if err != nil {
			release()
			return failed(err)
		}
		name := ""
		if m.Part != 0 {
			name, text = "part", wrap(m.Part, text)
		}
		seq++
		if err = c.q.reply.start(typeEvents); err == nil {
			err = c.q.reply.item(event(name, seq, text))
		}
		release()
		if err != nil {
			return wrote(err)
		}
	}
}

// lastEvent tells of the end of a call whose answer has begun. Before that it is
// told with a status, by whoever gets the fault.
func (c *receiver) lastEvent(f *fault) *fault {
	if c.q.reply.started() {
		_ = c.q.reply.write(event("error", 0, line(f.problem()))) // the fault says more than one of writing it
	}
	return f
}

// event writes one event; text is one line.
func event(name string, id int, text []byte) []byte {
	b := make([]byte, 0, len(text)+len(name)+40)
	if id != 0 {
		b = append(b, "id: "...)
		b = strconv.AppendInt(b, int64(id), 10)
		b = append(b, '\n')
	}
	if name != "" {
		b = append(b, "event: "...)
		b = append(b, name...)
		b = append(b, '\n')
	}
	b = append(b, "data: "...)
	b = append(b, text...)
	return append(b, "\n\n"...)
}

// keepAlive writes a comment whenever nothing else was written for a while, since
// proxies cut what is silent for a minute; the first one begins the answer. If the
// client is gone the call is cancelled. stop waits until it writes no more.
func (q *request) keepAlive(cancel context.CancelCauseFunc) (stop func()) {
	every := q.g.o.KeepAlive
	if every < 0 {
		return func() {}
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		timer := time.NewTimer(every)
		defer timer.Stop()
		for {
			select {
			case <-done:
				return
			case <-timer.C:
			}
			wait, err := q.reply.comment(every)
			if err != nil {
				cancel(errLeft)
				return
			}
			timer.Reset(wait)
		}
	})
	return func() { close(done); wg.Wait() }
}
