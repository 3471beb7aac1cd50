package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/client"
	persist "github.com/elemental-conduit/conduit/plugins/txpersist/client"
	"github.com/elemental-conduit/conduit/plugins/txpersist/store"
	persistpb "github.com/elemental-conduit/conduit/proto/conduit/persist"
	bolt "go.etcd.io/bbolt"
)

// storeNode is whose store the one is that is called directly.
func storeNode() address.NodeID {
	return address.NewNodeID(address.UniqueInstanceID("bench"), address.UniqueDeploymentID("txpersist"))
}

func storeOptions(dir string) store.Options {
	return store.Options{File: filepath.Join(dir, "resources.db"), Node: storeNode(), MaxWrites: 1 << 30}
}

// direct is the store called directly.
type direct struct {
	l   *lab
	dir string
	s   *store.Store
}

func startStore(ctx context.Context, l *lab, dir string) (keeper, error) {
	s, err := store.Open(ctx, storeOptions(dir))
	return &direct{l, dir, s}, err
}

func scopeOf(p address.Path) store.Scope { return store.Scope{Paths: []address.Path{p}} }

func (d *direct) fill(ctx context.Context, paths []string, data []byte) error {
	for some := range slices.Chunk(paths, storeBatch) {
		err := d.s.Update(ctx, scopeOf(address.Path{}), func(tx *store.WriteTx) error {
			for _, p := range some {
				if err := tx.Save(address.MustParsePath(p), address.RandomResourceID(storeNode()), data); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *direct) update(ctx context.Context, path string, data []byte) error {
	p := address.MustParsePath(path)
	return d.s.Update(ctx, scopeOf(p), func(tx *store.WriteTx) error {
		id, err := tx.Lookup(p)
		if err != nil {
			return err
		}
		return tx.Update(id, data)
	})
}

func (d *direct) read(ctx context.Context, path string) (n int, err error) {
	p := address.MustParsePath(path)
	err = d.s.View(ctx, scopeOf(p), func(tx *store.ReadTx) error {
		id, err := tx.Lookup(p)
		if err != nil {
			return err
		}
		data, err := tx.Load(id)
		n = len(data)
		return err
	})
	return n, err
}

func (d *direct) list(ctx context.Context, path string) (n int, err error) {
	p := address.MustParsePath(path + "/*")
	err = d.s.View(ctx, scopeOf(p), func(tx *store.ReadTx) error {
		for _, err := range tx.List(p) {
			if err != nil {
				return err
			}
			n++
		}
		return nil
	})
	return n, err
}

func (d *direct) backup(ctx context.Context, file string) (int64, error) {
	return d.s.BackupFile(ctx, file)
}

func (d *direct) reopen(ctx context.Context) (time.Duration, int64, error) {
	if err := d.s.Close(); err != nil {
		return 0, 0, err
	}
	took, memory, err := opened(ctx, d.l, "store-open", d.dir)
	if err != nil {
		return 0, 0, err
	}
	d.s, err = store.Open(ctx, storeOptions(d.dir))
	return took, memory, err
}

func (d *direct) close() error { return d.s.Close() }

// opened has a process of its own open a file, so that nothing else is in its memory.
func opened(ctx context.Context, l *lab, role, dir string) (took time.Duration, memory int64, err error) {
	c, said, err := l.role(ctx, role, role, dir)
	if err != nil {
		return 0, 0, err
	}
	defer c.stop()
	took, err = time.ParseDuration(said)
	return took, memoryOf(c.pid()), err
}

// playOpen opens a file, says how long it took, and holds it until its input ends.
func playOpen(open func(dir string) (io.Closer, error)) func(args []string, stdin io.Reader, stdout io.Writer) error {
	return func(args []string, stdin io.Reader, stdout io.Writer) error {
		began := time.Now()
		c, err := open(args[0])
		if err != nil {
			return err
		}
		took := time.Since(began)
		runtime.GC()
		debug.FreeOSMemory() // what the opening left is not what it takes from then on
		fmt.Fprintf(stdout, "ready %v\n", took)
		_, err = io.Copy(io.Discard, stdin)
		return errors.Join(err, c.Close())
	}
}

func openStoreOf(dir string) (io.Closer, error) {
	return store.Open(context.Background(), storeOptions(dir))
}

// facade is the store as an element of a worker.
type facade struct {
	c     *client.Client
	inv   conduit.Invoker
	keyed *persist.Client // nil: calls without a key
}

func startFacade(ctx context.Context, l *lab, dir string) (keeper, error) {
	return startElement(ctx, l, dir, false)
}

func startKeyed(ctx context.Context, l *lab, dir string) (keeper, error) {
	return startElement(ctx, l, dir, true)
}

func startElement(ctx context.Context, l *lab, dir string, keyed bool) (keeper, error) {
	program, err := l.build(ctx, "..", hostPackage)
	if err != nil {
		return nil, err
	}
	plugin, err := l.build(ctx, "..", "./plugins/txpersist")
	if err != nil {
		return nil, err
	}
	deployments := filepath.Join(dir, "deployments")
	if err := os.Mkdir(deployments, 0o700); err != nil {
		return nil, err
	}
	if err := os.Link(plugin, filepath.Join(deployments, "txpersist")); err != nil {
		return nil, err
	}
	name := "store-" + filepath.Base(dir)
	host, err := l.start(name, program, "serve",
		"--mode", "worker", "--name", name, "--auth-mode", "disabled", "--host-deployments", deployments,
		"--data-dir", filepath.Join(dir, "data"), "--run-dir", filepath.Join(l.dir, name),
		"--cluster-listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--log-level", "warn", "--log-format", "text")
	if err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("it is not ready after %v", startTimeout))
	defer cancel()
	var f fixture
	if err := f.awaitHost(wait, host); err != nil {
		return nil, host.failure(err)
	}
	c, err := client.Dial(ctx, client.Options{Peers: []string{f.target}})
	if err != nil {
		return nil, err
	}
	out := &facade{c: c, inv: c.At("*://txpersist/txpersist/conduit.persist.ResourceStore")}
	if keyed {
		out.keyed = persist.Open(c, persist.Options{})
	}
	return out, nil
}

func (f *facade) fill(ctx context.Context, paths []string, data []byte) error {
	for some := range slices.Chunk(paths, storeBatch) {
		batch := &persistpb.Batch{Scope: &persistpb.Scope{Paths: []string{"/"}}}
		for _, p := range some {
			batch.Operations = append(batch.Operations, &persistpb.Operation{Op: "save", Path: &p, Data: data})
		}
		if _, err := conduit.Call[*persistpb.BatchReply](ctx, f.inv, "Transact", batch); err != nil {
			return err
		}
	}
	return nil
}

func (f *facade) update(ctx context.Context, path string, data []byte) error {
	if f.keyed != nil {
		_, err := f.keyed.Put(ctx, address.MustParsePath(path), data)
		return err
	}
	_, err := conduit.Call[*persistpb.Result](ctx, f.inv, "Update", &persistpb.Operation{Path: &path, Data: data})
	return err
}

func (f *facade) read(ctx context.Context, path string) (int, error) {
	if f.keyed != nil {
		data, err := f.keyed.Get(ctx, address.MustParsePath(path))
		return len(data), err
	}
	r, err := conduit.Call[*persistpb.Result](ctx, f.inv, "Load", &persistpb.Operation{Path: &path})
	return len(r.GetData()), err
}

func (f *facade) list(ctx context.Context, path string) (n int, err error) {
	below := path + "/*"
	for l, err := range conduit.Stream[*persistpb.Listing](ctx, f.inv, "List", &persistpb.Operation{Path: &below, Limit: 1000}) {
		if err != nil {
			return n, err
		}
		n += 1 + len(l.GetMore())
	}
	return n, nil
}

var errNotMeasured = errors.New("it is not measured of this system")

func (f *facade) backup(context.Context, string) (int64, error) { return 0, errNotMeasured }

func (f *facade) reopen(context.Context) (time.Duration, int64, error) { return 0, 0, errNotMeasured }

func (f *facade) close() error { return f.c.Close() }

// bare is bbolt used directly.
type bare struct {
	l     *lab
	dir   string
	db    *bolt.DB
	batch bool
}

func bucket() []byte { return []byte("r") }

func openBolt(dir string) (*bolt.DB, error) {
	return bolt.Open(filepath.Join(dir, "bbolt.db"), 0o600, &bolt.Options{FreelistType: bolt.FreelistMapType, Timeout: time.Second})
}

func openBoltOf(dir string) (io.Closer, error) { return openBolt(dir) }

func startBolt(_ context.Context, l *lab, dir string) (keeper, error) {
	db, err := openBolt(dir)
	if err != nil {
		return nil, err
	}
	return &bare{l: l, dir: dir, db: db}, db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucket(bucket())
		return err
	})
}

func startBoltBatch(ctx context.Context, l *lab, dir string) (keeper, error) {
	k, err := startBolt(ctx, l, dir)
	if b, ok := k.(*bare); ok {
		b.batch = true
	}
	return k, err
}

func (b *bare) fill(_ context.Context, paths []string, data []byte) error {
	for some := range slices.Chunk(paths, storeBatch) {
		err := b.db.Update(func(tx *bolt.Tx) error {
			for _, p := range some {
				if err := tx.Bucket(bucket()).Put([]byte(p), data); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bare) update(_ context.Context, path string, data []byte) error {
	put := func(tx *bolt.Tx) error { return tx.Bucket(bucket()).Put([]byte(path), data) }
	if b.batch {
		return b.db.Batch(put)
	}
	return b.db.Update(put)
}

func (b *bare) read(_ context.Context, path string) (n int, err error) {
	err = b.db.View(func(tx *bolt.Tx) error {
		n = len(slices.Clone(tx.Bucket(bucket()).Get([]byte(path))))
		return nil
	})
	return n, err
}

func (b *bare) list(_ context.Context, path string) (n int, err error) {
	err = b.db.View(func(tx *bolt.Tx) error {
		c := tx.Bucket(bucket()).Cursor()
		for k, _ := c.Seek([]byte(path + "/")); strings.HasPrefix(string(k), path+"/"); k, _ = c.Next() {
			n++
		}
		return nil
	})
	return n, err
}

func (b *bare) backup(_ context.Context, file string) (n int64, err error) {
	f, err := os.Create(file)
	if err != nil {
		return 0, err
	}
	err = b.db.View(func(tx *bolt.Tx) (err error) {
		n, err = tx.WriteTo(f)
		return err
	})
	return n, errors.Join(err, syncFile(f))
}

func (b *bare) reopen(ctx context.Context) (time.Duration, int64, error) {
	if err := b.db.Close(); err != nil {
		return 0, 0, err
	}
	took, memory, err := opened(ctx, b.l, "bbolt-open", b.dir)
	if err != nil {
		return 0, 0, err
	}
	b.db, err = openBolt(b.dir)
	return took, memory, err
}

func (b *bare) close() error { return b.db.Close() }
