package address

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// Facts of the original, observed on its own code, but for the rows marked.
func TestParsePathGolden(t *testing.T) {
	for _, tt := range []struct {
		in, context string
		components  []string
		normal      string
	}{
		{"", "", nil, "/"},
		{"/", "", nil, "/"},
		{"a", "", []string{"a"}, "/a"},
		{"/a", "", []string{"a"}, "/a"},
		{"a/", "", []string{"a"}, "/a"},
		{"//a///b//", "", []string{"a", "b"}, "/a/b"},
		{" a / b ", "", []string{"a", "b"}, "/a/b"},
		{"a/\tb", "", []string{"a", "b"}, "/a/b"},
		{"/a b/c", "", []string{"a b", "c"}, "/a b/c"},
		{"ctx://a/b", "ctx", []string{"a", "b"}, "ctx://a/b"},
		{"ctx:///a/b", "ctx", []string{"a", "b"}, "ctx://a/b"},
		{" ctx ://a", "ctx", []string{"a"}, "ctx://a"},
		{"ctx/x://a", "ctx/x", []string{"a"}, "ctx/x://a"},
		{"*://a", "*", []string{"a"}, "*://a"},
		{"*://*", "*", []string{"*"}, "*://*"},
		{"ctx://**", "ctx", []string{"**"}, "ctx://**"},
		{"http:/a", "", []string{"http:", "a"}, "/http:/a"},
		{"a:b/c", "", []string{"a:b", "c"}, "/a:b/c"},
		{`a\b`, "", []string{`a\b`}, `/a\b`},
		{"a/%2F", "", []string{"a", "%2F"}, "/a/%2F"},
		{"a/#x", "", []string{"a", "#x"}, "/a/#x"},
		{"***/*b", "", []string{"***", "*b"}, "/***/*b"},
		{
			"abc1234://dep567/com.example.myelement/com.example.myservice#foo", "abc1234",
			[]string{"dep567", "com.example.myelement", "com.example.myservice#foo"},
			"abc1234://dep567/com.example.myelement/com.example.myservice#foo",
		},
		{
			"*://*/com.example.myelement/com.example.myservice", "*",
			[]string{"*", "com.example.myelement", "com.example.myservice"},
			"*://*/com.example.myelement/com.example.myservice",
		},
		{"e/element[2]/x#y", "", []string{"e", "element[2]", "x#y"}, "/e/element[2]/x#y"},
		{"é日://a", "é日", []string{"a"}, "é日://a"},
		{"a://://b", "a", []string{"b"}, "a://b"}, // empty parts are dropped
		{"ctx:///", "ctx", nil, "ctx://"},
		{"ctx://", "ctx", nil, "ctx://"},  // deviation: an error in the original
		{"ctx:// ", "ctx", nil, "ctx://"}, // deviation: an error in the original
	} {
		p, err := ParsePath(tt.in)
		if err != nil {
			t.Errorf("ParsePath(%q): %v", tt.in, err)
			continue
		}
		if p.Context() != tt.context || !slices.Equal(p.Components(), tt.components) || p.String() != tt.normal {
			t.Errorf("ParsePath(%q) = context %q, components %q, %q; want %q, %q, %q",
				tt.in, p.Context(), p.Components(), p, tt.context, tt.components, tt.normal)
		}
		if p.Len() != len(tt.components) || p.IsRoot() != (tt.components == nil) || p.HasContext() != (tt.context != "") {
			t.Errorf("ParsePath(%q): Len %d, IsRoot %v, HasContext %v", tt.in, p.Len(), p.IsRoot(), p.HasContext())
		}
		if q, err := NewPath(tt.context, tt.components...); err != nil || q != p {
			t.Errorf("NewPath(%q, %q) = %v, %v; want %v", tt.context, tt.components, q, err, p)
		}
		testPathRoundTrip(t, p)
	}
}

func testPathRoundTrip(t *testing.T, p Path) {
	t.Helper()
	check := func(how string, got Path, err error) {
		t.Helper()
		if err != nil || got != p {
			t.Errorf("%q through %s: got %q, %v", p, how, got, err)
		}
	}
	got, err := ParsePath(p.String())
	check("String", got, err)
	var u Path
	b, _ := p.MarshalBinary()
	if string(b) != p.String() {
		t.Errorf("%q: binary form is %q", p, b)
	}
	err = u.UnmarshalBinary(b)
	check("binary", u, err)
	js, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	u = Path{}
	err = json.Unmarshal(js, &u)
	check("JSON", u, err)
	var buf bytes.Buffer
	if err := gob.NewEncoder(&buf).Encode(p); err != nil {
		t.Fatal(err)
	}
	u = Path{}
	err = gob.NewDecoder(&buf).Decode(&u)
	check("gob", u, err)
}

func TestPathErrors(t *testing.T) {
	for in, why := range map[string]string{
		"://a":         "one context must stand before",
		"ctx://a://b":  "one context must stand before",
		"://":          "one context must stand before",
		"**://a":       "** cannot be the context",
		"ctx://a/**/b": "** is not the last component",
		"a/**/**":      "** is not the last component",
		"a/bé":         "component 2 has 'é', which is not printable ASCII",
		"a/b\x7fc":     "not printable ASCII",
		"a/b\tc":       "not printable ASCII",
		"a/b\xffc":     "not printable ASCII",
		"x\xff://a":    "the context is not UTF-8", // deviation: no such string in the original
	} {
		_, err := ParsePath(in)
		testError(t, "ParsePath", in, err, KindPath, why)
	}
	for _, tt := range []struct {
		context   string
		component string
		why       string
	}{
		{"", "", "component 1 is empty"},
		{"", "a/b", "component 1 has a '/'"},
		{"**", "a", "** cannot be the context"},
		{"", " a", "begins or ends with a space"}, // deviation: allowed in the original
		{"a://b", "c", `the context has "://"`},   // deviation: allowed in the original
	} {
		_, err := NewPath(tt.context, tt.component)
		testError(t, "NewPath", tt.context+" "+tt.component, err, KindPath, tt.why)
	}
	if p, err := NewPath(" \t", "a"); err != nil || p.HasContext() {
		t.Errorf("a blank context must be none; got %q, %v", p, err)
	}
	var p Path
	if p.UnmarshalText([]byte("a/**/b")) == nil || p != (Path{}) {
		t.Error("a failed UnmarshalText must give an error and leave its receiver alone")
	}
	defer func() {
		if recover() == nil {
			t.Error("MustParsePath must panic on an error")
		}
	}()
	MustParsePath("a/**/b")
}

func testError(t *testing.T, what, in string, err error, kind Kind, why string) {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Kind != kind || !strings.Contains(e.Error(), why) {
		t.Errorf("%s(%q): got error %v, want one of a %s that says %q", what, in, err, kind, why)
	}
}

func TestPathPredicates(t *testing.T) {
	type predicates struct{ wildcard, recursive, terminated, context bool }
	for in, want := range map[string]predicates{
		"/":                        {},
		"/test/foo":                {},
		"/test/foo/*":              {wildcard: true, terminated: true},
		"/test/foo/*/bar/**":       {wildcard: true, recursive: true, terminated: true},
		"test://test/foo":          {},
		"test://test/foo/*":        {wildcard: true, terminated: true},
		"test://test/foo/*/bar/**": {wildcard: true, recursive: true, terminated: true},
		"/**":                      {recursive: true, terminated: true},
		"/*/a":                     {wildcard: true},
		"*://a":                    {context: true},
		"/a*/***":                  {},
	} {
		p := MustParsePath(in)
		got := predicates{p.IsWildcard(), p.IsWildcardRecursive(), p.IsWildcardTerminated(), p.IsWildcardContext()}
		if got != want {
			t.Errorf("%q: got %+v, want %+v", in, got, want)
		}
	}
}

func TestPathComponent(t *testing.T) {
	p := MustParsePath("c://a/b/c")
	for i, want := range map[int]string{0: "a", 2: "c", -1: "c", -3: "a"} {
		if got, ok := p.Component(i); !ok || got != want {
			t.Errorf("Component(%d) = %q, %v; want %q", i, got, ok, want)
		}
	}
	for _, i := range []int{3, -4} {
		if got, ok := p.Component(i); ok {
			t.Errorf("Component(%d) = %q, want none", i, got)
		}
	}
	components := p.Components()
	components[0] = "x"
	if p.String() != "c://a/b/c" {
		t.Error("Components hands out the path's own memory")
	}
}

// The original's equality test: paths from the same seed are equal, those from
// different seeds are not.
func TestPathEqual(t *testing.T) {
	random := func(seed uint64) Path {
		r := rand.New(rand.NewPCG(seed, 1))
		components := make([]string, 1+r.IntN(8))
		for i := range components {
			components[i] = uuid{byte(r.Uint64()), byte(r.Uint64()), byte(r.Uint64())}.String()
		}
		return must[Path](t)(NewPath([]string{"", "x"}[r.IntN(2)], components...))
	}
	for seed := range uint64(50) {
		a, b, other := random(seed), random(seed), random(seed+1000)
		if a != b || CompareWildcardFirst(a, b) != 0 || CompareWildcardLast(a, b) != 0 {
			t.Errorf("seed %d: %q and %q must be equal", seed, a, b)
		}
		if a == other || CompareWildcardFirst(a, other) == 0 {
			t.Errorf("seed %d: %q and %q must differ", seed, a, other)
		}
	}
	if MustParsePath("/a") == MustParsePath("c://a") {
		t.Error("/a and c://a must differ")
	}
	set := make(map[Path]bool)
	for range 1000 {
		set[MustParsePath(" x://a / b")] = true
	}
	if len(set) != 1 {
		t.Errorf("1000 equal paths make a set of %d", len(set))
	}
}

func FuzzParsePath(f *testing.F) {
	for _, seed := range []string{"", "/", " a // b ", "ctx://a/*", "ctx:///", "*://**", "a:/://b", "a://://b", "/http:/a", "x:\x00://y", "a/**/b", "é://é"} {
		f.Add(seed, "/a/*")
	}
	f.Fuzz(func(t *testing.T, s, other string) {
		p, err := ParsePath(s)
		if err != nil {
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Errorf("%q: error %v is not an *Error", s, err)
			}
			return
		}
		testPathRoundTrip(t, p)
		if q, err := NewPath(p.Context(), p.Components()...); err != nil || q != p {
			t.Errorf("%q: its parts make %q, %v", p, q, err)
		}
		if !p.Match(p) || CompareWildcardFirst(p, p) != 0 || p.IsRoot() != (p.Len() == 0) {
			t.Errorf("%q does not match or equal itself", p)
		}
		derived := []Path{p.Parent(), p.Recursive(), p.StripRecursive(), p.WithoutContext(), p.ContextRoot(), p.AppendUUIDIfWildcard()}
		if q, err := p.StripWildcard(-1); err == nil {
			derived = append(derived, q)
		}
		q, err := ParsePath(other)
		if err == nil {
			if p.Match(q) != q.Match(p) {
				t.Errorf("%q and %q: Match is not symmetric", p, q)
			}
			if CompareWildcardFirst(p, q) != -CompareWildcardFirst(q, p) || CompareWildcardLast(p, q) != -CompareWildcardLast(q, p) ||
				(CompareWildcardFirst(p, q) == 0) != (p == q) {
				t.Errorf("%q and %q: no consistent order", p, q)
			}
			if r, err := p.Append(q); err == nil {
				derived = append(derived, r)
			}
			if r, err := p.AppendExtension(other); err == nil {
				derived = append(derived, r)
			}
		}
		for _, q := range derived {
			if r, err := ParsePath(q.String()); err != nil || r != q {
				t.Errorf("%q: derived %q parses to %q, %v", p, q, r, err)
			}
		}
		_, _ = p.RelativeFile()
		_, _, _ = p.NodeID()
		_, _ = ParseParameterizedPath(s)
	})
}
