package main

import (
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/elemental-conduit/conduit"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// hostile is what an element or a peer may say of itself: it would clear the
// terminal, forge lines and cells, turn the text around, and never end.
var hostile = "x\x1b[2J\n\r\t\v\f\x00\x7f\u009b\u202e\u2028\xff" + strings.Repeat("y", 100_000)

// filled sets every text that there is in a value to hostile.
func filled[T any]() T {
	var v T
	fill(reflect.ValueOf(&v).Elem())
	return v
}

func fill(v reflect.Value) {
	switch v.Kind() { //nolint:exhaustive // numbers are left as they are
	case reflect.String:
		v.SetString(hostile)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Struct:
		for _, field := range v.Fields() {
			fill(field)
		}
	}
}

// How long a peer has been up only the peer knows, so where it is not told it is not
// shown; what was said when it was last asked would be stale.
func TestUptimeOfPeers(t *testing.T) {
	rows := []instanceRow{
		instanceRowOf(&conduitv1.PeerInfo{Info: &conduitv1.InstanceInfo{Name: "self", UptimeMillis: 90_000}, State: "draining"}, true),
		instanceRowOf(&conduitv1.PeerInfo{Info: &conduitv1.InstanceInfo{Name: "peer"}, State: "alive", HeardMillis: 20}, false),
	}
	text, err := (&app{output: formatTable}).format(nil, func(w io.Writer) { instanceTable(w, rows) })
	want := "NAME INSTANCE STATE MODE VERSION UPTIME UNITS CALLS HEARD URL\nself - draining - - 1m30s - 0 - -\npeer - alive - - - - 0 20ms ago -\n"
	if err != nil || squeezed(string(text)) != want {
		t.Errorf("%v, got\n%swant\n%s", err, squeezed(string(text)), want)
	}
	text, err = (&app{output: formatJSON}).format(rows, nil)
	if err != nil || bytes.Count(text, []byte(`"uptime_ms"`)) != 1 {
		t.Errorf("%v, %s", err, text)
	}
}

// Whatever elements and peers say, a table has the lines that it is to have, no
// control character, and none of endless width. JSON has all that was said.
func TestTablesAreHarmless(t *testing.T) {
	e := filled[pickExplanation]()
	d := filled[serviceDescription]()
	whole, err := json.Marshal(hostile)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		table func(w io.Writer)
		lines int
		v     any
	}{
		"instances":   {func(w io.Writer) { instanceTable(w, []instanceRow{filled[instanceRow]()}) }, 2, filled[instanceRow]()},
		"deployments": {func(w io.Writer) { deploymentTable(w, []deploymentRow{filled[deploymentRow]()}) }, 2, filled[deploymentRow]()},
		"elements":    {func(w io.Writer) { elementTable(w, []elementRow{filled[elementRow]()}) }, 2, filled[elementRow]()},
		"services":    {func(w io.Writer) { serviceTable(w, []serviceRow{filled[serviceRow]()}) }, 2, filled[serviceRow]()},
		"methods":     {func(w io.Writer) { methodsTable(w, []methodRow{filled[methodRow]()}) }, 2, filled[methodRow]()},
		"links":       {func(w io.Writer) { linkTable(w, []linkRow{filled[linkRow]()}) }, 2, filled[linkRow]()},
		"describe":    {func(w io.Writer) { descriptionTable(w, &d) }, 11, d},
		"binary":      {func(w io.Writer) { b := filled[binaryDescription](); binaryTable(w, &b) }, 10, filled[binaryDescription]()},
		"explain":     {func(w io.Writer) { explanationTable(w, &e) }, 5, e},
	} {
		text, err := (&app{output: formatTable}).format(nil, tc.table)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(text, []byte("\n")); n != tc.lines || !utf8.Valid(text) {
			t.Errorf("%s: %d lines, want %d:\n%q", name, n, tc.lines, text)
		}
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSuffix(line, "\n")
			if i := strings.IndexFunc(line, isControl); i >= 0 {
				t.Errorf("%s: a control character: %q", name, line[i:min(len(line), i+20)])
			}
			if n := utf8.RuneCountInString(line); n > 12*(maxCell+len("...  ")) {
				t.Errorf("%s: a line of %d characters", name, n)
			}
		}
		if !strings.Contains(string(text), "yyy...") {
			t.Errorf("%s: what was cut is not marked", name)
		}
		text, err = (&app{output: formatJSON}).format(tc.v, nil)
		if err != nil || !json.Valid(text) || !bytes.Contains(text, whole) {
			t.Errorf("%s: JSON does not have it all: %v", name, err)
		}
	}

	names := newNodeNames([]*conduitv1.InstanceInfo{{Instance: "i", Name: strings.ToValidUTF8(hostile, "")}})
	label := names.label(conduit.Node{Instance: "i"})
	if strings.ContainsFunc(label, unicode.IsControl) || utf8.RuneCountInString(label) != maxCell+3 {
		t.Errorf("a node's label: %q", label)
	}
}

// The instance that is in use is shown beside one that claims its id (REG-07), whichever
// of them comes first.
func TestConflictHidesNobody(t *testing.T) {
	peer := func(id, url, state string) *conduitv1.PeerInfo {
		return &conduitv1.PeerInfo{Info: &conduitv1.InstanceInfo{Instance: id}, Urls: []string{url}, State: state}
	}
	self, alive, conflict := peer("0", "", "active"), peer("1", "a", "alive"), peer("1", "b", "conflict")
	for _, peers := range [][]*conduitv1.PeerInfo{{self, alive, conflict}, {self, conflict, alive}} {
		// Asked twice, of two instances that know the same.
		rows := instanceRows([]answer{{peers: peers}, {peers: peers}})
		states := map[string]int{}
		for _, r := range rows {
			states[r.State]++
		}
		if states["active"] != 1 || states["alive"] != 1 || states["conflict"] == 0 {
			t.Errorf("shown are %v", states)
		}
	}
}

func TestSizeText(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 bytes", 1023: "1023 bytes", 1024: "1KiB", 1536: "1.5KiB", 10 << 20: "10MiB", 64 << 30: "64GiB", 2 << 40: "2048GiB", 1<<20 + 1: "1MiB",
	} {
		if got := sizeText(n); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
}
