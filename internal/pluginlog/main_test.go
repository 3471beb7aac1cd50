package pluginlog

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
)

// writerVar makes the test binary a process that writes to the logs in that directory
// until it is killed.
const writerVar = "LOG_WRITER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerVar); dir != "" {
		l := New(Options{Dir: dir, MaxSize: 256 << 10, Keep: 2})
		for n := 0; ; n++ {
			l.Append(numbered(n))
			if n%100 == 0 {
				_ = l.Flush(context.Background())
			}
		}
	}
	goleak.VerifyTestMain(m)
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// numbered is a record that can be told from others.
func numbered(n int) Record {
	return Record{
		Time: time.Now(), Level: hclog.Info, Deployment: "echo", Element: "echo", Generation: 1, Pid: 7, Source: "stderr",
		Message: fmt.Sprintf("%d %s", n, strings.Repeat("x", 100)), Fields: map[string]string{"n": strconv.Itoa(n)},
	}
}

// number is that of a numbered record, else -1.
func number(r Record) int {
	n, err := strconv.Atoi(r.Fields["n"])
	if err != nil {
		return -1
	}
	return n
}

// read returns what there is.
func read(t *testing.T, l *Logs, q Query) []Record {
	t.Helper()
	var all []Record
	err := l.Read(testContext(t), "echo", q, func(r Record) error {
		all = append(all, r)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func flush(t *testing.T, l *Logs) {
	t.Helper()
	if err := l.Flush(testContext(t)); err != nil {
		t.Fatal(err)
	}
}

// running checks that numbered records follow each other, and returns the first and the
// last number.
func running(t *testing.T, records []Record) (first, last int) {
	t.Helper()
	if len(records) == 0 {
		t.Fatal("there are no records")
	}
	first = number(records[0])
	for i, r := range records {
		if number(r) != first+i {
			t.Fatalf("record %d of %d is %v, after number %d", i, len(records), r, first+i-1)
		}
	}
	return first, first + len(records) - 1
}

// files returns the sizes of the files in a directory.
func files(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[string]int64{}
	for _, e := range entries {
		info, err := os.Lstat(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", e.Name(), info.Mode())
		}
		sizes[e.Name()] = info.Size()
	}
	return sizes
}
