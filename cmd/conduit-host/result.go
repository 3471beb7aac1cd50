package main

import (
	"encoding/json"
	"io"
	"slices"
	"strconv"

	"github.com/elemental-conduit/conduit"
)

// resultPrinter writes the results of a call as they come, each in one write, so
// that a reader of a pipe never sees half of one for long.
type resultPrinter struct {
	w      io.Writer
	format string
	raw    bool
	// parts says that all parts are shown.
	parts bool
	// skipped counts the results that were not.
	skipped int
}

func (p *resultPrinter) print(m conduit.Message) error {
	if m.Part != 0 && !p.parts {
		p.skipped++
		return nil
	}
	if p.raw {
		_, err := p.w.Write(m.Data)
		return err
	}
	text, err := asJSON(m)
	if err != nil {
		return err
	}
	line, err := p.line(m, text)
	if err != nil {
		return err
	}
	_, err = p.w.Write(line)
	return err
}

// line is a result in the format that was asked for. With all parts shown, JSON
// and YAML say in a field which one it is, and text in front of a tab.
func (p *resultPrinter) line(m conduit.Message, text []byte) ([]byte, error) {
	if p.parts && p.format != formatTable {
		v := struct {
			Part  uint32          `json:"part"`
			Value json.RawMessage `json:"value"`
		}{m.Part, text}
		var err error
		if text, err = json.Marshal(v); err != nil {
			return nil, err
		}
	}
	switch {
	case p.format == formatYAML:
		y, err := jsonToYAML(text)
		return append([]byte("---\n"), y...), err
	case p.parts && p.format == formatTable:
		text = append([]byte(strconv.FormatUint(uint64(m.Part), 10)+"\t"), text...)
	}
	return append(slices.Clip(text), '\n'), nil
}
