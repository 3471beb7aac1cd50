package main

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/plugins/txpersist/api"
	persistpb "github.com/elemental-conduit/conduit/proto/conduit/persist"
)

// Every method with a message takes protobuf and JSON, and says so.
func TestMethodsTakeProtobufAndJSON(t *testing.T) {
	f := start(t)
	for _, m := range f.Description().GetServices()[0].GetMethods() {
		if slices.Contains([]string{"Check", "Backup", "Stats"}, m.GetName()) { // without one
			continue
		}
		if ct := m.GetContentTypes(); !slices.Contains(ct, conduit.ContentProto) || !slices.Contains(ct, conduit.ContentJSON) {
			t.Errorf("%s takes %v", m.GetName(), ct)
		}
	}
	saved, err := call[*persistpb.Result](f, "Save", &persistpb.Operation{Path: new("/a"), Data: []byte("1")})
	if err != nil {
		t.Fatal(err)
	}
	// What one writes the other reads, and the names of JSON's fields are those of the pages.
	task, err := call[json.RawMessage](f, "CreateTask", json.RawMessage(`{"id":"`+saved.GetId()+`","due_ms":1234567890123}`))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		ID    string
		Tasks []struct {
			ID    string
			DueMS string `json:"due_ms"`
		}
	}
	if err := json.Unmarshal(task, &got); err != nil || got.ID != saved.GetId() || len(got.Tasks) != 1 || got.Tasks[0].DueMS != "1234567890123" {
		t.Errorf("in JSON it is %s, %v", task, err)
	}
	tasks, err := call[*persistpb.Result](f, "Tasks", &persistpb.Operation{Id: saved.Id})
	if err != nil || len(tasks.GetTasks()) != 1 || tasks.GetTasks()[0].GetDueMs() != 1234567890123 || tasks.GetTasks()[0].GetId() != got.Tasks[0].ID {
		t.Errorf("in protobuf it is %v, %v", tasks, err)
	}
	// A key is of what is asked for, however that is written.
	first, err := call[*persistpb.Result](f, "Append", &persistpb.Operation{Id: saved.Id, Data: []byte("x"), Key: "k"})
	if err != nil || first.GetId() != saved.GetId() {
		t.Fatal(first, err)
	}
	if r := f.do("Append", operation{ID: idOf(t, saved), Data: []byte("x"), Key: "k"}); r.ID.String() != saved.GetId() {
		t.Errorf("the first answer is %v", r.ID)
	}
	if r := f.do("Load", operation{Path: p("/a")}); string(r.Data) != "1x" {
		t.Errorf("it was done twice: %q", r.Data)
	}
	for _, bad := range []*persistpb.Operation{{Path: new("/a/**/b")}, {Id: new("x")}, {Task: new("x")}} {
		_, err := call[*persistpb.Result](f, "Exists", bad)
		wantReason(t, err, conduit.InvalidArgument, "bad_argument")
	}
	_, err = call[*persistpb.BatchReply](f, "Transact", &persistpb.Batch{Scope: &persistpb.Scope{Paths: []string{"/a/**/b"}}})
	wantReason(t, err, conduit.InvalidArgument, "bad_argument")
	d := conduit.Duplex[*persistpb.Operation, *persistpb.Result](f.ctx, f.Service(serviceName), "Transaction")
	defer d.Close()
	if err := d.Send(&persistpb.Operation{Scope: &persistpb.Scope{Ids: []string{"x"}}}); err != nil {
		t.Fatal(err)
	}
	_, err = d.Recv()
	wantReason(t, err, conduit.InvalidArgument, "bad_argument")
}

func idOf(t *testing.T, r *persistpb.Result) *address.ResourceID {
	t.Helper()
	id, err := address.ParseResourceID(r.GetId())
	if err != nil {
		t.Fatal(err)
	}
	return &id
}

// sampleOperation has every field.
func sampleOperation() api.Operation {
	node := address.NewNodeID(address.UniqueInstanceID("i"), address.UniqueDeploymentID("d"))
	id := address.RandomResourceID(node)
	task := address.RandomTaskID(id)
	return api.Operation{
		Op: api.OpSave, Path: p("/a/b"), ID: &id, Data: []byte{0, 1, 2}, Offset: 1 << 40, Limit: 7, Cursor: "c", Absent: true, Task: &task, DueMS: 1 << 41,
		Key: "k", Scope: &api.Scope{Paths: []address.Path{*p("/a/**")}, IDs: []address.ResourceID{id}}, ReadOnly: true,
	}
}

func sampleResult() api.Result {
	o := sampleOperation()
	yes, no := true, false
	return api.Result{
		ID: o.ID, Exists: &yes, Removed: &no, Created: &yes, Data: []byte("x"), Paths: []address.Path{*o.Path}, IDs: []address.ResourceID{*o.ID},
		Listings: []api.Listing{{Path: *o.Path, ID: *o.ID, Cursor: "c"}}, Next: "n", Tasks: []api.Task{{ID: *o.Task, DueMS: 5}},
	}
}

// travels holds a value against itself by way of protobuf, of protobuf's JSON, and of encoding/json
// at either end of that.
func travels[M proto.Message, T interface{ Proto() M }](t *testing.T, v T, of func(M) (T, error)) {
	t.Helper()
	check := func(how string, m M) {
		t.Helper()
		if got, err := of(m); err != nil || !reflect.DeepEqual(got, v) {
			t.Errorf("by %s a %T becomes %+v, %v", how, v, got, err)
		}
	}
	fresh := func() M { return v.Proto().ProtoReflect().New().Interface().(M) } //nolint:errcheck,forcetypeassert // it is one
	if fields := v.Proto().ProtoReflect(); fields.Descriptor().Fields().Len() > 0 {
		for i := range fields.Descriptor().Fields().Len() {
			if fd := fields.Descriptor().Fields().Get(i); !fields.Has(fd) {
				t.Errorf("the sample of %T lacks %s", v, fd.Name())
			}
		}
	}
	raw, err := proto.Marshal(v.Proto())
	if err != nil {
		t.Fatal(err)
	}
	m := fresh()
	if err := proto.Unmarshal(raw, m); err != nil {
		t.Fatal(err)
	}
	check("protobuf", m)
	if raw, err = json.Marshal(v); err != nil {
		t.Fatal(err)
	}
	m = fresh()
	if err := protojson.Unmarshal(raw, m); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	check("encoding/json", m)
	if raw, err = protojson.Marshal(v.Proto()); err != nil {
		t.Fatal(err)
	}
	got := new(T)
	if err := json.Unmarshal(raw, got); err != nil || !reflect.DeepEqual(*got, v) {
		t.Errorf("by protojson a %T becomes %+v, %v: %s", v, *got, err, raw)
	}
}

func TestMessagesTravel(t *testing.T) {
	o, r := sampleOperation(), sampleResult()
	travels(t, o, api.OperationOf)
	travels(t, *o.Scope, api.ScopeOf)
	travels(t, r, api.ResultOf)
	l := r.Listings[0]
	l.More = []api.Listing{{Path: *o.Path, ID: *o.ID}, {Path: *o.Path, ID: *o.ID, Cursor: "d"}}
	travels(t, l, api.ListingOf)
	travels(t, r.Tasks[0], api.TaskOf)
	travels(t, api.Batch{Scope: *o.Scope, Operations: []api.Operation{o}, Key: "k"}, api.BatchOf)
	travels(t, api.BatchReply{Results: []api.Result{r}}, api.BatchReplyOf)
	travels(t, api.Piece{Size: 1 << 40, Data: []byte("x")}, api.PieceOf)
	travels(t, api.WriteReply{ID: *o.ID, Size: 1 << 40}, api.WriteReplyOf)
	travels(t, api.WatchRequest{Path: *o.Path, Revision: "r"}, api.WatchRequestOf)
	travels(t, api.Event{Kind: api.EventChanges, Revision: "r", Changes: []api.Change{{Path: *o.Path, ID: o.ID}, {Path: *o.Path, Removed: true}}}, api.EventOf)
	travels(t, api.TaskRequest{Path: o.Path, Window: 3, LeaseMS: 1 << 35}, api.TaskRequestOf)
}

// What is kept under a key, in the file: the digest of a request, and an answer. Both are
// of this JSON, so it must stay, to the byte, over all versions: a caller who asks again
// after an upgrade is told key_reused else.
func TestKeptJSONStays(t *testing.T) {
	node := address.NewNodeID(address.UniqueInstanceID("i"), address.UniqueDeploymentID("d"))
	id := address.ResourceIDFromUUID(node, [16]byte{1})
	o, r := sampleOperation(), sampleResult()
	task := address.TaskIDFromUUID(id, [16]byte{2})
	o.ID, o.Task, o.Scope.IDs = &id, &task, []address.ResourceID{id}
	r.ID, r.IDs, r.Tasks, r.Listings = &id, o.Scope.IDs, []api.Task{{ID: task, DueMS: 5}}, []api.Listing{{Path: *o.Path, ID: id}}
	for _, row := range []struct {
		v    any
		want string
	}{
		{api.Batch{Scope: *o.Scope, Operations: []api.Operation{o, {Op: api.OpUnlink}}, Key: "k"}, `{"scope":{"paths":["/a/**"],"ids":["ID"]},"operations":[{"op":"save","path":"/a/b","id":"ID","data":"AAEC","offset":"1099511627776","limit":7,"cursor":"c","absent":true,"task":"TASK","due_ms":"2199023255552","key":"k","scope":{"paths":["/a/**"],"ids":["ID"]},"read_only":true},{"op":"unlink"}],"key":"k"}`},
		{api.BatchReply{Results: []api.Result{r, {}}}, `{"results":[{"id":"ID","exists":true,"removed":false,"created":true,"data":"eA==","paths":["/a/b"],"ids":["ID"],"listings":[{"path":"/a/b","id":"ID"}],"next":"n","tasks":[{"id":"TASK","due_ms":"5"}]},{}]}`},
	} {
		got, err := json.Marshal(row.v)
		text := strings.NewReplacer(task.String(), "TASK").Replace(string(got))
		if text = strings.ReplaceAll(text, id.String(), "ID"); err != nil || text != row.want {
			t.Errorf("%T is %s, %v", row.v, text, err)
		}
	}
}

// FuzzBatch feeds what Transact decodes: a batch that is read can be written, and is the
// same when it is read again.
func FuzzBatch(f *testing.F) {
	o := sampleOperation()
	seed, err := proto.Marshal(api.Batch{Scope: *o.Scope, Operations: []api.Operation{o, {Op: api.OpCommit}}, Key: "k"}.Proto())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed, false)
	f.Add([]byte(`{"scope":{"paths":["/a"]},"operations":[{"op":"save","path":"/a","data":"NDI=","due_ms":"1"},{}],"key":"k"}`), true)
	f.Add([]byte(`{"operations":[{"limit":-5,"data":"","path":"/"}]}`), true)
	f.Add([]byte(`{"operations":[null]}`), true)
	f.Add([]byte(`{"operations":[{"id":"x"}]}`), true)
	f.Fuzz(func(t *testing.T, data []byte, text bool) {
		ct := conduit.ContentProto
		if text {
			ct = conduit.ContentJSON
		}
		m, err := conduit.Decode[*persistpb.Batch](conduit.Message{ContentType: ct, Data: data})
		if err != nil {
			return
		}
		b, err := api.BatchOf(m)
		if err != nil {
			return
		}
		_, again, err := conduit.EncodeFor(ct, b.Proto())
		if err != nil {
			t.Fatal(err)
		}
		if m, err = conduit.Decode[*persistpb.Batch](conduit.Message{ContentType: ct, Data: again}); err != nil {
			t.Fatal(err)
		}
		if second, err := api.BatchOf(m); err != nil || !reflect.DeepEqual(second, b) {
			t.Fatalf("%+v becomes %+v, %v", b, second, err)
		}
	})
}

// BenchmarkCodec is what one Save costs beside the call itself: request and reply, each
// written and read, with contents of 128 bytes.
func BenchmarkCodec(b *testing.B) {
	o := sampleOperation()
	request := api.Operation{Path: o.Path, Data: make([]byte, 128), Key: "0123456789abcdef"}
	reply := api.Result{ID: o.ID}
	b.Run("protobuf", func(b *testing.B) {
		for b.Loop() {
			raw, _ := proto.Marshal(request.Proto())
			in := &persistpb.Operation{}
			_ = proto.Unmarshal(raw, in)
			_, _ = api.OperationOf(in)
			raw, _ = proto.Marshal(reply.Proto())
			out := &persistpb.Result{}
			_ = proto.Unmarshal(raw, out)
			if r, err := api.ResultOf(out); err != nil || *r.ID != *reply.ID {
				b.Fatal(err)
			}
		}
	})
	b.Run("json", func(b *testing.B) {
		for b.Loop() {
			raw, _ := protojson.Marshal(request.Proto())
			in := &persistpb.Operation{}
			_ = protojson.Unmarshal(raw, in)
			_, _ = api.OperationOf(in)
			raw, _ = protojson.Marshal(reply.Proto())
			out := &persistpb.Result{}
			_ = protojson.Unmarshal(raw, out)
			if r, err := api.ResultOf(out); err != nil || *r.ID != *reply.ID {
				b.Fatal(err)
			}
		}
	})
}
