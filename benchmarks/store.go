package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// storeSizes are how much there is of what the scenario store measures.
type storeSizes struct {
	window    time.Duration // of each measurement
	resources int           // for memory and the time of opening
	paths     int           // of a listing
}

// storeWindow is how long a measurement takes, unless -window says otherwise.
const storeWindow = 3 * time.Second

const (
	storeKeys  = 1000 // that writers and readers choose among, all disjoint scopes
	storeBytes = 128  // of contents
	storeBatch = 1000 // resources of a transaction that fills a store
)

// storeWriters are the numbers of writers at once.
func storeWriters() []int { return []int{1, 64, 256} }

// keeper is a system that keeps contents under paths.
type keeper interface {
	// fill makes paths with contents, many in a transaction.
	fill(ctx context.Context, paths []string, data []byte) error
	// update gives one path other contents, durably; read reads one.
	update(ctx context.Context, path string, data []byte) error
	read(ctx context.Context, path string) (n int, err error)
	// list counts what lies below a path, in the order of paths.
	list(ctx context.Context, path string) (n int, err error)
	// backup writes a consistent copy to a file while it is open.
	backup(ctx context.Context, file string) (bytes int64, err error)
	// reopen ends it and starts it once more, and says how long the start took and what
	// memory it has after that; bytes is 0 where nobody can tell.
	reopen(ctx context.Context) (took time.Duration, bytes int64, err error)
	close() error
}

// storeSystem is how a keeper is made.
type storeSystem struct {
	name  string
	about string
	start func(ctx context.Context, l *lab, dir string) (keeper, error)
	// large says that the system takes part in what is measured of many resources.
	large bool
}

func storeSystems() []storeSystem {
	return []storeSystem{
		{"store", "`plugins/txpersist/store`, called directly: a transaction with a declared scope for each operation", startStore, true},
		{"façade", "the same as an element: Go client → `/cluster/v1` → host → plugin, protobuf, one link for all callers, without a key", startFacade, false},
		{"façade, keyed", "the same by `plugins/txpersist/client`, whose writes carry a key that is committed with them", startKeyed, false},
		{"bbolt", "bbolt used directly, one Put into one bucket for each operation: `DB.Update`", startBolt, true},
		{"bbolt Batch", "the same by `DB.Batch`, which waits up to 10 ms for others", startBoltBatch, false},
		{"PostgreSQL", "a table with the path as primary key, one connection for each caller over a Unix socket, one statement each; fsync and synchronous_commit on", startPostgres, true},
	}
}

// storeScenario compares stores that do the same work, in one run on one disk.
func storeScenario(ctx context.Context, l *lab, o options, stdout, stderr io.Writer) error {
	root, err := os.MkdirTemp("", "conduit-bench-store-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(root) }()     // it is in the system's temporary directory
	if err := os.Chmod(root, 0o711); err != nil { //nolint:gosec // PostgreSQL's own user must get through
		return err
	}
	fmt.Fprintf(stdout, "The files are on %s. %d keys of %d bytes; %d rounds of %v, systems in turn; a figure is the median.\n\n", filesystem(root), storeKeys, storeBytes, o.rounds, o.store.window)
	systems := storeSystems()
	keepers := make([]keeper, len(systems))
	defer func() {
		for _, k := range keepers {
			if k != nil {
				_ = k.close() // an error of the measurement is the one that counts
			}
		}
	}()
	keys, data := pathsOf("r", storeKeys), make([]byte, storeBytes)
	for i, s := range systems {
		dir := filepath.Join(root, strconv.Itoa(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if keepers[i], err = s.start(ctx, l, dir); err == nil {
			err = keepers[i].fill(ctx, keys, data)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Fprintf(stdout, "- **%s**: %s\n", s.name, s.about)
	}
	m := &storeMeasure{o: o, systems: systems, keepers: keepers, keys: keys, stdout: stdout, stderr: stderr}
	fmt.Fprint(stdout, "\n#### Durable commits per second\n\n")
	commits, err := m.rates(ctx, storeWriters(), func(k keeper, ctx context.Context, key string) error {
		value := make([]byte, storeBytes)
		_, _ = rand.Read(value) // it never fails
		return k.update(ctx, key, value)
	})
	if err != nil {
		return err
	}
	m.verdict(commits)
	fmt.Fprint(stdout, "\n#### Reads per second\n\n")
	if _, err := m.rates(ctx, []int{1, 64}, func(k keeper, ctx context.Context, key string) error {
		n, err := k.read(ctx, key)
		if err == nil && n != storeBytes {
			err = fmt.Errorf("%s has %d bytes", key, n)
		}
		return err
	}); err != nil {
		return err
	}
	if err := m.listing(ctx); err != nil {
		return err
	}
	return m.large(ctx, root)
}

// storeMeasure is a run of the scenario.
type storeMeasure struct {
	o              options
	systems        []storeSystem
	keepers        []keeper
	keys           []string
	stdout, stderr io.Writer
}

func pathsOf(top string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("/%s/%07d", top, i)
	}
	return out
}

// rates prints how often a second each system does an operation, by the number of
// callers, and returns it.
func (m *storeMeasure) rates(ctx context.Context, callers []int, op func(k keeper, ctx context.Context, key string) error) ([][]float64, error) {
	head := []string{"callers"}
	for _, s := range m.systems {
		head = append(head, s.name)
	}
	row(m.stdout, head)
	row(m.stdout, slices.Repeat([]string{"--:"}, len(head)))
	var out [][]float64
	for _, n := range callers {
		all := make([][]float64, len(m.systems))
		for round := range m.o.rounds {
			for i, s := range m.systems {
				rate, err := m.rate(ctx, n, func(ctx context.Context, key string) error { return op(m.keepers[i], ctx, key) })
				if err != nil {
					return nil, fmt.Errorf("%s, %d callers: %w", s.name, n, err)
				}
				fmt.Fprintf(m.stderr, "%s, %d callers, round %d: %.0f/s\n", s.name, n, round+1, rate)
				all[i] = append(all[i], rate)
			}
		}
		fields, medians := []string{strconv.Itoa(n)}, make([]float64, len(all))
		for i, rates := range all {
			medians[i] = middle(rates)
			fields = append(fields, thousands(medians[i]))
		}
		row(m.stdout, fields)
		out = append(out, medians)
	}
	return out, nil
}

// rate has callers do an operation again and again for a window, each with keys of its
// own, and counts those that were done.
func (m *storeMeasure) rate(ctx context.Context, callers int, op func(ctx context.Context, key string) error) (float64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var done atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	end := began.Add(m.o.store.window)
	for c := range callers {
		wg.Go(func() {
			for i := c; time.Now().Before(end) && ctx.Err() == nil; i += callers {
				if i >= len(m.keys) {
					i = c
				}
				if err := op(ctx, m.keys[i]); err != nil {
					cancel(err)
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	return float64(done.Load()) / time.Since(began).Seconds(), nil
}

// verdict says what the aims of the commits came to.
func (m *storeMeasure) verdict(commits [][]float64) {
	const store, facade = 0, 1
	one, many, most := commits[0], commits[1], commits[2]
	fmt.Fprintf(m.stdout, "\nGroup commit: 64 writers commit %s x what one does (aim 5), 256 writers %s x (aim 8). ", short(many[store]/one[store]), short(most[store]/one[store]))
	fmt.Fprintf(m.stdout, "At 64 callers the façade takes %.0f %% off what the store does called directly (aim 25).\n", 100*(1-many[facade]/many[store]))
}

// listing measures listings of many paths.
func (m *storeMeasure) listing(ctx context.Context) error {
	fmt.Fprintf(m.stdout, "\n#### A listing of %s paths\n\n", thousands(float64(m.o.store.paths)))
	row(m.stdout, []string{"system", "took"})
	row(m.stdout, []string{"---", "--:"})
	paths := pathsOf("l", m.o.store.paths)
	for i, s := range m.systems {
		if s.name == "bbolt Batch" || s.name == "façade, keyed" { // as those before them
			continue
		}
		if err := m.keepers[i].fill(ctx, paths, []byte("x")); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		var took []float64
		for range m.o.rounds {
			began := time.Now()
			n, err := m.keepers[i].list(ctx, "/l")
			if err == nil && n != len(paths) {
				err = fmt.Errorf("the listing has %d paths, not %d", n, len(paths))
			}
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			took = append(took, float64(time.Since(began)))
		}
		row(m.stdout, []string{s.name, millis(middle(took))})
	}
	return nil
}

// large measures what many resources cost: the time to open, memory, a backup.
func (m *storeMeasure) large(ctx context.Context, root string) error {
	fmt.Fprintf(m.stdout, "\n#### %s resources\n\n", thousands(float64(m.o.store.resources)))
	row(m.stdout, []string{"system", "filled in, s", "opened in, ms", "memory then, MiB", "backup, MiB", "backup, MiB/s"})
	row(m.stdout, []string{"---", "--:", "--:", "--:", "--:", "--:"})
	paths, data := pathsOf("m", m.o.store.resources), make([]byte, storeBytes)
	for i, s := range m.systems {
		if !s.large {
			continue
		}
		k := m.keepers[i]
		began := time.Now()
		if err := k.fill(ctx, paths, data); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		filled := time.Since(began)
		opened, memory, err := k.reopen(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		began = time.Now()
		size, err := k.backup(ctx, filepath.Join(root, "backup"))
		if err != nil {
			return fmt.Errorf("%s, backup: %w", s.name, err)
		}
		took := time.Since(began)
		if err := os.RemoveAll(filepath.Join(root, "backup")); err != nil {
			return err
		}
		mib := float64(size) / (1 << 20)
		row(m.stdout, []string{s.name, short(filled.Seconds()), short(float64(opened) / float64(time.Millisecond)), short(float64(memory) / (1 << 20)), short(mib), short(mib / took.Seconds())})
	}
	return nil
}

// memoryOf is what a process has in memory that is its own or shared with nobody
// else's share counted: its proportional set size. 0 = the system does not tell.
func memoryOf(pid int) (bytes int64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "Pss:" {
			kib, _ := strconv.ParseInt(f[1], 10, 64) // 0 is not known
			return kib << 10
		}
	}
	return 0
}

// syncFile has a file that was written on the disk.
func syncFile(f *os.File) error { return errors.Join(f.Sync(), f.Close()) }
