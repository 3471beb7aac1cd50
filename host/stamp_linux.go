package host

import (
	"io/fs"
	"syscall"
	"time"
)

func stampOf(info fs.FileInfo) stamp {
	s := stamp{size: info.Size()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.dev, s.ino, s.changed = uint64(st.Dev), st.Ino, time.Unix(st.Ctim.Unix()) //nolint:unconvert // Dev's type differs by system
	}
	return s
}
