package address

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestParseServiceKey(t *testing.T) {
	for _, tt := range []struct{ in, typ, name, want string }{
		{"com.example.Foo", "com.example.Foo", "", "com.example.Foo"},
		{"com.example.Foo#bar", "com.example.Foo", "bar", "com.example.Foo#bar"},
		{"com.example.Foo#", "com.example.Foo", "", "com.example.Foo"},
		{"List[int]#a b", "List[int]", "a b", "List[int]#a b"},
	} {
		k, err := ParseServiceKey(tt.in)
		if err != nil || k.Type() != tt.typ || k.Name() != tt.name || k.String() != tt.want || k.IsNamed() != (tt.name != "") || k.IsZero() {
			t.Errorf("ParseServiceKey(%q) = type %q, name %q, %q, %v; want %q, %q, %q", tt.in, k.Type(), k.Name(), k, err, tt.typ, tt.name, tt.want)
		}
		if made, err := NewServiceKey(tt.typ, tt.name); err != nil || made != k {
			t.Errorf("NewServiceKey(%q, %q) = %v, %v", tt.typ, tt.name, made, err)
		}
		var text, bin ServiceKey
		b, _ := k.MarshalBinary()
		js, err := json.Marshal(k)
		if err != nil || json.Unmarshal(js, &text) != nil || bin.UnmarshalBinary(b) != nil || text != k || bin != k {
			t.Errorf("%q does not survive marshalling: JSON %s gives %q, binary gives %q", k, js, text, bin)
		}
	}
}

func TestServiceKeyErrors(t *testing.T) {
	for in, why := range map[string]string{
		"":      "the service type is empty",
		"#foo":  "the service type is empty",
		"#":     "the service type is empty",
		"a#b#c": `there is more than one "#"`,
		"a##":   `there is more than one "#"`,
		"a/b":   "the service type has a '/'",
		"a#b/c": "the service name has a '/'",
		" a":    "the service type begins or ends with a space",
		"a#b ":  "the service name begins or ends with a space",
		"é":     "not printable ASCII",
		"*":     "the service type is *",
		"**#a":  "the service type is **",
	} {
		_, err := ParseServiceKey(in)
		testError(t, "ParseServiceKey", in, err, KindServiceKey, why)
	}
	for _, tt := range []struct{ typ, name, why string }{
		{"", "a", "the service type is empty"},
		{"a#b", "", "the service type has a '#'"},
		{"a", "b#c", "the service name has a '#'"},
	} {
		_, err := NewServiceKey(tt.typ, tt.name)
		testError(t, "NewServiceKey", tt.typ+" "+tt.name, err, KindServiceKey, tt.why)
	}
	k := ServiceKey{"a", ""}
	if k.UnmarshalText([]byte("a#b#c")) == nil || k.String() != "a" {
		t.Error("a failed UnmarshalText must give an error and leave its receiver alone")
	}
	if err := k.UnmarshalText(nil); err != nil || !k.IsZero() {
		t.Errorf("empty text gives %q, %v; want the zero value", k, err)
	}
}

func TestServiceKeyOrder(t *testing.T) {
	want := []string{"a", "a#x", "a#y", "b"}
	var keys []ServiceKey
	for _, s := range slices.Backward(want) {
		keys = append(keys, must[ServiceKey](t)(ParseServiceKey(s)))
	}
	slices.SortFunc(keys, ServiceKey.Compare)
	var got []string
	for _, k := range keys {
		got = append(got, k.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("sorted: %s, want %s", strings.Join(got, " "), strings.Join(want, " "))
	}
}
