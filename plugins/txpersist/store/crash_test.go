package store

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit/address"
)

func taskOf(id address.ResourceID) address.TaskID {
	return address.TaskIDFromUUID(id, [16]byte{1})
}

// TestCrash kills a process at random points while eight writers are at work in it,
// again and again on one file: it opens without help, all that was acknowledged is
// there, and no half of a commit. STORE_CRASH_ROUNDS asks for more rounds than the few
// that a normal run does.
//
// A killed process leaves what it wrote in the system's cache, so this shows that
// commits are atomic, not that the disk is told to flush.
func TestCrash(t *testing.T) {
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	if s := os.Getenv("STORE_CRASH_ROUNDS"); s != "" {
		var err error
		rounds, err = strconv.Atoi(s)
		must(t, err)
	}
	file := filepath.Join(t.TempDir(), "store")
	var acknowledged [crashWriters]int
	total := 0
	for round := range rounds {
		c := startChild(t, "load", file)
		if line := c.line(t); line != "ready" {
			t.Fatalf("round %d: %s", round, line)
		}
		// In three rounds of four the time begins with a commit, so that there are some
		// however slow the machine is.
		killSoon := func() {
			time.AfterFunc(time.Duration(1+rand.IntN(400))*time.Millisecond, func() { _ = c.cmd.Process.Kill() })
		}
		if round%4 == 0 {
			killSoon()
		}
		more := c.out.Scan()
		if round%4 != 0 {
			killSoon()
		}
		for ; more; more = c.out.Scan() {
			var w, n int
			if _, err := fmt.Sscanf(c.out.Text(), "%d %d", &w, &n); err != nil {
				t.Fatalf("round %d: the child says %q", round, c.out.Text())
			}
			acknowledged[w] = n
			total++
		}
		_ = c.cmd.Wait()
		s := openStore(t, file)
		s.view(paths("/"), func(tx *ReadTx) {
			for w, want := range acknowledged {
				got, _, err := crashState(tx, w)
				if err != nil {
					t.Errorf("round %d: %v", round, err)
				}
				// The last one may have been committed before it could be said.
				if got != want && got != want+1 {
					t.Errorf("round %d: writer %d is at %d, %d was acknowledged", round, w, got, want)
				}
				acknowledged[w] = got
			}
		})
		s.swept()
		s.verify()
		wantFiles(t, filepath.Dir(file), "store")
		if t.Failed() {
			return
		}
	}
	t.Logf("%d kills, %d commits", rounds, total)
	if total < rounds-(rounds+3)/4 {
		t.Errorf("only %d commits in %d rounds: the load is none", total, rounds)
	}
}
