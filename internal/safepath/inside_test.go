package safepath

import (
	"strings"
	"testing"
)

func TestInside(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("d/", maxDepth-1) + "f"
	long := strings.Repeat("n", maxPart)
	for _, path := range []string{"a", "bin/greeter", ".hidden", "..a", "a..", "with space", "wörter/é", deep, long} {
		if err := Inside(path); err != nil {
			t.Errorf("%q: %v", path, err)
		}
	}
	for path, want := range map[string]string{
		"": "no name", "/etc/passwd": "leads elsewhere", "../a": "leads elsewhere", "a/../b": "leads elsewhere", "a/./b": "leads elsewhere", ".": "leads elsewhere", "..": "leads elsewhere",
		"a//b": "leads elsewhere", "a/": "leads elsewhere", "a\x00b": "character", "a\nb": "character", "a\x1b[2Jb": "character", "a\\b": "character", "a\u202eb": "character", "\xff": "UTF-8",
		"d/" + deep: "directories deep", long + "n": "256 bytes", strings.Repeat("a/", 600): "bytes long",
	} {
		if err := Inside(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", path, err, want)
		}
	}
}
