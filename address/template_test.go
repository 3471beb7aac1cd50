package address

import (
	"slices"
	"testing"
)

func TestParameterizedPath(t *testing.T) {
	template := must[ParameterizedPath](t)
	tmpl := template(ParseParameterizedPath("/foo/{id0}/{id1}"))
	got, err := tmpl.Extract(MustParsePath("/foo/bar/baz"))
	if want := []Parameter{{"id0", "bar"}, {"id1", "baz"}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("Extract = %v, %v; want %v", got, err, want)
	}
	if names := tmpl.Names(); !slices.Equal(names, []string{"id0", "id1"}) {
		t.Errorf("Names = %q", names)
	}
	_, err = template(ParseParameterizedPath("/foo/{id0}")).Extract(MustParsePath("/foo/bar/baz"))
	testError(t, "Extract", "/foo/bar/baz", err, KindPathOp, "does not match the template /foo/{id0}")

	for _, tt := range []struct {
		template, path string
		want           bool
	}{
		{"/foo/{a}", "/foo/bar", true},
		{"/foo/{a}", "/fox/bar", false},
		{"/foo/{a}", "/foo", false},
		{"/foo/{a}", "/foo/bar/baz", false},
		{"/foo/{a}", "c://foo/bar", true},
		{"c://foo/{a}", "c://foo/bar", true},
		{"c://foo/{a}", "d://foo/bar", false},
		{"/", "/", true},
		{"/{a", "/{a", true},
		{"/{a", "/b", false},
	} {
		if got := template(ParseParameterizedPath(tt.template)).Match(MustParsePath(tt.path)); got != tt.want {
			t.Errorf("%s matches %s = %v, want %v", tt.template, tt.path, got, tt.want)
		}
	}
}

func TestParameterizedPathErrors(t *testing.T) {
	for in, why := range map[string]string{
		"/a/*":       "it has the wildcard *",
		"/a/{b}/**":  "it has the wildcard **", // deviation: allowed in the original
		"/{a}/b/{a}": `there are two parameters "a"`,
		"/{}":        "a parameter has no name",
	} {
		_, err := ParseParameterizedPath(in)
		testError(t, "ParseParameterizedPath", in, err, KindTemplate, why)
	}
	_, err := ParseParameterizedPath("a/é")
	testError(t, "ParseParameterizedPath", "a/é", err, KindPath, "not printable ASCII")
}

// Deviation: the original gives names with their braces and drops the context.
func TestParameterizedPathResolve(t *testing.T) {
	tmpl := must[ParameterizedPath](t)(ParseParameterizedPath("c://foo/{id0}/x/{id1}"))
	got, err := tmpl.Resolve(func(name string) string { return "<" + name + ">" })
	if err != nil || got.String() != "c://foo/<id0>/x/<id1>" {
		t.Errorf("Resolve = %s, %v", got, err)
	}
	_, err = tmpl.Resolve(func(string) string { return "a/b" })
	testError(t, "Resolve", "a/b", err, KindPathOp, "component 2 has a '/'")
	if tmpl.String() != "c://foo/{id0}/x/{id1}" {
		t.Errorf("Resolve changed the template to %s", tmpl)
	}
}
