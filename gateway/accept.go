package gateway

import (
	"cmp"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/elemental-conduit/conduit"
)

const (
	typeNDJSON  = "application/x-ndjson"
	typeEvents  = "text/event-stream"
	typeProblem = "application/problem+json"
)

// form is what the client wants to read.
type form uint8

const (
	formJSON   form = iota // one result as it is; lines as soon as there is a second
	formBytes              // the same, and the method is asked for bytes
	formProto              // the same, and the method is asked for protobuf
	formLines              // each result a line
	formEvents             // each result an event
)

// streams reports whether results are written as they come.
func (f form) streams() bool { return f == formLines || f == formEvents }

// content is what the method is asked for.
func (f form) content() string {
	switch f {
	case formBytes:
		return conduit.ContentBytes
	case formProto:
		return conduit.ContentProto
	default:
		return conduit.ContentJSON
	}
}

// mediaType is the form as it stands in an Accept header.
func (f form) mediaType() string {
	switch f {
	case formLines:
		return typeNDJSON
	case formEvents:
		return typeEvents
	default:
		return f.content()
	}
}

// preference is how much a client wants a form.
type preference struct {
	quality  float64
	specific int // 0 by */*, 1 by type/*, 2 by name
	place    int // in the header
}

func (p preference) compare(other preference) int {
	return cmp.Or(cmp.Compare(p.quality, other.quality), cmp.Compare(p.specific, other.specific), cmp.Compare(other.place, p.place))
}

// negotiate chooses the form by the Accept headers: by quality, then what is named
// before what a wildcard stands for, then by the place, since that is how people
// write them. Ranges that cannot be read are passed over; without any, and where
// all is equal, it is JSON.
func negotiate(headers []string) (form, *fault) {
	best, found, said := formJSON, preference{}, false
	wanted := [formEvents + 1]preference{}
	place := 0
	for _, h := range headers {
		for r := range strings.SplitSeq(h, ",") {
			name, quality, ok := rangeOf(r)
			if !ok {
				continue
			}
			place, said = place+1, true
			for f := formJSON; f <= formEvents; f++ {
				// The most specific range that fits says how good a form is.
				if n := fits(name, f.mediaType()); n >= 0 && (wanted[f].place == 0 || n > wanted[f].specific) {
					wanted[f] = preference{quality, n, place}
				}
			}
		}
	}
	if !said {
		return formJSON, nil
	}
	for f := formJSON; f <= formEvents; f++ {
		if w := wanted[f]; w.place > 0 && w.quality > 0 && (found.place == 0 || w.compare(found) > 0) {
			best, found = f, w
		}
	}
	if found.place == 0 {
		return formJSON, refuse(http.StatusNotAcceptable, conduit.InvalidArgument, reasonAccept,
			"answers are %s, %s, %s, %s or %s", conduit.ContentJSON, typeNDJSON, typeEvents, conduit.ContentBytes, conduit.ContentProto)
	}
	return best, nil
}

// rangeOf reads one media range, and how much it is wanted.
func rangeOf(text string) (name string, quality float64, ok bool) {
	name, params, err := mime.ParseMediaType(text)
	if err != nil {
		return "", 0, false
	}
	quality = 1
	if q, said := params["q"]; said {
		if quality, err = strconv.ParseFloat(q, 64); err != nil || !(quality >= 0 && quality <= 1) {
			return "", 0, false
		}
	}
	return name, quality, true
}

// fits says how specifically a media range names a type; -1 = not at all.
func fits(pattern, name string) int {
	kind, _, _ := strings.Cut(name, "/")
	switch pattern {
	case name:
		return 2
	case kind + "/*":
		return 1
	case "*/*":
		return 0
	}
	return -1
}
