package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/elemental-conduit/conduit/address"
)

const registers = 4

// registerOp is one transaction: it reads some registers, then writes some of them.
type registerOp struct {
	reads  [registers]bool
	writes [registers]int // 0 = not written
}

type registerState [registers]int

// registerModel says which results of transactions are possible one after another.
var registerModel = porcupine.Model{
	Init: func() any { return registerState{} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(registerState), input.(registerOp), output.(registerState)
		for i := range registers {
			if in.reads[i] && out[i] != s[i] {
				return false, s
			}
		}
		for i, v := range in.writes {
			if v != 0 {
				s[i] = v
			}
		}
		return true, s
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %v", input, output) },
}

// TestStrictlySerialisable runs transactions of many clients on a few resources, each
// of which has two paths, and asks porcupine for an order of all of them that explains
// every result and has each between its begin and its end.
func TestStrictlySerialisable(t *testing.T) {
	const clients, each = 8, 30
	for round := range 4 {
		s := newStore(t)
		var ids [registers]address.ResourceID
		s.update(paths("/"), func(tx *WriteTx) {
			for i := range ids {
				ids[i] = newID()
				must(t, tx.Save(registerPath(i, 0), ids[i], []byte("0")))
				must(t, tx.Link(ids[i], registerPath(i, 1)))
			}
		})
		var mu sync.Mutex
		var ops []porcupine.Operation
		var wg sync.WaitGroup
		start := time.Now()
		for c := range clients {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(round), uint64(c)))
				for n := range each {
					op, sc := randomOp(rnd, ids, 1+c*each+n)
					begun := time.Since(start)
					out, committed, err := s.runRegisters(op, sc, ids, rnd.IntN(10) == 0)
					ended := time.Since(start)
					if err != nil {
						t.Error(err)
						return
					}
					if !committed {
						op.writes = [registers]int{} // what it read counts all the same
					}
					mu.Lock()
					ops = append(ops, porcupine.Operation{
						ClientId: c, Input: op, Output: out, Call: begun.Nanoseconds(), Return: ended.Nanoseconds(),
					})
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		switch res := porcupine.CheckOperationsTimeout(registerModel, ops, 20*time.Second); res {
		case porcupine.Ok:
		case porcupine.Illegal:
			t.Errorf("round %d: no order of the %d transactions explains their results", round, len(ops))
		case porcupine.Unknown:
			t.Errorf("round %d: no verdict in time", round)
		}
	}
}

func registerPath(i, alias int) address.Path { return path(fmt.Sprintf("/%d/r%d", alias, i)) }

// randomOp makes a transaction, and a scope that covers it: by ids, by the one path or
// the other.
func randomOp(rnd *rand.Rand, ids [registers]address.ResourceID, value int) (op registerOp, sc Scope) {
	if rnd.IntN(3) == 0 {
		for i := range op.reads {
			op.reads[i] = true
		}
		return op, paths("/0") // a snapshot of all
	}
	for range 1 + rnd.IntN(2) {
		i := rnd.IntN(registers)
		op.reads[i] = rnd.IntN(4) > 0
		op.writes[i] = value
		switch rnd.IntN(3) {
		case 0:
			sc.IDs = append(sc.IDs, ids[i])
		case 1:
			sc.Paths = append(sc.Paths, registerPath(i, 0))
		default:
			sc.Paths = append(sc.Paths, registerPath(i, 1))
		}
	}
	return op, sc
}

var errRollback = errors.New("rolled back on purpose")

func (s *testStore) runRegisters(op registerOp, sc Scope, ids [registers]address.ResourceID, rollback bool) (out registerState, committed bool, err error) {
	read := func(tx *ReadTx) error {
		for i, wanted := range op.reads {
			if !wanted {
				continue
			}
			data, err := tx.Load(ids[i])
			if err != nil {
				return err
			}
			if out[i], err = strconv.Atoi(string(data)); err != nil {
				return err
			}
		}
		return nil
	}
	if op.writes == [registers]int{} {
		return out, true, s.View(s.ctx, sc, read)
	}
	err = s.Update(s.ctx, sc, func(tx *WriteTx) error {
		if err := read(tx.ReadTx); err != nil {
			return err
		}
		for i, v := range op.writes {
			if v != 0 {
				if err := tx.Update(ids[i], strconv.AppendInt(nil, int64(v), 10)); err != nil {
					return err
				}
			}
		}
		if rollback {
			return errRollback
		}
		return nil
	})
	if errors.Is(err, errRollback) {
		return out, false, nil
	}
	return out, err == nil, err
}

// Counters that many add to lose nothing.
func TestNoLostUpdates(t *testing.T) {
	s := newStore(t)
	ids := s.add("/0", "/1", "/2", "/3")
	s.update(paths("/"), func(tx *WriteTx) {
		for _, id := range ids {
			must(t, tx.Update(id, []byte("0")))
		}
	})
	const clients, each = 16, 20
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for n := range each {
				p := fmt.Sprintf("/%d", (c+n)%4)
				err := s.Update(s.ctx, paths(p), func(tx *WriteTx) error {
					data, err := tx.Load(ids[p])
					if err != nil {
						return err
					}
					v, err := strconv.Atoi(string(data))
					if err != nil {
						return err
					}
					return tx.Update(ids[p], strconv.AppendInt(nil, int64(v+1), 10))
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	s.view(paths("/"), func(tx *ReadTx) {
		for p, id := range ids {
			wantContents(t, tx, id, strconv.AppendInt(nil, clients*each/4, 10))
			_ = p
		}
	})
}
