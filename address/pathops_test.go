package address

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPathAppend(t *testing.T) {
	for _, tt := range []struct{ parent, child, want, why string }{
		{"c://a", "/b", "c://a/b", ""},
		{"c://a", "c://b/**", "c://a/b/**", ""},
		{"/", "/", "/", ""},
		{"/a", "b", "/a/b", ""},
		{"c://a", "d://b", "", "another context"},
		{"/a", "d://b", "", "another context"},
		{"/a/**", "b", "", "** is not the last"},
	} {
		got, err := MustParsePath(tt.parent).Append(MustParsePath(tt.child))
		if tt.why != "" {
			testError(t, "Append", tt.parent+" + "+tt.child, err, KindPathOp, tt.why)
		} else if err != nil || got.String() != tt.want {
			t.Errorf("%s + %s = %s, %v; want %s", tt.parent, tt.child, got, err, tt.want)
		}
	}
	if got, err := MustParsePath("c://a").AppendComponents("b", "c"); err != nil || got.String() != "c://a/b/c" {
		t.Errorf("AppendComponents = %s, %v", got, err)
	}
	_, err := MustParsePath("c://a").AppendComponents("b/c")
	testError(t, "AppendComponents", "b/c", err, KindPathOp, "component 2 has a '/'")
}

func TestPathAppendExtension(t *testing.T) {
	// Deviation: the original drops the context.
	if got, err := MustParsePath("c://a/b").AppendExtension("txt"); err != nil || got.String() != "c://a/b.txt" {
		t.Errorf("got %s, %v; want c://a/b.txt", got, err)
	}
	_, err := MustParsePath("c://").AppendExtension("txt")
	testError(t, "AppendExtension", "c://", err, KindPathOp, "the root has no component")
	_, err = MustParsePath("/a").AppendExtension("t/xt")
	testError(t, "AppendExtension", "t/xt", err, KindPathOp, "has a '/'")
}

func TestPathDerived(t *testing.T) {
	for _, tt := range []struct {
		name string
		op   func(Path) Path
		rows map[string]string
	}{
		{"Parent", Path.Parent, map[string]string{
			"c://a/b": "c://a", "c://a": "c://", "c://": "c://", "/a/b/c": "/a/b", "/": "/",
		}},
		{"Recursive", Path.Recursive, map[string]string{
			"/a": "/a/**", "/a/*": "/a/**", "/a/**": "/a/**", "/a/*/b": "/a/**", "/a/*/b/*": "/a/*/b/**", "c://a": "c://a/**", "/": "/**",
			"/foo": "/foo/**", "/foo/*": "/foo/**", "/foo/**": "/foo/**",
		}},
		{"StripRecursive", Path.StripRecursive, map[string]string{
			"/a/**": "/a", "c://**": "c://", "/a/*": "/a/*", "/": "/",
		}},
		{"WithoutContext", Path.WithoutContext, map[string]string{"c://a/b": "/a/b", "/a": "/a"}},
		{"ContextRoot", Path.ContextRoot, map[string]string{"c://a/b": "c://", "/a": "/"}},
	} {
		for in, want := range tt.rows {
			if got := tt.op(MustParsePath(in)).String(); got != want {
				t.Errorf("%s(%s) = %s, want %s", tt.name, in, got, want)
			}
		}
	}
}

func TestPathStripWildcard(t *testing.T) {
	for _, tt := range []struct {
		in   string
		n    int
		want string
	}{
		{"/a/*/b/*", 0, "/a"},
		{"/a/*/b/*", 1, "/a/*/b"},
		{"/a/*/b/*", -1, "/a/*/b"},
		{"c://*", 0, "c://"},
		{"/a/**", 0, "/a/**"},
		{"/a", 7, "/a"},
	} {
		if got, err := MustParsePath(tt.in).StripWildcard(tt.n); err != nil || got.String() != tt.want {
			t.Errorf("%s, %d: got %s, %v; want %s", tt.in, tt.n, got, err, tt.want)
		}
	}
	for _, n := range []int{2, -3} {
		_, err := MustParsePath("/a/*/b/*").StripWildcard(n)
		testError(t, "StripWildcard", "/a/*/b/*", err, KindPathOp, "there are 2")
	}
}

func TestPathAppendIfWildcard(t *testing.T) {
	for in, want := range map[string]string{
		"/a/*": "/a/X", "/a/**": "/a/X", "/a/*/**": "/a/X", "/a/*/b": "/a/*/b", "/a": "/a", "/": "/", "c://*": "c://X",
	} {
		if got, err := MustParsePath(in).AppendIfWildcard("X"); err != nil || got.String() != want {
			t.Errorf("%s: got %s, %v; want %s", in, got, err, want)
		}
	}
	for _, in := range []string{"/a/*", "/a"} {
		_, err := MustParsePath(in).AppendIfWildcard("")
		testError(t, "AppendIfWildcard", in, err, KindPathOp, "is empty")
	}
	p := MustParsePath("/test/foo/*").AppendUUIDIfWildcard()
	last, _ := p.Component(-1)
	if len(last) != 36 || last[14] != '4' || strings.Count(last, "-") != 4 || p.Parent().String() != "/test/foo" {
		t.Errorf("%s does not end in a UUID of version 4", p)
	}
}

func TestPathWithContext(t *testing.T) {
	path := must[Path](t)
	for _, tt := range []struct{ got, want string }{
		{path(MustParsePath("bar").WithContext("foo")).String(), "foo://bar"},
		{path(MustParsePath("foo://bar").WithContext("bar")).String(), "bar://bar"},
		{path(MustParsePath("foo://bar").WithContext(" ")).String(), "/bar"},
		{path(MustParsePath("foo://bar").WithContextIfAbsent("bar")).String(), "foo://bar"},
		{path(MustParsePath("bar").WithContextIfAbsent("foo")).String(), "foo://bar"},
	} {
		if tt.got != tt.want {
			t.Errorf("got %s, want %s", tt.got, tt.want)
		}
	}
	_, err := MustParsePath("a").WithContext("**")
	testError(t, "WithContext", "**", err, KindPath, "** cannot be the context")
}

func TestPathRelative(t *testing.T) {
	for in, want := range map[string]string{"/": "", "/foo": "foo", "/foo/bar": "foo/bar", "/a/b/c/d/e": "a/b/c/d/e"} {
		p := MustParsePath(in)
		if got, err := p.RelativeString("/"); err != nil || got != want {
			t.Errorf("RelativeString(%s) = %q, %v; want %q", in, got, err, want)
		}
		if got, err := p.RelativeFile(); err != nil || got != filepath.FromSlash(want) {
			t.Errorf("RelativeFile(%s) = %q, %v; want %q", in, got, err, want)
		}
	}
	if got, _ := MustParsePath("/a/b").RelativeString("::"); got != "a::b" {
		t.Errorf("separator is not used: %q", got)
	}
	_, err := MustParsePath("c://a").RelativeString("/")
	testError(t, "RelativeString", "c://a", err, KindPathOp, "it has a context")
	_, err = MustParsePath("c://a").RelativeFile()
	testError(t, "RelativeFile", "c://a", err, KindPathOp, "it has a context")
	// Deviation: the original lets these through.
	for _, in := range []string{"/..", "/a/../../b", "/a/..", "/./a", "/."} {
		_, err := MustParsePath(in).RelativeFile()
		testError(t, "RelativeFile", in, err, KindPathOp, "cannot be a file name")
	}
}

func TestPathHierarchy(t *testing.T) {
	for in, want := range map[string][]string{
		"/":        nil,
		"c://a":    {"c://a"},
		"c://a/b":  {"c://a", "c://a/b"},
		"/aa/b/**": {"/aa", "/aa/b", "/aa/b/**"},
	} {
		var got []string
		for p := range MustParsePath(in).Hierarchy() {
			got = append(got, p.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", in, got, want)
		}
	}
	for range MustParsePath("/a/b/c").Hierarchy() {
		break // must be allowed
	}
	// As in the original: every prefix, in order, of 100 paths.
	for n := 1; n <= 100; n++ {
		p := MustParsePath("x://" + strings.Repeat("ab/", n))
		i := 0
		for q := range p.Hierarchy() {
			i++
			if want := must[Path](t)(NewPath("x", p.Components()[:i]...)); q != want {
				t.Errorf("prefix %d of %s is %s, want %s", i, p, q, want)
			}
		}
		if i != n {
			t.Errorf("%s has %d prefixes, want %d", p, i, n)
		}
	}
}

func TestPathNodeID(t *testing.T) {
	for _, tt := range []struct {
		in       string
		node     string // "" is none
		why      string // of NodeID
		optional string // the same of OptionalNodeID
	}{
		{in: "/a"},
		{in: goldenNode + "://a", node: goldenNode},
		{in: "*://a", why: "not a hex digit"},
		{in: "ctx://a", why: "digit", optional: "digit"},
		{in: goldenInstance + "://a", why: "its deployment field is missing", optional: "its deployment field is missing"},
	} {
		p := MustParsePath(tt.in)
		check := func(name string, id NodeID, ok bool, err error, why string) {
			t.Helper()
			if why != "" {
				testError(t, name, tt.in, err, KindNodeID, why)
			} else if err != nil {
				t.Errorf("%s(%s): %v", name, tt.in, err)
			}
			if ok != (tt.node != "") || ok && id.String() != tt.node {
				t.Errorf("%s(%s) = %v, %v; want %q", name, tt.in, id, ok, tt.node)
			}
		}
		id, ok, err := p.NodeID()
		check("NodeID", id, ok, err, tt.why)
		id, ok, err = p.OptionalNodeID()
		check("OptionalNodeID", id, ok, err, tt.optional)
	}
}
