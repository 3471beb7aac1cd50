package store

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"strings"

	"github.com/elemental-conduit/conduit/address"
)

// The buckets of the file. The layout is part of what is stored; a change needs a
// new formatVersion and a way up from the one before.
//
//	meta       "format" -> u32, "node" -> NodeID
//	resources  uuid -> kind (1B) size (8B) contents (8B) data of small contents
//	paths      path -> uuid
//	reverse    uuid path -> nothing
//	aliases    path -> uuid, of resources with several paths only
//	chunks     contents (8B) index (4B) -> data
//	tasks      uuid task -> due, Unix milliseconds (8B)
//	due        due (8B) uuid task -> nothing
//	keys       owner and key, hashed (32B) -> time (8B) request (32B) answer
//	ages       time (8B) owner and key, hashed (32B) -> nothing
//	staged     contents (8B) -> nothing, of chunks that are in no record
//
// Numbers are big-endian. A path is its components, each followed by 0x00, which
// no component can hold: so the order of bytes is that of components, and what lies
// below a path has that path's bytes in front. The node is in no key: a file holds
// one node only, and to adopt it under another means to change one value.
//
// Every value has a checksum in front, CRC-32C over the bucket's letter, the key and
// the value.
const (
	bucketMeta      = "meta"
	bucketResources = "resources"
	bucketPaths     = "paths"
	bucketReverse   = "reverse"
	bucketAliases   = "aliases"
	bucketChunks    = "chunks"
	bucketTasks     = "tasks"
	bucketDue       = "due"
	bucketKeys      = "keys"
	bucketAges      = "ages"
	bucketStaged    = "staged"

	// 1 has neither keys nor ages, and 2 nothing that is staged.
	formatVersion = 3
)

// onceBuckets remember what was done once; they are no resources.
func onceBuckets() []string { return []string{bucketKeys, bucketAges} }

// dataBuckets are those of resources.
func dataBuckets() []string {
	return []string{bucketResources, bucketPaths, bucketReverse, bucketAliases, bucketChunks, bucketTasks, bucketDue}
}

// allBuckets are those that a file of a format has, beside meta.
func allBuckets(format uint32) []string {
	names := dataBuckets()
	if format > 1 {
		names = append(names, onceBuckets()...)
	}
	if format > 2 {
		names = append(names, bucketStaged)
	}
	return names
}

// uuid is the part of an id that is below the node.
type uuid = [16]byte

const sumSize = 4

// checksum covers the bucket by its first two letters, which differ in each.
func checksum(bucket string, key, payload []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli) // cached by the package
	sum := crc32.Update(0, table, []byte(bucket[:2]))
	sum = crc32.Update(sum, table, key)
	return crc32.Update(sum, table, payload)
}

// seal puts the checksum in front of a value.
func seal(bucket string, key, payload []byte) []byte {
	value := make([]byte, sumSize, sumSize+len(payload))
	binary.BigEndian.PutUint32(value, checksum(bucket, key, payload))
	return append(value, payload...)
}

// unseal checks a value and returns it without its checksum, not copied.
func unseal(bucket string, key, value []byte) ([]byte, error) {
	if len(value) < sumSize {
		return nil, corrupt("the value of key %x in bucket %s has %d bytes, too few for a checksum", key, bucket, len(value))
	}
	payload := value[sumSize:]
	if got, want := checksum(bucket, key, payload), binary.BigEndian.Uint32(value); got != want {
		return nil, corrupt("key %x in bucket %s has the checksum %08x, its value says %08x", key, bucket, got, want)
	}
	return payload, nil
}

// unsealUUID is unseal for a value that is a uuid.
func unsealUUID(bucket string, key, value []byte) (u uuid, err error) {
	payload, err := unseal(bucket, key, value)
	if err != nil {
		return u, err
	}
	if len(payload) != len(u) {
		return u, corrupt("the value of key %x in bucket %s has %d bytes, not those of an id", key, bucket, len(payload))
	}
	return uuid(payload), nil
}

// pathKey is the key of a path, without its context.
func pathKey(p address.Path) string {
	var b strings.Builder
	for _, c := range p.Components() {
		b.WriteString(c)
		b.WriteByte(0)
	}
	return b.String()
}

// keyComponents takes a key apart; ok is false if it is none.
func keyComponents(key string) (components []string, ok bool) {
	if key == "" || key[len(key)-1] != 0 {
		return nil, false
	}
	return strings.Split(key[:len(key)-1], "\x00"), true
}

// keyPath is the path of a key under a context.
func keyPath(context, key string) (address.Path, error) {
	components, ok := keyComponents(key)
	if !ok {
		return address.Path{}, corrupt("the key %q in bucket %s is no path", key, bucketPaths)
	}
	p, err := address.NewPath(context, components...)
	if err != nil {
		return address.Path{}, &Error{Kind: KindCorrupt, Why: "a key in bucket " + bucketPaths + " is no path", Err: err}
	}
	return p, nil
}

// after is the least text behind all that begins with prefix, which is empty or ends
// in 0x00; "" if there is none.
func after(prefix string) string {
	if prefix == "" {
		return ""
	}
	return prefix[:len(prefix)-1] + "\x01"
}

// glob is a pattern for keys of paths.
type glob struct {
	components []string // "*" stands for any one
	open       bool     // zero or more components may follow
}

func newGlob(p address.Path) glob {
	return glob{p.StripRecursive().Components(), p.IsWildcardRecursive()}
}

// start is where the first key that g may match can be.
func (g glob) start() string {
	var b strings.Builder
	for _, c := range g.components {
		if c == address.Wildcard {
			break
		}
		b.WriteString(c)
		b.WriteByte(0)
	}
	return b.String()
}

// match reports whether g matches key. If not, next is behind key and not behind the
// next key that may match; "" says that there is none. So a scan skips what cannot
// match, however much lies there.
func (g glob) match(key string) (ok bool, next string) {
	pos := 0
	for _, c := range g.components {
		if pos == len(key) { // key is above what g matches
			if c == address.Wildcard {
				return false, key + "\x01" // no component begins below 0x20
			}
			return false, key + c + "\x00"
		}
		end := pos + strings.IndexByte(key[pos:], 0)
		if end < pos {
			return false, key + "\x00" // no key of ours; whoever reads it says so
		}
		switch k := key[pos:end]; {
		case c == address.Wildcard || c == k:
			pos = end + 1
		case k < c:
			return false, key[:pos] + c + "\x00"
		default:
			return false, after(key[:pos])
		}
	}
	if pos == len(key) || g.open {
		return true, ""
	}
	return false, after(key[:pos])
}

// covers reports whether all that other matches lies at or below what g matches,
// where g is open.
func (g glob) covers(other glob) bool {
	if len(other.components) < len(g.components) {
		return false
	}
	for i, c := range g.components {
		if c != address.Wildcard && c != other.components[i] {
			return false
		}
	}
	return true
}

// overlaps reports whether something can lie at or below what both match; both are
// open.
func (g glob) overlaps(other glob) bool {
	for i := range min(len(g.components), len(other.components)) {
		a, b := g.components[i], other.components[i]
		if a != b && a != address.Wildcard && b != address.Wildcard {
			return false
		}
	}
	return true
}

// contentsKind says where contents are.
type contentsKind byte

const (
	contentsNone contentsKind = iota
	contentsInline
	contentsChunked
)

// record is the value of a resource.
type record struct {
	kind   contentsKind
	size   int64
	id     uint64 // of the chunks, if chunked
	inline []byte
}

const recordSize = 1 + 8 + 8

func (r record) encode() []byte {
	b := make([]byte, 0, recordSize+len(r.inline))
	b = append(b, byte(r.kind))
	b = binary.BigEndian.AppendUint64(b, uint64(r.size))
	b = binary.BigEndian.AppendUint64(b, r.id)
	return append(b, r.inline...)
}

// decodeRecord copies nothing.
func decodeRecord(key, payload []byte) (record, error) {
	if len(payload) < recordSize {
		return record{}, corrupt("resource %x has a record of %d bytes, too few", key, len(payload))
	}
	r := record{
		kind:   contentsKind(payload[0]),
		size:   int64(binary.BigEndian.Uint64(payload[1:])),
		id:     binary.BigEndian.Uint64(payload[9:]),
		inline: payload[recordSize:],
	}
	switch {
	case r.kind > contentsChunked, r.size < 0,
		r.kind == contentsInline && r.size != int64(len(r.inline)),
		r.kind != contentsInline && len(r.inline) > 0,
		r.kind == contentsNone && r.size != 0:
		return record{}, corrupt("resource %x has a record that makes no sense", key)
	}
	return r, nil
}

// chunks is how many chunks the record has.
func (r record) chunks() uint32 {
	if r.kind != contentsChunked {
		return 0
	}
	return uint32((r.size + chunkSize - 1) / chunkSize)
}

func chunkKey(id uint64, index uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, id), index)
}

func joinKey(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// dueKey orders tasks by time; the sign is flipped so that bytes sort as numbers do.
func dueKey(due int64, resource, task uuid) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(due)^1<<63)
	b = append(b, resource[:]...)
	return append(b, task[:]...)
}
