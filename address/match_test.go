package address

import "testing"

func TestMatch(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		// The original's own tests.
		{"/a/b/c", "/a/b/c", true},
		{"*://a/b/c", "test://a/b/c", true},
		{"test://a/b/c", "test://a/b/c", true},
		{"test://a/b/*", "test://a/b/c", true},
		{"test://**", "test://a/b/c", true},
		{"test://a/**", "test://a/b", true},
		{"test://a/**", "test://a/b/c", true},
		{"test://a/b/c", "test://a/b/d", false},
		{"test://a/b/c", "test://a/b/d/*", false},
		{"test://a/**", "test://b/c", false},
		{"test://a/**", "test://b/c/d", false},
		// Facts of the original that hold for a glob, too.
		{"/a/**", "/a", true},
		{"/a/**", "/a/b/c", true},
		{"/*/b", "/a/*", true},
		{"x://a", "/a", false},
		{"*://a", "/a", true},
		{"x://a/*/c", "x://a/b/d", false},
		{"x://**", "x://a", true},
		// Deviations: true in the original, which compares prefixes.
		{"/a", "/a/b", false},
		{"/", "/a", false},
		{"/a/*", "/a", false},
		{"/a/*", "/a/b/c", false},
		{"/a/b/c", "/a/b/c/d", false},
		// Two patterns match if some path is in both.
		{"/**", "/", true},
		{"/**", "/**", true},
		{"/a/**", "/*/b/**", true},
		{"/a/b/**", "/a/**", true},
		{"/a/b/**", "/a", false},
		{"/a/b/**", "/a/*", true},
		{"/*", "/", false},
		{"*://", "*://", true},
		{"x://a", "y://a", false},
		{"/a**", "/ab", false},
	} {
		a, b := MustParsePath(tt.a), MustParsePath(tt.b)
		if got := a.Match(b); got != tt.want {
			t.Errorf("%s ~ %s = %v, want %v", a, b, got, tt.want)
		}
		if got := b.Match(a); got != tt.want {
			t.Errorf("%s ~ %s = %v, want %v", b, a, got, tt.want)
		}
		if !a.Match(a) || !b.Match(b) {
			t.Errorf("%s or %s does not match itself", a, b)
		}
	}
}
