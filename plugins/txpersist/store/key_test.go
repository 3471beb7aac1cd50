package store

import (
	"slices"
	"strings"
	"testing"

	"github.com/elemental-conduit/conduit/address"
)

// FuzzPathKey: a path comes back from its key, and keys sort as components do.
func FuzzPathKey(f *testing.F) {
	for _, s := range []string{"/a", "/a/b", "/a b/c", "a:b/%2F", "/*/x/**", "/a!", "/~/ ~"} {
		f.Add(s, "/a/b/c")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		p, err := address.ParsePath(a)
		q, err2 := address.ParsePath(b)
		if err != nil || err2 != nil || p.HasContext() || q.HasContext() || p.IsRoot() || q.IsRoot() {
			t.Skip()
		}
		kp, kq := pathKey(p), pathKey(q)
		if back, err := keyPath("", kp); err != nil || back != p {
			t.Fatalf("%s has the key %q, which is %s, %v", p, kp, back, err)
		}
		if got, want := compareText(kp, kq), slices.Compare(p.Components(), q.Components()); got != want {
			t.Fatalf("%s and %s compare as %d, their keys as %d", p, q, want, got)
		}
		below := slices.Equal(p.Components(), q.Components()[:min(p.Len(), q.Len())]) && q.Len() >= p.Len()
		if strings.HasPrefix(kq, kp) != below {
			t.Fatalf("%s below %s is %t, by their keys it is not", q, p, below)
		}
	})
}

// FuzzGlob: a scan by a pattern finds just what [address.Path.Match] says, whatever
// lies in between, and never goes back.
func FuzzGlob(f *testing.F) {
	f.Add("/a/*/c", "/a/b/c\n/a/b\n/ax/q\n/a/b/c/d\n/a/z/c\n/b")
	f.Add("/**", "/a\n/b/c")
	f.Add("/a/**", "/a\n/a/b\n/a!\n/ab")
	f.Add("/*/b/**", "/a/b\n/a/b/c\n/b\n/a!/b")
	f.Add("/", "/a")
	f.Fuzz(func(t *testing.T, pattern, lines string) {
		p, err := address.ParsePath(pattern)
		if err != nil || p.HasContext() {
			t.Skip()
		}
		g := newGlob(p)
		var keys, want []string
		for line := range strings.SplitSeq(lines, "\n") {
			q, err := address.ParsePath(line)
			if err != nil || q.HasContext() || q.IsRoot() || q.IsWildcard() || q.IsWildcardRecursive() {
				continue
			}
			keys = append(keys, pathKey(q))
			if p.Match(q) {
				want = append(want, pathKey(q))
			}
		}
		slices.Sort(keys)
		keys, want = slices.Compact(keys), slices.Compact(slices.Sorted(slices.Values(want)))

		var got []string
		seek := func(from string) int { i, _ := slices.BinarySearch(keys, from); return i }
		for i := seek(g.start()); i < len(keys); {
			ok, next := g.match(keys[i])
			switch {
			case ok:
				got = append(got, keys[i])
				i++
			case next == "":
				i = len(keys)
			case next <= keys[i]:
				t.Fatalf("%s: behind %q comes %q", p, keys[i], next)
			default:
				i = seek(next)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s finds %q, want %q of %q", p, got, want, keys)
		}
		// A scope of this pattern covers what it matches, and what is below that.
		open := g
		open.open = true
		for _, key := range keys {
			covered := false
			for end := range len(key) {
				if key[end] == 0 {
					if q, err := keyPath("", key[:end+1]); err == nil && p.Match(q) {
						covered = true
					}
				}
			}
			if len(g.components) == 0 { // the root covers everything
				covered = true
			}
			if ok, _ := open.match(key); ok != covered {
				t.Fatalf("a scope of %s covers %q: %t, want %t", p, key, ok, covered)
			}
			q := exactGlob(key)
			if open.covers(q) != covered || !open.overlaps(q) && covered {
				t.Fatalf("%s and %q: covers %t, overlaps %t, want %t", p, key, open.covers(q), open.overlaps(q), covered)
			}
		}
	})
}

// FuzzRecord: whatever is in a record, it is refused or comes back as it was.
func FuzzRecord(f *testing.F) {
	f.Add(record{kind: contentsInline, size: 3, inline: []byte("abc")}.encode())
	f.Add(record{kind: contentsChunked, size: 70000, id: 7}.encode())
	f.Add(record{}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord([]byte("key"), b)
		if err != nil {
			wantKind(t, err, KindCorrupt)
			return
		}
		if got := r.encode(); !slices.Equal(got, b) {
			t.Fatalf("%x comes back as %x", b, got)
		}
	})
}

func TestSealing(t *testing.T) {
	value := seal(bucketPaths, []byte("key"), []byte("payload"))
	if got, err := unseal(bucketPaths, []byte("key"), value); err != nil || string(got) != "payload" {
		t.Errorf("unsealed it is %q, %v", got, err)
	}
	for i := range value {
		bad := slices.Clone(value)
		bad[i]++
		if _, err := unseal(bucketPaths, []byte("key"), bad); KindOf(err) != KindCorrupt {
			t.Errorf("byte %d: %v", i, err)
		}
	}
	for _, err := range []error{
		second(unseal(bucketReverse, []byte("key"), value)), // moved to another bucket
		second(unseal(bucketPaths, []byte("kez"), value)),   // or to another key
		second(unseal(bucketPaths, []byte("key"), value[:3])),
		second(unsealUUID(bucketPaths, []byte("key"), value)),
	} {
		wantKind(t, err, KindCorrupt)
	}
}
