package gateway

import (
	"bytes"
	"compress/gzip"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
)

const (
	// zipFrom is from how many bytes on an answer is compressed: what fits into one
	// packet of the network arrives no sooner for being shorter.
	zipFrom = 1400
	// zipPadding is the most bytes of chance in a compressed answer.
	zipPadding = 64
)

// zipper compresses the answer to one request. Streams are never compressed: each
// result is sent at once, and alone it gains little.
//
// What is compressed tells by its length how much in it is the same, which gives a
// secret away to who can put guesses beside it and sees the lengths on the wire
// (BREACH). A web page cannot have a browser send anybody's session here, since that is
// no cookie; for others who put foreign texts into calls, chance blurs the length.
type zipper struct {
	g    *Gateway
	hold func(n int64)
}

// zip returns what compresses the answer, nil if the client does not read that.
func (q *request) zip() *zipper {
	q.reply.w.Header().Add("Vary", "Accept-Encoding")
	if !readsGzip(q.r.Header.Values("Accept-Encoding")) {
		return nil
	}
	return &zipper{g: q.g, hold: func(n int64) { q.hold(n) }}
}

//nolint:gochecknoglobals // a pool
var zipWriters = sync.Pool{New: func() any {
	z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // the level is one
	return z
}}

// compress returns data compressed, if that is shorter. While others compress on all
// processors it is not done: a compressor holds some MB, and waiting for one takes longer
// than the answer does as it is.
func (z *zipper) compress(data []byte) ([]byte, bool) {
	if len(data) < zipFrom {
		return nil, false
	}
	select {
	case z.g.zips <- struct{}{}:
		defer func() { <-z.g.zips }()
	default:
		return nil, false
	}
	w, ok := zipWriters.Get().(*gzip.Writer)
	if !ok {
		return nil, false
	}
	defer zipWriters.Put(w)
	var b bytes.Buffer
	w.Reset(&b)
	w.Extra = make([]byte, rand.IntN(zipPadding)) //nolint:gosec // noise, not a secret
	_, err := w.Write(data)
	if err == nil {
		err = w.Close()
	}
	if err != nil || b.Len() >= len(data) {
		return nil, false
	}
	z.hold(int64(b.Len()))
	return b.Bytes(), true
}

// readsGzip reports whether a client takes answers compressed by gzip. One that says
// nothing of it is not asked to.
func readsGzip(headers []string) bool {
	takes, named := false, false
	for _, h := range headers {
		for coding := range strings.SplitSeq(h, ",") {
			name, params, _ := strings.Cut(coding, ";")
			name = strings.ToLower(strings.TrimSpace(name))
			if name != "gzip" && name != "x-gzip" && name != "*" || named && name == "*" {
				continue
			}
			quality := 1.0
			if key, value, ok := strings.Cut(params, "="); ok && strings.EqualFold(strings.TrimSpace(key), "q") {
				var err error
				if quality, err = strconv.ParseFloat(strings.TrimSpace(value), 64); err != nil {
					continue
				}
			}
			takes, named = quality > 0, named || name != "*"
		}
	}
	return takes
}
