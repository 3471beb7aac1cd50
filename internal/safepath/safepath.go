// Package safepath says who else could change what a path leads to.
//
// Whoever can change a plugin's binary, its directory, or a directory or a link on
// the way there, runs code as the host; whoever can change the way to the data
// directory chooses what is found in it. So the whole way is looked at, as the kernel
// walks it: each directory, each link and where that is, and the end. Everything on it
// must belong to root or to this user, and be writable by no one else. In a directory
// above that is sticky (as /tmp) nobody but its owner can rename what is another's:
// that excuses who may write it, never whose it is.
//
// What is found holds for the moment; access control lists count as far as they show
// in the mode of a file's group, which is their mask.
package safepath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// UnsafeError says that somebody else than root and this user can change what a path leads
// to, and how to mend it.
type UnsafeError struct {
	// Path is what they can change: the path that was asked for, or something on the
	// way to it.
	Path string
	// Why says who can, in one phrase.
	Why string
}

// Error returns one line, the cause first and the path last.
func (u *UnsafeError) Error() string {
	return fmt.Sprintf("%s; whoever can change it could run code as the host: mend the mode or owner of %s, or allow it with host.allow_unsafe", u.Why, u.Path)
}

// who is a user and its group.
type who struct{ uid, gid int }

func thisUser() who { return who{os.Geteuid(), os.Getegid()} }

// file is what the judgement of one step needs to know.
type file struct {
	uid, gid uint32
	mode     fs.FileMode
}

func fileOf(info fs.FileInfo) (file, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return file{}, false
	}
	return file{uid: st.Uid, gid: st.Gid, mode: info.Mode()}, true
}

// fault says who else than root and me could change f, or returns "". A sticky
// directory that is only passed through may be writable by others.
func (me who) fault(f file, through bool) string {
	var why string
	sticky := through && f.mode.IsDir() && f.mode&fs.ModeSticky != 0
	switch {
	case !me.owns(f):
		why = "it belongs to another user"
	case sticky:
		return ""
	case f.mode.Perm()&0o002 != 0:
		why = "anyone can write it"
	case f.mode.Perm()&0o020 != 0 && f.gid != 0 && int(f.gid) != me.gid:
		why = "its group can write it, and that is not the host's"
	default:
		return ""
	}
	return fmt.Sprintf("%s (mode %04o, owner %s, group %s; the host runs as %s)",
		why, f.mode.Perm(), UserName(f.uid), groupName(f.gid), UserName(uint32(me.uid)))
}

func (me who) owns(f file) bool { return f.uid == 0 || int(f.uid) == me.uid }

// maxLinks is how many links a path may lead through; the kernel's own limit.
const maxLinks = 40

// Check looks at the whole way to path, and at its end. It returns an error of type
// *UnsafeError, or that of a step that cannot be looked at. What does not exist is nobody's:
// when the way ends early, what there is of it has been looked at, and the error is nil.
//
// A relative path counts from the working directory.
func Check(path string) error { return check(path, thisUser(), os.Lstat) }

// CheckInfo looks at one file alone, whose path is for the message.
func CheckInfo(path string, info fs.FileInfo) error {
	if f, ok := fileOf(info); ok {
		if why := thisUser().fault(f, false); why != "" {
			return &UnsafeError{path, why}
		}
	}
	return nil
}

func check(path string, me who, lstat func(string) (fs.FileInfo, error)) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	at, todo := "/", steps(path)
	links := 0
	for {
		info, err := lstat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
			return nil
		case err != nil:
			return err
		}
		f, ok := fileOf(info)
		if !ok {
			return nil // a system without owners
		}
		if f.mode&fs.ModeSymlink != 0 {
			// Its mode says nothing, and to change it is to replace it in its
			// directory, which was looked at. Only in a sticky one may that be left to
			// its owner.
			if !me.owns(f) && stickyAbove(at, lstat) {
				return &UnsafeError{at, fmt.Sprintf("it is a link that belongs to another user (%s; the host runs as %s)", UserName(f.uid), UserName(uint32(me.uid)))}
			}
			if links++; links > maxLinks {
				return fmt.Errorf("%s leads through more than %d links", path, maxLinks)
			}
			to, err := os.Readlink(at)
			if err != nil {
				return err
			}
			todo = append(steps(to), todo...)
			at = filepath.Dir(at)
			if filepath.IsAbs(to) {
				at = "/"
			}
			continue // with the directory, as what is passed through or as the end
		}
		if why := me.fault(f, len(todo) > 0); why != "" {
			return &UnsafeError{at, why}
		}
		if len(todo) == 0 {
			return nil
		}
		// at holds no link by now, so that .. is what it looks like.
		at, todo = filepath.Join(at, todo[0]), todo[1:]
	}
}

// stickyAbove reports whether path is in a directory that its sticky bit alone makes
// safe.
func stickyAbove(path string, lstat func(string) (fs.FileInfo, error)) bool {
	info, err := lstat(filepath.Dir(path))
	return err != nil || info.Mode()&fs.ModeSticky != 0
}

// steps are the names in a path.
func steps(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == filepath.Separator })
}

// UserName returns the name of a user, or its number if it has none.
func UserName(uid uint32) string {
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
