//go:build full

package integration

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/client"
	persist "github.com/elemental-conduit/conduit/plugins/txpersist/client"
)

// largeContents is the size of contents far above what the store keeps in memory.
const largeContents = 320 << 20

func largeStream(seed byte) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{seed}), largeContents)
}

// own is how much memory of its own a process has in MiB, without the pages of files.
func own(t *testing.T, pid int) int {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if text, ok := strings.CutPrefix(s.Text(), "RssAnon:"); ok {
			kib, err := strconv.Atoi(strings.Fields(text)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kib >> 10
		}
	}
	t.Fatal("the system does not tell what memory a process has")
	return 0
}

// watched calls look at each 8 MiB that pass.
type watched struct {
	r    io.Reader
	n    int
	look func()
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.r.Read(b)
	if (w.n+n)>>23 != w.n>>23 {
		w.look()
	}
	w.n += n
	return n, err
}

// TestFullLargeContents sends 320 MiB up and down through a host, in one transaction each:
// they come back as they were, neither the host nor the element has them in memory, and
// nothing is left of an upload whose store is killed in the middle.
func TestFullLargeContents(t *testing.T) {
	binary, err := buildTxpersist()
	if err != nil {
		t.Fatal(err)
	}
	i := start(t, []string{binary}, "--host-attributes", "max_contents=400MiB")
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	cluster, err := client.Dial(ctx, client.Options{Peers: []string{i.url}})
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	c := persist.Open(cluster, persist.Options{})
	path := address.MustParsePath("/large")
	i.until("the store to serve", func() bool {
		_, err := c.Put(ctx, address.MustParsePath("/small"), []byte("x"))
		return err == nil
	})

	most := 0
	memory := func() {
		for _, pid := range append(i.plugins(), i.cmd.Process.Pid) {
			most = max(most, own(t, pid))
		}
	}
	if _, n, err := c.Write(ctx, path, &watched{r: largeStream(1), look: memory}); err != nil || n != largeContents {
		t.Fatalf("written: %d, %v", n, err)
	}
	compare := func() {
		t.Helper()
		got, want := sha256.New(), sha256.New()
		pipe, in := io.Pipe()
		done := make(chan error, 1)
		go func() {
			_, err := c.Read(ctx, path, in)
			done <- in.CloseWithError(err)
		}()
		if n, err := io.Copy(got, &watched{r: pipe, look: memory}); err != nil || n != largeContents {
			t.Errorf("read: %d, %v", n, err)
		}
		<-done
		if _, err := io.Copy(want, largeStream(1)); err != nil {
			t.Fatal(err)
		}
		if string(got.Sum(nil)) != string(want.Sum(nil)) {
			t.Error("what comes back is not what was written")
		}
	}
	compare()
	t.Logf("at most %d MiB of memory", most)
	if most > 160 {
		t.Errorf("a process had %d MiB of its own for contents of %d MiB", most, largeContents>>20)
	}

	// Too much is refused with the limit's name, and what is there stays.
	_, _, err = c.Write(ctx, path, io.MultiReader(largeStream(2), largeStream(3)))
	if err == nil || !strings.Contains(err.Error(), "max_contents is 419430400") {
		t.Errorf("640 MiB: %v", err)
	}
	// So it does if the store is killed in the middle.
	seen := 0
	_, _, err = c.Write(ctx, path, &watched{r: largeStream(2), look: func() {
		if seen++; seen == 20 {
			if err := syscall.Kill(i.plugins()[0], syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}
	}})
	if err == nil {
		t.Error("an upload whose store was killed was taken")
	}
	i.until("the store to serve again", func() bool {
		_, err := c.Put(ctx, address.MustParsePath("/small"), []byte("y"))
		return err == nil
	})
	compare()
	i.until("what was left of two uploads to be room again", func() bool {
		st, err := c.Stats(ctx)
		return err == nil && st.GetUsedBytes()-st.GetFreeBytes()-st.GetPendingBytes() < largeContents+largeContents/4
	})
}
