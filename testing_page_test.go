package conduit_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestTestsOnThePageExist holds docs/testing.md to the truth: each test that it names is
// in the package that it names, each case is there once, and each names a test.
func TestTestsOnThePageExist(t *testing.T) {
	page, err := os.ReadFile("docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile("`([a-z0-9/-]+)\\.((?:Test|Fuzz)\\w+)`")
	has := map[string]map[string]bool{}
	for _, m := range name.FindAllStringSubmatch(string(page), -1) {
		dir, test := m[1], m[2]
		if has[dir] == nil {
			has[dir] = testsIn(t, dir)
		}
		if !has[dir][test] {
			t.Errorf("docs/testing.md names %s in %s, which is not there", test, dir)
		}
	}
	if len(has) < 15 {
		t.Errorf("found tests of %d packages: the pattern must be wrong", len(has))
	}
	// Whatever looks like a test is one that was looked at.
	for _, word := range regexp.MustCompile(`[^\s|(),:]*\b(?:Test|Fuzz)[A-Z0-9]\w*[^\s|(),:;]*`).FindAllString(string(page), -1) {
		if strings.Contains(word, "TESTFLAGS") || strings.HasPrefix(word, "TestDrain") {
			continue // of a command line
		}
		if !name.MatchString(word) {
			t.Errorf("docs/testing.md names %s without its package, or not in backquotes", word)
		}
	}

	seen := map[string]bool{}
	rows := regexp.MustCompile(`(?m)^\| ([A-Z]{3}-\d\d) \|.*$`).FindAllStringSubmatch(string(page), -1)
	for _, row := range rows {
		if seen[row[1]] {
			t.Errorf("docs/testing.md has %s twice", row[1])
		}
		seen[row[1]] = true
		if _, later, _ := strings.Cut(string(page), "### Not yet a matter"); !name.MatchString(row[0]) && !strings.Contains(later, row[0]) {
			t.Errorf("docs/testing.md names no test for %s", row[1])
		}
	}
	survey := map[string]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| (\d+) \|.*$`).FindAllStringSubmatch(string(page), -1) {
		if survey[row[1]] != "" {
			t.Errorf("docs/testing.md has row %s twice", row[1])
		}
		survey[row[1]] = row[0]
	}
	for n := 1; n <= 82; n++ {
		if n > 55 && n < 75 { // of discovery and capacity: they are cases
			continue
		}
		if row := survey[strconv.Itoa(n)]; !name.MatchString(row) {
			t.Errorf("docs/testing.md names no test for row %d of the survey", n)
		}
	}
	if len(rows) < 60 {
		t.Errorf("found %d cases: the pattern must be wrong", len(rows))
	}
}

// testsIn returns the names of the tests and fuzz targets in a directory.
func testsIn(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(filepath.FromSlash(dir), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				names[f.Name.Name] = true
			}
		}
	}
	return names
}
