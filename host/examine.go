package host

import (
	"bytes"
	"debug/elf"
	"debug/macho"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"syscall"

	"github.com/elemental-conduit/conduit/internal/safepath"
)

// cause says why an element does not run: its file may not, or its process is
// lost. kind is a stable name. reason begins with what is wrong, and names the file as
// it was deployed at its end: a table may have room for no more than the beginning.
type cause struct {
	kind, reason string
}

func (r *cause) Error() string { return r.kind + ": " + r.reason }

// causeOf returns an error as a cause.
func causeOf(err error) *cause {
	if c, ok := errors.AsType[*cause](err); ok {
		return c
	}
	return &cause{"failed", err.Error()}
}

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
	refusedChecksum      = "checksum_mismatch"
	refusedNoChecksum    = "no_checksum"
	refusedManifest      = "bad_manifest"
	refusedMissing       = "missing"
	refusedTooLarge      = "too_large"
	refusedTooMany       = "too_many"
	refusedNamed         = "name_mismatch" // found out by a start: the manifest calls it something else
)

// damagedCopy is the kind of a start that failed since the stored copy was changed and
// the file that it came from is not there to replace it.
const damagedCopy = "copy_damaged"

// checkExecutable looks at the mode, which the host never changes by itself.
func checkExecutable(path string, info fs.FileInfo) error {
	if info.Mode().Perm()&0o111 != 0 {
		return nil
	}
	return &cause{refusedNotExecutable, fmt.Sprintf("it has no execute bit (mode %04o, owner %s; the host runs as %s): a copy or an archive may have lost it; chmod +x %s",
		info.Mode().Perm(), ownerName(info), safepath.UserName(uint32(os.Geteuid())), path)}
}

func openError(path string, info fs.FileInfo, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return &cause{refusedNotReadable, fmt.Sprintf("the host cannot read it (mode %04o, owner %s; the host runs as %s), and runs a copy: chmod +r %s",
			info.Mode().Perm(), ownerName(info), safepath.UserName(uint32(os.Geteuid())), path)}
	}
	return err
}

func ownerName(info fs.FileInfo) string {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return safepath.UserName(st.Uid)
	}
	return "unknown"
}

// checkProgram says what keeps this system from running the bytes of r.
func checkProgram(path string, r io.ReaderAt) error {
	if isScript(r) {
		return checkScript(path, r)
	}
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
		return &cause{refusedNotPlugin, fmt.Sprintf("it is no program (ELF) and no script (#!): it begins with %q; a download may have saved an error page: build or fetch %s again", start[:n], path)}
	}
	f, err := elf.NewFile(r)
	if err != nil {
		return &cause{refusedNotPlugin, fmt.Sprintf("it is a damaged program: %v; it may have been copied in part: copy %s again", err, path)}
	}
	defer f.Close() //nolint:errcheck // it holds nothing of its own
	if want, ok := machines[runtime.GOARCH]; ok && f.Machine != want {
		return &cause{refusedWrongArch, fmt.Sprintf("it is built for %s, this machine is %s: build %s with GOARCH=%s", f.Machine, want, path, runtime.GOARCH)}
	}
	if f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return &cause{refusedNotPlugin, fmt.Sprintf("it is an ELF file of type %s, not a program: build the main package of %s", f.Type, path)}
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD {
			if n, err := r.ReadAt(make([]byte, 1), int64(p.Off+p.Filesz)-1); p.Filesz > 0 && n == 0 {
				return &cause{refusedNotPlugin, fmt.Sprintf("it is cut short: %v; copy %s again", err, path)}
			}
		}
	}
	return nil
}

// scriptMark begins a file that the system runs by the interpreter which its first line
// names.
const scriptMark = "#!"

// isScript reports whether r is a script.
func isScript(r io.ReaderAt) bool {
	start := make([]byte, len(scriptMark))
	n, _ := r.ReadAt(start, 0)
	return string(start[:n]) == scriptMark
}

// scriptLine is how much of its first line Linux looks at, in bytes.
const scriptLine = 255

// checkScript looks at a script's first line, not at the interpreter that it names: one
// that is missing is told by the start.
func checkScript(path string, r io.ReaderAt) error {
	start := make([]byte, scriptLine)
	n, _ := r.ReadAt(start, 0)
	line, _, whole := bytes.Cut(start[len(scriptMark):n], []byte("\n"))
	interpreter, _, _ := bytes.Cut(bytes.TrimLeft(line, " \t"), []byte(" "))
	switch {
	case bytes.HasSuffix(line, []byte("\r")):
		return &cause{refusedNotPlugin, fmt.Sprintf("its first line ends with a carriage return, so that the system looks for an interpreter of that name: save %s with Unix line ends", path)}
	case !bytes.HasPrefix(interpreter, []byte("/")):
		return &cause{refusedNotPlugin, fmt.Sprintf("its first line, %q, names no interpreter by its whole path: write one, such as #!/usr/bin/env python3, into %s", shorten(line), path)}
	case !whole && n == scriptLine:
		return &cause{refusedNotPlugin, fmt.Sprintf("its first line is longer than the %d bytes that the system reads of it: shorten that of %s", scriptLine, path)}
	}
	return nil
}

// shorten cuts text of a file for a message.
func shorten(b []byte) []byte { return b[:min(len(b), 80)] }

func checkMacho(path string, r io.ReaderAt) error {
	want := map[string]macho.Cpu{"amd64": macho.CpuAmd64, "arm64": macho.CpuArm64}[runtime.GOARCH]
	if fat, err := macho.NewFatFile(r); err == nil {
		defer fat.Close() //nolint:errcheck // it holds nothing of its own
		for _, a := range fat.Arches {
			if a.Cpu == want {
				return nil
			}
		}
		return &cause{refusedWrongArch, fmt.Sprintf("it holds no program for %s: build %s with GOARCH=%s", want, path, runtime.GOARCH)}
	}
	f, err := macho.NewFile(r)
	if err != nil {
		return &cause{refusedNotPlugin, fmt.Sprintf("it is no program of this system (%v) and no script (#!); build %s with GOOS=darwin", err, path)}
	}
	defer f.Close() //nolint:errcheck // it holds nothing of its own
	if f.Cpu != want {
		return &cause{refusedWrongArch, fmt.Sprintf("it is built for %s, this machine is %s: build %s with GOARCH=%s", f.Cpu, want, path, runtime.GOARCH)}
	}
	return nil
}
