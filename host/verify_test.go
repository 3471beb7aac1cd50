package host

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit"
)

func sumOf(content string) string {
	h := sha256.Sum256([]byte(content))
	return hex.EncodeToString(h[:])
}

func TestSums(t *testing.T) {
	a, b := sumOf("a"), sumOf("b")
	for _, c := range []struct {
		what, list string
		known      map[string]string
		says       string // of the error
	}{
		{"text", a + "  one\n" + b + "  ./two\n", map[string]string{"one": a, "two": b}, ""},
		{"binary, capitals, no end", strings.ToUpper(a) + " *one", map[string]string{"one": a}, ""},
		{"BSD", "SHA256 (one two) = " + a + "\n", map[string]string{"one two": a}, ""},
		{"comments, blanks, CRLF, a mark", "\xef\xbb\xbf# ours\r\n\r\n" + a + "  one\r\n", map[string]string{"one": a}, ""},
		{"twice the same", a + "  one\n" + a + " *one\n", map[string]string{"one": a}, ""},
		{"empty", "", map[string]string{}, ""},
		{"two for one", a + "  one\n" + b + "  one\n", nil, "line 2"},
		{"cut short", a + "  one\n" + b[:40], nil, "line 2"},
		{"another hash", strings.Repeat("0", 128) + "  one\n", nil, "line 1"},
		{"no name", a + "  \n", nil, "line 1"},
		{"an escaped name", `\` + a + "  a\\nb\n", nil, "line 1"},
		{"a page", "<html>404</html>\n", nil, "line 1"},
		{"an endless line", strings.Repeat("a", 10<<10), nil, "too long"},
	} {
		dir := t.TempDir()
		mustDo(t, os.WriteFile(filepath.Join(dir, sumsName), []byte(c.list), 0o600))
		s := readSums(dir, false)
		if c.says != "" {
			if s.err == nil || !strings.Contains(s.err.Error(), c.says) || !strings.Contains(s.err.Error(), s.path) {
				t.Errorf("%s: %v", c.what, s.err)
			}
			continue
		}
		if s.err != nil || len(s.known) != len(c.known) {
			t.Errorf("%s: %v, %v", c.what, s.known, s.err)
		}
		for name, sum := range c.known {
			if s.known[name] != sum {
				t.Errorf("%s: %s has %s", c.what, name, s.known[name])
			}
		}
	}
	open := t.TempDir()
	mustDo(t, os.WriteFile(filepath.Join(open, sumsName), nil, 0o600), os.Chmod(filepath.Join(open, sumsName), 0o666)) //nolint:gosec // the case
	if s := readSums(open, false); s.err == nil || !strings.Contains(s.err.Error(), "anyone can write it") {
		t.Errorf("a list that anyone can write: %v", s.err)
	}
	if s := readSums(open, true); s.err != nil {
		t.Errorf("the same, allowed: %v", s.err)
	}
}

// TestScanVerify: what the list says decides, in each mode, and a list that is changed
// or cannot be read is seen.
func TestScanVerify(t *testing.T) {
	prog := program(t)
	right, wrong := sumOf(prog), sumOf("other")
	for _, c := range []struct {
		what   string
		verify Verify
		list   string // "" = none
		kind   string // "" = taken
		says   []string
	}{
		{"off", VerifyOff, wrong + "  f\n", "", nil},
		{"checksum, listed", VerifyChecksum, right + "  f\n", "", nil},
		{"checksum, another", VerifyChecksum, wrong + "  f\n", refusedChecksum, []string{"its checksum is another", "expected " + wrong, "actual " + right}},
		{"checksum, not listed", VerifyChecksum, wrong + "  g\n", "", nil},
		{"checksum, no list", VerifyChecksum, "", "", nil},
		{"checksum, a broken list", VerifyChecksum, right + "  f\nx", refusedNoChecksum, []string{"line 2"}},
		{"required, listed", VerifyRequired, right + "  f\n", "", nil},
		{"required, another", VerifyRequired, wrong + "  f\n", refusedChecksum, []string{"expected " + wrong, "actual " + right}},
		{"required, not listed", VerifyRequired, right + "  g\n", refusedNoChecksum, []string{"host.verify is required", "sha256sum f"}},
		{"required, no list", VerifyRequired, "", refusedNoChecksum, []string{"host.verify is required"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newScanRig(t)
			r.s = newScanner(&Options{Dir: r.dir, ScanInterval: time.Second, Verify: c.verify, Log: hclog.New(&hclog.LoggerOptions{Output: r.log})}, r.s.store)
			r.put("f", prog, 0o755)
			if c.list != "" {
				r.put(sumsName, c.list, 0o644)
			}
			found, _ := r.scan()
			if len(found) != 1 {
				t.Errorf("found %v", found)
			}
			f := found["f"]
			if c.kind == "" {
				if f.binary == nil {
					t.Fatalf("refused: %v", f.refused)
				}
				if quiet := !strings.Contains(r.log.String(), "checksum is not known"); quiet != (c.verify == VerifyOff || strings.Contains(c.list, "  f")) {
					t.Errorf("the log says:\n%s", r.log)
				}
			} else {
				if f.refused == nil || f.refused.kind != c.kind {
					t.Fatalf("found %+v, refused %v; want %s", f, f.refused, c.kind)
				}
				for _, says := range append(c.says, filepath.Join(r.dir, "f"), filepath.Join(r.dir, sumsName)) {
					if !strings.Contains(f.refused.reason, says) {
						t.Errorf("the reason does not say %q: %s", says, f.refused.reason)
					}
				}
				if copies, _ := os.ReadDir(r.s.store.dir); len(copies) != 0 {
					t.Errorf("it was copied: %v", copies)
				}
			}
			if c.verify == VerifyOff {
				return
			}
			// The list is mended, then broken.
			for _, next := range []struct {
				list, kind string
			}{{right + "  f\n", ""}, {wrong + "  f\n", refusedChecksum}, {right + "  f\n", ""}} {
				r.put(sumsName, next.list, 0o644)
				r.scan() // sees a change
				found, waiting := r.scan()
				if f := found["f"]; waiting != 0 || next.kind == "" && f.binary == nil || next.kind != "" && (f.refused == nil || f.refused.kind != next.kind) {
					t.Errorf("with %q: %+v, %v", next.list, f, f.refused)
				}
			}
		})
	}
}

// TestVerifyRequired: a binary that is not vouched for does not replace one that is.
func TestVerifyRequired(t *testing.T) {
	r := newRigWith(t, func(o *Options) { o.Verify = VerifyRequired }, "echo", "stranger")
	self, err := pluginFile()
	mustDo(t, err)
	bytes, err := os.ReadFile(self)
	mustDo(t, err)
	r.write(sumsName, []byte(sumOf(string(bytes))+"  echo\n"), 0o644)
	r.untilState("echo", Ready)
	s := r.untilState("stranger", Refused)
	if s.Kind != refusedNoChecksum {
		t.Errorf("the snapshot says %+v", s)
	}
	_, err = r.call("*://stranger/stranger/test.Fixture", "Echo", "")
	wantReason(t, err, conduit.ReasonPluginFailed, conduit.Refused)
	was := r.elements()["echo"]
	r.deploy("echo", "not vouched for")
	s = r.until("a warning", func(m map[string]ElementStatus) bool { return len(m["echo"].Warnings) > 0 })["echo"]
	if s.State != Ready || s.Pid != was.Pid || s.Sum != was.Sum || !strings.Contains(s.Warnings[0], "its checksum is another") {
		t.Errorf("the snapshot says %+v", s)
	}
	r.write(sumsName, []byte(sumOf(string(bytes)+"not vouched for")+"  echo\n"), 0o644)
	r.until("the new one", func(m map[string]ElementStatus) bool { return m["echo"].State == Ready && m["echo"].Sum != was.Sum })
	if _, err := New(Options{Dir: r.dir, Private: r.private, Verify: "requird"}); err == nil {
		t.Error("a slip turns verification off")
	}
}
