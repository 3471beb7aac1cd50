package store

import (
	"log/slog"
	"time"

	"github.com/elemental-conduit/conduit/address"
)

// Options say which file, whose it is, and how much of everything there may be. Zero
// values stand for the defaults.
type Options struct {
	// File is the path of the file; its folder must exist.
	File string
	// Node is the node whose resources these are. The file remembers it.
	Node address.NodeID
	// LockTimeout is how long Open waits for another process to let go of the file;
	// 0 = 3 s.
	LockTimeout time.Duration
	// MaxSize bounds the file in bytes; it may be exceeded by 16 MiB. So much address
	// space, not memory, is taken at once, so that no reader ever keeps the file from
	// growing. 0 = 64 GiB.
	MaxSize int64
	// MaxAge ends a transaction that is open for longer, by rollback: a reader keeps
	// the pages of its snapshot from being used again, a writer its locks. 0 = 5 min. A
	// writer whose contents go into the file has it anew with each part that does.
	MaxAge time.Duration
	// MaxOpen is how many transactions may be open or wait for their locks; 0 = 4096.
	MaxOpen int
	// MaxOpenEach is how many of them may be those of one owner, see Scope.Owner;
	// 0 = 1024. Transactions without an owner count for MaxOpen alone.
	MaxOpenEach int
	// MaxScope is how many paths and ids a transaction may declare; 0 = 10,000. One that
	// writes and declares more than 1,024 paths, or 64 with wildcards, locks all of them.
	MaxScope int
	// MaxPath is the length of the longest path in bytes, without its context;
	// 0 = 1024.
	MaxPath int
	// MaxContents is the size of the largest contents in bytes; 0 = 1 GiB.
	MaxContents int64
	// MaxWrites is how many bytes one transaction may keep in memory until it
	// commits: contents, and some 200 bytes for each path, resource and task that
	// changes; 0 = 64 MiB. Of new contents that are written with a Writer it keeps 4 MiB,
	// or a quarter of MaxWrites if that is less: what is more goes into the file at once, and out
	// of it again if there is no commit.
	MaxWrites int64
	// CheckLimit is the size in bytes up to which Open reads every page of the file.
	// Of a larger one it checks the head, the free list and the length; what it did
	// not check is still found damaged when it is read. 0 = 4 GiB, negative = never.
	CheckLimit int64
	// MaxWatches is how many watches of paths and of tasks may be open; 0 = 1024.
	MaxWatches int
	// MaxWatchesEach is how many of them may be those of one owner, see PathWatch.Owner and
	// TaskWatch.Owner; 0 = 256. Watches without an owner count for MaxWatches alone.
	MaxWatchesEach int
	// History is how many bytes of changes are kept in memory for watches that are
	// slow or come back: the length of each path and 64; 0 = 8 MiB.
	History int64
	// Lease is how long a watch of tasks has one to itself before it is delivered
	// again, unless the watch asks for another time; 0 = 30 s.
	Lease time.Duration
	// KeyAge is how long the key of what is done once is kept; 0 = 24 h.
	KeyAge time.Duration
	// MaxKeys is how many such keys are kept; the oldest go first. 0 = 100,000.
	MaxKeys int
	// Logger gets what an operator should see; nil = nothing.
	Logger *slog.Logger

	stage  int64 // what stageAt gives, for tests; 0 = from MaxWrites
	noSync bool  // tests that commit thousands of times and do not lose power
}

const (
	chunkSize = 32 << 10 // contents are rewritten by the chunk
	inlineMax = 2 << 10  // contents up to here are in the resource's record
	allocSize = 16 << 20 // the file grows by this

	listBatch = 128 // entries that a listing reads at a time

	minTree  = 16   // globs of a scope that are worth a tree
	maxGlobs = 1024 // that a writer locks one by one; with more it locks all
	maxWild  = 64   // of these with wildcards, each of which may meet all of another's

	maxExact   = 4096 // aliases that a writer locks one by one; with more it locks all
	maxAttempt = 3    // then a writer whose aliases keep changing locks all

	maxBatch      = 1024     // transactions of one commit
	maxBatchBytes = 64 << 20 // and their bytes, if they are several

	editCost = 200 // bytes that a change of one path, resource or task counts
)

func (o Options) withDefaults() Options {
	if o.LockTimeout == 0 {
		o.LockTimeout = 3 * time.Second
	}
	if o.MaxSize == 0 {
		o.MaxSize = 64 << 30
	}
	if o.MaxAge == 0 {
		o.MaxAge = 5 * time.Minute
	}
	if o.MaxOpen == 0 {
		o.MaxOpen = 4096
	}
	if o.MaxOpenEach == 0 {
		o.MaxOpenEach = 1024
	}
	if o.MaxScope == 0 {
		o.MaxScope = 10_000
	}
	if o.MaxPath == 0 {
		o.MaxPath = 1024
	}
	if o.MaxContents == 0 {
		o.MaxContents = 1 << 30
	}
	if o.MaxWrites == 0 {
		o.MaxWrites = 64 << 20
	}
	if o.MaxWatches == 0 {
		o.MaxWatches = 1024
	}
	if o.MaxWatchesEach == 0 {
		o.MaxWatchesEach = 256
	}
	if o.History == 0 {
		o.History = 8 << 20
	}
	if o.Lease == 0 {
		o.Lease = 30 * time.Second
	}
	if o.KeyAge == 0 {
		o.KeyAge = 24 * time.Hour
	}
	if o.MaxKeys == 0 {
		o.MaxKeys = 100_000
	}
	if o.CheckLimit == 0 {
		o.CheckLimit = 4 << 30
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}
