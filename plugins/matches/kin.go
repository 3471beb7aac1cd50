package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/pluginapi"
)

const (
	// settling is how long after its start a process asks no more who went before it:
	// those that it has replaced hear of it at once, and call.
	settling = 2 * time.Second
	// queued events of one question may wait for who asked it.
	queued = 256
	// secretFile in the data directory, which all generations of the element share and
	// nobody else reads, is how one knows another.
	secretFile = "generations.secret"
)

// kin are the other generations of the element on this instance: elders, which it has
// replaced and which have called it, and those that have replaced it, which it called.
type kin struct {
	host   pluginapi.Host
	born   time.Time // all are of one machine, so the clock says who is older
	secret string
	ctx    context.Context //nolint:containedctx // of the calls to successors: from start to stop
	cancel context.CancelFunc
	// settled is closed when no more elders need be waited for.
	settled chan struct{}

	mu      sync.Mutex
	older   []*elder
	changed chan struct{}   // closed and made anew when there is another elder
	newer   map[string]bool // successors that were called
	stopped bool
	end     []func()
}

func (k *kin) init() {
	k.settled, k.changed, k.newer = make(chan struct{}), make(chan struct{}), map[string]bool{}
}

// start has successors called as soon as there are any.
func (k *kin) start(h *hall, host pluginapi.Host) error {
	k.host, k.born = host, time.Now()
	var err error
	if k.secret == "" { // a test has two generations in one process, and sets it
		k.secret, err = secretOf(host.DataDir())
	}
	if err != nil {
		return err
	}
	k.ctx, k.cancel = context.WithCancel(pluginapi.AsSelf(context.Background())) //nolint:gosec // stop calls it
	timer := time.AfterFunc(settling, func() { close(k.settled) })
	unsubscribe, err := host.Subscribe(pluginapi.EventElementLoaded, func(e pluginapi.Event) {
		// It may be this process itself, which is told apart once it answers.
		k.mu.Lock()
		defer k.mu.Unlock()
		if e.Deployment == h.deployment && e.Element == elementName && !k.stopped {
			h.tasks.Go(func() { h.serveSuccessor(h.address) })
		}
	})
	if err != nil {
		timer.Stop()
		return err
	}
	k.end = []func(){func() { timer.Stop() }, unsubscribe, k.cancel}
	return nil
}

func (k *kin) stop() {
	k.mu.Lock()
	k.stopped = true
	k.mu.Unlock()
	for _, end := range k.end {
		end()
	}
}

// secretOf returns what the generations of an element have in common.
func secretOf(dir string) (string, error) {
	file := filepath.Join(dir, secretFile)
	if text, err := os.ReadFile(file); err == nil && len(text) > 0 { //nolint:gosec // our own directory
		return string(text), nil
	}
	secret := rand.Text()
	// Whole or not at all: a successor that starts meanwhile must not read half of it.
	if err := os.WriteFile(file+".new", []byte(secret), 0o600); err != nil {
		return "", err
	}
	return secret, os.Rename(file+".new", file)
}

// settle waits until those that went before have called.
func (k *kin) settle(ctx context.Context) error {
	select {
	case <-k.settled:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// elders returns the processes that this one has replaced and that still have matches.
func (k *kin) elders() []*elder {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.older)
}

// changes returns a channel that is closed when there is another elder.
func (k *kin) changes() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.changed
}

func (k *kin) add(e *elder) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.older = append(k.older, e)
	close(k.changed)
	k.changed = make(chan struct{})
}

func (k *kin) remove(e *elder) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.older = slices.DeleteFunc(k.older, func(other *elder) bool { return other == e })
	close(e.gone)
}

// fromElder is what goes from a process to one that has replaced it: who it is, and
// then its answers, each with the number of the question.
type fromElder struct {
	Process string `json:"process,omitempty"`
	Secret  string `json:"secret,omitempty"`
	Born    int64  `json:"born,omitempty"` // in ns of Unix time

	N       int      `json:"n,omitempty"`
	Event   *event   `json:"event,omitempty"`
	Over    bool     `json:"over,omitempty"`
	Failure *problem `json:"failure,omitempty"` // of Over
}

// toElder is what goes the other way: who it is, and then its questions.
type toElder struct {
	Process string `json:"process,omitempty"`

	N        int       `json:"n,omitempty"`
	Question *question `json:"question,omitempty"`
	Leave    bool      `json:"leave,omitempty"` // nobody waits for the rest of the answer
}

// problem is an error as it travels.
type problem struct {
	Code    pluginapi.Code `json:"code"`
	Reason  string         `json:"reason,omitempty"`
	Message string         `json:"message,omitempty"`
}

// serveSuccessor calls the process that serves at the address now, and answers its
// questions until one of the two ends. A successor that is replaced itself has the call
// ended by drain.timeout; by then the next one was called.
func (h *hall) serveSuccessor(address string) {
	ctx, cancel := context.WithCancel(h.kin.ctx)
	defer cancel()
	call := conduit.Duplex[fromElder, toElder](ctx, h.kin.host.At(address), "Adopt")
	defer call.Close()
	if call.Send(fromElder{Process: h.process, Secret: h.kin.secret, Born: h.kin.born.UnixNano()}) != nil {
		return
	}
	hello, err := call.Recv()
	if err != nil || !h.kin.isNew(hello.Process, h.process) {
		return
	}
	defer h.kin.forget(hello.Process)

	var answers sync.WaitGroup
	defer answers.Wait()
	defer cancel() // before the wait
	var mu sync.Mutex
	leave := map[int]context.CancelFunc{}
	for {
		m, err := call.Recv()
		if err != nil {
			return
		}
		mu.Lock()
		if m.Leave && leave[m.N] != nil {
			leave[m.N]()
		}
		if m.Question == nil {
			mu.Unlock()
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		leave[m.N] = cancel
		mu.Unlock()
		answers.Go(func() {
			defer cancel()
			err := h.here(ctx, *m.Question, func(e event) error { return call.Send(fromElder{N: m.N, Event: &e}) })
			mu.Lock()
			delete(leave, m.N)
			mu.Unlock()
			_ = call.Send(fromElder{N: m.N, Over: true, Failure: problemOf(err)}) // or the call is over, and nobody waits
		})
	}
}

// isNew notes a process that has replaced this one; false if it is no such, or known.
func (k *kin) isNew(process, self string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if process == "" || process == self || k.newer[process] {
		return false
	}
	k.newer[process] = true
	return true
}

func (k *kin) forget(process string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.newer, process)
}

// adopt is the other end of serveSuccessor.
func (h *hall) adopt(_ context.Context, up pluginapi.Receiver[fromElder], down pluginapi.Sender[toElder]) error {
	hello, err := up.Next()
	if err != nil {
		return err
	}
	if subtle.ConstantTimeCompare([]byte(hello.Secret), []byte(h.kin.secret)) != 1 {
		return failure(pluginapi.PermissionDenied, reasonNotYours, "Adopt is for generations of the element, among themselves")
	}
	if err := down(toElder{Process: h.process}); err != nil || hello.Process == h.process {
		return err
	}
	if hello.Born > h.kin.born.UnixNano() {
		// It is about to replace this one, and was told of it as what serves: its call
		// would keep this process for as long as it lives itself.
		return nil
	}
	e := &elder{send: down, waiting: map[int]*waiting{}, gone: make(chan struct{})}
	h.kin.add(e)
	defer h.kin.remove(e)
	for m, err := range up {
		if err != nil {
			return err
		}
		e.take(m)
	}
	return nil
}

// elder is a process that this one has replaced.
type elder struct {
	send pluginapi.Sender[toElder]
	gone chan struct{}

	mu      sync.Mutex
	last    int
	waiting map[int]*waiting
}

// waiting is who waits for the answer to a question.
type waiting struct {
	answers chan fromElder // closed when more came than who asked has taken
}

// take passes on an answer, without waiting for who asked.
func (e *elder) take(m fromElder) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.waiting[m.N]
	if w == nil {
		return
	}
	select {
	case w.answers <- m:
	default:
		delete(e.waiting, m.N)
		close(w.answers)
	}
}

// errGone: the question did not leave.
var errGone = errors.New("the process has ended its matches, or has died")

// ask asks the process and yields its answers.
func (e *elder) ask(ctx context.Context, q question, yield func(event) error) error {
	e.mu.Lock()
	e.last++
	n, w := e.last, &waiting{answers: make(chan fromElder, queued)}
	e.waiting[n] = w
	e.mu.Unlock()
	over := false
	defer func() {
		e.mu.Lock()
		delete(e.waiting, n)
		e.mu.Unlock()
		if !over {
			_ = e.send(toElder{N: n, Leave: true}) // or the call is over, which is as good
		}
	}()
	if e.send(toElder{N: n, Question: &q}) != nil {
		return errGone
	}
	for {
		select {
		case m, ok := <-w.answers:
			switch {
			case !ok:
				return failure(pluginapi.Aborted, reasonBehind, "more than %d events of match %s were not taken in time; watch again", queued, q.Match)
			case m.Over:
				over = true
				return m.Failure.err()
			case m.Event != nil:
				if err := yield(*m.Event); err != nil {
					return err
				}
			}
		case <-e.gone:
			if len(w.answers) == 0 { // else they came before the end
				return failure(pluginapi.Unavailable, conduit.ReasonPluginLost, "the process that was asked of match %q has ended, and its matches with it", q.Match)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func problemOf(err error) *problem {
	if err == nil || err == io.EOF {
		return nil
	}
	if e, ok := errors.AsType[*pluginapi.Error](err); ok {
		return &problem{e.Code, e.Reason, e.Message}
	}
	return &problem{pluginapi.Unknown, "", err.Error()}
}

func (p *problem) err() error {
	if p == nil {
		return nil
	}
	return failure(p.Code, p.Reason, "%s", p.Message)
}
