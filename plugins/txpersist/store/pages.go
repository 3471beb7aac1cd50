package store

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"io"
	"os"
)

// What of bbolt's file format is checked before bbolt, which panics or worse on a
// damaged file, may map it. All numbers are little-endian, since the systems that we
// build for are.
const (
	pageHeader   = 16 // id u64, flags u16, count u16, overflow u32
	branchEntry  = 16 // position u32, key length u32, page u64
	leafEntry    = 16 // flags u32, position u32, key length u32, value length u32
	bucketHeader = 16 // root u64, sequence u64

	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagFreelist = 0x10
	leafBucket   = 0x01

	metaMagic   = 0xED0CDAED
	metaVersion = 2
	metaSize    = 64
	noFreelist  = ^uint64(0)

	maxDepth = 64 // of pages; a sound tree is far from it
)

// boltMeta is the head of the file that counts: the newer of the two that are valid.
type boltMeta struct {
	pageSize                    int64
	root, freelist, pages, txid uint64
}

// readMeta finds the head. A damaged one is survived if the other is sound: it is the
// state one commit before, which is what bbolt keeps two for.
func readMeta(r io.ReaderAt, size int64) (boltMeta, error) {
	var best boltMeta
	var found bool
	why := "neither head of the file is one"
	try := func(at int64) {
		b := make([]byte, pageHeader+metaSize)
		if _, err := r.ReadAt(b, at); err != nil {
			return
		}
		b = b[pageHeader:]
		u32, u64 := binary.LittleEndian.Uint32, binary.LittleEndian.Uint64
		if u32(b) != metaMagic {
			return
		}
		if v := u32(b[4:]); v != metaVersion {
			why = "the file is of another version of bbolt"
			return
		}
		sum := fnv.New64a()
		_, _ = sum.Write(b[:metaSize-8])
		if sum.Sum64() != u64(b[metaSize-8:]) {
			why = "both heads of the file are damaged: their checksums do not fit"
			return
		}
		m := boltMeta{pageSize: int64(u32(b[8:])), root: u64(b[16:]), freelist: u64(b[32:]), pages: u64(b[40:]), txid: u64(b[48:])}
		if m.pageSize < 1024 || m.pageSize > 1<<20 || m.pageSize&(m.pageSize-1) != 0 {
			why = "the size of the file's pages makes no sense"
			return
		}
		if !found || m.txid > best.txid {
			best, found = m, true
		}
	}
	try(0)
	if found {
		try(best.pageSize)
	} else {
		for page := int64(1024); page <= 64<<10; page *= 2 { // the first head would have told us
			try(page)
		}
	}
	switch {
	case !found:
		return best, corrupt("%s", why)
	case best.pages < 4 || best.pages > uint64(size/best.pageSize):
		return best, corrupt("the file has %d bytes, its head says %d pages of %d: it was cut off", size, best.pages, best.pageSize)
	}
	return best, nil
}

// checkFile reads the heads, and if all is set every page that is in use.
func checkFile(file *os.File, all bool) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	m, err := readMeta(file, info.Size())
	if err != nil {
		return err
	}
	c := &pageCheck{r: file, meta: m, seen: make([]bool, m.pages)}
	c.seen[0], c.seen[1] = true, true
	free, err := c.freelist()
	if err != nil || !all {
		return err
	}
	if err := c.tree(m.root, 0, nil); err != nil {
		return err
	}
	for _, id := range free {
		if c.seen[id] {
			return corrupt("page %d is in use and in the list of free pages", id)
		}
		c.seen[id] = true
	}
	return nil
}

type pageCheck struct {
	r    io.ReaderAt
	meta boltMeta
	seen []bool
}

// page reads a page and marks it. What it returns has the whole of a page that is
// larger than one.
func (c *pageCheck) page(id uint64, flags ...uint16) (b []byte, flag uint16, err error) {
	if id < 2 || id >= c.meta.pages {
		return nil, 0, corrupt("page %d is named and does not exist", id)
	}
	if c.seen[id] {
		return nil, 0, corrupt("page %d is used twice", id)
	}
	at := int64(id) * c.meta.pageSize
	b = make([]byte, c.meta.pageSize)
	if _, err := c.r.ReadAt(b, at); err != nil {
		return nil, 0, err
	}
	flag = binary.LittleEndian.Uint16(b[8:])
	overflow := uint64(binary.LittleEndian.Uint32(b[12:]))
	known := false
	for _, f := range flags {
		known = known || f == flag
	}
	switch {
	case binary.LittleEndian.Uint64(b) != id:
		return nil, 0, corrupt("page %d says that it is page %d", id, binary.LittleEndian.Uint64(b))
	case !known:
		return nil, 0, corrupt("page %d is of type %#x, which cannot be here", id, flag)
	case overflow >= c.meta.pages-id:
		return nil, 0, corrupt("page %d reaches beyond the end", id)
	}
	for i := range overflow + 1 {
		if c.seen[id+i] {
			return nil, 0, corrupt("page %d is used twice", id+i)
		}
		c.seen[id+i] = true
	}
	if overflow > 0 {
		b = make([]byte, (int64(overflow)+1)*c.meta.pageSize)
		if _, err := c.r.ReadAt(b, at); err != nil {
			return nil, 0, err
		}
	}
	return b, flag, nil
}

func (c *pageCheck) freelist() ([]uint64, error) {
	if c.meta.freelist == noFreelist {
		return nil, nil
	}
	b, _, err := c.page(c.meta.freelist, flagFreelist)
	if err != nil {
		return nil, err
	}
	count, at := uint64(binary.LittleEndian.Uint16(b[10:])), uint64(pageHeader)
	if count == 0xFFFF {
		count, at = binary.LittleEndian.Uint64(b[at:]), at+8
	}
	if count > (uint64(len(b))-at)/8 {
		return nil, corrupt("the list of free pages says that it has %d, more than fit", count)
	}
	ids := make([]uint64, count)
	for i := range ids {
		ids[i] = binary.LittleEndian.Uint64(b[at+uint64(i)*8:])
		if ids[i] < 2 || ids[i] >= c.meta.pages || i > 0 && ids[i] <= ids[i-1] {
			return nil, corrupt("the list of free pages is out of order at page %d", ids[i])
		}
	}
	return ids, nil
}

// tree checks a page and what is below it; low is the least key that may be there.
func (c *pageCheck) tree(id uint64, depth int, low []byte) error {
	if depth > maxDepth {
		return corrupt("the pages above page %d are nested too deeply", id)
	}
	b, flag, err := c.page(id, flagBranch, flagLeaf)
	if err != nil {
		return err
	}
	return c.entries(b, id, flag, depth, low)
}

func (c *pageCheck) entries(b []byte, id uint64, flag uint16, depth int, low []byte) error {
	count := int(binary.LittleEndian.Uint16(b[10:]))
	if flag == flagBranch && count == 0 {
		return corrupt("page %d has no entries", id)
	}
	size := leafEntry // as branchEntry
	if pageHeader+count*size > len(b) {
		return corrupt("page %d says that it has %d entries, more than fit", id, count)
	}
	for i := range count {
		at := pageHeader + i*size
		e := b[at:]
		u32 := binary.LittleEndian.Uint32
		var pos, key, value uint64
		if flag == flagBranch {
			pos, key = uint64(u32(e)), uint64(u32(e[4:]))
		} else {
			pos, key, value = uint64(u32(e[4:])), uint64(u32(e[8:])), uint64(u32(e[12:]))
		}
		if uint64(at)+pos+key+value > uint64(len(b)) {
			return corrupt("entry %d of page %d reaches beyond it", i, id)
		}
		k := e[pos : pos+key]
		if (i > 0 || low != nil) && string(k) < string(low) || i > 0 && string(k) == string(low) {
			return corrupt("entry %d of page %d is out of order", i, id)
		}
		low = k
		switch {
		case flag == flagBranch:
			if err := c.tree(binary.LittleEndian.Uint64(e[8:]), depth+1, k); err != nil {
				return err
			}
		case u32(e)&leafBucket != 0:
			if err := c.bucket(e[pos+key:pos+key+value], id, depth); err != nil {
				return err
			}
		}
	}
	return nil
}

// bucket checks what is in a bucket: a tree of its own, or a page inside the value.
func (c *pageCheck) bucket(value []byte, id uint64, depth int) error {
	if len(value) < bucketHeader {
		return corrupt("a bucket in page %d is cut off", id)
	}
	if root := binary.LittleEndian.Uint64(value); root != 0 {
		return c.tree(root, depth+1, nil)
	}
	inline := value[bucketHeader:]
	if len(inline) < pageHeader || binary.LittleEndian.Uint16(inline[8:]) != flagLeaf {
		return corrupt("a bucket in page %d is damaged", id)
	}
	return c.entries(inline, id, flagLeaf, depth+1, nil)
}

// isNew reports whether nothing was ever written to the file.
func isNew(file *os.File) (bool, error) {
	info, err := file.Stat()
	if err != nil {
		return false, err
	}
	if !info.Mode().IsRegular() {
		return false, errors.New("it is no regular file")
	}
	return info.Size() == 0, nil
}
