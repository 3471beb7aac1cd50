package main

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"go.yaml.in/yaml/v4"

	"github.com/elemental-conduit/conduit"
)

// The formats of -o. Table is the one for people: it may change.
const (
	formatTable = "table"
	formatJSON  = "json"
	formatYAML  = "yaml"
)

func formats() []string { return []string{formatTable, formatJSON, formatYAML} }

// print writes a value in the format that was asked for; table writes the one for
// people.
//
// It is the last thing that a command does, so what cannot be printed is done.
func (a *app) print(v any, table func(w io.Writer)) error {
	text, err := a.format(v, table)
	if err != nil {
		return err
	}
	a.waitsNoMore()
	if _, err := a.stdout.Write(text); err != nil {
		return outputError(err, conduit.Executed, "")
	}
	return nil
}

func (a *app) format(v any, table func(w io.Writer)) ([]byte, error) {
	var b bytes.Buffer
	switch a.output {
	case formatJSON:
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		err := enc.Encode(v)
		return b.Bytes(), err
	case formatYAML:
		text, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		return jsonToYAML(text)
	default:
		tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		table(tw)
		err := tw.Flush()
		return b.Bytes(), err
	}
}

// jsonToYAML goes through nodes, since JSON is YAML: fields keep their order and
// numbers their digits.
func jsonToYAML(text []byte) ([]byte, error) {
	var n yaml.Node
	if err := yaml.Load(text, &n); err != nil {
		return nil, err
	}
	plain(&n)
	return yaml.Dump(&n)
}

// plain takes off the brackets and quotes that were JSON's; the writer puts quotes
// back where a text would otherwise read as something else.
func plain(n *yaml.Node) {
	n.Style = 0
	for _, c := range n.Content {
		plain(c)
	}
}

// formatIn finds -o in a command line that did not parse, so that a script that
// asks for JSON gets its complaints as JSON.
func formatIn(args []string) string {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	for i, arg := range args {
		if (arg == "-o" || arg == "--output") && i+1 < len(args) {
			return args[i+1]
		}
		for _, prefix := range []string{"--output=", "-o=", "-o"} {
			if v, ok := strings.CutPrefix(arg, prefix); ok && v != "" {
				return v
			}
		}
	}
	return formatTable
}
