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
	// names says that results are of nodes, and which one each is of is shown.
	names *nodeNames
	// skipped counts the results that were not shown.
	skipped int
}

func (p *resultPrinter) print(m conduit.Message) error { return p.printOf(nil, m) }

// printOf writes a result of a node; nil if there is but one.
func (p *resultPrinter) printOf(node *conduit.Node, m conduit.Message) error {
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
	if p.format != formatTable {
		if text, err = p.labelled(node, m, text); err != nil {
			return err
		}
		return p.writeDocument(text)
	}
	var line []byte
	if node != nil {
		line = append(line, p.names.label(*node)+"\t"...)
	}
	if p.parts {
		line = append(strconv.AppendUint(line, uint64(m.Part), 10), '\t')
	}
	_, err = p.w.Write(append(append(line, text...), '\n'))
	return err
}

// labelled says in fields of which node and part a result is, if that is shown.
func (p *resultPrinter) labelled(node *conduit.Node, m conduit.Message, text []byte) ([]byte, error) {
	switch {
	case node != nil:
		return json.Marshal(struct {
			Node  nodeName        `json:"node"`
			Part  uint32          `json:"part"`
			Value json.RawMessage `json:"value"`
		}{p.names.of(*node), m.Part, text})
	case p.parts:
		return json.Marshal(struct {
			Part  uint32          `json:"part"`
			Value json.RawMessage `json:"value"`
		}{m.Part, text})
	default:
		return text, nil
	}
}

// writeDocument writes JSON on a line, or as a YAML document.
func (p *resultPrinter) writeDocument(text []byte) error {
	if p.format != formatYAML {
		_, err := p.w.Write(append(slices.Clip(text), '\n'))
		return err
	}
	y, err := jsonToYAML(text)
	if err != nil {
		return err
	}
	_, err = p.w.Write(append([]byte("---\n"), y...))
	return err
}
