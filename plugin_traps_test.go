package conduit_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestPluginTraps: each row of docs/plugin-traps.md is held by a test that exists, or says
// why by none.
func TestPluginTraps(t *testing.T) {
	page, err := os.ReadFile("docs/plugin-traps.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| (\d+) \|[^|]+\| (.+) \|$`).FindAllStringSubmatch(string(page), -1)
	if len(rows) != 61 {
		t.Errorf("%d rows, want 61", len(rows))
	}
	named := regexp.MustCompile("`([a-z/-]+)\\.((?:Test|Fuzz|Benchmark)[A-Za-z0-9]+)`")
	for n, row := range rows {
		if row[1] != strconv.Itoa(n+1) {
			t.Errorf("row %s comes after %d others", row[1], n)
		}
		tests := named.FindAllStringSubmatch(row[2], -1)
		if len(tests) == 0 && !strings.HasPrefix(row[2], "— ") {
			t.Errorf("row %s names no test and does not say why", row[1])
		}
		for _, test := range tests {
			if !declares(t, test[1], test[2]) {
				t.Errorf("row %s: there is no %s in %s", row[1], test[2], test[1])
			}
		}
	}
}

// TestPluginHostComparison: each row of the comparison in docs/plugin-host.md is held by
// tests that exist, or says in bold that there is no such thing.
func TestPluginHostComparison(t *testing.T) {
	page, err := os.ReadFile("docs/plugin-host.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "\n| feature | best | ours | held by |\n")
	rows := regexp.MustCompile(`(?m)^\| ([^|]+) \| [^|]+ \| ([^|]+) \| ([^|]+) \|$`).FindAllStringSubmatch(table, -1)
	if len(rows) != 30 {
		t.Errorf("%d rows, want 30", len(rows))
	}
	named := regexp.MustCompile("`([a-z/-]+)\\.((?:Test|Fuzz|Benchmark)[A-Za-z0-9]+)`")
	for _, row := range rows {
		tests := named.FindAllStringSubmatch(row[3], -1)
		if none := row[3] == "—" && strings.Contains(row[2], "**no**"); none == (len(tests) > 0) {
			t.Errorf("%s: it is held by %q", row[1], row[3])
		}
		for _, test := range tests {
			if !declares(t, test[1], test[2]) {
				t.Errorf("%s: there is no %s in %s", row[1], test[2], test[1])
			}
		}
	}
}

// declares reports whether the tests of a folder have a func of a name.
func declares(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}
