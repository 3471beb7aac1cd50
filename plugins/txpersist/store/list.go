package store

import (
	"encoding/base64"
	"iter"
	"slices"

	"github.com/elemental-conduit/conduit/address"
)

// Listing is one place of a resource.
type Listing struct {
	Path address.Path // with the store's node as context
	ID   address.ResourceID
}

// entry is a Listing as it is stored.
type entry struct {
	key string
	id  uuid
}

// pattern checks what is to be listed: its node, then the scope.
func (t *ReadTx) pattern(p address.Path) (glob, error) {
	if err := t.s.checkNode(p); err != nil {
		return glob{}, err
	}
	g := newGlob(p)
	if !t.scope.coversGlob(g) {
		return glob{}, fail(KindScope, p.String(), "the transaction did not declare all that this matches")
	}
	return g, nil
}

// scan returns up to max entries that g matches, behind the key last, in key order.
func (t *ReadTx) scan(g glob, last string, limit int) ([]entry, error) {
	stored, err := t.scanBase(g, last, limit)
	if err != nil || t.edits == nil {
		return stored, err
	}
	out := slices.Concat(stored, t.edits.scan(g, last))
	slices.SortFunc(out, func(a, b entry) int { return compareText(a.key, b.key) })
	// With the limit reached, the base may have more in front of the last edits.
	return out[:min(len(out), limit)], nil
}

func compareText(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// scanBase is scan of what is committed, without what the edits say otherwise of.
func (t *ReadTx) scanBase(g glob, last string, limit int) (out []entry, err error) {
	b := t.base()
	if b.tx == nil {
		return nil, nil
	}
	c := b.bucket(bucketPaths).Cursor()
	seek := g.start()
	if last >= seek {
		seek = last + "\x00" // the least text behind it
	}
	for k, v := c.Seek([]byte(seek)); k != nil && len(out) < limit; {
		key := string(k)
		ok, next := g.match(key)
		switch {
		case ok:
			if !t.edits.has(key) {
				u, err := unsealUUID(bucketPaths, k, v)
				if err != nil {
					return nil, err
				}
				out = append(out, entry{key, u})
			}
			k, v = c.Next()
		case next == "":
			return out, nil
		default:
			k, v = c.Seek([]byte(next))
		}
	}
	return out, nil
}

func (t *ReadTx) listings(entries []entry) ([]Listing, error) {
	out := make([]Listing, len(entries))
	for i, e := range entries {
		p, err := keyPath(t.s.context, e.key)
		if err != nil {
			return nil, err
		}
		out[i] = Listing{p, t.toID(e.id)}
	}
	return out, nil
}

// List yields what the pattern matches, in the order of components, each path once.
// "*" stands for exactly one component, at any depth; a trailing "**" for zero or
// more, so /a/** begins with /a. What is not there is no error: the listing is empty.
//
// The transaction may be used, also written to, by the loop: of what it adds and
// removes in front of the loop a listing shows all, some or nothing, and each path at
// most once. The loop ends with the first error; errors: KindNode, KindScope.
func (t *ReadTx) List(p address.Path) iter.Seq2[Listing, error] {
	return func(yield func(Listing, error) bool) {
		last := ""
		for {
			batch, next, err := t.page(p, last, listBatch)
			if err != nil {
				yield(Listing{}, err)
				return
			}
			for _, l := range batch {
				if !yield(l, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			last = next
		}
	}
}

// page returns up to limit listings behind the key last, and the key to go on behind,
// "" at the end.
func (t *ReadTx) page(p address.Path, last string, limit int) (out []Listing, next string, err error) {
	err = t.do(func() error {
		g, err := t.pattern(p)
		if err != nil {
			return err
		}
		entries, err := t.scan(g, last, limit+1)
		if err != nil {
			return err
		}
		if len(entries) > limit {
			entries = entries[:limit]
			next = entries[limit-1].key
		}
		out, err = t.listings(entries)
		return err
	})
	return out, next, err
}

// Page is a part of a listing.
type Page struct {
	Listings []Listing
	// Next gets the following page, also from another transaction; "" is the end.
	Next string
}

// Page returns up to limit entries of a listing, from where cursor says; "" is the
// beginning. A cursor is a place, not a snapshot: a page that another transaction
// reads shows what is there by then. Errors: KindArgument for a limit below 1 or a
// cursor that no page gave, KindNode, KindScope.
func (t *ReadTx) Page(p address.Path, cursor string, limit int) (Page, error) {
	if limit < 1 {
		return Page{}, fail(KindArgument, "", "a page of %d entries: ask for at least 1", limit)
	}
	last, err := base64.RawURLEncoding.DecodeString(cursor)
	if _, ok := keyComponents(string(last)); err != nil || cursor != "" && !ok {
		return Page{}, fail(KindArgument, "", "the cursor %q is not one that a page gave", cursor)
	}
	out, next, err := t.page(p, string(last), limit)
	if err != nil {
		return Page{}, err
	}
	return Page{out, base64.RawURLEncoding.EncodeToString([]byte(next))}, nil
}

// Cursor is the cursor that goes on behind a path.
func Cursor(p address.Path) string {
	return base64.RawURLEncoding.EncodeToString([]byte(pathKey(p)))
}
