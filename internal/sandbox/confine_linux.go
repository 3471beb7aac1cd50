package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/landlock-lsm/go-landlock/landlock"
	llsys "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// signalErratum is the bit of Landlock's list of errata that says that a process may
// signal its own threads: without it, version 6 would break programs.
const signalErratum = 1 << 1

// Available returns what this system can do.
func Available() Kernel {
	v, err := llsys.LandlockGetABIVersion()
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return Kernel{Why: "this kernel has Landlock, and it was not switched on at its start"}
	case err != nil:
		return Kernel{Why: "this kernel has no Landlock, or a container's filter of system calls hides it (" + err.Error() + ")"}
	}
	if v >= NeededLandlock {
		if errata, err := llsys.LandlockGetErrata(); err != nil || errata&signalErratum == 0 {
			return Kernel{Landlock: NeededLandlock - 1, Why: fmt.Sprintf("this kernel has version %d of Landlock, with a fault in how it keeps signals in that later kernels of its series have mended", v)}
		}
	}
	return Kernel{Landlock: min(v, len(versions()))}
}

// versions are what each version of Landlock can restrict, from the first on.
func versions() []landlock.Config {
	return []landlock.Config{
		landlock.V1, landlock.V2, landlock.V3, landlock.V4, landlock.V5, landlock.V6, landlock.V7, landlock.V8, landlock.V9, landlock.V10, landlock.V11,
	}
}

// logVersion is the first version that lets what a plugin was denied be seen in the
// system's audit log, under the plugin's name.
const logVersion = 7

// confine confines the calling thread, which must be locked to its goroutine, and what it
// executes. binary is what may be executed.
func (s *Spec) confine(binary string) (e Effective, _ *fault) {
	for _, step := range []struct {
		done *bool
		what string
		do   func() error
	}{
		{&e.Limits, "the limits could not be set", s.Limits.set},
		{&e.NoNewPrivs, "no_new_privs could not be set", func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }},
		{&e.Capabilities, "the capabilities could not be given up", dropCapabilities},
	} {
		if err := step.do(); err != nil {
			e.Problems = append(e.Problems, step.what+": "+err.Error())
			continue
		}
		*step.done = true
	}
	if _, err := os.Stat(binary); err != nil {
		return e, notExecuted(err)
	}
	v := min(s.Kernel.Landlock, Available().Landlock)
	if v > 0 {
		denied, err := s.landlock(v, binary)
		switch {
		case err == nil:
			e.Landlock = v
		case !denied: // a path of its own is not there, or no descriptor is left: no reason to go without
			return e, &fault{Message: "the sandbox could not be made: " + err.Error()}
		default:
			e.Problems = append(e.Problems, "landlock was refused: "+err.Error())
		}
	} else if s.Kernel.Why != "" {
		e.Problems = append(e.Problems, s.Kernel.Why)
	}
	return s.judge(e)
}

// judge says whether the process may go on with what is in force.
func (s *Spec) judge(e Effective) (Effective, *fault) {
	missing := e.Missing()
	if s.Mode != Required || len(missing) == 0 {
		return e, nil
	}
	why := strings.Join(append(missing, e.Problems...), "; ")
	return e, &fault{Unavailable: true, Message: "the sandbox that is required could not be put in force: " + why + "; mend that, or ask for best-effort"}
}

// set sets the limits of this process.
func (l Limits) set() error {
	return errors.Join(lower(unix.RLIMIT_CORE, l.Core), lower(unix.RLIMIT_NOFILE, l.Files))
}

// lower sets a limit, or leaves it where it is lower.
func lower(resource int, n uint64) error {
	var now unix.Rlimit
	if err := unix.Getrlimit(resource, &now); err != nil {
		return err
	}
	n = min(n, now.Max)
	return unix.Setrlimit(resource, &unix.Rlimit{Cur: n, Max: n})
}

// dropCapabilities gives up what makes root more than the owner of its files, but for
// ports below 1024: the network is left free.
func dropCapabilities() error {
	const keep = 1 << unix.CAP_NET_BIND_SERVICE
	for c := uintptr(0); ; c++ {
		if c == unix.CAP_NET_BIND_SERVICE {
			continue
		}
		// That none can be got back is said by no_new_privs, too: whoever may not do
		// this has nothing to lose by it.
		if unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0) != nil {
			break
		}
	}
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&h, &sets[0]); err != nil {
		return err
	}
	low := sets[0]
	sets = [2]unix.CapUserData{{Effective: low.Effective & keep, Permitted: low.Permitted & keep, Inheritable: low.Inheritable & keep}}
	return unix.Capset(&h, &sets[0])
}

// landlock restricts this thread to version v's rights. denied says that the system
// refused, not that something was missing.
func (s *Spec) landlock(v int, binary string) (denied bool, _ error) {
	all := versions()[v-1]
	// Not its restrictions of the network: what a plugin serves or calls is its own affair.
	c := landlock.Config{HandledAccessFS: all.HandledAccessFS, Scoped: all.Scoped}
	if v >= logVersion {
		c = c.EnableLoggingForSubprocesses()
	}
	rules, err := s.rules(c.HandledAccessFS, binary)
	if err != nil {
		return false, err
	}
	fd, flags, err := c.NewRulesetFD(rules...)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd) //nolint:errcheck // closed by exec as well
	return true, llsys.LandlockRestrictSelf(fd, flags)
}

// What may be granted.
const (
	readFiles = llsys.AccessFSReadFile
	readAll   = readFiles | llsys.AccessFSReadDir
	runnable  = readAll | llsys.AccessFSExecute
	writeFile = readFiles | llsys.AccessFSWriteFile | llsys.AccessFSTruncate
	// writeAll has neither devices nor execution: what a plugin has written is no program.
	writeAll = readAll | writeFile | llsys.AccessFSRemoveDir | llsys.AccessFSRemoveFile | llsys.AccessFSMakeDir | llsys.AccessFSMakeReg |
		llsys.AccessFSMakeSock | llsys.AccessFSMakeFifo | llsys.AccessFSMakeSym | llsys.AccessFSRefer | llsys.AccessFSResolveUnix
	// onFiles are those that a rule for something else than a directory may name.
	onFiles = readFiles | writeFile | llsys.AccessFSExecute | llsys.AccessFSResolveUnix
)

// rules are what the process may do with files, of what handled names.
func (s *Spec) rules(handled landlock.AccessFSSet, binary string) ([]landlock.Rule, error) {
	var rules []landlock.Rule
	grant := func(rights landlock.AccessFSSet, path string) error {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if !info.IsDir() {
			rights &= onFiles
		}
		if rights &= handled; rights != 0 {
			rules = append(rules, landlock.PathAccess(rights, path).IgnoreIfMissing())
		}
		return nil
	}
	if err := grant(readFiles|llsys.AccessFSExecute, binary); err != nil {
		return nil, err
	}
	for _, path := range s.Execute {
		_ = grant(readFiles|llsys.AccessFSExecute, path)
	}
	for _, path := range s.Write {
		if err := grant(writeAll, path); err != nil {
			return nil, err
		}
	}
	for _, path := range s.Read {
		_ = grant(readAll, path)
	}
	for _, g := range system() {
		for _, path := range g.paths {
			_ = grant(g.rights, path)
		}
	}
	return rules, nil
}
