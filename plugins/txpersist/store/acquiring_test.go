package store

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit/address"
)

// The tests of 10.8 that are about a service above the store, as far as they are about
// what it stores: add, list, get, link, unlink, remove.

type stored struct {
	id   address.ResourceID
	path address.Path
}

// AbstractResourceServiceAcquiringUnitTest: testAdd, 100 times.
func addHundred(t *testing.T, s *testStore) (all []stored) {
	t.Helper()
	base := path(testNode.String() + "://test/*")
	for range 100 {
		one := stored{newID(), base.AppendUUIDIfWildcard()}
		err := s.Update(s.ctx, Scope{Paths: []address.Path{one.path}}, func(tx *WriteTx) error {
			return tx.Save(one.path, one.id, []byte(one.path.String()))
		})
		must(t, err)
		all = append(all, one)
	}
	return all
}

// testList, testListParallel: /test/* is exactly those ids and paths.
func TestAddAndList(t *testing.T) {
	s := newStore(t)
	all := addHundred(t, s)
	slices.SortFunc(all, func(a, b stored) int { return address.CompareWildcardLast(a.path, b.path) })
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			err := s.View(s.ctx, paths("/test"), func(tx *ReadTx) error {
				var got []stored
				for l, err := range tx.List(path("/test/*")) {
					if err != nil {
						return err
					}
					got = append(got, stored{l.ID, l.Path})
				}
				if !slices.Equal(got, all) {
					t.Errorf("the listing has %d entries, which are not the %d that were added", len(got), len(all))
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// testGetResource, testGetResourceAtPath, and their Fail forms; testLink, testLinkPath,
// testGetByAlias, testUnlink, testRemove, testDoubleRemove, testAllPathsUnlinked.
func TestLifeOfResources(t *testing.T) {
	s := newStore(t)
	all := addHundred(t, s)
	aliases := map[address.ResourceID]address.Path{}
	s.update(paths("/test_alias", "/test"), func(tx *WriteTx) {
		for _, one := range all {
			if id, err := tx.Lookup(one.path); err != nil || id != one.id {
				t.Errorf("lookup: %s, %v", id, err)
			}
			wantContents(t, tx.ReadTx, one.id, []byte(one.path.String()))
			aliases[one.id] = path("/test_alias/*").AppendUUIDIfWildcard()
			must(t, tx.Link(one.id, aliases[one.id]))
		}
		_, err := tx.Lookup(path("/test/*").AppendUUIDIfWildcard())
		wantKind(t, err, KindNotFound)
	})
	s.view(paths("/"), func(tx *ReadTx) {
		_, err := tx.Load(newID())
		wantKind(t, err, KindNotFound)
		for id, alias := range aliases {
			if got, err := tx.Lookup(alias); err != nil || got != id {
				t.Errorf("lookup by alias: %s, %v", got, err)
			}
		}
	})
	for i, one := range all {
		sc := Scope{Paths: []address.Path{aliases[one.id]}}
		s.update(sc, func(tx *WriteTx) {
			got, err := tx.Unlink(aliases[one.id])
			if err != nil || got != (Unlinked{one.id, false}) {
				t.Errorf("unlink: %v, %v", got, err)
			}
			_, err = tx.Lookup(aliases[one.id])
			wantKind(t, err, KindNotFound)
		})
		s.update(Scope{Paths: []address.Path{one.path}, IDs: []address.ResourceID{one.id}}, func(tx *WriteTx) {
			if i%2 == 0 {
				must(t, tx.Remove(one.id))
			} else if got, err := tx.Unlink(one.path); err != nil || !got.Removed {
				t.Errorf("unlink of the last: %v, %v", got, err)
			}
			_, err := tx.Lookup(one.path)
			wantKind(t, err, KindNotFound)
			if ok, err := tx.Exists(one.id); ok || err != nil {
				t.Errorf("exists: %t, %v", ok, err)
			}
			wantKind(t, tx.Remove(one.id), KindNotFound)
		})
	}
	s.view(paths("/"), func(tx *ReadTx) { wantList(t, tx, "/**") })
}

// AbstractResourceServiceLinkingUnitTest: testAdd with alias, testRemoveAllAliases.
func TestRemoveAllAliases(t *testing.T) {
	s := newStore(t)
	for _, one := range addHundred(t, s) {
		alias := path("/test_alias/*").AppendUUIDIfWildcard()
		s.update(paths("/"), func(tx *WriteTx) { must(t, tx.Link(one.id, alias)) })
		s.update(paths("/"), func(tx *WriteTx) {
			for i, p := range []address.Path{one.path, alias} {
				got, err := tx.Unlink(p)
				if err != nil || got != (Unlinked{one.id, i == 1}) {
					t.Errorf("unlink %d: %v, %v", i, got, err)
				}
			}
		})
	}
	s.view(paths("/"), func(tx *ReadTx) { wantList(t, tx, "/**") })
}

// testDeleteWithPaths: add, two links under it, destroy; nothing is left.
func TestDeleteWithPaths(t *testing.T) {
	s := newStore(t)
	id := newID()
	s.update(paths("/test"), func(tx *WriteTx) {
		must(t, tx.Save(path("/test"), id, nil))
		must(t, tx.Link(id, path("/test/a")))
		must(t, tx.Link(id, path("/test/b")))
	})
	s.update(Scope{IDs: []address.ResourceID{id}}, func(tx *WriteTx) { must(t, tx.Remove(id)) })
	s.view(paths("/"), func(tx *ReadTx) { wantList(t, tx, "/**") })
}

// AbstractResourceServiceReleasingUnitTest: what was saved is what is read next, 30
// times; and UnixFSTransactionalSchedulerContextTest.testResume: the tasks of 100
// resources are there after a restart.
func TestResume(t *testing.T) {
	s := newStore(t)
	all := addHundred(t, s)
	for i := range 30 {
		one := all[i]
		data := fmt.Append(nil, "released ", i)
		s.update(Scope{IDs: []address.ResourceID{one.id}}, func(tx *WriteTx) { must(t, tx.Update(one.id, data)) })
		s.view(Scope{IDs: []address.ResourceID{one.id}}, func(tx *ReadTx) { wantContents(t, tx, one.id, data) })
	}
	due := time.Now().Add(5 * time.Millisecond)
	s.update(paths("/"), func(tx *WriteTx) {
		for _, one := range all {
			must(t, tx.CreateTask(address.RandomTaskID(one.id), due))
		}
	})
	must(t, s.Close())
	again := openStore(t, s.File())
	tasks, err := again.Due(again.ctx, due, 1000)
	if err != nil || len(tasks) != 100 {
		t.Errorf("%d tasks are due after the restart, %v", len(tasks), err)
	}
	for _, task := range tasks {
		if !slices.ContainsFunc(all, func(one stored) bool { return one.id == task.ID.Resource() }) {
			t.Errorf("task %s is of nobody", task.ID)
		}
	}
}
