package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/elemental-conduit/conduit"
)

// piece is how much is read or written before the other end gets more time.
const piece = 64 << 10

// pace is what of a body must come in a second while memory is short, in bytes.
const pace = 64 << 10

// readRequest reads the body as the call's one message up. An empty body is no
// message, but for content types of which an empty text is one.
func (q *request) readRequest(in *conduit.Invocation) *fault {
	header := q.r.Header
	content, known := contentOf(header)
	if known && content == typeNDJSON {
		return q.readLines(in)
	}
	empty := q.r.ContentLength == 0
	if !empty { // it has a body, or may have
		if f := plain(header); f != nil {
			return f
		}
		if !known {
			// Before it is read: what cannot be used need not be sent.
			if q.r.ContentLength > 0 {
				return unknownContent()
			}
		}
		data, f := q.readBody(q.g.o.MaxBody)
		if f != nil {
			return f
		}
		empty, in.Request = len(data) == 0, data
	}
	switch {
	case !known && !empty:
		return unknownContent()
	case empty && (!known || content == conduit.ContentJSON):
		in.Request = nil
		return nil
	case content == conduit.ContentJSON:
		if f := checkJSON(in.Request, 1); f != nil {
			return f
		}
	}
	in.ContentType, in.HasRequest = content, true
	return nil
}

// readLines has the body sent line by line once the call is under way.
func (q *request) readLines(in *conduit.Invocation) *fault {
	in.ContentType, in.Last, in.Streaming = conduit.ContentJSON, false, true
	q.lines = true
	return plain(q.r.Header)
}

// plain refuses a body that is encoded.
func plain(h http.Header) *fault {
	if e := h.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return refuse(http.StatusUnsupportedMediaType, conduit.InvalidArgument, reasonMediaType, "a body is sent as it is, without a Content-Encoding")
	}
	return nil
}

func unknownContent() *fault {
	return refuse(http.StatusUnsupportedMediaType, conduit.InvalidArgument, reasonMediaType,
		"a body is %s or %s in UTF-8, %s or %s; say so with one Content-Type", conduit.ContentJSON, typeNDJSON, conduit.ContentBytes, conduit.ContentProto)
}

// contentOf reads the content type of the body.
func contentOf(h http.Header) (content string, known bool) {
	list := h.Values("Content-Type")
	if len(list) != 1 {
		return "", false
	}
	content, params, err := mime.ParseMediaType(list[0])
	if err != nil {
		return "", false
	}
	switch content {
	case conduit.ContentJSON, typeNDJSON:
		charset, said := params["charset"]
		return content, !said || strings.EqualFold(charset, "utf-8")
	case conduit.ContentBytes, conduit.ContentProto:
		return content, true
	}
	return "", false
}

// noBody reads the body of a request that should have none: net/http would wait for it
// before it answers, as long as it takes.
func (q *request) noBody() *fault {
	if q.r.ContentLength == 0 {
		return nil
	}
	q.reply.setReadDeadline(time.Now().Add(min(time.Second, q.g.o.Stall/2)))
	n, err := io.CopyN(io.Discard, q.r.Body, piece)
	q.received += n
	switch {
	case errors.Is(err, io.EOF):
		q.read = true
		q.reply.setReadDeadline(time.Time{})
		return nil
	case err != nil:
		return bodyFault(err, 0)
	}
	return badRequest("a request like this has no body")
}

// discard gives what is left of a body little time: net/http reads some of it before
// it writes an answer, so that the connection can be used again. That must be over
// well before the time to write is.
func (q *request) discard(f *fault) {
	if q.read || q.r.ContentLength == 0 {
		return
	}
	if f.status == http.StatusRequestTimeout && q.r.ProtoMajor == 1 {
		q.reply.w.Header().Set("Connection", "close")
		return
	}
	q.reply.setReadDeadline(time.Now().Add(min(time.Second, q.g.o.Stall/2)))
}

// readBody reads the whole body, whose memory it counts as it comes rather than
// by what the header promises. Whoever sends too slowly is cut off: sooner when there is
// little memory left, which many slow bodies would hold among them for very long.
func (q *request) readBody(limit int64) ([]byte, *fault) {
	if q.r.ContentLength > limit {
		return nil, bodyTooLarge(q.r.ContentLength, limit)
	}
	most := limit
	if q.r.ContentLength > 0 {
		most = q.r.ContentLength
	}
	from := http.MaxBytesReader(q.reply.w, q.r.Body, limit)
	var buf []byte
	next := 0 // when so much has come there is more time
	began := time.Now()
	for {
		if len(buf) >= next {
			if q.tooLate(began, len(buf)) {
				return nil, tooSlow()
			}
			q.reply.setReadDeadline(time.Now().Add(q.g.o.Stall))
			next = len(buf) + piece
		}
		if len(buf) == cap(buf) {
			size := min(max(2*cap(buf), 4<<10), int(most)+1)
			size = max(size, cap(buf)+1)
			if !q.hold(int64(size - cap(buf))) {
				return nil, overloaded("the bodies of the calls under way hold %d bytes, the gateway's limit", q.g.o.Memory)
			}
			grown := make([]byte, len(buf), size)
			copy(grown, buf)
			buf = grown
		}
		n, err := from.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		q.received += int64(n)
		if err == io.EOF {
			q.read = true
			q.reply.setReadDeadline(time.Time{})
			return slices.Clip(buf), nil
		}
		if err != nil {
			return nil, bodyFault(err, limit)
		}
	}
}

// tooLate reports whether what came since began is too little, while others want the
// memory for it.
func (q *request) tooLate(began time.Time, came int) bool {
	late := time.Since(began) - q.g.o.Stall
	return late > 0 && float64(came) < late.Seconds()*pace && q.crowded()
}

func bodyFault(err error, limit int64) *fault {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return bodyTooLarge(0, limit)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return tooSlow()
	}
	f := badRequest("the body ended before it was complete")
	f.err.Err = err
	return f
}

func tooSlow() *fault {
	return refuse(http.StatusRequestTimeout, conduit.DeadlineExceeded, conduit.ReasonDeadline, "the body came too slowly")
}

// bodyTooLarge takes 0 for a size that the client did not say.
func bodyTooLarge(size, limit int64) *fault {
	f := refuse(0, conduit.ResourceExhausted, conduit.ReasonPayloadTooLarge, "the body has more than %d bytes, the most that gateway.max_body lets in", limit)
	f.err.Details = map[string]string{"limit": strconv.FormatInt(limit, 10)}
	if size > 0 {
		f.err.Details["size"] = strconv.FormatInt(size, 10)
	}
	return f
}

// checkJSON refuses what is not exactly one JSON value in UTF-8, and says where it
// stops being one; first is the number of its first line.
func checkJSON(data []byte, first int) *fault {
	if !utf8.Valid(data) {
		at := 0
		for r, n := utf8.DecodeRune(data); r != utf8.RuneError || n > 1; r, n = utf8.DecodeRune(data[at:]) {
			at += n
		}
		return notJSON(data, first, at, "it is not UTF-8")
	}
	if json.Valid(data) {
		return nil
	}
	err := json.Unmarshal(data, &struct{}{}) // which checks everything before it reads anything
	at, why := len(data), "it is no value"
	if s, ok := errors.AsType[*json.SyntaxError](err); ok {
		at, why = int(s.Offset)-1, s.Error() // the offset is that behind the byte that was wrong
		if len(data) == int(s.Offset) && strings.HasPrefix(why, "unexpected end") {
			at = len(data)
		}
	}
	return notJSON(data, first, at, why)
}

func notJSON(data []byte, first, at int, why string) *fault {
	at = min(max(at, 0), len(data))
	row := first + bytes.Count(data[:at], []byte("\n"))
	column := 1 + utf8.RuneCount(data[bytes.LastIndexByte(data[:at], '\n')+1:at])
	f := refuse(http.StatusBadRequest, conduit.InvalidArgument, conduit.ReasonBadContent,
		"the body is not JSON: %s, at line %d, column %d", why, row, column)
	f.err.Details = map[string]string{"offset": strconv.Itoa(at), "line": strconv.Itoa(row), "column": strconv.Itoa(column)}
	return f
}
