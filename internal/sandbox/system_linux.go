package sandbox

import (
	"github.com/landlock-lsm/go-landlock/landlock"
	llsys "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

type grants struct {
	rights landlock.AccessFSSet
	paths  []string
}

// system is what every program needs of the machine, and no more. It has to hold where
// the host is root, too, who may read everything: so directories are named only if
// nothing in them is a secret.
func system() []grants {
	return []grants{
		// Libraries. Executable, since the dynamic loader is one of them and the kernel
		// executes it. Not /bin and /usr/bin: an element is one program, and whoever has
		// got into it is to find neither a shell nor tools.
		{runnable, []string{
			"/lib", "/lib32", "/lib64", "/libx32", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/local/lib", "/usr/local/lib64",
			"/nix/store", "/gnu/store", // where these systems have all libraries
		}},
		{readFiles, []string{"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.preload"}},
		{readAll, []string{"/etc/ld.so.conf.d"}},

		// Names of hosts, services, users and groups: none of these is a secret. /etc as a
		// whole has some.
		{readFiles, []string{
			"/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/services", "/etc/protocols",
			"/etc/passwd", "/etc/group", "/etc/mime.types", "/etc/os-release",
		}},
		// /etc/resolv.conf leads there, to files that are replaced while a plugin runs.
		{readAll | llsys.AccessFSResolveUnix, []string{"/run/systemd/resolve"}},
		{readAll, []string{"/run/resolvconf"}},
		{llsys.AccessFSResolveUnix, []string{"/run/nscd", "/var/run/nscd"}},

		// Whom to trust. Not /etc/ssl as a whole: it has private keys.
		{readAll, []string{
			"/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf", "/etc/ssl/ca-bundle.pem", "/etc/ca-certificates", "/etc/pki/tls/certs", "/etc/pki/tls/cacert.pem", "/etc/pki/tls/cert.pem",
			"/etc/pki/ca-trust/extracted", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates",
		}},

		// The time, languages and types of files.
		{readAll, []string{"/etc/localtime", "/etc/timezone", "/usr/share/zoneinfo", "/usr/share/locale", "/usr/share/mime"}},

		// Devices that hold nothing.
		{writeFile, []string{"/dev/null", "/dev/zero", "/dev/full"}},
		{readFiles, []string{"/dev/random", "/dev/urandom"}},

		// What the kernel says of the process itself, and how the process is called; of the
		// machine what runtimes and metrics ask for. Not /proc as a whole: it shows other
		// processes, and to root the memory of the machine. /sys/fs/cgroup says how many
		// CPUs Go's runtime may use.
		{readAll, []string{"/proc/self", "/proc/sys"}},
		{writeFile, []string{"/proc/self/comm"}},
		{readFiles, []string{
			"/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/proc/uptime", "/proc/version", "/proc/vmstat", "/proc/filesystems",
			"/proc/diskstats", "/proc/swaps",
		}},
		{readAll, []string{"/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage", "/sys/devices/system/cpu", "/sys/devices/system/node"}},
	}
}
