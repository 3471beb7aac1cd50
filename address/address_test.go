package address

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestParseAddress(t *testing.T) {
	type parts struct {
		instance, deployment, element string
		ordinal                       int
		hasOrdinal                    bool
		service                       string
	}
	for _, tt := range []struct {
		in   string
		want parts
		text string // "" if the same as in
	}{
		{"*://greeter/greeter/example.Greeter", parts{"*", "greeter", "greeter", 0, false, "example.Greeter"}, ""},
		{"*://*/e/s", parts{"*", "*", "e", 0, false, "s"}, ""},
		{"*://conduit/ops/conduit.Ops", parts{"*", "conduit", "ops", 0, false, "conduit.Ops"}, ""},
		{"*://d/e[0]/s", parts{"*", "d", "e", 0, true, "s"}, ""},
		{"*://d/e[65535]/s#n", parts{"*", "d", "e", 65535, true, "s#n"}, ""},
		{goldenInstance + "://" + goldenDeployment + "/com.example.e/s#n", parts{goldenInstance, goldenDeployment, "com.example.e", 0, false, "s#n"}, ""},
		{
			strings.ToUpper(goldenInstance) + "://" + strings.ToUpper(goldenDeployment) + "/e/s#",
			parts{goldenInstance, goldenDeployment, "e", 0, false, "s"},
			goldenInstance + "://" + goldenDeployment + "/e/s",
		},
		{"*://T000000000001/a b*:/s", parts{"*", "T000000000001", "a b*:", 0, false, "s"}, ""},
	} {
		a, err := Parse(tt.in)
		if err != nil {
			t.Errorf("Parse: %v", err)
			continue
		}
		text := tt.text
		if text == "" {
			text = tt.in
		}
		n, ok := a.Ordinal()
		got := parts{a.InstanceText(), a.DeploymentText(), a.Element(), n, ok, a.Service().String()}
		if got != tt.want || a.String() != text {
			t.Errorf("Parse(%q) = %+v, %q; want %+v, %q", tt.in, got, a, tt.want, text)
		}
		if id, anyInstance := a.Instance(); anyInstance != (got.instance == "*") || !anyInstance && id.String() != got.instance || anyInstance && !id.IsZero() {
			t.Errorf("%q: Instance = %v, %v", a, id, anyInstance)
		}
		if id, anyDeployment := a.Deployment(); anyDeployment != (got.deployment == "*") || anyDeployment && !id.IsZero() ||
			!anyDeployment && id.String() != got.deployment && id != UniqueDeploymentID(got.deployment) {
			t.Errorf("%q: Deployment = %v, %v", a, id, anyDeployment)
		}
		w := tt.want
		if b, err := FromParts(w.instance, w.deployment, w.element, w.ordinal, w.hasOrdinal, w.service); err != nil || b != a {
			t.Errorf("FromParts(%+v) = %q, %v; want %q", w, b, err, a)
		}
		testAddressRoundTrip(t, a)
	}
}

func testAddressRoundTrip(t *testing.T, a Address) {
	t.Helper()
	check := func(how string, got Address, err error) {
		t.Helper()
		if err != nil || got != a {
			t.Errorf("%q through %s: got %q, %v", a, how, got, err)
		}
	}
	if !a.IsZero() {
		got, err := Parse(a.String())
		check("String", got, err)
	}
	b, err := a.MarshalBinary()
	if err != nil || string(b) != a.String() {
		t.Errorf("%q: MarshalBinary = %q, %v", a, b, err)
	}
	var u Address
	err = u.UnmarshalBinary(b)
	check("binary", u, err)
	js, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	u = Address{}
	err = json.Unmarshal(js, &u)
	check("JSON", u, err)
	var buf bytes.Buffer
	if err := gob.NewEncoder(&buf).Encode(a); err != nil {
		t.Fatal(err)
	}
	u = Address{}
	err = gob.NewDecoder(&buf).Decode(&u)
	check("gob", u, err)
}

func TestParseAddressErrors(t *testing.T) {
	long := strings.Repeat("e", MaxLen-len("*://d//s")+1)
	for in, why := range map[string]string{
		"":                            "it is empty",
		"foo":                         `there is no "://"`,
		"d/e/s":                       `there is no "://"`,
		"://d/e/s":                    `the instance "" is neither * nor an instance id`,
		"me://d/e/s":                  `the instance "me" is neither * nor an instance id`,
		"**://d/e/s":                  "the instance",
		goldenDeployment + "://d/e/s": "36 hex digits that begin with 0100",
		goldenNode + "://d/e/s":       "the instance",
		// An id that repeats its field is an id, but not one of 36 digits.
		goldenInstance + goldenInstance[2:] + "://d/e/s": "the instance",
		" *://d/e/s":                     "the instance",
		"*://d":                          "there must be three parts after \"://\", there are 1",
		"*://d/e":                        "there are 2",
		"*://d/e/s/":                     "there are 4",
		"*:///d/e/s":                     "there are 4",
		"*://a://d/e/s":                  "there are 5",
		"*:////s":                        `the deployment "" is neither *, nor a deployment id, nor a name: it is empty`,
		"*://**/e/s":                     "the deployment",
		"*://d e/e/s":                    "it has ' '",
		"*://.d/e/s":                     "it begins with '.'",
		"*://日本/e/s":                     "the deployment",
		"*://" + goldenInstance + "/e/s": "is not a deployment id, which begins with 0101",
		"*://d//s":                       "the element is empty",
		"*://d/*/s":                      "the element is *; only an instance and a deployment",
		"*://d/**/s":                     "the element is **",
		"*://d/é/s":                      "the element has 'é'",
		"*://d/a\x7f/s":                  "the element has",
		"*://d/ e/s":                     "the element begins or ends with a space",
		"*://d/e#/s":                     "the element has a '#'",
		"*://d/[0]/s":                    "the element is empty",
		"*://d/e[/s":                     "the element has a '['",
		"*://d/e]/s":                     "the element has a ']'",
		"*://d/e[0]x/s":                  "the element has a '['",
		"*://d/e[]/s":                    "the ordinal [] is not",
		"*://d/e[00]/s":                  "the ordinal [00] is not",
		"*://d/e[01]/s":                  "the ordinal [01] is not",
		"*://d/e[+1]/s":                  "the ordinal [+1] is not",
		"*://d/e[-1]/s":                  "the ordinal [-1] is not",
		"*://d/e[1_0]/s":                 "the ordinal [1_0] is not",
		"*://d/e[65536]/s":               "the ordinal [65536] is not",
		"*://d/e[1][2]/s":                "the ordinal [1][2] is not",
		"*://d/e[*]/s":                   "the ordinal [*] is not",
		"*://d/e/":                       "the service type is empty",
		"*://d/e/#n":                     "the service type is empty",
		"*://d/e/s#n#m":                  `there is more than one "#"`,
		"*://d/e/*":                      "the service type is *",
		"*://d/" + long + "/s":           "it has 1025 bytes",
		"*://d/" + strings.Repeat(long, 999) + "/s": "the limit is 1024",
	} {
		_, err := Parse(in)
		testError(t, "Parse", shorten(in), err, KindAddress, why)
		if err != nil && len(err.Error()) > 700 {
			t.Errorf("an error of %d bytes is too long to read", len(err.Error()))
		}
	}
	if _, err := Parse("*://d/" + long[1:] + "/s"); err != nil {
		t.Errorf("an address of %d bytes: %v", MaxLen, err)
	}
	_, err := Parse("foo")
	want := `address "foo": want <instance>://<deployment>/<element>/<service>, for example *://greeter/greeter/example.Greeter: ` +
		`there is no "://"; write *:// in front for any instance`
	if err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	defer func() {
		if recover() == nil {
			t.Error("MustParse must panic on an error")
		}
	}()
	MustParse("foo")
}

func TestFromPartsErrors(t *testing.T) {
	for _, tt := range []struct {
		instance, deployment, element string
		ordinal                       int
		service, why                  string
	}{
		{"", "d", "e", 0, "s", "the instance"},
		{"*", "", "e", 0, "s", "the deployment"},
		{"*", "d/x", "e", 0, "s", "the deployment"},
		{"*", "d", "e/x", 0, "s", "the element has a '/'"},
		{"*", "d", "e[1]", 0, "s", "the element has a '['"},
		{"*", "d", "e", -1, "s", "the ordinal -1 is not from 0 to 65535"},
		{"*", "d", "e", 65536, "s", "the ordinal 65536 is not from 0 to 65535"},
		{"*", "d", "e", 0, "s/x", "the service type has a '/'"},
		{"*", "d", strings.Repeat("e", MaxLen), 0, "s", "the limit is 1024"},
	} {
		_, err := FromParts(tt.instance, tt.deployment, tt.element, tt.ordinal, true, tt.service)
		testError(t, "FromParts", tt.element, err, KindAddress, tt.why)
	}
	a, err := FromParts("*", "d", "e", 7, false, "s")
	if err != nil || a != MustParse("*://d/e/s") {
		t.Errorf("an ordinal without hasOrdinal must not count: got %q, %v", a, err)
	}
}

func TestAddressEqual(t *testing.T) {
	byName := MustParse("*://foo/e[1]/s")
	byID := MustParse("*://0101acbd18db4cc2385cadef654fccc4a4d8/e[1]/s")
	if !byName.Equal(byID) || !byID.Equal(byName) || byName == byID {
		t.Error("a deployment's name and its id must be Equal, and differ by ==")
	}
	for _, other := range []string{"*://bar/e[1]/s", "*://*/e[1]/s", "*://foo/e/s", "*://foo/e[0]/s", "*://foo/f[1]/s", "*://foo/e[1]/s#n", goldenInstance + "://foo/e[1]/s"} {
		if b := MustParse(other); byName.Equal(b) || b.Equal(byName) {
			t.Errorf("%q and %q must not be Equal", byName, b)
		}
	}
	if MustParse("*://d/e[0]/s").Equal(MustParse("*://d/e/s")) {
		t.Error("no ordinal must not be ordinal 0")
	}
}

func TestAddressWithInstance(t *testing.T) {
	id := UniqueInstanceID("me")
	a := MustParse("*://d/e/s")
	b := a.WithInstance(id)
	if got, want := b.String(), id.String()+"://d/e/s"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, anyInstance := b.Instance(); anyInstance || got != id {
		t.Errorf("Instance = %v, %v", got, anyInstance)
	}
	if a.String() != "*://d/e/s" {
		t.Errorf("WithInstance changed its receiver to %s", a)
	}
	// The zero id is an instance that nobody is, not "*".
	if _, anyInstance := a.WithInstance(InstanceID{}).Instance(); anyInstance {
		t.Error("the zero id must not mean any instance")
	}
	longest := MustParse("*://d/" + strings.Repeat("e", MaxLen-len("*://d//s")) + "/s")
	testAddressRoundTrip(t, longest.WithInstance(id))
}

func TestZeroAddress(t *testing.T) {
	var a Address
	_, anyInstance := a.Instance()
	_, anyDeployment := a.Deployment()
	if !a.IsZero() || a.String() != "" || a.InstanceText() != "" || a.DeploymentText() != "" || anyInstance || anyDeployment ||
		!a.WithInstance(RandomInstanceID()).IsZero() || !a.Service().IsZero() {
		t.Error("the zero value must address nothing")
	}
	testAddressRoundTrip(t, a)
	b := MustParse("*://d/e/s")
	if b.IsZero() || b.UnmarshalText([]byte("foo")) == nil || b.String() != "*://d/e/s" {
		t.Error("a failed UnmarshalText must give an error and leave its receiver alone")
	}
}

// An address is a path with a context and three components.
func TestAddressIsPath(t *testing.T) {
	for _, s := range []string{"*://d/e[1]/s#n", goldenInstance + "://*/e/s"} {
		if p, err := ParsePath(s); err != nil || p.String() != s || p.Len() != 3 || !p.HasContext() {
			t.Errorf("%s as a path: %v, %v", s, p, err)
		}
	}
}

func FuzzParseAddress(f *testing.F) {
	for _, seed := range []string{
		"", "foo", "*://greeter/greeter/example.Greeter", "*://*/e[0]/s#n", "*://d/e[65536]/s#", "*://d/[1]/s",
		goldenInstance + "://" + strings.ToUpper(goldenDeployment) + "/e/s", "*://conduit/e/s/", "*://d/e[1][2]/s", "*:// d / e / s ",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := Parse(s)
		if err != nil {
			if e, ok := errors.AsType[*Error](err); !ok || e.Kind != KindAddress || e.Why == "" {
				t.Errorf("%q: error %v is not an *Error of an address", s, err)
			}
			return
		}
		testAddressRoundTrip(t, a)
		testAddressRoundTrip(t, a.WithInstance(InstanceID{uuid{1}}))
		n, ok := a.Ordinal()
		if b, err := FromParts(a.InstanceText(), a.DeploymentText(), a.Element(), n, ok, a.Service().String()); err != nil || b != a {
			t.Errorf("%q: its parts make %q, %v", a, b, err)
		}
		if p, err := ParsePath(a.String()); err != nil || p.String() != a.String() || p.Len() != 3 {
			t.Errorf("%q is not a path of three components: %v, %v", a, p, err)
		}
	})
}
