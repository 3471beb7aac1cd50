package address

import (
	"bytes"
	"encoding"
	"encoding/gob"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Facts of the original, observed on its own code.
const (
	goldenInstance   = "010000112233445566778899aabbccddeeff"
	goldenDeployment = "01010123456789abcdef0123456789abcdef"
	goldenNode       = "010000112233445566778899aabbccddeeff010123456789abcdef0123456789abcdef"
	goldenMaster     = "010000112233445566778899aabbccddeeff0100112233445566778899aabbccddeeff"
	goldenResource   = goldenNode + "02deadbeefdead4bee8eefdeadbeefdead"
	goldenTask       = goldenResource + "03cafebabe0000400080000000cafebabe"
)

func mustUUID(t *testing.T, s string) [16]byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(b) != 16 {
		t.Fatalf("bad uuid %q in the test", s)
	}
	return [16]byte(b)
}

// must returns a function that gives v, and fails the test on an error.
func must[T any](t *testing.T) func(v T, err error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestUniqueIDGolden(t *testing.T) {
	for _, tt := range []struct{ name, uuid string }{
		{"foo", "acbd18db4cc2385cadef654fccc4a4d8"},
		{"", "d41d8cd98f003204a9800998ecf8427e"},
		{"dep567", "7422caa1a58d31b8911b4a1c60b96d92"},
		{"localhost", "421aa90e079f3326b6494f812ad13e79"},
		{"com.example.myelement", "5d0430853acf317d977042bed8ddedb2"},
		{"507f1f77bcf86cd799439011", "e9b89e5b13fd371c89ef084cb302ce94"},
		{"日本", "4dbed2e657453884a67137d3514119b3"},
	} {
		if got, want := UniqueDeploymentID(tt.name).String(), "0101"+tt.uuid; got != want {
			t.Errorf("UniqueDeploymentID(%q) = %s, want %s", tt.name, got, want)
		}
		if got, want := UniqueInstanceID(tt.name).String(), "0100"+tt.uuid; got != want {
			t.Errorf("UniqueInstanceID(%q) = %s, want %s", tt.name, got, want)
		}
	}
	if got, want := uuid(UniqueDeploymentID("foo").UUID()).String(), "acbd18db-4cc2-385c-adef-654fccc4a4d8"; got != want {
		t.Errorf("uuid of foo = %s, want %s", got, want)
	}
}

func TestCompoundIDGolden(t *testing.T) {
	instance := InstanceIDFromUUID(mustUUID(t, "00112233-4455-6677-8899-aabbccddeeff"))
	deployment := DeploymentIDFromUUID(mustUUID(t, "01234567-89ab-cdef-0123-456789abcdef"))
	node := NewNodeID(instance, deployment)
	resource := ResourceIDFromUUID(node, mustUUID(t, "deadbeef-dead-4bee-8eef-deadbeefdead"))
	task := TaskIDFromUUID(resource, mustUUID(t, "cafebabe-0000-4000-8000-0000cafebabe"))
	for _, tt := range []struct {
		name string
		got  fmt.Stringer
		want string
		size int
	}{
		{"instance", instance, goldenInstance, InstanceIDSize},
		{"deployment", deployment, goldenDeployment, DeploymentIDSize},
		{"node", node, goldenNode, NodeIDSize},
		{"master node", MasterNodeID(instance), goldenMaster, NodeIDSize},
		{"resource", resource, goldenResource, ResourceIDSize},
		{"task", task, goldenTask, TaskIDSize},
	} {
		if tt.got.String() != tt.want {
			t.Errorf("%s = %s, want %s", tt.name, tt.got, tt.want)
		}
		if len(tt.want) != 2*tt.size {
			t.Errorf("%s: size constant is %d, the golden text has %d digits", tt.name, tt.size, len(tt.want))
		}
	}
	if sizes := []int{InstanceIDSize, DeploymentIDSize, NodeIDSize, ResourceIDSize, TaskIDSize}; !slices.Equal(sizes, []int{18, 18, 35, 52, 69}) {
		t.Errorf("sizes = %v", sizes)
	}
	if node.IsMaster() || !MasterNodeID(instance).IsMaster() {
		t.Error("IsMaster must hold for the master node only")
	}
	if task.Resource() != resource || task.Node() != node || resource.Node() != node || node.Node() != node ||
		node.Instance() != instance || node.Deployment() != deployment {
		t.Error("an id does not give back the parts it was made of")
	}
	if resource.UUID() != mustUUID(t, "deadbeefdead4bee8eefdeadbeefdead") || task.UUID() != mustUUID(t, "cafebabe0000400080000000cafebabe") {
		t.Error("UUID is not the id's own last field")
	}
}

// id is what all types of ids have in common; P is the pointer to T.
type id[T any] interface {
	comparable
	fmt.Stringer
	encoding.TextAppender
	encoding.TextMarshaler
	encoding.BinaryAppender
	encoding.BinaryMarshaler
	Bytes() []byte
	Compare(other T) int
	IsZero() bool
}

type idPointer[T any] interface {
	*T
	encoding.TextUnmarshaler
	encoding.BinaryUnmarshaler
}

func TestIDRoundTrips(t *testing.T) {
	node := NewNodeID(RandomInstanceID(), RandomDeploymentID())
	resource := RandomResourceID(node)
	t.Run("instance", func(t *testing.T) {
		testID(t, RandomInstanceID(), InstanceIDSize, ParseInstanceID, InstanceIDFromBytes)
	})
	t.Run("deployment", func(t *testing.T) {
		testID(t, RandomDeploymentID(), DeploymentIDSize, ParseDeploymentID, DeploymentIDFromBytes)
	})
	t.Run("node", func(t *testing.T) { testID(t, node, NodeIDSize, ParseNodeID, NodeIDFromBytes) })
	t.Run("resource", func(t *testing.T) { testID(t, resource, ResourceIDSize, ParseResourceID, ResourceIDFromBytes) })
	t.Run("task", func(t *testing.T) { testID(t, RandomTaskID(resource), TaskIDSize, ParseTaskID, TaskIDFromBytes) })
}

func testID[T id[T], P idPointer[T]](t *testing.T, v T, size int, parse func(string) (T, error), fromBytes func([]byte) (T, error), _ ...P) {
	t.Helper()
	var zero T
	if v.IsZero() || !zero.IsZero() || v == zero {
		t.Error("IsZero must hold for the zero value only")
	}
	if same := v; v.Compare(same) != 0 || v.Compare(zero) != 1 || zero.Compare(v) != -1 {
		t.Error("Compare does not order the zero value first")
	}
	check := func(how string, got T, err error) {
		t.Helper()
		if err != nil || got != v {
			t.Errorf("%s: got %v, %v; want %v", how, got, err, v)
		}
	}
	got, err := parse(v.String())
	check("Parse", got, err)
	got, err = parse(strings.ToUpper(v.String()))
	check("Parse upper case", got, err)
	got, err = fromBytes(v.Bytes())
	check("FromBytes", got, err)

	// In the original, reading in place fails at offsets from the size on.
	for _, offset := range []int{0, 5, size, 2 * size} {
		b, err := v.AppendBinary(make([]byte, offset))
		if err != nil || len(b) != offset+size {
			t.Fatalf("AppendBinary at %d: length %d, %v; want %d", offset, len(b), err, offset+size)
		}
		got, err = fromBytes(b[offset:])
		check(fmt.Sprintf("in place at %d", offset), got, err)
		clear(b)
		check("after the bytes were reused", got, nil)
	}
	b := v.Bytes()
	clear(b)
	if bytes.Equal(b, v.Bytes()) {
		t.Error("Bytes hands out the id's own memory")
	}

	text, err := v.MarshalText()
	if err != nil || string(text) != v.String() {
		t.Errorf("MarshalText = %q, %v", text, err)
	}
	var u T
	err = P(&u).UnmarshalText(text)
	check("UnmarshalText", u, err)
	u = zero
	err = P(&u).UnmarshalBinary(v.Bytes())
	check("UnmarshalBinary", u, err)
	if P(&u).UnmarshalText([]byte("01")) == nil || P(&u).UnmarshalBinary(nil) == nil || u != v {
		t.Error("a failed Unmarshal must give an error and leave its receiver alone")
	}

	js, err := json.Marshal(map[T]T{v: v})
	if want := fmt.Sprintf(`{"%s":"%[1]s"}`, v); err != nil || string(js) != want {
		t.Errorf("JSON = %s, %v; want %s", js, err, want)
	}
	var m map[T]T
	err = json.Unmarshal(js, &m)
	check("JSON", m[v], err)

	var buf bytes.Buffer
	if err := gob.NewEncoder(&buf).Encode(v); err != nil {
		t.Fatal(err)
	}
	u = zero
	err = gob.NewDecoder(&buf).Decode(&u)
	check("gob", u, err)
}

func TestRandomIDsDiffer(t *testing.T) {
	seen := make(map[InstanceID]bool)
	for range 1000 {
		id := RandomInstanceID()
		if u := id.UUID(); u[6]>>4 != 4 || u[8]>>6 != 0b10 {
			t.Fatalf("%v is not of version 4", id)
		}
		if seen[id] {
			t.Fatalf("%v came twice", id)
		}
		seen[id] = true
	}
}

func TestParseIDErrors(t *testing.T) {
	parse := map[Kind]func(string) error{
		KindInstanceID:   func(s string) error { _, err := ParseInstanceID(s); return err },
		KindDeploymentID: func(s string) error { _, err := ParseDeploymentID(s); return err },
		KindNodeID:       func(s string) error { _, err := ParseNodeID(s); return err },
		KindResourceID:   func(s string) error { _, err := ParseResourceID(s); return err },
		KindTaskID:       func(s string) error { _, err := ParseTaskID(s); return err },
	}
	for kind := range parse { // what no type takes
		for in, why := range map[string]string{
			"":                      "it is empty",
			"010":                   "odd number",
			"01zz":                  `'z' is not a hex digit`,
			"0200" + goldenNode[4:]: "it begins with 02",
			"0104" + goldenNode[4:]: "unknown ordinal 04",
			"01ff" + goldenNode[4:]: "unknown ordinal ff",
			"01":                    "field is missing",
		} {
			testIDError(t, kind, parse[kind], in, why)
		}
	}
	for _, tt := range []struct {
		kind    Kind
		in, why string
	}{
		{KindInstanceID, goldenInstance[:len(goldenInstance)-2], "its instance field is cut short: 15 bytes of 16"},
		{KindInstanceID, "0100", "its instance field is cut short: 0 bytes of 16"},
		{KindInstanceID, goldenDeployment, "unexpected field: deployment"},
		{KindInstanceID, goldenNode, "unexpected field: deployment"},
		{KindDeploymentID, goldenInstance, "unexpected field: instance"},
		{KindNodeID, goldenResource, "unexpected field: resource"},
		{KindResourceID, goldenTask, "unexpected field: task"},
		// The original finds these out only when the part is first read.
		{KindNodeID, goldenInstance, "its deployment field is missing"},
		{KindNodeID, goldenDeployment, "its instance field is missing"},
		{KindResourceID, goldenNode, "its resource field is missing"},
		{KindTaskID, goldenResource, "its task field is missing"},
		{KindTaskID, goldenTask + "03", "its task field is cut short"},
	} {
		testIDError(t, tt.kind, parse[tt.kind], tt.in, tt.why)
	}
}

func testIDError(t *testing.T, kind Kind, parse func(string) error, in, why string) {
	t.Helper()
	err := parse(in)
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Kind != kind || e.Input != in || !strings.Contains(e.Why, why) {
		t.Errorf("parse %s %q: got %v, want one that says %q", kind, in, err, why)
	}
}

func TestParseIDFieldOrder(t *testing.T) {
	reordered := "01" + goldenDeployment[2:] + goldenInstance[2:]
	if got, err := ParseNodeID(reordered); err != nil || got.String() != goldenNode {
		t.Errorf("fields in another order: got %v, %v; want %s", got, err, goldenNode)
	}
	twice := UniqueInstanceID("first").String() + goldenInstance[2:]
	if got, err := ParseInstanceID(twice); err != nil || got.String() != goldenInstance {
		t.Errorf("the same field twice: got %v, %v; want the last, %s", got, err, goldenInstance)
	}
}

// Unlike the original, whose order is 8000... < 0000...4000-8000... <
// 0000...4000-7000... < 7fff..., because it compares signed halves.
func TestIDOrderIsUnsigned(t *testing.T) {
	want := []string{
		"00000000-0000-4000-7000-000000000001",
		"00000000-0000-4000-8000-000000000001",
		"7fffffff-0000-4000-8000-000000000001",
		"80000000-0000-4000-8000-000000000001",
	}
	var ids []InstanceID
	for _, u := range slices.Backward(want) {
		ids = append(ids, InstanceIDFromUUID(mustUUID(t, u)))
	}
	slices.SortFunc(ids, InstanceID.Compare)
	for i, id := range ids {
		if got := uuid(id.UUID()).String(); got != want[i] {
			t.Errorf("place %d is %s, want %s", i, got, want[i])
		}
	}
	a, b := InstanceID{uuid{1}}, InstanceID{uuid{2}}
	d1, d2 := DeploymentID{uuid{1}}, DeploymentID{uuid{2}}
	if NewNodeID(a, d2).Compare(NewNodeID(b, d1)) != -1 || NewNodeID(a, d1).Compare(NewNodeID(a, d2)) != -1 {
		t.Error("nodes do not sort by instance, then deployment")
	}
}

func TestErrorText(t *testing.T) {
	_, err := ParseDeploymentID("01g")
	if got, want := err.Error(), `deployment id "01g": want 36 hex digits, for example 0101acbd18db4cc2385cadef654fccc4a4d8: 'g' is not a hex digit`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	_, err = ParseInstanceID(strings.Repeat("é", 100_000))
	if got := err.Error(); len(got) > 400 || !strings.Contains(got, `éé..."`) {
		t.Errorf("a long input is not shortened on a rune: %s", got)
	}
	_, err = NodeIDFromBytes([]byte{1, 9})
	if got := err.Error(); !strings.HasPrefix(got, `node id "0109": `) {
		t.Errorf("bytes are not shown as hex: %s", got)
	}
}

func FuzzParseID(f *testing.F) {
	for _, seed := range []string{"", "01", "0104", goldenInstance, goldenDeployment, goldenNode, goldenResource, goldenTask, strings.ToUpper(goldenTask)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		fuzzID(t, s, ParseInstanceID, InstanceIDFromBytes)
		fuzzID(t, s, ParseDeploymentID, DeploymentIDFromBytes)
		fuzzID(t, s, ParseNodeID, NodeIDFromBytes)
		fuzzID(t, s, ParseResourceID, ResourceIDFromBytes)
		fuzzID(t, s, ParseTaskID, TaskIDFromBytes)
	})
}

func fuzzID[T id[T]](t *testing.T, s string, parse func(string) (T, error), fromBytes func([]byte) (T, error)) {
	t.Helper()
	_, _ = fromBytes([]byte(s)) // must not panic
	v, err := parse(s)
	if err != nil {
		if _, ok := errors.AsType[*Error](err); !ok || err.Error() == "" {
			t.Errorf("%q: error %v is not an *Error", s, err)
		}
		return
	}
	if got, err := parse(v.String()); err != nil || got != v {
		t.Errorf("%q parses to %v, which parses to %v, %v", s, v, got, err)
	}
	if got, err := fromBytes(v.Bytes()); err != nil || got != v {
		t.Errorf("%q parses to %v, whose bytes parse to %v, %v", s, v, got, err)
	}
}
