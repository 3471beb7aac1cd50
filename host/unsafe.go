package host

import (
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// Whoever can write a plugin binary, its directory or a directory above runs
// code as the host. So each must belong to root or to the host's user, and be
// writable by no one else. A sticky directory above (as /tmp) is taken: in it
// nobody can rename what is another's.

// checkUnsafe says who else could change path, or returns "".
func checkUnsafe(path string, info fs.FileInfo, above bool) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	mode := info.Mode()
	euid, egid := os.Geteuid(), os.Getegid()
	var why string
	switch {
	case above && mode&fs.ModeSticky != 0:
		return ""
	case mode.Perm()&0o002 != 0:
		why = "anyone can write it"
	case mode.Perm()&0o020 != 0 && st.Gid != 0 && int(st.Gid) != egid:
		why = "its group can write it, and that is not the host's"
	case st.Uid != 0 && int(st.Uid) != euid:
		why = "it belongs to another user"
	default:
		return ""
	}
	return fmt.Sprintf("%s: %s (mode %04o, owner %s, group %s; the host runs as %s): whoever can change it runs code as the host. Mend its mode or owner, or allow it with host.allow_unsafe",
		path, why, mode.Perm(), userName(st.Uid), groupName(st.Gid), userName(uint32(euid)))
}

// checkUnsafeDir checks a directory and all above it. dir is resolved.
func checkUnsafeDir(dir string) string {
	for above := false; ; above = true {
		info, err := os.Lstat(dir)
		if err != nil {
			return ""
		}
		if why := checkUnsafe(dir, info, above); why != "" {
			return why
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}
		dir = parent
	}
}

func userName(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}

func groupName(gid uint32) string {
	id := strconv.FormatUint(uint64(gid), 10)
	if g, err := user.LookupGroupId(id); err == nil {
		return g.Name
	}
	return id
}
