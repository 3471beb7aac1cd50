package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/elemental-conduit/conduit/internal/config"
	"github.com/elemental-conduit/conduit/internal/safepath"
)

// ownDir makes a directory that is this user's alone, or says what to do about
// the one that is there. It never changes what it did not make: a directory that
// was named by mistake may be somebody's home.
// Who else could change what its path leads to makes it useless; unsafe allows that.
func ownDir(key, path string, unsafe bool) error {
	trusted := func(way string) error {
		if err := safepath.Check(way); err != nil && !unsafe {
			return configf("%s: %s is refused: %v", key, path, err)
		}
		return nil
	}
	if err := trusted(filepath.Dir(path)); err != nil { // before anything is made where others can
		return err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return configf("%s: %s cannot be made: %v; give another directory, or this user the right to write there", key, path, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return configf("%s: %s cannot be read: %v", key, path, err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return configf("%s: %s belongs to user %d, not to the one that runs this (%d); give another directory", key, path, st.Uid, os.Geteuid())
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return configf("%s: %s is open to other users (mode %04o); close it with `chmod 700 %s`", key, path, mode, path)
	}
	return trusted(path)
}

// instanceLock keeps a second instance of the name out. It goes with the process,
// so one that was killed leaves nothing to clear away.
type instanceLock []*os.File

func (l instanceLock) release() {
	for _, f := range l {
		_ = f.Close()
	}
}

// lockInstance takes the name twice: where its sockets are, and where its data is,
// since either may be shared when the other is not.
func lockInstance(c *config.Config) (lock instanceLock, err error) {
	defer func() {
		if err != nil {
			lock.release()
		}
	}()
	name := c.String("name")
	for _, place := range []struct{ key, dir, file string }{
		{"data_dir", c.PrivateDir(), "instance.lock"},
		{"run_dir", c.String("run_dir"), name + ".lock"},
	} {
		if err := ownDir(place.key, place.dir, c.Bool("host.allow_unsafe")); err != nil {
			return lock, err
		}
		f, err := lockFile(filepath.Join(place.dir, place.file), name)
		if err != nil {
			return lock, err
		}
		lock = append(lock, f)
	}
	return lock, nil
}

func lockFile(path, name string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, configf("the lock of instance %s cannot be opened: %v", name, err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil {
		holder := make([]byte, 32)
		n, _ := f.ReadAt(holder, 0) // best effort: it only helps to find the other one
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, configf("an instance named %s is running already%s; stop it, or give this one another name with --name", name, pidText(string(holder[:n])))
		}
		return nil, configf("the lock %s cannot be taken: %v", path, err)
	}
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return f, nil
}

func pidText(s string) string {
	if pid, err := strconv.Atoi(strings.TrimSpace(s)); err == nil {
		return " (process " + strconv.Itoa(pid) + ")"
	}
	return ""
}

// checkDeployments says now what would otherwise be an instance that runs and
// hosts nothing.
func checkDeployments(dir string) error {
	_, err := os.ReadDir(dir)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return configf("host.deployments: %s does not exist; make it with `mkdir -p %s`, or name another directory with --host-deployments", dir, dir)
	case errors.Is(err, syscall.ENOTDIR):
		return configf("host.deployments: %s is a file; name the directory that plugins are in with --host-deployments", dir)
	case errors.Is(err, fs.ErrPermission):
		return configf("host.deployments: %s cannot be read by this user; give it the right, or name another directory with --host-deployments", dir)
	}
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		err = path.Err
	}
	return configf("host.deployments: %s cannot be read: %v; name another directory with --host-deployments", dir, err)
}
