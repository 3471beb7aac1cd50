package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"
)

// sink keeps what the host would log of a plugin. All methods may be called
// concurrently.
type sink struct {
	tell func(line string)

	mu      sync.Mutex
	part    []byte
	records []record
	news    chan struct{} // closed and made anew with each record
}

// record is a line of the host's log.
type record struct{ level, message string }

func newSink(tell func(line string)) *sink { return &sink{tell: tell, news: make(chan struct{})} }

func (s *sink) logger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: s, JSONFormat: true})
}

// Write implements io.Writer.
func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.part = append(s.part, p...)
	for {
		line, rest, ok := bytes.Cut(s.part, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		var fields map[string]any
		if json.Unmarshal(line, &fields) == nil {
			r := record{level: fmt.Sprint(fields["@level"]), message: fmt.Sprint(fields["@message"])}
			s.records = append(s.records, r)
			if s.tell != nil {
				s.tell(text(r, fields))
			}
			close(s.news)
			s.news = make(chan struct{})
		}
		s.part = bytes.Clone(rest)
	}
}

// text is a record as a person reads it.
func text(r record, fields map[string]any) string {
	var b strings.Builder
	fmt.Fprintf(&b, "[%s] %s", r.level, r.message)
	var names []string
	for k := range fields {
		if !strings.HasPrefix(k, "@") {
			names = append(names, k)
		}
	}
	slices.Sort(names)
	for _, k := range names {
		fmt.Fprintf(&b, " %s=%v", k, fields[k])
	}
	return b.String()
}

// await waits until a record is there.
func (s *sink) await(ctx context.Context, want record) error {
	for {
		s.mu.Lock()
		found, news := slices.Contains(s.records, want), s.news
		i := slices.IndexFunc(s.records, func(r record) bool { return strings.Contains(r.message, want.message) })
		var got record
		if i >= 0 {
			got = s.records[i]
		}
		s.mu.Unlock()
		switch {
		case found:
			return nil
		case i >= 0:
			return fmt.Errorf("what was logged at %s as %q is in the host's log at %s as %q: write hclog's JSON, or \"[WARN] text\", one record to a line", want.level, want.message, got.level, got.message)
		}
		select {
		case <-news:
		case <-ctx.Done():
			return fmt.Errorf("what was logged, %q, is not in the host's log: write it to stderr, one record to a line: %w", want.message, ctx.Err())
		}
	}
}
