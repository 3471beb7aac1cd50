package metrics

// totals are counters of one source, such as a link or a process, each from its
// own start. Which is which the owner of the ledger knows.
type totals [4]float64

func (t *totals) add(u totals) {
	for i := range t {
		t[i] += u[i]
	}
}

// raise takes the larger of each: of two looks at a source the later one may have
// been noted first.
func (t *totals) raise(u totals) {
	for i := range t {
		t[i] = max(t[i], u[i])
	}
}

// ledger sums the counters of sources, group by group, so that a sum does not fall
// for as long as its group is there, although sources come and go: what a source
// that is gone had last stays in the sum. A group is forgotten once it is neither
// fed nor kept by a look.
//
// A look is begin, any number of feed and keep, and finish. The owner sees to it
// that one look ends before the next begins, and locks.
type ledger[K, ID comparable] struct {
	groups map[K]*group[ID]
}

type group[ID comparable] struct {
	gone    totals
	sources map[ID]*source
	alive   bool // fed or kept in this look
}

type source struct {
	totals

	seen bool // in this look
	// missed says that it was not there in the last look. It is counted as gone a
	// look later: its last numbers may be on their way meanwhile.
	missed bool
}

func (l *ledger[K, ID]) group(k K) *group[ID] {
	if l.groups == nil {
		l.groups = map[K]*group[ID]{}
	}
	g := l.groups[k]
	if g == nil {
		g = &group[ID]{sources: map[ID]*source{}}
		l.groups[k] = g
	}
	return g
}

// begin starts a look.
func (l *ledger[K, ID]) begin() {
	for _, g := range l.groups {
		g.alive = false
		for _, s := range g.sources {
			s.seen = false
		}
	}
}

// keep notes that a group is there, with or without a source.
func (l *ledger[K, ID]) keep(k K) { l.group(k).alive = true }

// keepKnown is keep for a group that has had a source since it was there last.
func (l *ledger[K, ID]) keepKnown(k K) {
	if g := l.groups[k]; g != nil {
		g.alive = true
	}
}

// feed notes what a source has counted up to now.
func (l *ledger[K, ID]) feed(k K, id ID, t totals) {
	g := l.group(k)
	g.alive = true
	s := g.sources[id]
	if s == nil {
		s = &source{}
		g.sources[id] = s
	}
	s.raise(t)
	s.seen, s.missed = true, false
}

// finish ends a look and returns the sums of the groups that are there.
func (l *ledger[K, ID]) finish() map[K]totals {
	sums := make(map[K]totals, len(l.groups))
	for k, g := range l.groups {
		if !g.alive {
			delete(l.groups, k)
			continue
		}
		var sum totals
		for id, s := range g.sources {
			switch {
			case s.seen:
			case !s.missed:
				s.missed = true
			default:
				g.gone.add(s.totals)
				delete(g.sources, id)
				continue
			}
			sum.add(s.totals)
		}
		sum.add(g.gone)
		sums[k] = sum
	}
	return sums
}

// end notes the last that a source has counted, outside of a look. It may be one
// that no look has seen.
func (l *ledger[K, ID]) end(k K, id ID, t totals) {
	g := l.group(k)
	if s := g.sources[id]; s != nil {
		s.raise(t)
		t = s.totals
		delete(g.sources, id)
	}
	g.gone.add(t)
}
