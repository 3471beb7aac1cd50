package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// probe does what list names, "verb argument" a line, and prints what came of each: the
// text that it read, or the error's.
func probe(list string) {
	said := map[string]string{}
	for op := range strings.SplitSeq(list, "\n") {
		out, err := try(op)
		if err != nil {
			out = "error: " + err.Error()
			if no := syscall.Errno(0); errors.As(err, &no) {
				out = "error: " + no.Error()
			}
		}
		said[op] = out
	}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		os.Exit(1)
	}
	// A test that wants it to stay keeps its input open.
	_, _ = os.Stdin.Read(make([]byte, 1))
}

func try(op string) (string, error) {
	verb, arg, _ := strings.Cut(op, " ")
	switch verb {
	case "read":
		b, err := os.ReadFile(arg)
		return string(b), err
	case "list":
		entries, err := os.ReadDir(arg)
		return strconv.Itoa(len(entries)), err
	case "fds":
		entries, err := os.ReadDir("/proc/self/fd")
		var fds []string
		for _, e := range entries {
			if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
				fds = append(fds, e.Name()+" "+to)
			}
		}
		return strings.Join(fds, "\n"), err
	case "write":
		return "done", os.WriteFile(arg, []byte("x"), 0o600)
	case "truncate":
		return "done", os.Truncate(arg, 0)
	case "remove":
		return "done", os.Remove(arg)
	case "mkdir":
		return "done", os.Mkdir(arg, 0o700)
	case "rename", "link":
		from, to, _ := strings.Cut(arg, " ")
		if verb == "link" {
			return "done", os.Link(from, to)
		}
		return "done", os.Rename(from, to)
	case "device":
		return "done", syscall.Mknod(arg, syscall.S_IFCHR|0o600, 1<<8|3)
	case "fifo":
		return "done", syscall.Mkfifo(arg, 0o600)
	case "socket": // listens, connects to itself
		l, err := net.Listen("unix", arg)
		if err != nil {
			return "", err
		}
		defer l.Close() //nolint:errcheck // a test's
		c, err := net.Dial("unix", arg)
		if err != nil {
			return "", err
		}
		return "done", c.Close()
	case "dial":
		network, addr, _ := strings.Cut(arg, " ")
		c, err := net.Dial(network, addr)
		if err != nil {
			return "", err
		}
		return "done", c.Close()
	case "listen":
		l, err := net.Listen("tcp", arg)
		if err != nil {
			return "", err
		}
		return "done", l.Close()
	case "signal":
		pid, err := strconv.Atoi(arg)
		if err != nil {
			return "", err
		}
		return "done", syscall.Kill(pid, syscall.SIGURG) // ignored by who does not ask for it
	case "exec":
		out, err := exec.Command(arg).CombinedOutput()
		return string(out), err
	case "again": // itself, as a child
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{probeVar + "=" + arg}
		out, err := cmd.Output()
		said := map[string]string{}
		return said[arg], errors.Join(err, json.Unmarshal(out, &said), errorOf(said, arg))
	case "mount":
		return "done", syscall.Mount("none", arg, "tmpfs", 0, "")
	case "chroot":
		return "done", syscall.Chroot(arg)
	case "setuid":
		return "done", syscall.Setuid(12345)
	case "parent":
		return strconv.Itoa(os.Getppid()), nil
	case "group":
		pgid, err := syscall.Getpgid(0)
		return strconv.FormatBool(pgid == os.Getpid()), err
	case "args":
		return fmt.Sprintf("%q", os.Args), nil
	case "dir":
		return os.Getwd()
	case "exe":
		exe, err := os.Readlink("/proc/self/exe")
		return filepath.Base(exe), err
	}
	return "", fmt.Errorf("no such probe: %s", verb)
}

func errorOf(said map[string]string, op string) error {
	if text, is := strings.CutPrefix(said[op], "error: "); is {
		return errors.New(text)
	}
	return nil
}
