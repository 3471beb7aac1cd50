package host

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxInterpreters is how many interpreters may need one another; the kernel's own limit.
const maxInterpreters = 5

// firstLine returns what stands behind the mark of a script, up to where the system reads
// it; "" if it is none.
func firstLine(r io.ReaderAt) string {
	if !isScript(r) {
		return ""
	}
	start := make([]byte, scriptLine)
	n, _ := r.ReadAt(start, 0)
	line, _, _ := strings.Cut(string(start[len(scriptMark):n]), "\n")
	return strings.TrimSpace(line)
}

// interpreterOf returns the interpreter that the first line of a script names.
func interpreterOf(script io.ReaderAt) string {
	name, _, _ := strings.Cut(strings.ReplaceAll(firstLine(script), "\t", " "), " ")
	return name
}

// interpreters are the programs that running a script takes: the interpreter that its
// first line names; where that is env, what it finds in path; and where one of these is a
// script itself, that one's.
func interpreters(script io.ReaderAt, path string) (list []string) {
	words := strings.Fields(firstLine(script))
	for len(words) > 0 && len(list) < maxInterpreters {
		program := words[0]
		list = append(list, program)
		if filepath.Base(program) == "env" {
			if program = findIn(path, commandOfEnv(words[1:])); program == "" {
				return list
			}
			list = append(list, program)
		}
		f, _, err := openRegular(program) // a pipe would hold up the start, and with it the host's end
		if err != nil {
			return list // its start says so
		}
		words = strings.Fields(firstLine(f))
		_ = f.Close()
	}
	return list
}

// commandOfEnv is the program that env runs, of these arguments.
func commandOfEnv(args []string) string {
	for _, a := range args {
		// "-S", which splits what the system passes as one argument, and variables.
		if !strings.HasPrefix(a, "-") && !strings.Contains(a, "=") {
			return a
		}
	}
	return ""
}

// findIn finds a program as env does.
func findIn(path, name string) string {
	if name == "" || strings.Contains(name, "/") {
		return name
	}
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return file
		}
	}
	return ""
}

// besideInterpreters is what interpreters read of their own: libraries and modules in
// the directories beside the one that they are in, by the name that they have and by what
// that leads to, and settings of all users.
func besideInterpreters(programs []string) (list []string) {
	for _, program := range programs {
		names := []string{program}
		if target, err := filepath.EvalSymlinks(program); err == nil && target != program {
			names = append(names, target)
		}
		for _, name := range names {
			dir := filepath.Dir(name)
			if base := filepath.Base(dir); base != "bin" && base != "sbin" {
				continue
			}
			for _, own := range []string{
				"lib", "lib64", "pyvenv.cfg", "share/nodejs", "share/perl", "share/perl5", "share/python3", "share/ruby", "share/rubygems-integration", "share/php", "share/lua",
			} {
				list = append(list, filepath.Join(filepath.Dir(dir), own))
			}
		}
	}
	if len(programs) > 0 {
		python, _ := filepath.Glob("/etc/python3*")
		list = append(append(list, python...), "/etc/perl")
	}
	slices.Sort(list)
	return slices.Compact(list)
}
