package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit/address"
)

// The tests in this file follow the description of the original: each says which part of it it is.

// 6.1, ReadOnlyTransaction.
func TestReading(t *testing.T) {
	s := newStore(t)
	ids := s.add("/a/b", "/z")
	bare := newID()
	s.update(paths("/"), func(tx *WriteTx) { must(t, tx.LinkNew(bare, path("/bare"))) })

	s.view(paths("/"), func(tx *ReadTx) {
		if tx.Node() != testNode {
			t.Errorf("the node is %s", tx.Node())
		}
		for id, want := range map[address.ResourceID]bool{ids["/a/b"]: true, bare: true, newID(): false} {
			if ok, err := tx.Exists(id); err != nil || ok != want {
				t.Errorf("exists gives %t, %v, want %t", ok, err, want)
			}
		}
		if id, err := tx.Lookup(path("/a/b")); err != nil || id != ids["/a/b"] {
			t.Errorf("lookup gives %s, %v", id, err)
		}
		if id, err := tx.Lookup(path(testNode.String() + "://a/b")); err != nil || id != ids["/a/b"] {
			t.Errorf("lookup by the path with its node gives %s, %v", id, err)
		}
		_, err := tx.Lookup(path("/a"))
		wantKind(t, err, KindNotFound)
		wantContents(t, tx, ids["/a/b"], []byte("/a/b"))
		_, err = tx.Load(newID())
		wantKind(t, err, KindNotFound)
		_, err = tx.Load(bare)
		wantKind(t, err, KindNoContents)
		_, err = tx.Paths(newID())
		wantKind(t, err, KindNotFound)
		_, err = tx.Tasks(newID())
		wantKind(t, err, KindNotFound)
		for _, p := range []string{"/", "/a/*", "/a/**", "/*/b"} {
			_, err = tx.Lookup(path(p))
			wantKind(t, err, KindArgument)
		}
	})
}

// 6.1, ReadWriteTransaction.
func TestErrorsOfWriting(t *testing.T) {
	s := newStore(t)
	ids := s.add("/a", "/b")
	tx := s.write(paths("/"))
	a, free := ids["/a"], path("/free")

	_, err := tx.Create(path("/a"), newID())
	wantKind(t, err, KindDuplicate)
	_, err = tx.Create(free, a)
	wantKind(t, err, KindDuplicate)
	wantKind(t, tx.Save(path("/a"), newID(), nil), KindDuplicate)
	wantKind(t, tx.Save(free, a, nil), KindDuplicate)
	wantKind(t, tx.LinkNew(newID(), path("/a")), KindDuplicate)
	wantKind(t, tx.LinkNew(a, free), KindDuplicate)

	_, err = tx.Replace(newID())
	wantKind(t, err, KindNotFound)
	wantKind(t, tx.Update(newID(), nil), KindNotFound)
	_, err = tx.Append(newID())
	wantKind(t, err, KindNotFound)
	wantKind(t, tx.WriteAt(newID(), nil, 0), KindNotFound)

	wantKind(t, tx.Link(a, path("/x/*")), KindArgument)
	wantKind(t, tx.Link(a, path("/x/**")), KindArgument) // 6.4: link to /zz/**
	wantKind(t, tx.Link(newID(), free), KindNotFound)
	wantKind(t, tx.Link(a, path("/b")), KindDuplicate)
	wantKind(t, tx.Link(a, path("/a")), KindDuplicate)

	_, err = tx.Unlink(path("/x/*"))
	wantKind(t, err, KindArgument)
	_, err = tx.Unlink(path("/x/**"))
	wantKind(t, err, KindArgument)
	_, err = tx.Unlink(free)
	wantKind(t, err, KindNotFound)
	wantKind(t, tx.Remove(newID()), KindNotFound)
	_, err = tx.RemoveMatching(path("/**"), -1)
	wantKind(t, err, KindArgument)

	wantKind(t, tx.CreateTask(address.RandomTaskID(newID()), time.Now()), KindNotFound)
	wantKind(t, tx.DeleteTask(address.RandomTaskID(newID())), KindNotFound)
	wantKind(t, tx.DeleteTask(address.RandomTaskID(a)), KindNoTask)

	for _, p := range []string{"/w/*", "/w/**", "/"} { // 6.4: save at a path with a wildcard
		wantKind(t, tx.Save(path(p), newID(), nil), KindArgument)
		wantKind(t, tx.LinkNew(newID(), path(p)), KindArgument)
	}
	must(t, tx.Commit(s.ctx))
	s.view(paths("/"), func(tx *ReadTx) {
		wantList(t, tx, "/**", "/a", "/b")
		wantContents(t, tx, a, []byte("/a"))
	})
}

// 6.1: the node is checked on every argument, and 6.9.5: before the scope.
func TestNodeIsCheckedFirst(t *testing.T) {
	s := newStore(t)
	foreign := path(otherNode.String() + "://a")
	id := address.RandomResourceID(otherNode)
	tx := s.write(Scope{}) // nothing is declared, so whatever is asked for misses it

	calls := map[string]func() error{
		"exists":    func() error { _, err := tx.Exists(id); return err },
		"lookup":    func() error { _, err := tx.Lookup(foreign); return err },
		"paths":     func() error { _, err := tx.Paths(id); return err },
		"load":      func() error { _, err := tx.Load(id); return err },
		"tasks":     func() error { _, err := tx.Tasks(id); return err },
		"page":      func() error { _, err := tx.Page(foreign, "", 1); return err },
		"create":    func() error { _, err := tx.Create(foreign, newID()); return err },
		"create id": func() error { _, err := tx.Create(path("/a"), id); return err },
		"link new":  func() error { return tx.LinkNew(id, path("/a")) },
		"link":      func() error { return tx.Link(id, path("/a")) },
		"replace":   func() error { _, err := tx.Replace(id); return err },
		"append":    func() error { _, err := tx.Append(id); return err },
		"write at":  func() error { return tx.WriteAt(id, nil, 0) },
		"unlink":    func() error { _, err := tx.Unlink(foreign); return err },
		"remove":    func() error { return tx.Remove(id) },
		"matching":  func() error { _, err := tx.RemoveMatching(foreign, 1); return err },
		"task":      func() error { return tx.CreateTask(address.RandomTaskID(id), time.Now()) },
		"no task":   func() error { return tx.DeleteTask(address.RandomTaskID(id)) },
	}
	for name, call := range calls {
		if err := call(); KindOf(err) != KindNode {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := tx.Lookup(path("/a"))
	wantKind(t, err, KindScope)

	for scope, kind := range map[*Scope]Kind{
		{Paths: []address.Path{foreign}}:           KindNode,
		{IDs: []address.ResourceID{id}}:            KindNode,
		{Paths: []address.Path{path("x://a")}}:     KindArgument, // "Path must have NodeId"
		{Paths: []address.Path{path("*://a/b/c")}}: KindArgument,
	} {
		_, err := s.Write(s.ctx, *scope)
		wantKind(t, err, kind)
		_, err = s.Read(s.ctx, *scope)
		wantKind(t, err, kind)
	}
}

// 6.2, in its port form: a scope covers what is equal to, below, or matched by what
// was declared.
func TestDeclaredScope(t *testing.T) {
	s := newStore(t)
	ids := s.add("/a", "/a/b", "/a/b/c", "/a/d", "/z")
	for _, write := range []bool{false, true} {
		open := func(sc Scope) *ReadTx {
			if write {
				return s.write(sc).ReadTx
			}
			return s.read(sc)
		}
		tx := open(paths("/a/b"))
		for _, p := range []string{"/a/b", "/a/b/c"} {
			if id, err := tx.Lookup(path(p)); err != nil || id != ids[p] {
				t.Errorf("lookup of %s: %s, %v", p, id, err)
			}
			if ok, err := tx.Exists(ids[p]); err != nil || !ok {
				t.Errorf("exists of %s: %t, %v", p, ok, err)
			}
			wantContents(t, tx, ids[p], []byte(p))
		}
		_, err := tx.Lookup(path("/a/b/none"))
		wantKind(t, err, KindNotFound)
		for _, p := range []string{"/a", "/a/d", "/z", "/a/bc", "/nope"} {
			_, err := tx.Lookup(path(p))
			wantKind(t, err, KindScope)
		}
		for _, p := range []string{"/a", "/a/d", "/z"} {
			_, err := tx.Exists(ids[p])
			wantKind(t, err, KindScope)
			_, err = tx.Load(ids[p])
			wantKind(t, err, KindScope)
		}
		_, err = tx.Exists(newID())
		wantKind(t, err, KindScope)
		for _, p := range []string{"/**", "/a/*", "/a/**", "/*/b", "/z"} {
			_, err := tx.Page(path(p), "", 10)
			wantKind(t, err, KindScope)
		}
		wantList(t, tx, "/a/b/**", "/a/b", "/a/b/c")
		tx.Close()

		tx = open(Scope{IDs: []address.ResourceID{ids["/z"]}})
		wantContents(t, tx, ids["/z"], []byte("/z"))
		_, err = tx.Lookup(path("/z"))
		wantKind(t, err, KindScope) // the id was declared, not the path
		_, err = tx.Exists(ids["/a"])
		wantKind(t, err, KindScope)
		tx.Close()

		tx = open(paths("/*/b"))
		wantList(t, tx, "/*/b", "/a/b")
		wantList(t, tx, "/a/b/*", "/a/b/c")
		_, err = tx.Lookup(path("/a/d"))
		wantKind(t, err, KindScope)
		tx.Close()
	}

	// Wildcard removal, which never works in the original.
	s.update(paths("/a/*"), func(tx *WriteTx) {
		removed, err := tx.RemoveMatching(path("/a/*"), 10)
		if err != nil || !slices.Equal(removed, []address.ResourceID{ids["/a/b"], ids["/a/d"]}) {
			t.Errorf("removed %v, %v", removed, err)
		}
		_, err = tx.RemoveMatching(path("/a/**"), 10) // it would match /a
		wantKind(t, err, KindScope)
	})
	s.view(paths("/"), func(tx *ReadTx) { wantList(t, tx, "/**", "/a", "/a/b/c", "/z") })
}

func TestScopeOfWritesIsEnforced(t *testing.T) {
	s := newStore(t)
	ids := s.add("/a", "/z")
	s.update(paths("/a"), func(tx *WriteTx) {
		wantKind(t, tx.Save(path("/b"), newID(), nil), KindScope)
		wantKind(t, tx.LinkNew(newID(), path("/b")), KindScope)
		wantKind(t, tx.Link(ids["/a"], path("/b")), KindScope)
		wantKind(t, tx.Link(ids["/z"], path("/a/z")), KindScope)
		wantKind(t, tx.Update(ids["/z"], nil), KindScope)
		wantKind(t, tx.Remove(ids["/z"]), KindScope)
		_, err := tx.Unlink(path("/z"))
		wantKind(t, err, KindScope)
		wantKind(t, tx.CreateTask(address.RandomTaskID(ids["/z"]), time.Now()), KindScope)
		must(t, tx.Save(path("/a/new"), newID(), nil)) // a new id need not be declared
	})
	// The id of what the transaction itself removed stays in its scope.
	s.update(paths("/a"), func(tx *WriteTx) {
		must(t, tx.Remove(ids["/a"]))
		wantKind(t, tx.Remove(ids["/a"]), KindNotFound)
		if ok, err := tx.Exists(ids["/a"]); ok || err != nil {
			t.Errorf("exists after removal: %t, %v", ok, err)
		}
	})
}

// 6.4, row by row.
func TestInsideOneTransaction(t *testing.T) {
	s := newStore(t)
	type ids = map[string]address.ResourceID
	for name, row := range map[string]func(t *testing.T, tx *WriteTx, old ids){
		"save, then read": func(t *testing.T, tx *WriteTx, _ ids) {
			t.Helper()
			id := newID()
			must(t, tx.Save(path("/p/new"), id, []byte("new")))
			if ok, err := tx.Exists(id); !ok || err != nil {
				t.Errorf("exists: %t, %v", ok, err)
			}
			if got, err := tx.Lookup(path("/p/new")); got != id || err != nil {
				t.Errorf("lookup: %s, %v", got, err)
			}
			wantContents(t, tx.ReadTx, id, []byte("new"))
			wantList(t, tx.ReadTx, "/p/new", "/p/new")
			wantList(t, tx.ReadTx, "/p/*", "/p/a", "/p/b", "/p/new")
		},
		"update, then load": func(t *testing.T, tx *WriteTx, old ids) {
			t.Helper()
			must(t, tx.Update(old["/p/a"], []byte("other")))
			wantContents(t, tx.ReadTx, old["/p/a"], []byte("other"))
		},
		"unlink the last path": func(t *testing.T, tx *WriteTx, old ids) {
			t.Helper()
			got, err := tx.Unlink(path("/p/a"))
			if err != nil || got != (Unlinked{old["/p/a"], true}) {
				t.Errorf("unlink: %v, %v", got, err)
			}
			_, err = tx.Lookup(path("/p/a"))
			wantKind(t, err, KindNotFound)
			if ok, err := tx.Exists(old["/p/a"]); ok || err != nil {
				t.Errorf("exists: %t, %v", ok, err)
			}
			wantList(t, tx.ReadTx, "/p/a")
			wantList(t, tx.ReadTx, "/p/*", "/p/b")
		},
		"remove": func(t *testing.T, tx *WriteTx, old ids) {
			t.Helper()
			must(t, tx.Remove(old["/p/a"]))
			if ok, err := tx.Exists(old["/p/a"]); ok || err != nil {
				t.Errorf("exists: %t, %v", ok, err)
			}
			wantKind(t, tx.Remove(old["/p/a"]), KindNotFound)
		},
		"unlink, then save another there": func(t *testing.T, tx *WriteTx, _ ids) {
			t.Helper()
			_, err := tx.Unlink(path("/p/a"))
			must(t, err)
			id := newID()
			must(t, tx.Save(path("/p/a"), id, []byte("another")))
			wantContents(t, tx.ReadTx, id, []byte("another"))
			wantList(t, tx.ReadTx, "/p/*", "/p/a", "/p/b")
		},
		"link and unlink": func(t *testing.T, tx *WriteTx, old ids) {
			t.Helper()
			must(t, tx.Link(old["/p/a"], path("/p/l1")))
			got, err := tx.Unlink(path("/p/a"))
			if err != nil || got.Removed {
				t.Errorf("unlink: %v, %v", got, err)
			}
			wantContents(t, tx.ReadTx, old["/p/a"], []byte("/p/a"))
			wantList(t, tx.ReadTx, "/p/*", "/p/b", "/p/l1")
		},
		"save the same id twice": func(t *testing.T, tx *WriteTx, _ ids) {
			t.Helper()
			id := newID()
			must(t, tx.Save(path("/p/1"), id, nil))
			wantKind(t, tx.Save(path("/p/2"), id, nil), KindDuplicate)
		},
		"look up, then list": func(t *testing.T, tx *WriteTx, _ ids) {
			t.Helper()
			_, err := tx.Lookup(path("/p/a"))
			must(t, err)
			wantList(t, tx.ReadTx, "/p/a", "/p/a")
		},
		"no bytes are contents": func(t *testing.T, tx *WriteTx, _ ids) {
			t.Helper()
			id := newID()
			w, err := tx.Create(path("/p/empty"), id)
			must(t, err)
			must(t, w.Close())
			wantContents(t, tx.ReadTx, id, nil)
		},
		"two tasks": func(t *testing.T, tx *WriteTx, old ids) {
			t.Helper()
			must(t, tx.CreateTask(address.RandomTaskID(old["/p/a"]), time.UnixMilli(1)))
			must(t, tx.CreateTask(address.RandomTaskID(old["/p/a"]), time.UnixMilli(2)))
			if tasks, err := tx.Tasks(old["/p/a"]); len(tasks) != 2 || err != nil {
				t.Errorf("tasks: %v, %v", tasks, err)
			}
		},
		"nothing": func(*testing.T, *WriteTx, ids) {},
	} {
		t.Run(name, func(t *testing.T) {
			s.update(paths("/"), func(tx *WriteTx) {
				_, err := tx.RemoveMatching(path("/**"), 1000)
				must(t, err)
			})
			old := s.add("/p/a", "/p/b")
			tx := s.write(paths("/p"))
			row(t, tx, old)
			inside := list(t, tx.ReadTx, "/p/**")
			s.view(paths("/p"), func(tx *ReadTx) { wantList(t, tx, "/p/**", "/p/a", "/p/b") }) // nobody else sees it
			must(t, tx.Commit(s.ctx))
			s.view(paths("/p"), func(tx *ReadTx) { wantList(t, tx, "/p/**", inside...) })
			must(t, s.Check(s.ctx))
		})
	}
}

// 6.4: contents that were written and not closed are committed.
func TestUnclosedWriterIsCommitted(t *testing.T) {
	s := newStore(t)
	id := newID()
	s.update(paths("/a"), func(tx *WriteTx) {
		w := get(tx.Create(path("/a"), id))(t)
		_, err := w.Write([]byte("as far as it came"))
		must(t, err)
	})
	s.view(paths("/a"), func(tx *ReadTx) { wantContents(t, tx, id, []byte("as far as it came")) })
}

// 6.4: createTask in a later transaction adds.
func TestTasksAreAdded(t *testing.T) {
	s := newStore(t)
	id := s.add("/a")["/a"]
	want := []Task{}
	for i := range 3 {
		task := Task{address.RandomTaskID(id), time.UnixMilli(int64(1000 - i))}
		want = append(want, task)
		s.update(paths("/a"), func(tx *WriteTx) { must(t, tx.CreateTask(task.ID, task.Due)) })
	}
	byID := slices.SortedFunc(slices.Values(want), func(a, b Task) int { return a.ID.Compare(b.ID) })
	s.view(paths("/a"), func(tx *ReadTx) {
		if got, err := tx.Tasks(id); err != nil || !slices.Equal(got, byID) {
			t.Errorf("tasks: %v, %v, want %v", got, err, byID)
		}
	})
	slices.Reverse(want) // the last has the earliest time
	for n := range 4 {
		if got, err := s.Due(s.ctx, time.UnixMilli(int64(997+n)), 10); err != nil || !slices.Equal(got, want[:n]) {
			t.Errorf("due at %d: %v, %v, want %v", 997+n, got, err, want[:n])
		}
	}
	if got, err := s.Due(s.ctx, time.UnixMilli(5000), 2); err != nil || !slices.Equal(got, want[:2]) {
		t.Errorf("the first two due: %v, %v", got, err)
	}
	s.update(paths("/a"), func(tx *WriteTx) {
		must(t, tx.DeleteTask(want[0].ID))
		must(t, tx.CreateTask(want[1].ID, time.UnixMilli(-5))) // another time, before 1970
	})
	want = []Task{{want[1].ID, time.UnixMilli(-5)}, want[2]}
	if got, err := s.Due(s.ctx, time.UnixMilli(5000), 10); err != nil || !slices.Equal(got, want) {
		t.Errorf("due: %v, %v, want %v", got, err, want)
	}
	s.update(paths("/a"), func(tx *WriteTx) { must(t, tx.Remove(id)) })
	if got, err := s.Due(s.ctx, time.UnixMilli(5000), 10); err != nil || len(got) > 0 {
		t.Errorf("tasks of a resource that is gone are due: %v, %v", got, err)
	}
}

// 6.4 and 6.9.9: ends.
func TestEnds(t *testing.T) {
	s := newStore(t)
	id := s.add("/a")["/a"]
	ends := map[string]func(*WriteTx){
		"commit":   func(tx *WriteTx) { must(t, tx.Commit(s.ctx)) },
		"rollback": func(tx *WriteTx) { must(t, tx.Rollback()) },
		"close":    func(tx *WriteTx) { tx.Close() },
	}
	for name, end := range ends {
		tx := s.write(paths("/"))
		w := get(tx.Replace(id))(t)
		_, err := w.Write([]byte(name))
		must(t, err)
		r := get(tx.Open(id))(t)
		end(tx)

		for call, err := range map[string]error{
			"commit":   tx.Commit(s.ctx),
			"rollback": tx.Rollback(),
			"exists":   second(tx.Exists(id)),
			"lookup":   second(tx.Lookup(path("/a"))),
			"page":     second(tx.Page(path("/a"), "", 1)),
			"load":     second(tx.Load(id)),
			"paths":    second(tx.Paths(id)),
			"tasks":    second(tx.Tasks(id)),
			"save":     tx.Save(path("/b"), newID(), nil),
			"link":     tx.Link(id, path("/b")),
			"unlink":   second(tx.Unlink(path("/a"))),
			"remove":   tx.Remove(id),
			"matching": second(tx.RemoveMatching(path("/a"), 1)),
			"task":     tx.CreateTask(address.RandomTaskID(id), time.Now()),
			"write":    second(w.Write([]byte("late"))),
			"read":     second(r.Read(make([]byte, 1))),
		} {
			if KindOf(err) != KindState {
				t.Errorf("%s after %s: %v", call, name, err)
			}
		}
		for _, err := range tx.List(path("/a")) {
			wantKind(t, err, KindState)
		}
		tx.Close()
		tx.Close() // does nothing, however often
		want := "/a"
		if name == "commit" {
			want = "commit"
			s.update(paths("/a"), func(tx *WriteTx) {
				wantContents(t, tx.ReadTx, id, []byte("commit"))
				must(t, tx.Update(id, []byte("/a")))
			})
			continue
		}
		s.view(paths("/a"), func(tx *ReadTx) { wantContents(t, tx, id, []byte(want)) })
	}
	// Closing twice gives back one permit, not two.
	if n := s.places; n != 0 {
		t.Errorf("%d transactions are counted as open", n)
	}
}

func second[T any](_ T, err error) error { return err }

func TestRollbackLeavesNothing(t *testing.T) {
	s := newStore(t)
	s.add("/a")
	before := s.Stats().UsedBytes
	for range 10 {
		tx := s.write(paths("/"))
		must(t, tx.Save(path("/big"), newID(), make([]byte, 4<<20)))
		tx.Close()
	}
	if after := s.Stats().UsedBytes; after != before {
		t.Errorf("the file grew from %d to %d bytes", before, after)
	}
	err := s.Update(s.ctx, paths("/"), func(tx *WriteTx) error {
		must(t, tx.Save(path("/b"), newID(), nil))
		return io.ErrUnexpectedEOF
	})
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the error of the func is %v", err)
	}
	s.view(paths("/"), func(tx *ReadTx) { wantList(t, tx, "/**", "/a") })
}

// 6.4: begin after stop.
func TestClosedStore(t *testing.T) {
	s := newStore(t)
	id := s.add("/a")["/a"]
	r, w := s.read(paths("/a")), s.write(paths("/a"))
	must(t, w.Update(id, []byte("lost")))
	must(t, s.Close())
	must(t, s.Close()) // a second stop is harmless
	_, err := s.Read(s.ctx, paths("/a"))
	wantKind(t, err, KindState)
	_, err = s.Write(s.ctx, paths("/a"))
	wantKind(t, err, KindState)
	_, err = s.Exclusive(s.ctx, "")
	wantKind(t, err, KindState)
	_, err = r.Exists(id)
	wantKind(t, err, KindState)
	wantKind(t, w.Commit(s.ctx), KindState)

	again := openStore(t, s.File())
	again.view(paths("/a"), func(tx *ReadTx) { wantContents(t, tx, id, []byte("/a")) })
}

// 6.5.
func TestDeleting(t *testing.T) {
	s := newStore(t)
	ids := s.add("/a", "/b", "/c")
	s.update(paths("/"), func(tx *WriteTx) {
		must(t, tx.Link(ids["/a"], path("/x/a1")))
		must(t, tx.Link(ids["/a"], path("/x/a2")))
		must(t, tx.CreateTask(address.RandomTaskID(ids["/a"]), time.UnixMilli(1)))
	})
	s.update(paths("/"), func(tx *WriteTx) {
		got, err := tx.Unlink(path("/x/a1"))
		if err != nil || got != (Unlinked{ids["/a"], false}) {
			t.Errorf("unlink of one of three: %v, %v", got, err)
		}
	})
	s.view(paths("/"), func(tx *ReadTx) {
		wantContents(t, tx, ids["/a"], []byte("/a"))
		if got, err := tx.Paths(ids["/a"]); err != nil || len(got) != 2 {
			t.Errorf("paths: %v, %v", got, err)
		}
	})
	// All aliases go, also that outside of the scope.
	s.update(paths("/x"), func(tx *WriteTx) { must(t, tx.Remove(ids["/a"])) })
	s.update(paths("/"), func(tx *WriteTx) {
		wantKind(t, tx.Remove(ids["/a"]), KindNotFound)
		wantList(t, tx.ReadTx, "/**", "/b", "/c")
		removed, err := tx.RemoveMatching(path("/b"), 10)
		if err != nil || !slices.Equal(removed, []address.ResourceID{ids["/b"]}) {
			t.Errorf("removed %v, %v", removed, err)
		}
		removed, err = tx.RemoveMatching(path("/nope"), 10) // the original: ResourceNotFound, against its own text
		if err != nil || len(removed) > 0 {
			t.Errorf("removed %v, %v", removed, err)
		}
	})
	if due, err := s.Due(s.ctx, time.Now(), 10); err != nil || len(due) > 0 {
		t.Errorf("tasks of what is gone are due: %v, %v", due, err)
	}
}

func TestRemoveMatchingCountsResources(t *testing.T) {
	s := newStore(t)
	ids := s.add("/a/1", "/a/2", "/a/3")
	s.update(paths("/"), func(tx *WriteTx) { must(t, tx.Link(ids["/a/1"], path("/a/0"))) })
	s.update(paths("/a"), func(tx *WriteTx) {
		removed, err := tx.RemoveMatching(path("/a/*"), 2)
		if err != nil || !slices.Equal(removed, []address.ResourceID{ids["/a/1"], ids["/a/2"]}) {
			t.Errorf("removed %v, %v", removed, err)
		}
		wantList(t, tx.ReadTx, "/a/**", "/a/3")
	})
}

// 6.6, the column of what the API wants; "**" also matches zero components.
func TestListing(t *testing.T) {
	s := newStore(t)
	s.add("/a", "/a/b", "/a/b/c", "/a/d", "/z", "/ax/q")
	rows := map[string][]string{
		"/a":      {"/a"},
		"/a/*":    {"/a/b", "/a/d"},
		"/a/**":   {"/a", "/a/b", "/a/b/c", "/a/d"},
		"/*":      {"/a", "/z"},
		"/**":     {"/a", "/a/b", "/a/b/c", "/a/d", "/ax/q", "/z"},
		"/a/*/c":  {"/a/b/c"},
		"/a/b/*":  {"/a/b/c"},
		"/*/b":    {"/a/b"},
		"/nope":   {},
		"/nope/*": {},
		"/*/*/**": {"/a/b", "/a/b/c", "/a/d", "/ax/q"},
		"/":       {},
	}
	s.view(paths("/"), func(tx *ReadTx) {
		for pattern, want := range rows {
			wantList(t, tx, pattern, want...)
		}
	})
	// The same while it is not committed yet.
	fresh := newStore(t)
	fresh.add("/z", "/a/b", "/gone", "/a/gone")
	tx := fresh.write(paths("/"))
	for _, p := range []string{"/a", "/a/b/c", "/a/d", "/ax/q"} {
		must(t, tx.Save(path(p), newID(), nil))
	}
	for _, p := range []string{"/gone", "/a/gone"} {
		_, err := tx.Unlink(path(p))
		must(t, err)
	}
	for pattern, want := range rows {
		wantList(t, tx.ReadTx, pattern, want...)
	}
}

// STO-11.
func TestListingAtTheBordersOfPrefixes(t *testing.T) {
	s := newStore(t)
	s.add("/a", "/a/b", "/a/b/c", "/a/bc", "/a/b/c/d")
	s.view(paths("/"), func(tx *ReadTx) {
		wantList(t, tx, "a/b/*", "/a/b/c")
		wantList(t, tx, "a/b/**", "/a/b", "/a/b/c", "/a/b/c/d")
		wantList(t, tx, "a/*/c", "/a/b/c")
		wantList(t, tx, "**", "/a", "/a/b", "/a/b/c", "/a/b/c/d", "/a/bc")
		wantList(t, tx, "*", "/a")
		_, err := tx.Page(path("x://a/b"), "", 1) // a context that is no node
		wantKind(t, err, KindArgument)
	})
	if _, err := address.ParsePath("a/**/c"); err == nil {
		t.Error("a/**/c was read")
	}
}

// STO-05.
func TestDeleteWhileListing(t *testing.T) {
	s := newStore(t)
	s.update(paths("/"), func(tx *WriteTx) {
		for i := range 1000 {
			must(t, tx.Save(path(fmt.Sprintf("/a/%d/x", i)), newID(), nil))
		}
		must(t, tx.Save(path("/ab/x"), newID(), nil))
	})
	for _, how := range []string{"loop", "matching"} {
		tx := s.write(paths("/"))
		for i := range 500 {
			must(t, tx.Save(path(fmt.Sprintf("/b/%d", i)), newID(), nil))
		}
		n := 0
		if how == "loop" {
			for l, err := range tx.List(path("/a/**")) {
				must(t, err)
				_, err := tx.Unlink(l.Path)
				must(t, err)
				n++
			}
		} else {
			n = len(get(tx.RemoveMatching(path("/a/**"), 5000))(t))
		}
		if n != 1000 {
			t.Errorf("%s: %d were removed", how, n)
		}
		wantList(t, tx.ReadTx, "/a/**")
		wantList(t, tx.ReadTx, "/ab/**", "/ab/x")
		if got := len(list(t, tx.ReadTx, "/b/*")); got != 500 {
			t.Errorf("%s: %d of the new ones are there", how, got)
		}
		if how == "loop" {
			tx.Close()
		} else {
			must(t, tx.Commit(s.ctx))
		}
	}
	s.view(paths("/"), func(tx *ReadTx) {
		wantList(t, tx, "/a/**")
		wantList(t, tx, "/ab/**", "/ab/x")
	})
}

func TestPages(t *testing.T) {
	s := newStore(t)
	var want []string
	for i := range 25 {
		want = append(want, fmt.Sprintf("/p/%02d", i))
	}
	s.add(want...)
	s.add("/q")
	var got []string
	cursor := ""
	for pages := 1; ; pages++ {
		var page Page
		s.view(paths("/p"), func(tx *ReadTx) { page = get(tx.Page(path("/p/*"), cursor, 10))(t) }) // a transaction for each
		for _, l := range page.Listings {
			got = append(got, l.Path.WithoutContext().String())
		}
		if cursor = page.Next; cursor == "" {
			if pages != 3 {
				t.Errorf("there were %d pages", pages)
			}
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the pages have %v", got)
	}
	s.view(paths("/p"), func(tx *ReadTx) {
		page := get(tx.Page(path("/p/*"), "", 25))(t)
		if len(page.Listings) != 25 || page.Next != "" {
			t.Errorf("a page that just fits has %d entries and goes on at %q", len(page.Listings), page.Next)
		}
		for _, bad := range []string{"!", "YQ"} {
			_, err := tx.Page(path("/p/*"), bad, 1)
			wantKind(t, err, KindArgument)
		}
		_, err := tx.Page(path("/p/*"), "", 0)
		wantKind(t, err, KindArgument)
	})
}

// The contents of every size around a border, written and read in every way.
func TestContents(t *testing.T) {
	s := newStore(t)
	data := make([]byte, 3*chunkSize+100)
	for i := range data {
		data[i] = byte(i * 7 / 3)
	}
	for _, size := range []int{0, 1, inlineMax - 1, inlineMax, inlineMax + 1, chunkSize - 1, chunkSize, chunkSize + 1, 2 * chunkSize, len(data)} {
		id := newID()
		want := data[:size]
		s.update(paths("/c"), func(tx *WriteTx) { // streamed in, in odd pieces
			w := get(tx.Create(path("/c"), id))(t)
			for rest := want; len(rest) > 0; {
				n := min(len(rest), 1000)
				_, err := w.Write(rest[:n])
				must(t, err)
				rest = rest[n:]
			}
			wantContents(t, tx.ReadTx, id, want)
		})
		s.view(paths("/c"), func(tx *ReadTx) { wantContents(t, tx, id, want) })
		for _, more := range []int{1, inlineMax, chunkSize} { // appended to
			want = append(slices.Clone(want), data[:more]...)
			s.update(paths("/c"), func(tx *WriteTx) {
				w := get(tx.Append(id))(t)
				_, err := w.Write(data[:more])
				must(t, err)
				wantContents(t, tx.ReadTx, id, want)
			})
			s.view(paths("/c"), func(tx *ReadTx) { wantContents(t, tx, id, want) })
		}
		for _, at := range []int{0, 1, inlineMax - 1, chunkSize - 2, len(want) - 1} { // overwritten, and extended at the last
			want = append(slices.Clone(want[:at]), append([]byte("xyz"), want[min(at+3, len(want)):]...)...)
			s.update(paths("/c"), func(tx *WriteTx) {
				must(t, tx.WriteAt(id, []byte("xyz"), int64(at)))
				wantContents(t, tx.ReadTx, id, want)
			})
			s.view(paths("/c"), func(tx *ReadTx) { wantContents(t, tx, id, want) })
		}
		s.update(paths("/c"), func(tx *WriteTx) {
			wantKind(t, tx.WriteAt(id, []byte("x"), int64(len(want))+1), KindArgument)
			wantKind(t, tx.WriteAt(id, []byte("x"), -1), KindArgument)
			must(t, tx.WriteAt(id, nil, int64(len(want))))
			wantContents(t, tx.ReadTx, id, want)
		})
		s.update(paths("/c"), func(tx *WriteTx) { // replaced by less, then by none that differ
			must(t, tx.Update(id, data[:10]))
			wantContents(t, tx.ReadTx, id, data[:10])
		})
		s.view(paths("/c"), func(tx *ReadTx) { wantContents(t, tx, id, data[:10]) })
		must(t, s.Check(s.ctx)) // no chunk is left behind
		s.update(paths("/c"), func(tx *WriteTx) { must(t, tx.Remove(id)) })
		must(t, s.Check(s.ctx))
	}
}

func TestAppendToNoContents(t *testing.T) {
	s := newStore(t)
	id := newID()
	s.update(paths("/a"), func(tx *WriteTx) { must(t, tx.LinkNew(id, path("/a"))) })
	s.update(paths("/a"), func(tx *WriteTx) {
		_, err := tx.Load(id)
		wantKind(t, err, KindNoContents)
		_, err = get(tx.Append(id))(t).Write([]byte("x"))
		must(t, err)
	})
	s.view(paths("/a"), func(tx *ReadTx) { wantContents(t, tx, id, []byte("x")) })
}

// A resource that is removed and made anew in one transaction has nothing of the old.
func TestMadeAnew(t *testing.T) {
	s := newStore(t)
	id := newID()
	s.update(paths("/a"), func(tx *WriteTx) {
		must(t, tx.Save(path("/a/1"), id, make([]byte, 3*chunkSize)))
		must(t, tx.Link(id, path("/a/2")))
		must(t, tx.CreateTask(address.RandomTaskID(id), time.UnixMilli(1)))
	})
	task := address.RandomTaskID(id)
	s.update(paths("/a"), func(tx *WriteTx) {
		must(t, tx.Remove(id))
		must(t, tx.LinkNew(id, path("/a/3")))
		_, err := tx.Load(id)
		wantKind(t, err, KindNoContents)
		must(t, tx.CreateTask(task, time.UnixMilli(2)))
	})
	s.view(paths("/a"), func(tx *ReadTx) {
		wantList(t, tx, "/a/**", "/a/3")
		_, err := tx.Load(id)
		wantKind(t, err, KindNoContents)
		if tasks := get(tx.Tasks(id))(t); len(tasks) != 1 || tasks[0].ID != task {
			t.Errorf("tasks: %v", tasks)
		}
	})
}

// Of large contents only what changes is written.
func TestLargeContentsDoNotRewriteThemselves(t *testing.T) {
	s := newStore(t)
	id := newID()
	s.update(paths("/a"), func(tx *WriteTx) { must(t, tx.Save(path("/a"), id, make([]byte, 8<<20))) })
	written := func(fn func(tx *WriteTx)) int64 {
		before := s.db.Stats()
		s.update(paths("/a"), fn)
		after := s.db.Stats()
		diff := after.Sub(&before)
		return diff.TxStats.GetPageAlloc()
	}
	for name, fn := range map[string]func(tx *WriteTx){
		"one byte": func(tx *WriteTx) { must(t, tx.WriteAt(id, []byte{1}, 4<<20)) },
		"append": func(tx *WriteTx) {
			_, err := get(tx.Append(id))(t).Write([]byte("x"))
			must(t, err)
		},
		"another path": func(tx *WriteTx) { must(t, tx.Link(id, path("/a/b"))) },
	} {
		if n := written(fn); n > 512<<10 {
			t.Errorf("%s writes %d bytes", name, n)
		}
	}
}

func TestExclusive(t *testing.T) {
	s := newStore(t)
	ids := s.add("/a", "/b")
	var want []Task
	for _, id := range []address.ResourceID{ids["/a"], ids["/a"], ids["/b"]} {
		task := Task{address.RandomTaskID(id), time.UnixMilli(int64(len(want)))}
		want = append(want, task)
		s.update(paths("/"), func(tx *WriteTx) { must(t, tx.CreateTask(task.ID, task.Due)) })
	}
	tx := get(s.Exclusive(s.ctx, "test"))(t)
	defer tx.Close()
	fresh := newID()
	must(t, tx.Save(path("/c"), fresh, nil))
	task := Task{address.RandomTaskID(fresh), time.UnixMilli(7)}
	must(t, tx.CreateTask(task.ID, task.Due))
	must(t, tx.DeleteTask(want[0].ID))
	want = append(want[1:], task)
	slices.SortFunc(want, func(a, b Task) int { return a.ID.Compare(b.ID) })
	var got []Task
	for task, err := range tx.AllTasks() {
		must(t, err)
		got = append(got, task)
	}
	if !slices.Equal(got, want) {
		t.Errorf("all tasks are %v, want %v", got, want)
	}

	wantKind(t, tx.RemoveAll(otherNode), KindNode)
	must(t, tx.RemoveAll(testNode))
	wantList(t, tx.ReadTx, "/**")
	for task, err := range tx.AllTasks() {
		t.Errorf("there is still task %v, %v", task, err)
	}
	if ok, err := tx.Exists(ids["/a"]); ok || err != nil {
		t.Errorf("exists: %t, %v", ok, err)
	}
	must(t, tx.Save(path("/a"), ids["/a"], bytes.Repeat([]byte("n"), 2*chunkSize)))
	must(t, tx.Commit(s.ctx))
	s.view(paths("/"), func(tx *ReadTx) {
		wantList(t, tx, "/**", "/a")
		wantContents(t, tx, ids["/a"], bytes.Repeat([]byte("n"), 2*chunkSize))
	})
}

func TestRemoveAllIsRolledBack(t *testing.T) {
	s := newStore(t)
	s.add("/a")
	tx := get(s.Exclusive(s.ctx, ""))(t)
	must(t, tx.RemoveAll(testNode))
	tx.Close()
	s.view(paths("/"), func(tx *ReadTx) { wantList(t, tx, "/**", "/a") })
}

func TestLimits(t *testing.T) {
	s := newStore(t, func(o *Options) {
		o.MaxPath, o.MaxContents, o.MaxWrites, o.MaxOpen = 20, 100<<10, 150<<10, 2
	})
	id := newID()
	s.update(paths("/"), func(tx *WriteTx) {
		wantLimit(t, tx.Save(path("/"+strings.Repeat("x", 20)), newID(), nil), "MaxPath", 20)
		must(t, tx.Save(path("/"+strings.Repeat("x", 19)), newID(), nil))
		wantLimit(t, tx.Save(path("/big"), id, make([]byte, 100<<10+1)), "MaxContents", 100<<10)
		wantList(t, tx.ReadTx, "/big")
		must(t, tx.Save(path("/big"), id, make([]byte, 100<<10)))
		_, err := get(tx.Append(id))(t).Write([]byte("x"))
		wantLimit(t, err, "MaxContents", 100<<10)
		wantLimit(t, tx.Save(path("/more"), newID(), make([]byte, 60<<10)), "MaxWrites", 150<<10)
		wantList(t, tx.ReadTx, "/more")
		wantLimit(t, tx.Update(id, make([]byte, 100<<10+1)), "MaxContents", 100<<10)
		wantContents(t, tx.ReadTx, id, make([]byte, 100<<10)) // the old ones are still there
		must(t, tx.Update(id, make([]byte, 100<<10)))         // what is replaced no longer counts
		must(t, tx.Remove(id))
		must(t, tx.Save(path("/more"), newID(), make([]byte, 60<<10)))
	})
	a, b := s.read(Scope{}), s.read(Scope{})
	_, err := s.Read(s.ctx, Scope{})
	wantLimit(t, err, "MaxOpen", 2)
	a.Close()
	s.read(Scope{}).Close()
	b.Close()
}

// An owner has a part of the places, those that wait included, and gives each back.
func TestLimitOfEachOwner(t *testing.T) {
	s := newStore(t, func(o *Options) { o.MaxOpenEach = 2 })
	of := func(owner string) Scope { return Scope{Paths: paths("/a").Paths, Owner: owner} }
	first, err := s.Write(s.ctx, of("ada"))
	must(t, err)
	waits := make(chan error, 1)
	go func() {
		tx, err := s.Write(s.ctx, of("ada"))
		if err == nil {
			tx.Close()
		}
		waits <- err
	}()
	s.waiting(1)
	_, err = s.Read(s.ctx, of("ada"))
	wantLimit(t, err, "MaxOpenEach", 2)
	others, err := s.Read(s.ctx, of("bob"))
	must(t, err)
	nobody := s.read(Scope{})
	if open := s.Stats().Transactions; len(open) != 3 || open[0].Owner != "ada" || !strings.Contains(open[0].String(), `of "ada"`) {
		t.Errorf("open are %v", open)
	}
	// One that gives up waiting gives its place back, too.
	ctx, cancel := context.WithCancel(s.ctx)
	gaveUp := make(chan error, 1)
	go func() {
		_, err := s.Write(ctx, of("eve"))
		gaveUp <- err
	}()
	s.waiting(2)
	cancel()
	if err := <-gaveUp; !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	first.Close()
	must(t, <-waits)
	others.Close()
	nobody.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.owners) > 0 {
		t.Errorf("owners are kept: %v", s.owners)
	}
}

func TestLongTransactionsAreEnded(t *testing.T) {
	s := newStore(t, func(o *Options) { o.MaxAge = 20 * time.Millisecond })
	tx, err := s.Write(s.ctx, Scope{Paths: paths("/a").Paths, Label: "slow"})
	must(t, err)
	must(t, tx.Save(path("/a"), newID(), nil))
	// Its locks are free again, so this one need not wait for it.
	next, err := s.Write(s.ctx, paths("/a"))
	must(t, err)
	wantKind(t, tx.Commit(s.ctx), KindExpired)
	_, err = tx.Lookup(path("/a"))
	wantKind(t, err, KindExpired)
	tx.Close()
	next.Close()
	must(t, s.Close())
	again := openStore(t, s.File())
	again.view(paths("/"), func(tx *ReadTx) { wantList(t, tx, "/**") })
}

func TestStatsNameWhatIsOpen(t *testing.T) {
	s := newStore(t)
	tx, err := s.Read(s.ctx, Scope{Label: "report"})
	must(t, err)
	open := s.Stats().Transactions
	if len(open) != 1 || open[0].Label != "report" || open[0].Kind != "read" || !strings.Contains(open[0].String(), `"report"`) {
		t.Errorf("open are %v", open)
	}
	tx.Close()
}

func TestBackupAndRestore(t *testing.T) { // STO-09, and 6.9
	s := newStore(t)
	ids := s.add("/a", "/b")
	s.update(paths("/"), func(tx *WriteTx) { must(t, tx.Update(ids["/b"], make([]byte, 1<<20))) })
	dir := t.TempDir()

	// Writing goes on: the two always have the same contents.
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			err := s.Update(s.ctx, paths("/"), func(tx *WriteTx) error {
				data := fmt.Append(nil, i)
				return errors.Join(tx.Update(ids["/a"], data), tx.Update(ids["/b"], data))
			})
			if err != nil {
				done <- err
				return
			}
		}
	}()
	file := dir + "/backup"
	s.poll(func() bool { return s.Stats().Commits > 20 })
	if _, err := s.BackupFile(s.ctx, file); err != nil {
		t.Error(err)
	}
	close(stop)
	must(t, <-done)
	if _, err := s.BackupFile(s.ctx, file); err == nil {
		t.Error("a backup overwrote a file")
	}

	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	if _, err := s.BackupFile(ctx, dir+"/half"); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled backup: %v", err)
	}
	wantFiles(t, dir, "backup")

	restored := dir + "/restored"
	must(t, Restore(s.ctx, openFile(t, file), Options{File: restored, Node: testNode}))
	again := openStore(t, restored)
	again.view(paths("/"), func(tx *ReadTx) {
		a, b := get(tx.Load(ids["/a"]))(t), get(tx.Load(ids["/b"]))(t)
		if !bytes.Equal(a, b) {
			t.Errorf("the backup is of two moments: %s and %s", a, brief(b))
		}
	})
	if err := Restore(s.ctx, openFile(t, file), Options{File: restored, Node: testNode}); err == nil {
		t.Error("a live store was overwritten")
	}
	if err := Restore(s.ctx, openFile(t, file), Options{File: s.File(), Node: testNode}); err == nil {
		t.Error("a live store was overwritten")
	}
	wantKind(t, Restore(s.ctx, openFile(t, file), Options{File: dir + "/x", Node: otherNode}), KindForeign)
	wantKind(t, Restore(s.ctx, bytes.NewReader(nil), Options{File: dir + "/x", Node: testNode}), KindCorrupt)
	half := io.LimitReader(openFile(t, file), 20<<10)
	wantKind(t, Restore(s.ctx, half, Options{File: dir + "/x", Node: testNode}), KindCorrupt)
	wantFiles(t, dir, "backup", "restored")
}
