package pluginlink

import (
	"math"
	"strconv"
)

// Limits are what a process is held to. The zero value is nothing beyond what every
// plugin is.
type Limits struct {
	// CPUs is how many processors its runtime uses; rounded up it is GOMAXPROCS. 0 = its
	// own choice.
	CPUs float64
	// MemorySoft is what its garbage collector aims to stay below, in bytes: GOMEMLIMIT.
	// 0 = its own choice.
	MemorySoft int64
	// Files bounds its open files; 0 = LaunchConfig.NoFile.
	Files uint64
	// Core bounds a core dump in bytes; 0 = there is none.
	Core int64
}

// env returns the variables that tell a Go program of its bounds.
func (l *Limits) env() []string {
	var env []string
	if l.CPUs > 0 {
		env = append(env, "GOMAXPROCS="+strconv.Itoa(int(math.Ceil(l.CPUs))))
	}
	if l.MemorySoft > 0 {
		env = append(env, "GOMEMLIMIT="+strconv.FormatInt(l.MemorySoft, 10))
	}
	return env
}
