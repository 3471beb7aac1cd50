package main

import (
	"fmt"
	"os"
	"strings"
)

// What -write replaces is between these lines.
const (
	docsBegin = "<!-- benchmarks: begin; make bench BENCHMARKS_ARGS=-write writes this -->"
	docsEnd   = "<!-- benchmarks: end -->"
)

// writeDocs puts text between the markers of a file.
func writeDocs(file, text string) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	changed, err := between(string(old), text)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(file, []byte(changed), 0o644) //nolint:gosec // a document, for everybody
}

func between(doc, text string) (string, error) {
	before, rest, ok := strings.Cut(doc, docsBegin)
	if !ok {
		return "", fmt.Errorf("it has no line %q", docsBegin)
	}
	_, after, ok := strings.Cut(rest, docsEnd)
	if !ok {
		return "", fmt.Errorf("it has no line %q after %q", docsEnd, docsBegin)
	}
	return before + docsBegin + "\n\n" + strings.TrimSpace(text) + "\n\n" + docsEnd + after, nil
}
