package boltstore

import (
	"encoding/binary"
	"os"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/auth/authtest"
)

// TestMovedOfACopy: a copy that is put in the place of the file may have moves of the same
// numbers, which were about others.
func TestMovedOfACopy(t *testing.T) {
	path := place(t)
	s := opened(t, path)
	_, ids := authtest.Fill(t, s, 4, time.Hour)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	moved := func(since uint64) auth.Moves {
		t.Helper()
		m, err := s.Moved(t.Context(), since)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	if err := s.RemoveSession(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	if m := moved(0); m.Everyone || len(m.Users) != 1 {
		t.Errorf("%+v", m)
	}
	if err := os.WriteFile(path+".copy", text, fileMode); err != nil {
		t.Fatal(err)
	}
	other := opened(t, path+".copy")
	for _, id := range ids[1:3] {
		if err := other.RemoveSession(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(path+".copy", path); err != nil {
		t.Fatal(err)
	}
	if m := moved(1); !m.Everyone || m.Generation != 2 {
		t.Errorf("of the copy: %+v", m)
	}
	if m := moved(1); m.Everyone || len(m.Users) != 1 {
		t.Errorf("and then: %+v", m)
	}
}

// TestMovedByAnOlderVersion: one that counts without saying whom for has everyone looked at,
// and what is written since is told again.
func TestMovedByAnOlderVersion(t *testing.T) {
	s := opened(t, place(t))
	_, ids := authtest.Fill(t, s, 4, time.Hour)
	end := func(i int) {
		t.Helper()
		if err := s.RemoveSession(t.Context(), ids[i]); err != nil {
			t.Fatal(err)
		}
	}
	moved := func(since uint64) auth.Moves {
		t.Helper()
		m, err := s.Moved(t.Context(), since)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	end(0)
	err := s.do(t.Context(), true, func(r *records) error {
		return r.store.Put([]byte(keyGeneration), binary.BigEndian.AppendUint64(nil, r.generation+1))
	})
	if err != nil {
		t.Fatal(err)
	}
	if m := moved(1); !m.Everyone || m.Generation != 2 {
		t.Errorf("of what nobody has noted: %+v", m)
	}
	end(1)
	end(2)
	if m := moved(0); !m.Everyone || m.Generation != 4 {
		t.Errorf("with one among them that nobody has noted: %+v", m)
	}
	if m := moved(2); m.Everyone || len(m.Users) != 2 {
		t.Errorf("of those since: %+v", m)
	}
	// What cannot be moves is nobody's, rather than an end to the service.
	err = s.do(t.Context(), true, func(r *records) error { return r.store.Put([]byte(keyMoves), []byte("short")) })
	if err != nil {
		t.Fatal(err)
	}
	if m := moved(3); !m.Everyone {
		t.Errorf("of a record that is none: %+v", m)
	}
	end(3)
	if m := moved(4); m.Everyone || len(m.Users) != 1 {
		t.Errorf("of one that was written behind it: %+v", m)
	}
}
