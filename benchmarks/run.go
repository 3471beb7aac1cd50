package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// cell is one load.
type cell struct{ size, inFlight int }

func (c cell) String() string { return fmt.Sprintf("%s, %d in flight", sizeText(c.size), c.inFlight) }

// entry is a system in a run: started, with its caller.
type entry struct {
	system
	fixture

	by *child // its caller
}

// results are the samples of a run: one for each round, of each system in each cell.
// A failed one has its Error.
type results struct {
	entries []*entry
	cells   []cell
	samples map[cell][][]sample // [round][system]
}

// bench measures, prints and, if it is asked to, writes.
func bench(ctx context.Context, o options, stdout, stderr io.Writer) error {
	m := thisMachine(ctx)
	l, err := newLab(o.procs)
	if err != nil {
		return err
	}
	defer l.close()
	l.base = o.base
	r, err := startAll(ctx, l, o, stderr)
	if err != nil {
		return err
	}
	if err := r.measure(ctx, o, stderr); err != nil {
		return err
	}
	text := r.markdown(m, o)
	fmt.Fprint(stdout, text)
	if o.write {
		if err := writeDocs(o.docs, text); err != nil {
			return err
		}
	}
	return r.failed()
}

// startAll starts every system and its caller.
func startAll(ctx context.Context, l *lab, o options, stderr io.Writer) (*results, error) {
	r := &results{samples: map[cell][][]sample{}}
	for _, size := range o.sizes {
		for _, n := range o.inFlight {
			r.cells = append(r.cells, cell{size, n})
		}
	}
	for _, name := range o.systems {
		s, err := systemNamed(name)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(stderr, "starting %s\n", s.title)
		e := &entry{system: s}
		if e.fixture, err = s.start(ctx, l); err != nil {
			return nil, err
		}
		program, as := l.self, name
		if e.caller != "" { // it knows itself by the usual name
			program, as = e.caller, "conduit"
		}
		if e.by, _, err = l.roleOf(ctx, program, "caller-"+name, "caller", as, e.target); err != nil {
			return nil, err
		}
		r.entries = append(r.entries, e)
	}
	return r, nil
}

// measure lets the systems take turns.
func (r *results) measure(ctx context.Context, o options, stderr io.Writer) error {
	for round := range o.rounds {
		fmt.Fprintf(stderr, "round %d of %d\n", round+1, o.rounds)
		for _, c := range r.cells {
			turn := make([]sample, len(r.entries))
			for i, e := range r.entries {
				s, err := e.window(ctx, request{Size: c.size, InFlight: c.inFlight, Warm: o.warm, Window: o.window})
				if err != nil {
					return err
				}
				if s.Error != "" {
					fmt.Fprintf(stderr, "%s, %v: %s\n", e.title, c, s.Error)
				}
				turn[i] = s
			}
			r.samples[c] = append(r.samples[c], turn)
		}
	}
	return nil
}

// window asks the caller for one window and waits for it.
func (e *entry) window(ctx context.Context, q request) (sample, error) {
	q.PIDs = e.pids
	if err := json.NewEncoder(e.by.in).Encode(q); err != nil {
		return sample{}, e.by.failure(err)
	}
	line, err := e.by.line(ctx, q.Warm+q.Window+callTimeout+5*time.Second)
	if err != nil {
		return sample{}, err
	}
	var s sample
	err = json.Unmarshal([]byte(line), &s)
	return s, err
}

// failed is an error if the first system, which is the one that is measured, failed.
func (r *results) failed() error {
	for _, c := range r.cells {
		for _, turn := range r.samples[c] {
			if turn[0].Error != "" {
				return fmt.Errorf("%s, %v: %s", r.entries[0].title, c, turn[0].Error)
			}
		}
	}
	return nil
}
