package metrics

import (
	"sync"

	"github.com/prometheus/procfs"
)

// userHZ is the kernel's unit of time in /proc, the same on every Linux that Go
// runs on.
const userHZ = 100

// usageOf returns what reads the usage of a process from /proc. Where there is no
// /proc, it knows nothing of any process.
func usageOf() func(pid int) (usage, bool) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return func(int) (usage, bool) { return usage{}, false }
	}
	boot := sync.OnceValue(func() float64 {
		stat, err := fs.Stat()
		if err != nil {
			return 0
		}
		return float64(stat.BootTime)
	})
	return func(pid int) (usage, bool) {
		p, err := fs.Proc(pid)
		if err != nil {
			return usage{}, false // it has ended since
		}
		s, err := p.Stat()
		if err != nil {
			return usage{}, false
		}
		u := usage{begun: s.Starttime, resident: float64(s.ResidentMemory()), cpu: s.CPUTime()}
		if b := boot(); b > 0 {
			u.started = b + float64(s.Starttime)/userHZ
		}
		return u, true
	}
}
