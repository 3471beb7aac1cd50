package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// Once names what a transaction does, for a caller who may have to ask again because it
// does not know what became of it.
type Once struct {
	// Owner is whose key it is; those of others are other keys.
	Owner string
	// Key is the caller's name for it, of 1 to 64 bytes.
	Key string
	// Request is what is asked for, or a digest of it: under one key it must be the
	// same.
	Request []byte
}

const (
	maxKey = 64 // bytes of a caller's key
	// maxAnswer bounds what is kept under a key, in bytes.
	maxAnswer = 64 << 10
	keySize   = sha256.Size
	keyHead   = 8 + sha256.Size // time and request
	// evictions is how many old keys a transaction takes away that adds one; with more
	// than one of them the number of keys comes down by and by.
	evictions = 4
	// clockSlack is how far ahead of the clock a key may be that is not one of a clock that
	// was wrong.
	clockSlack = time.Minute
)

// keyCount is how many keys there are; only who commits uses it.
type keyCount struct{ count int }

// keyEdit is a Once that was checked, and its answer.
type keyEdit struct {
	key     [keySize]byte
	request [sha256.Size]byte
	answer  []byte
}

func (o Once) check() (*keyEdit, error) {
	if o.Key == "" || len(o.Key) > maxKey {
		return nil, fail(KindArgument, "", "a key of %d bytes: it must have 1 to %d", len(o.Key), maxKey)
	}
	owner := sha256.Sum256([]byte(o.Owner)) // so that no owner and key make another owner's
	return &keyEdit{
		key:     sha256.Sum256(append(owner[:], o.Key...)),
		request: sha256.Sum256(o.Request),
	}, nil
}

// countKeys counts those that the file has.
func (s *Store) countKeys() error {
	tx, err := s.db.Begin(false)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	c := tx.Bucket([]byte(bucketAges)).Cursor()
	for k, _ := c.First(); k != nil; k, _ = c.Next() {
		s.keys.count++
	}
	return nil
}

// Recall returns the answer that an earlier transaction of the same [Scope.Once]
// remembered; found is false if there was none, or it was longer than Options.KeyAge
// ago, or more than Options.MaxKeys have come since. While one such transaction is open,
// the next waits for it, so between this and Remember there is nobody else. Errors:
// KindArgument for a scope without Once, KindReused if what was asked for then was
// something else.
func (t *WriteTx) Recall() (answer []byte, found bool, err error) {
	err = t.do(func() error {
		o := t.scope.once
		if o == nil {
			return fail(KindArgument, t.label, "the scope of the transaction has no Once")
		}
		payload, err := base{t.snap}.get(bucketKeys, o.key[:])
		if err != nil || payload == nil {
			return err
		}
		if len(payload) < keyHead {
			return corrupt("the key %x of what was done once makes no sense", o.key)
		}
		made := time.UnixMilli(int64(binary.BigEndian.Uint64(payload)))
		if time.Since(made) > t.s.opts.KeyAge {
			return nil
		}
		if !bytes.Equal(payload[8:keyHead], o.request[:]) {
			return fail(KindReused, "", "the key was used for something else; use a new one for each thing that is to be done")
		}
		answer, found = bytes.Clone(payload[keyHead:]), true
		return nil
	})
	return answer, found, err
}

// Remember keeps an answer for later transactions of the same [Scope.Once], in the same
// commit as all that the transaction writes. Errors: KindArgument for a scope without
// Once, KindLimit for an answer above 64 KiB.
func (t *WriteTx) Remember(answer []byte) error {
	return t.do(func() error {
		o := t.scope.once
		switch {
		case o == nil:
			return fail(KindArgument, t.label, "the scope of the transaction has no Once")
		case len(answer) > maxAnswer:
			return fail(KindLimit, t.label, "the answer has %d bytes, and at most %d are kept under a key; read in a call of its own, without a key", len(answer), maxAnswer)
		}
		if err := t.spend(editCost + int64(len(answer))); err != nil {
			return err
		}
		t.edits.once = &keyEdit{o.key, o.request, bytes.Clone(answer)}
		return nil
	})
}

// writeKey writes what the transaction remembers, and takes old keys away.
func (a applier) writeKey() error {
	o := a.e.once
	if o == nil {
		return nil
	}
	old, err := base{a.tx}.get(bucketKeys, o.key[:])
	if err != nil {
		return err
	}
	if len(old) >= keyHead { // too old, so that it was done again
		if err := a.remove(bucketAges, joinKey(old[:8], o.key[:])); err != nil {
			return err
		}
		*a.keys--
	}
	now := time.Now()
	made := binary.BigEndian.AppendUint64(nil, uint64(now.UnixMilli()))
	if err := a.put(bucketKeys, o.key[:], joinKey(made, o.request[:], o.answer)); err != nil {
		return err
	}
	if err := a.put(bucketAges, joinKey(made, o.key[:]), nil); err != nil {
		return err
	}
	*a.keys++
	expired := binary.BigEndian.AppendUint64(nil, uint64(now.Add(-a.opts.KeyAge).UnixMilli()))
	ahead := binary.BigEndian.AppendUint64(nil, uint64(now.Add(clockSlack).UnixMilli()))
	for range evictions {
		c := a.tx.Bucket([]byte(bucketAges)).Cursor()
		k, v := c.First()
		if last, value := c.Last(); *a.keys > a.opts.MaxKeys && bytes.Compare(last, ahead) > 0 {
			k, v = last, value // of a clock that was ahead: it must not push out what is made now
		}
		if k == nil || *a.keys <= a.opts.MaxKeys && bytes.Compare(k[:min(8, len(k))], expired) >= 0 {
			return nil
		}
		if _, err := unseal(bucketAges, k, v); err != nil {
			return err
		}
		if len(k) != 8+keySize {
			return corrupt("the age %x of a key makes no sense", k)
		}
		k = bytes.Clone(k)
		if err := a.remove(bucketKeys, k[8:]); err != nil {
			return err
		}
		if err := a.remove(bucketAges, k); err != nil {
			return err
		}
		*a.keys--
	}
	return nil
}
