package link

import (
	"container/list"
	"sync"
)

// DefaultMemory and DefaultLinkMemory bound what receivers hold, in bytes.
const (
	DefaultMemory     = 256 << 20
	DefaultLinkMemory = 16 << 20
)

// minWindow is the least reply window that a call is worth starting with.
const minWindow = 4 << 10

// Memory bounds what all links of a process may be made to hold: the windows
// that they promise (at most half) and the messages above a window that they
// take in. Its methods may be called concurrently.
type Memory struct {
	mu      sync.Mutex
	total   int64
	windows int64 // promised to calls
	held    int64 // reserved for large messages
	waiters list.List
}

// NewMemory returns a Memory of total bytes; 0 means the default.
func NewMemory(total int64) *Memory {
	if total <= 0 {
		total = DefaultMemory
	}
	return &Memory{total: total}
}

// memoryWaiter is a large message that waits for its turn.
type memoryWaiter struct {
	n     int64
	grant func()
}

// takeWindow promises between least and want bytes, less as room gets short,
// and returns 0 when even least does not fit.
func (m *Memory) takeWindow(want, least int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	room := m.total/2 - m.windows
	got := min(want, max(least, room/64))
	if got > room {
		return 0
	}
	m.windows += got
	return got
}

func (m *Memory) giveWindow(n int64) {
	m.mu.Lock()
	m.windows -= n
	m.mu.Unlock()
}

// shareOf cuts the window of one more call beside n others so that many fit a
// link: of 16 MiB the first eight get 256 KiB each, the 64th 32 KiB, the 512th
// and all later ones 4 KiB. So about 2,000 calls are under way before one must
// be turned away, in whatever order calls come and go, while a share of what is
// left would turn the 100th away.
func shareOf(total, taken int64, n int, want, least int64) int64 {
	got := min(want, max(least, total/8/int64(n+1)))
	if got > total-taken {
		got = least
	}
	if got > total-taken {
		return 0
	}
	return got
}

// reserve sets n bytes aside for a message and calls grant, at once or when
// earlier reservations have been released, first come first served. grant runs
// without the lock. The waiter can be dropped with forget.
func (m *Memory) reserve(n int64, grant func()) *list.Element {
	m.mu.Lock()
	if m.waiters.Len() == 0 && (m.held == 0 || m.held+n <= m.room()) {
		m.held += n
		m.mu.Unlock()
		grant()
		return nil
	}
	e := m.waiters.PushBack(&memoryWaiter{n: n, grant: grant})
	m.mu.Unlock()
	return e
}

// room is what messages may take: the half that windows cannot have, so that
// the largest message always fits.
func (m *Memory) room() int64 { return m.total / 2 }

// forget drops a reservation that was not granted; it reports false if it was
// granted, or is being granted. After true, release(0) must be called, without
// any lock held: who waits behind may fit now.
func (m *Memory) forget(e *list.Element) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	w, ok := e.Value.(*memoryWaiter)
	if !ok || w.grant == nil {
		return false
	}
	w.grant = nil
	m.waiters.Remove(e)
	return true
}

// release returns n reserved bytes and grants to those who wait.
func (m *Memory) release(n int64) {
	m.mu.Lock()
	m.held -= n
	var grants []func()
	for e := m.waiters.Front(); e != nil; e = m.waiters.Front() {
		w, ok := e.Value.(*memoryWaiter)
		// The first always fits alone, or a message above the whole budget would
		// block every other for ever.
		if ok && m.held > 0 && m.held+w.n > m.room() {
			break
		}
		m.waiters.Remove(e)
		if ok {
			m.held += w.n
			grants = append(grants, w.grant)
			w.grant = nil
		}
	}
	m.mu.Unlock()
	for _, g := range grants {
		g()
	}
}

// usage returns what is promised and what is held, in bytes.
func (m *Memory) usage() (windows, held int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.windows, m.held
}
