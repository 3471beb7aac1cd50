package main

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"go.yaml.in/yaml/v4"
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
func (a *app) print(v any, table func(w io.Writer)) error {
	switch a.output {
	case formatJSON:
		enc := json.NewEncoder(a.stdout)
		enc.SetEscapeHTML(false)
		return enc.Encode(v)
	case formatYAML:
		text, err := json.Marshal(v)
		if err != nil {
			return err
		}
		text, err = jsonToYAML(text)
		if err != nil {
			return err
		}
		_, err = a.stdout.Write(text)
		return err
	default:
		var b bytes.Buffer
		tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		table(tw)
		if err := tw.Flush(); err != nil {
			return err
		}
		_, err := a.stdout.Write(b.Bytes())
		return err
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
