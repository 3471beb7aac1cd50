//go:build full

package integration

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestFullStoreWhoseFileCannotBeUsed is STO-01 and STO-03 through a host: a file that another
// process has, and one that is damaged, keep the store down and nothing else; `ls elements`
// says why, the file stays as it is, and the store serves once it can.
func TestFullStoreWhoseFileCannotBeUsed(t *testing.T) {
	binary, err := buildTxpersist()
	if err != nil {
		t.Fatal(err)
	}
	i := start(t, []string{binary, built.echo})
	put := func(value string) bool {
		return i.ask("call", "*://txpersist/txpersist/conduit.persist.ResourceStore", "Put", `{"path":"/a","data":"`+value+`"}`).code == 0
	}
	i.until("the store to serve", func() bool { return put("MQ==") })
	found, err := filepath.Glob(filepath.Join(i.dir, "data", "instances", "*", "host", "data", "txpersist", "txpersist", "resources.db"))
	if err != nil || len(found) != 1 {
		t.Fatalf("files of stores: %v, %v", found, err)
	}
	file := found[0]
	stop := func() {
		t.Helper()
		i.signal(syscall.SIGTERM)
		if code := i.wait(); code != 0 {
			t.Fatalf("exit %d:\n%s", code, i.output())
		}
	}
	// down waits for the store to be down for a reason; the others serve meanwhile.
	down := func(why ...string) {
		t.Helper()
		i.until("the store to be down: "+strings.Join(why, ", "), func() bool {
			out := i.ask("ls", "elements", "-o", "json").out
			for _, w := range why {
				if !strings.Contains(out, w) {
					return false
				}
			}
			return true
		})
		i.until("its neighbour to serve", func() bool { return i.ask("call", echoAddr, "Upper", `"x"`).code == 0 })
		if put("Mg==") {
			t.Error("a store serves that cannot have its file")
		}
	}

	stop()
	held, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := syscall.Flock(int(held.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	i.launch()
	down("resources.db", "process "+strconv.Itoa(os.Getpid()))
	if err := held.Close(); err != nil { // which frees it
		t.Fatal(err)
	}
	// By itself it tries again ever more seldom; an operator need not wait.
	again := func() { i.ask("restart", "txpersist") }
	again()
	i.until("the store to serve again", func() bool { return put("Mw==") })

	stop()
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	bad := bytes.Clone(good)
	clear(bad[:2*os.Getpagesize()]) // both heads
	if err := os.WriteFile(file, bad, 0o600); err != nil {
		t.Fatal(err)
	}
	i.launch()
	down("resources.db", "store damaged")
	if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, bad) {
		t.Errorf("the damaged file was changed, %v", err)
	}
	if err := os.WriteFile(file, good, 0o600); err != nil { // as who restores a copy does
		t.Fatal(err)
	}
	again()
	i.until("the restored store to serve", func() bool {
		r := i.ask("call", "*://txpersist/txpersist/conduit.persist.ResourceStore", "Load", `{"path":"/a"}`)
		return r.code == 0 && strings.Contains(r.out, "Mw==")
	})
}
