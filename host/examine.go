package host

import (
	"debug/elf"
	"debug/macho"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"syscall"
)

// cause says why an element does not run: its file may not, or its process is
// lost. kind is a stable name.
type cause struct {
	kind, reason string
}

func (r *cause) Error() string { return r.kind + ": " + r.reason }

// The kinds of refusals by the scan; those by a failed start have the names of
// pluginlink.StartKind.
const (
	refusedName          = "bad_name"
	refusedUnsafe        = "unsafe"
	refusedLink          = "link_outside"
	refusedNotExecutable = "not_executable"
	refusedNotReadable   = "not_readable"
	refusedNotPlugin     = "not_a_plugin"
	refusedWrongArch     = "wrong_arch"
	refusedCopy          = "copy_failed"
)

// checkExecutable looks at the mode, which the host never changes by itself.
func checkExecutable(path string, info fs.FileInfo) error {
	if info.Mode().Perm()&0o111 != 0 {
		return nil
	}
	return &cause{refusedNotExecutable, fmt.Sprintf("%s has mode %04o and owner %s, and the host runs as %s: no execute bit. A copy or an archive may have lost it; chmod +x it",
		path, info.Mode().Perm(), ownerName(info), userName(uint32(os.Geteuid())))}
}

func openError(path string, info fs.FileInfo, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return &cause{refusedNotReadable, fmt.Sprintf("%s has mode %04o and owner %s, and the host runs as %s, which cannot read it; the host runs a copy, so it must: chmod +r it",
			path, info.Mode().Perm(), ownerName(info), userName(uint32(os.Geteuid())))}
	}
	return err
}

func ownerName(info fs.FileInfo) string {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return userName(st.Uid)
	}
	return "unknown"
}

// checkProgram says what keeps this system from running the bytes of r.
func checkProgram(path string, r io.ReaderAt) error {
	if runtime.GOOS == "darwin" {
		return checkMacho(path, r)
	}
	return checkELF(path, r)
}

// machines are the ELF machines of the systems that Go's compiler builds for.
var machines = map[string]elf.Machine{ //nolint:gochecknoglobals // a table that nobody writes
	"386": elf.EM_386, "amd64": elf.EM_X86_64, "arm": elf.EM_ARM, "arm64": elf.EM_AARCH64, "loong64": elf.EM_LOONGARCH,
	"mips": elf.EM_MIPS, "mips64": elf.EM_MIPS, "mips64le": elf.EM_MIPS, "mipsle": elf.EM_MIPS,
	"ppc64": elf.EM_PPC64, "ppc64le": elf.EM_PPC64, "riscv64": elf.EM_RISCV, "s390x": elf.EM_S390,
}

func checkELF(path string, r io.ReaderAt) error {
	start := make([]byte, 4)
	if n, _ := r.ReadAt(start, 0); n < 4 || string(start) != elf.ELFMAG {
		return &cause{refusedNotPlugin, fmt.Sprintf("%s is no program: it begins with %q. A download may have saved an error page; build or fetch the plugin again", path, start[:n])}
	}
	f, err := elf.NewFile(r)
	if err != nil {
		return &cause{refusedNotPlugin, fmt.Sprintf("%s is a damaged program: %v. It may have been copied in part; copy it again", path, err)}
	}
	defer f.Close() //nolint:errcheck // it holds nothing of its own
	if want, ok := machines[runtime.GOARCH]; ok && f.Machine != want {
		return &cause{refusedWrongArch, fmt.Sprintf("%s is built for %s, this machine is %s; build it with GOARCH=%s", path, f.Machine, want, runtime.GOARCH)}
	}
	if f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return &cause{refusedNotPlugin, fmt.Sprintf("%s is an ELF file of type %s, not a program; build the main package", path, f.Type)}
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD {
			if n, err := r.ReadAt(make([]byte, 1), int64(p.Off+p.Filesz)-1); p.Filesz > 0 && n == 0 {
				return &cause{refusedNotPlugin, fmt.Sprintf("%s is cut short: %v. Copy it again", path, err)}
			}
		}
	}
	return nil
}

func checkMacho(path string, r io.ReaderAt) error {
	want := map[string]macho.Cpu{"amd64": macho.CpuAmd64, "arm64": macho.CpuArm64}[runtime.GOARCH]
	if fat, err := macho.NewFatFile(r); err == nil {
		defer fat.Close() //nolint:errcheck // it holds nothing of its own
		for _, a := range fat.Arches {
			if a.Cpu == want {
				return nil
			}
		}
		return &cause{refusedWrongArch, fmt.Sprintf("%s holds no program for %s; build it with GOARCH=%s", path, want, runtime.GOARCH)}
	}
	f, err := macho.NewFile(r)
	if err != nil {
		return &cause{refusedNotPlugin, fmt.Sprintf("%s is no program of this system: %v; build it with GOOS=darwin", path, err)}
	}
	defer f.Close() //nolint:errcheck // it holds nothing of its own
	if f.Cpu != want {
		return &cause{refusedWrongArch, fmt.Sprintf("%s is built for %s, this machine is %s; build it with GOARCH=%s", path, f.Cpu, want, runtime.GOARCH)}
	}
	return nil
}
