package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/elemental-conduit/conduit/pluginapi"
	"github.com/elemental-conduit/conduit/plugins/txpersist/api"
	"github.com/elemental-conduit/conduit/plugins/txpersist/store"
)

// limits are what one call may ask for; those of the store itself are its options.
type limits struct {
	idle       time.Duration // of an interactive transaction without an operation
	page       int64         // entries of a page, and of what one removal by pattern removes
	operations int64         // of a batch, or of an interactive transaction
	answer     int64         // bytes of contents and listings in one answer
}

// setting is an attribute that bounds something. Exactly one of count, size and time is
// set: where its value goes.
type setting struct {
	name, def, about string
	option           string // of the store, for errors that name it; "" = the element's own
	count            *int64
	size             *int64
	time             *time.Duration
}

// values are the settings' values, in the types in which they are read.
type values struct {
	limits
	maxPath, maxContents, maxWrites, maxOpen, maxOpenEach, maxSize, maxWatches, maxWatchesEach, maxScope int64
	maxAge                                                                                               time.Duration
}

func (v *values) settings() []setting {
	return []setting{
		{name: "idle", def: "30s", about: "how long an interactive transaction may be without an operation", time: &v.idle},
		{name: "max_age", def: "5m", about: "how long a transaction may be open; then it is rolled back", time: &v.maxAge, option: "MaxAge"},
		{name: "max_open", def: "4096", about: "transactions that may be open or wait for their locks", count: &v.maxOpen, option: "MaxOpen"},
		{name: "max_open_per_caller", def: "1024", about: "how many of these may be one user's", count: &v.maxOpenEach, option: "MaxOpenEach"},
		{name: "max_path", def: "1024", about: "bytes of a path", count: &v.maxPath, option: "MaxPath"},
		{name: "max_contents", def: "1GiB", about: "bytes of a resource's contents", size: &v.maxContents, option: "MaxContents"},
		{name: "max_transaction", def: "64MiB", about: "bytes that a transaction keeps in memory until it commits; of new contents that come in pieces, as Write's do, it keeps 4 MiB, however large they are", size: &v.maxWrites, option: "MaxWrites"},
		{name: "max_operations", def: "10000", about: "operations of a transaction", count: &v.operations},
		{name: "max_scope", def: "10000", about: "paths and ids that a transaction declares", count: &v.maxScope, option: "MaxScope"},
		{name: "max_page", def: strconv.Itoa(api.MaxPage), about: "entries of a page, and resources that one RemoveMatching removes", count: &v.page},
		{name: "max_answer", def: "7MiB", about: "bytes of contents and listings in one answer; with base64 around it must fit a message", size: &v.answer},
		{name: "max_watches", def: "1024", about: "watches of paths and of tasks that may be open", count: &v.maxWatches, option: "MaxWatches"},
		{name: "max_watches_per_caller", def: "256", about: "how many of these may be one user's", count: &v.maxWatchesEach, option: "MaxWatchesEach"},
		{name: "max_size", def: "64GiB", about: "bytes of the file", size: &v.maxSize, option: "MaxSize"},
	}
}

// attributes declares the settings.
func attributes() []pluginapi.Attribute {
	var out []pluginapi.Attribute
	for _, s := range (&values{}).settings() {
		out = append(out, pluginapi.Attribute{Name: s.name, Default: s.def, Description: s.about})
	}
	return out
}

// parse takes the settings from attributes; one that is not among these has its default.
func (v *values) parse(attributes map[string]string) error {
	for _, s := range v.settings() {
		text, ok := attributes[s.name]
		if !ok {
			text = s.def
		}
		var err error
		switch {
		case s.time != nil:
			if *s.time, err = time.ParseDuration(text); err != nil || *s.time <= 0 {
				return fmt.Errorf("the attribute %s must be a time such as %s, not %q", s.name, s.def, text)
			}
		case s.size != nil:
			if *s.size, err = parseSize(text); err != nil {
				return fmt.Errorf("the attribute %s must be a size such as %s, not %q", s.name, s.def, text)
			}
		default:
			if *s.count, err = strconv.ParseInt(text, 10, 32); err != nil || *s.count < 1 {
				return fmt.Errorf("the attribute %s must be a number such as %s, not %q", s.name, s.def, text)
			}
		}
	}
	if v.page > api.MaxPage {
		return fmt.Errorf("the attribute max_page must be at most %d, not %d", api.MaxPage, v.page)
	}
	if v.maxPath > 8<<10 {
		return fmt.Errorf("the attribute max_path must be at most %d, which the file has room for, not %d", 8<<10, v.maxPath)
	}
	return nil
}

var errSize = errors.New("it is no size")

// parseSize reads a number of KiB, MiB or GiB.
func parseSize(text string) (int64, error) {
	for unit, bytes := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		number, ok := strings.CutSuffix(text, unit)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(number, 10, 32)
		if err != nil || n < 1 || n > 1<<20 {
			return 0, errSize
		}
		return n * bytes, nil
	}
	return 0, errSize
}

// attributeOf is the attribute of a limit: that which sets an option of the store, or
// the name itself.
func attributeOf(option string) string {
	for _, s := range (&values{}).settings() {
		if s.option == option {
			return s.name
		}
	}
	return option
}

// exceeds is the error of a limit of the element's own.
func exceeds(attribute string, most int64, format string, args ...any) error {
	return &store.Error{Kind: store.KindLimit, Limit: attribute, Max: most, Why: fmt.Sprintf(format, args...)}
}

// entryCost is what an entry of a listing counts beside its path.
const entryCost = 100

// sizeOf is what a result counts for the limit of an answer.
func sizeOf(r result) int64 {
	n := int64(len(r.Data)) + int64(len(r.IDs)+len(r.Tasks))*entryCost
	for _, p := range r.Paths {
		n += int64(len(p.String()))
	}
	for _, l := range r.Listings {
		n += int64(len(l.Path.String())) + entryCost
	}
	return n
}

// fits refuses a result that makes an answer too large, before anything is committed.
func (p *persist) fits(r result, before int64) (sum int64, err error) {
	sum = before + sizeOf(r)
	if sum > p.answer {
		err = exceeds("max_answer", p.answer, "the answer would have more than %d bytes: Read gives contents of any size, List a listing", p.answer)
	}
	return sum, err
}

// ownerOf is for whom the calls of a caller count: a user or, for an element that calls
// as itself, that element. An operator's own count for nobody.
func ownerOf(ctx context.Context) string {
	c := pluginapi.CallerFrom(ctx)
	if c.User == "" && len(c.Chain) > 0 {
		return "element " + c.Chain[len(c.Chain)-1]
	}
	return c.User
}
