package conduit_test

import (
	"os"
	"regexp"
	"testing"
)

// TestDocumentsNameFilesThatExist holds what the documents say of files to the
// truth: every path in backquotes or links that looks like a file of ours exists.
func TestDocumentsNameFilesThatExist(t *testing.T) {
	path := regexp.MustCompile("(?:`|\\]\\()([A-Za-z0-9_./-]+\\.(?:go|md|sh|proto|yml|json))(?:`|[#)])")
	for _, doc := range []string{"ARCHITECTURE.md", "README.md", "SECURITY.md", "CHANGELOG.md"} {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, m := range path.FindAllSubmatch(text, -1) {
			name := string(m[1])
			if name == "main.go" || name == "call.go" {
				continue // the reader's own, or a file that the sentence places
			}
			found++
			if _, err := os.Stat(name); err != nil {
				t.Errorf("%s names %s, which does not exist", doc, name)
			}
		}
		if found == 0 && doc != "CHANGELOG.md" {
			t.Errorf("%s names no file at all: the pattern must be wrong", doc)
		}
	}
}

// TestEachReasonIsDocumented holds docs/errors.md to the list in error.go.
func TestEachReasonIsDocumented(t *testing.T) {
	source, err := os.ReadFile("error.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	reasons := regexp.MustCompile(`\bReason\w+\s+= "(\w+)"`).FindAllSubmatch(source, -1)
	if len(reasons) < 20 {
		t.Fatalf("found %d reasons: the pattern must be wrong", len(reasons))
	}
	for _, m := range reasons {
		if !regexp.MustCompile("(?m)^\\| `" + string(m[1]) + "` \\|").Match(page) {
			t.Errorf("docs/errors.md does not list %s", m[1])
		}
	}
}
