package host

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestInterpreters: what a script needs to be run is found as the system and env find it.
func TestInterpreters(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		mustDo(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)) //nolint:gosec // a program
		return path
	}
	binary := put("real/bin/lang3", "\x7fELF")
	mustDo(t, os.MkdirAll(filepath.Join(dir, "venv/bin"), 0o755), os.Symlink(binary, filepath.Join(dir, "venv/bin/lang")))
	lang, wrapper := filepath.Join(dir, "venv/bin/lang"), put("other/wrapper", "#!"+binary+" -x\n")
	path := filepath.Join(dir, "none") + ":" + filepath.Dir(wrapper) + ":" + filepath.Dir(lang)
	for line, want := range map[string][]string{
		"#!" + binary + "\n":                     {binary},
		"#! \t" + binary + " -u -v\n":            {binary},
		"#!/usr/bin/env lang\n":                  {"/usr/bin/env", lang},
		"#!/usr/bin/env -S A=b lang -u\n":        {"/usr/bin/env", lang},
		"#!/usr/bin/env wrapper\n":               {"/usr/bin/env", wrapper, binary},
		"#!/usr/bin/env nowhere\n":               {"/usr/bin/env"},
		"#!/usr/bin/env\n":                       {"/usr/bin/env"},
		"#!" + wrapper + "\n":                    {wrapper, binary},
		"#!/nowhere/at/all\n":                    {"/nowhere/at/all"},
		"#!" + binary + strings.Repeat(" ", 300): {binary},
		"\x7fELF":                                nil,
		"":                                       nil,
	} {
		if got := interpreters(strings.NewReader(line), path); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
	beside := besideInterpreters([]string{lang})
	for _, want := range []string{"real/lib", "venv/lib", "venv/pyvenv.cfg"} {
		if !slices.Contains(beside, filepath.Join(dir, want)) {
			t.Errorf("%s is not among %q", want, beside)
		}
	}
	if got := besideInterpreters([]string{wrapper}); slices.ContainsFunc(got, func(p string) bool { return strings.HasPrefix(p, dir) }) {
		t.Errorf("of a program that is in no bin: %q", got)
	}
	pipe := filepath.Join(dir, "pipe") // whose other end nobody has opened
	mustDo(t, syscall.Mkfifo(pipe, 0o755))
	for line, want := range map[string][]string{"#!" + pipe + "\n": {pipe}, "#!" + dir + "\n": {dir}} {
		if got := interpreters(strings.NewReader(line), path); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
	loop := put("loop", "#!"+filepath.Join(dir, "loop")+"\n")
	if got := interpreters(strings.NewReader("#!"+loop+"\n"), ""); len(got) != maxInterpreters {
		t.Errorf("a circle: %q", got)
	}
}
