package main

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elemental-conduit/conduit/internal/config"
)

// terminal makes a pair of which one end is a terminal; what is written there is read
// from the other.
func terminal(t *testing.T) (tty, reader *os.File) {
	t.Helper()
	reader, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reader.Close() })
	if err := unix.IoctlSetPointerInt(int(reader.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(reader.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tty.Close() })
	return tty, reader
}

// untilRead reads until there is what is awaited.
func untilRead(t *testing.T, from *os.File, want string) string {
	t.Helper()
	read := make(chan string, 1)
	go func() {
		var text []byte
		b := make([]byte, 4096)
		for !strings.Contains(string(text), want) {
			n, err := from.Read(b)
			if text = append(text, b[:n]...); err != nil {
				break
			}
		}
		read <- string(text)
	}()
	select {
	case text := <-read:
		if !strings.Contains(text, want) {
			t.Fatalf("%q never came: %q", want, text)
		}
		return text
	case <-time.After(deadline):
		t.Fatalf("%q has not come", want)
		return ""
	}
}

// What takes longer than a second shows so on a terminal, and takes the line away before
// anything is printed; a script sees none of it.
func TestProgress(t *testing.T) {
	tty, reader := terminal(t)
	var out bytes.Buffer
	a := &app{stdout: &out, stderr: tty, output: formatTable}
	a.waits("restart x\x1b[31m")
	untilRead(t, reader, "\r\x1b[Krestart x\\x1b[31m: 1s")
	if err := a.print(nil, func(w io.Writer) { _, _ = w.Write([]byte("done\n")) }); err != nil {
		t.Fatal(err)
	}
	untilRead(t, reader, "\r\x1b[K")
	if out.String() != "done\n" || a.unshow != nil {
		t.Errorf("%q, and a line is left: %v", out.String(), a.unshow != nil)
	}
	for name, quiet := range map[string]*app{"a file": {stderr: &out, output: formatTable}, "-o json": {stderr: tty, output: formatJSON}} {
		if quiet.waits("x"); quiet.unshow != nil || quiet.newStatusLine().w != nil {
			t.Errorf("%s is shown progress", name)
		}
	}
}

// Colours are for terminals, and for nobody who has said NO_COLOR.
func TestColours(t *testing.T) {
	tty, reader := terminal(t)
	c, err := config.Load(config.Sources{Flags: &config.Flags{}, Machine: config.Machine{HostName: "box", Terminal: true}})
	if err != nil {
		t.Fatal(err)
	}
	const escape = "\x1b["
	told := func(a *app) string {
		newLogger(c, a.stderr, a.coloured(a.stderr)).Error("said")
		newLogger(c, a.stderr, false).Error("over")
		return untilRead(t, reader, "over")
	}
	if text := told(&app{stderr: tty}); !strings.Contains(text, escape) {
		t.Errorf("no colour on a terminal: %q", text)
	}
	if text := told(&app{stderr: tty, environ: []string{"NO_COLOR="}}); !strings.Contains(text, escape) {
		t.Errorf("an empty NO_COLOR counts: %q", text)
	}
	if text := told(&app{stderr: tty, environ: []string{"A=b", "NO_COLOR=1"}}); strings.Contains(text, escape) {
		t.Errorf("NO_COLOR does not count: %q", text)
	}
	if (&app{}).coloured(&bytes.Buffer{}) {
		t.Error("colours in a file")
	}
}
