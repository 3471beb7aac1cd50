package link

import (
	"sync"
	"time"
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
	start time.Time // what reservation.since counts from

	mu      sync.Mutex
	total   int64
	windows int64 // promised to calls
	turns
}

// NewMemory returns a Memory of total bytes; 0 means the default.
func NewMemory(total int64) *Memory {
	if total <= 0 {
		total = DefaultMemory
	}
	return &Memory{start: time.Now(), total: total}
}

// Usage returns, in bytes, what is promised to calls and links, and what messages above
// a window hold.
func (m *Memory) Usage() (windows, held int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.windows, m.held
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

// takeSpare promises n bytes to no call, or reports false: of what may be promised,
// half is for calls alone.
func (m *Memory) takeSpare(n int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.windows+n > m.total/4 {
		return false
	}
	m.windows += n
	return true
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
