package pluginlink

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit/internal/pluginlog"
)

func TestLineReader(t *testing.T) {
	long := strings.Repeat("z", maxLine+100)
	r := newLineReader(strings.NewReader("one\r\n\n" + long + "\n" + strings.Repeat("m", 70<<10) + "\nlast"))
	for i, want := range []struct{ n, cut int }{{3, 0}, {0, 0}, {maxLine, 100}, {70 << 10, 0}, {4, 0}} {
		line, cut, err := r.next()
		if err != nil || len(line) != want.n || cut != want.cut {
			t.Errorf("line %d has %d bytes, %d cut, %v; want %v", i, len(line), cut, err, want)
		}
	}
	if _, _, err := r.next(); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

// sunk is what an output's sink was told.
type sunk struct {
	mu   sync.Mutex
	list []OutputRecord
}

func (s *sunk) take(r OutputRecord) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, r)
}

func (s *sunk) all() []OutputRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.list)
}

// field finds one of a record's fields.
func field(r OutputRecord, key string) any {
	for i := 0; i < len(r.Fields); i += 2 {
		if r.Fields[i] == key {
			return r.Fields[i+1]
		}
	}
	return nil
}

// TestRate: an element that writes without end is cut to a rate, and what is
// lost is counted and told, also if it writes nothing more.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sunk
		o := newOutput(hclog.NewNullLogger(), s.take)
		for range lineBurst + 500 {
			o.line(sourceStderr, []byte("x"), 0)
		}
		if n := len(s.all()); n != lineBurst || o.Lost() != 500 {
			t.Errorf("%d passed, %d lost", n, o.Lost())
		}
		time.Sleep(dropNotice)
		synctest.Wait()
		last := s.all()[lineBurst:]
		if len(last) != 1 || last[0].Source != sourceHost || last[0].Level != hclog.Warn || field(last[0], "dropped") != uint64(500) {
			t.Fatalf("what was dropped is told as %v", last)
		}
		// After that second there is room for so many again, and long ones count for more.
		for range linesPerSecond/100 + 5 {
			o.line(sourceStderr, bytes.Repeat([]byte("y"), 100*lineUnit), 0)
		}
		if n := len(s.all()) - lineBurst - 1; n != linesPerSecond/100 {
			t.Errorf("%d long lines passed in a second", n)
		}
		o.tellDropped() // as at the process's end
		if all := s.all(); field(all[len(all)-1], "dropped") != uint64(5) {
			t.Errorf("at the end: %v", all[len(all)-1])
		}
		time.Sleep(time.Hour) // and not again
		if n := len(s.all()); n != lineBurst+1+linesPerSecond/100+1 {
			t.Errorf("%d records", n)
		}
	})
}

// TestPanicText: it is one record with its level, and what only begins like one does not
// swallow what comes after it.
func TestPanicText(t *testing.T) {
	var text strings.Builder
	text.WriteString("panic: oh no\n\n")
	for i := range 30 {
		fmt.Fprintf(&text, "main.f%d()\n\t/x.go:%d\n", i, i)
	}
	for _, c := range []struct{ name, text, stack string }{
		{"a panic", text.String(), "/x.go:29"},
		{"a long first line", "panic: " + strings.Repeat("z", 2*maxBlock) + "\nmore\n", ""},
		{"a long one", "fatal error: all asleep\n" + strings.Repeat("goroutine 1 [running]:\n", maxBlock/10), "goroutine 1"},
	} {
		var s sunk
		o := newOutput(hclog.NewNullLogger(), s.take)
		o.drainStderr(strings.NewReader(c.text), func(time.Time) error { return nil })
		all := s.all()
		if len(all) != 1 || all[0].Level != hclog.Error {
			t.Fatalf("%s is %d records", c.name, len(all))
		}
		stack, _ := field(all[0], "stack").(string)
		if size := len(all[0].Message) + len(stack); !strings.Contains(stack, c.stack) || size > 2*maxBlock || (field(all[0], "truncated") == true) != (len(c.text) > maxBlock) {
			t.Errorf("%s: %d bytes, truncated %v, lost %v", c.name, size, field(all[0], "truncated"), field(all[0], "lost_bytes"))
		}
	}
	synctest.Test(t, func(t *testing.T) {
		var s sunk
		o := newOutput(hclog.NewNullLogger(), s.take)
		r, w := io.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			o.drainStderr(r, func(time.Time) error { return nil })
		}()
		for range 30 { // never quiet for long
			_, _ = io.WriteString(w, "panic: recovered\n")
			time.Sleep(100 * time.Millisecond)
		}
		for range 30 {
			_, _ = io.WriteString(w, "going on\n")
			time.Sleep(100 * time.Millisecond)
		}
		_ = w.Close()
		<-done
		goingOn := 0
		for _, r := range s.all() {
			if r.Message == "going on" {
				goingOn++
			}
		}
		if goingOn < 15 {
			t.Errorf("%d of 30 lines are to be seen: %v", goingOn, s.all())
		}
	})
}

// TestUnfinishedLine: what a process printed without the end of its line is logged when
// it has ended, and belongs to the last lines of stderr.
func TestUnfinishedLine(t *testing.T) {
	var s sunk
	o := newOutput(hclog.NewNullLogger(), s.take)
	w := &lineWriter{out: o, source: sourceStderr}
	_, _ = io.WriteString(w, "one\ntwo")
	w.flush()
	w.flush()
	if all := s.all(); len(all) != 2 || all[1].Message != "two" || !slices.Equal(o.Tail(), []string{"one", "two"}) {
		t.Errorf("%v, and the tail is %q", all, o.Tail())
	}
}

// TestRecordFields: a plugin's fields cannot pass for the host's, and a stack keeps its
// lines, each of them harmless.
func TestRecordFields(t *testing.T) {
	r, ok := parseRecord([]byte(`{"@message":"m","@level":"warn","source":"host","dropped":7,"stack":"a\n\u001b[2Jb\n","k":1}`))
	o := OutputRecord{Fields: r.args}
	if !ok || r.level != hclog.Warn || field(o, "plugin.source") != "host" || field(o, "plugin.dropped") != "7" || field(o, "stack") != "a\n\\x1b[2Jb" || field(o, "k") != "1" {
		t.Errorf("%v", r)
	}
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"plain äö\t.": "plain äö\t.", "a\nb": `a\nb`, "\x1b[2J": `\x1b[2J`, "\xff": `\xff`, "x\u202ey": `x\xe2\x80\xaey`, "\x00\r": `\x00\x0d`,
	} {
		if got := clean(in); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
}

// FuzzOutput: no bytes on stderr can harm the reader, and each record is one
// line of safe text.
func FuzzOutput(f *testing.F) {
	for _, s := range []string{`{"@message":5}`, `{"@level":[],"@message":null}`, "panic: x\n\n", "[WARN] y", "{\"@message\":\"a\\u0000\"}", "\xff\xfe"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, ok := parseRecord(b); ok && strings.ContainsAny(r.message, "\n\x1b\x00") {
			t.Errorf("unsafe message %q", r.message)
		}
		if r := plainRecord(bytes.TrimRight(b, "\n"), 1); strings.ContainsAny(r.message, "\n\x1b\x00") {
			t.Errorf("unsafe message %q", r.message)
		}
		o := newOutput(hclog.New(&hclog.LoggerOptions{Output: io.Discard, JSONFormat: true}), func(r OutputRecord) {
			if strings.ContainsAny(r.Message, "\n\x1b\x00") {
				t.Errorf("unsafe message %q", r.Message)
			}
			for i := 0; i < len(r.Fields); i += 2 {
				k, v := fmt.Sprint(r.Fields[i]), fmt.Sprint(r.Fields[i+1])
				if strings.ContainsAny(k, "\n\x1b\x00") || strings.ContainsAny(v, "\x1b\x00") || k != stackField && strings.Contains(v, "\n") {
					t.Errorf("unsafe field %q: %q", k, v)
				}
			}
		})
		o.drainStderr(bytes.NewReader(b), func(time.Time) error { return nil })
		if a, ok := parseAnnouncement(string(b)); ok {
			_ = a.check("p", "/s")
		}
	})
}

// FuzzLog: whatever a process writes to stderr, each record of it is in the log's file as
// it was told, and nothing in it keeps others from being read.
func FuzzLog(f *testing.F) {
	for _, s := range []string{"", "x\n\xff\xfe\n", `{"@message":5,"":"","a\u0000":{"b":[]}}`, "panic: x\n\ty\n{\"@message\":\"z\"}\n", "{\"@message\":\"\u2028</a>\",\"stack\":\"1\\n2\"}", "[WARN] \x1b[2J\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
		defer cancel()
		logs := pluginlog.New(pluginlog.Options{Dir: t.TempDir(), MaxSize: 1 << 30})
		var want []pluginlog.Record
		o := newOutput(hclog.NewNullLogger(), func(r OutputRecord) {
			one := pluginlog.Record{Time: r.Time.UTC().Round(0), Level: r.Level, Deployment: "d", Element: r.Element, Pid: r.Pid, Source: r.Source, Message: r.Message}
			for i := 0; i < len(r.Fields); i += 2 {
				if one.Fields == nil {
					one.Fields = map[string]string{}
				}
				one.Fields[fmt.Sprint(r.Fields[i])] = fmt.Sprint(r.Fields[i+1])
			}
			want = append(want, one)
			logs.Append(one)
		})
		o.setElement(string(b))
		o.drainStderr(bytes.NewReader(b), func(time.Time) error { return nil })
		var got []pluginlog.Record
		if err := logs.Read(ctx, "d", pluginlog.Query{Tail: -1}, func(r pluginlog.Record) error {
			got = append(got, r)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if !slices.EqualFunc(got, want, func(a, b pluginlog.Record) bool { return reflect.DeepEqual(a, b) }) {
			t.Errorf("the file has %+v, and %+v was told", got, want)
		}
		if err := logs.Flush(ctx); err != nil { // before the directory goes
			t.Fatal(err)
		}
	})
}

// BenchmarkLine is what a line of 150 bytes costs on its way to the log and its file.
func BenchmarkLine(b *testing.B) {
	line := []byte(`{"@level":"info","@message":"served a request","@timestamp":"2026-01-01T00:00:00.000000Z","path":"/a/b/c","status":200,"took":"1.234ms","user":"ada"}`)
	logs := pluginlog.New(pluginlog.Options{Dir: b.TempDir(), MaxSize: 1 << 30})
	for name, sink := range map[string]func(OutputRecord){
		"log": nil,
		"file": func(r OutputRecord) {
			fields := map[string]string{}
			for i := 0; i < len(r.Fields); i += 2 {
				fields[fmt.Sprint(r.Fields[i])] = fmt.Sprint(r.Fields[i+1])
			}
			logs.Append(pluginlog.Record{Time: r.Time, Level: r.Level, Deployment: "d", Element: r.Element, Pid: r.Pid, Source: r.Source, Message: r.Message, Fields: fields})
		},
	} {
		b.Run(name, func(b *testing.B) {
			o := newOutput(hclog.New(&hclog.LoggerOptions{Output: io.Discard, JSONFormat: true}), sink)
			b.ReportAllocs()
			for b.Loop() {
				o.tokens = lineBurst
				o.line(sourceStderr, line, 0)
			}
			if err := logs.Flush(b.Context()); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// What is not to be shown is in nothing that is kept or passed on, whichever way it was
// printed.
func TestRedacted(t *testing.T) {
	hide := func(s string) string { return strings.ReplaceAll(s, "hunter2", "(redacted)") }
	var kept []string
	var log bytes.Buffer
	o := newOutput(hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Trace}), func(r OutputRecord) {
		kept = append(kept, fmt.Sprint(r.Message, r.Fields))
	})
	o.redact.Store(&hide)
	w := &lineWriter{out: o, source: sourceStderr}
	if _, err := io.WriteString(w, "by os.Stderr: hunter2\n{\"@message\":\"x\",\"password\":\"hunter2\"}\nunfinished hunter2"); err != nil {
		t.Fatal(err)
	}
	w.flush()
	o.drainStderr(strings.NewReader("raw: hunter2\npanic: hunter2\n\ngoroutine 1 [running]:\nhunter2()\n"), func(time.Time) error { return nil })
	all := strings.Join(slices.Concat(kept, o.Tail()), "\n") + log.String()
	if strings.Contains(all, "hunter2") || strings.Count(all, "(redacted)") < 12 {
		t.Errorf("%s", all)
	}
}

// What a process's end is explained with: of a panic that came last its first line, and
// not the end of its stack; of anything else the last line.
func TestLastWords(t *testing.T) {
	stack := strings.Repeat("example.f()\n\t/some/file.go:1 +0x1\n", 40)
	for text, want := range map[string][2]string{
		"":                        {"", ""},
		"one\ntwo\nthree\nfour\n": {"four", "two / three / four"},
		"start\npanic: boom\n\ngoroutine 1 [running]:\n" + stack:                         {"panic: boom", "panic: boom"},
		"fatal error: all goroutines are asleep - deadlock!\n\n" + stack:                 {"fatal error: all goroutines are asleep - deadlock!", "fatal error: all goroutines are asleep - deadlock!"},
		"panic: one\n" + stack + `{"@level":"info","@message":"it went on"}` + "\nbye\n": {"bye", ""},
	} {
		o := newOutput(hclog.NewNullLogger(), nil)
		o.drainStderr(strings.NewReader(text), func(time.Time) error { return nil })
		if got := o.LastWords(); got != want[0] {
			t.Errorf("%.30q: the last words are %q, want %q", text, got, want[0])
		}
		if got := o.endedWith(); want[1] != "" && got != want[1] {
			t.Errorf("%.30q: it ended with %q, want %q", text, got, want[1])
		}
	}
}
