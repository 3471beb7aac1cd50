package pluginlog

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/hashicorp/go-hclog"
)

// maxLine is the longest line of a file that is read, in bytes. The longest that is
// written is shorter: a line of a plugin's output, of which a byte may take fifteen.
const maxLine = 4 << 20

// Record is one record of a deployment's log. It must not be changed once it was handed
// over.
type Record struct {
	// Time is when the host read it.
	Time       time.Time
	Level      hclog.Level
	Deployment string
	// Element is its name; empty in what it wrote before it told that.
	Element string
	// Generation is that of the process that wrote it, or the one that it was to have.
	Generation uint64
	Pid        int
	// Source is "stdout", "stderr" or "host".
	Source  string
	Message string
	Fields  map[string]string
	// Dropped counts records that a follower lost right here, since it was slower than
	// the log; it is 0 in all that a file has.
	Dropped uint64
}

// line is a record as it stands in a file.
type line struct {
	Time       time.Time         `json:"time"`
	Level      string            `json:"level"`
	Deployment string            `json:"deployment"`
	Element    string            `json:"element"`
	Generation uint64            `json:"generation"`
	Pid        int               `json:"pid"`
	Source     string            `json:"source"`
	Message    string            `json:"message"`
	Fields     map[string]string `json:"fields,omitempty"`
	Dropped    uint64            `json:"dropped,omitempty"`
}

// appendLine writes a record as a line of a file. It fails on no record.
func appendLine(to *bytes.Buffer, r *Record) {
	enc := json.NewEncoder(to)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(line{
		Time: r.Time.UTC(), Level: r.Level.String(), Deployment: r.Deployment, Element: r.Element, Generation: r.Generation, Pid: r.Pid,
		Source: r.Source, Message: r.Message, Fields: r.Fields, Dropped: r.Dropped,
	})
}

// parseLine reads a line of a file. ok is false of what is no whole record: the end of a
// line that was cut, or what somebody else has written there.
func parseLine(b []byte) (r Record, ok bool) {
	b = bytes.TrimSpace(b)
	if len(b) < 2 || b[0] != '{' || b[len(b)-1] != '}' {
		return Record{}, false
	}
	var l line
	if json.Unmarshal(b, &l) != nil {
		return Record{}, false
	}
	level, ok := ParseLevel(l.Level)
	if !ok || l.Time.IsZero() {
		return Record{}, false
	}
	return Record{
		Time: l.Time, Level: level, Deployment: l.Deployment, Element: l.Element, Generation: l.Generation, Pid: l.Pid,
		Source: l.Source, Message: l.Message, Fields: l.Fields, Dropped: l.Dropped,
	}, true
}

// ParseLevel reads the name of a level that a record can have.
func ParseLevel(name string) (hclog.Level, bool) {
	switch l := hclog.LevelFromString(name); l {
	case hclog.Trace, hclog.Debug, hclog.Info, hclog.Warn, hclog.Error:
		return l, l.String() == name
	default:
		return hclog.NoLevel, false
	}
}

// size is about how much memory a record takes, in bytes.
func (r *Record) size() int {
	n := 256 + len(r.Message)
	for k, v := range r.Fields {
		n += len(k) + len(v) + 64
	}
	return n
}

// Query says which records are wanted.
type Query struct {
	// Element is the only one; empty = all.
	Element string
	// MinLevel is the least one; NoLevel = all.
	MinLevel hclog.Level
	// Since is the oldest time; zero = any.
	Since time.Time
	// Tail is how many of those that there are, the last ones; negative = all.
	Tail int
	// Follow asks for those that come, too, until the context ends.
	Follow bool
}

func (q *Query) match(r *Record) bool {
	return (q.Element == "" || r.Element == q.Element) && r.Level >= q.MinLevel && (q.Since.IsZero() || !r.Time.Before(q.Since))
}
