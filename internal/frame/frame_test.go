package frame

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// marshal is what the generated code makes of frames.
func marshal(tb testing.TB, frames ...*conduitv1.Frame) []byte {
	tb.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(&conduitv1.Packet{Frames: frames})
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// parseOne parses a packet of one frame.
func parseOne(tb testing.TB, packet []byte) Frame {
	tb.Helper()
	var p Parser
	var f Frame
	p.Reset(packet)
	if ok, err := p.Next(&f); !ok || err != nil {
		tb.Fatalf("Next: %t, %v", ok, err)
	}
	g := f
	if ok, err := p.Next(&f); ok || err != nil {
		tb.Fatalf("Next at the end: %t, %v", ok, err)
	}
	return g
}

// A field that someone adds to the proto and forgets here fails this test: the
// full Invoke must have every field, and survive the way through our types.
func TestNoFieldForgotten(t *testing.T) {
	full := fullInvoke()
	for _, m := range []proto.Message{full, full.GetData(), full.GetAs(), full.GetCaller()} {
		r := m.ProtoReflect()
		set := 0
		r.Range(func(protoreflect.FieldDescriptor, protoreflect.Value) bool { set++; return true })
		if n := r.Descriptor().Fields().Len(); set != n {
			t.Errorf("%s: %d fields set, it has %d", r.Descriptor().Name(), set, n)
		}
	}
	want := marshal(t, invokeFrame(300, full))
	f := parseOne(t, want)
	if got := AppendInvoke(nil, f.Call, &f.Invoke); !bytes.Equal(got, want) {
		t.Errorf("got\n%x, want\n%x", got, want)
	}

	kinds := (&conduitv1.Frame{}).ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
	if kinds.Len() != int(KindPing) {
		t.Errorf("the proto has %d kinds, want %d", kinds.Len(), KindPing)
	}
	for i := range kinds.Len() {
		k := Kind(kinds.Get(i).Number() - 1)
		if k.String() != string(kinds.Get(i).Name()) {
			t.Errorf("kind %d is %q, the proto says %q", k, k, kinds.Get(i).Name())
		}
	}
	if KindUnknown.String() != "unknown" || Kind(99).String() != "kind 99" {
		t.Errorf("strings of no kind: %q, %q", KindUnknown, Kind(99))
	}
	for want, got := range map[conduitv1.AsWhom_Kind]AsKind{
		conduitv1.AsWhom_KIND_UNSET: AsUnset, conduitv1.AsWhom_KIND_LINK: AsLink, conduitv1.AsWhom_KIND_SESSION: AsSession,
		conduitv1.AsWhom_KIND_ANONYMOUS: AsAnonymous, conduitv1.AsWhom_KIND_VOUCHED: AsVouched,
		conduitv1.AsWhom_KIND_CALLER: AsCaller, conduitv1.AsWhom_KIND_SELF: AsSelf,
	} {
		if int(want) != int(got) {
			t.Errorf("%v is %d here", want, got)
		}
	}
}

// What an earlier, fuller parse left in a Frame must not show in the next one.
func TestFrameReuse(t *testing.T) {
	frames := []*conduitv1.Frame{
		invokeFrame(9, fullInvoke()), invokeFrame(0, &conduitv1.Invoke{Data: &conduitv1.Data{}, As: &conduitv1.AsWhom{}, Caller: &conduitv1.Caller{}}),
		dataFrame(9, fullInvoke().GetData()), dataFrame(0, &conduitv1.Data{}),
		creditFrame(9, 5), creditFrame(0, 0),
		pingFrame(9, true), pingFrame(0, false),
		{Call: 9, Kind: &conduitv1.Frame_Cancel{Cancel: &conduitv1.Cancel{Reason: "r"}}},
		{Kind: &conduitv1.Frame_Cancel{Cancel: &conduitv1.Cancel{}}},
		{},
	}
	got, _, cold, err := parseAll(marshal(t, frames...))
	if err != nil || cold != nil {
		t.Fatal(err, cold)
	}
	equalFrames(t, got, frames)
}

func TestAliasing(t *testing.T) {
	packet := marshal(t, dataFrame(1, &conduitv1.Data{ContentType: "t", Bytes: []byte("payload"), Last: true}))
	before := bytes.Clone(packet)
	f := parseOne(t, packet)
	if at := bytes.Index(packet, []byte("payload")); &f.Data.Bytes[0] != &packet[at] {
		t.Error("the payload was copied")
	}
	for name, v := range map[string][]byte{"Body": f.Body, "Bytes": f.Data.Bytes, "ContentType": f.Data.ContentType} {
		if cap(v) != len(v) {
			t.Errorf("%s: capacity %d, length %d: an append would write into the packet", name, cap(v), len(v))
		}
	}
	if !bytes.Equal(packet, before) {
		t.Error("the packet was written to")
	}
}

func TestParserEnds(t *testing.T) {
	var p Parser
	var f Frame
	for range 2 {
		if ok, err := p.Next(&f); ok || err != nil {
			t.Fatalf("zero Parser: %t, %v", ok, err)
		}
	}
	p.Reset(hx("0a 00 0a 05"))
	if ok, err := p.Next(&f); !ok || err != nil {
		t.Fatalf("good frame: %t, %v", ok, err)
	}
	_, first := p.Next(&f)
	ok, again := p.Next(&f)
	var fe *Error
	if ok || first == nil || !errors.Is(again, first) || !errors.As(first, &fe) {
		t.Fatalf("a fault must stay: %v, then %t, %v", first, ok, again)
	}
	if want := "frame: malformed packet: truncated at byte 3"; first.Error() != want {
		t.Errorf("got %q, want %q", first, want)
	}
	p.Reset(hx("0a 00"))
	if ok, err := p.Next(&f); !ok || err != nil {
		t.Errorf("after Reset: %t, %v", ok, err)
	}
}

// Each append function writes the generated code's bytes and keeps what is in
// dst, and the sizes are those that the parser finds.
func TestAppend(t *testing.T) {
	cancel := func(call uint64, reason string) *conduitv1.Frame {
		return &conduitv1.Frame{Call: call, Kind: &conduitv1.Frame_Cancel{Cancel: &conduitv1.Cancel{Reason: reason}}}
	}
	for _, c := range []struct {
		name string
		got  []byte
		want *conduitv1.Frame
	}{
		{"cancel", AppendCancel(nil, 5, "deadline"), cancel(5, "deadline")},
		{"cancel bare", AppendCancel(nil, 5, ""), cancel(5, "")},
		{"cancel long", AppendCancel(nil, 5, strings.Repeat("x", 200)), cancel(5, strings.Repeat("x", 200))},
		{"link credit", AppendCredit(nil, 0, 1<<20), creditFrame(0, 1<<20)},
		{"call credit", AppendCredit(nil, 1<<40, 1), creditFrame(1<<40, 1)},
		{"no credit", AppendCredit(nil, 1, 0), creditFrame(1, 0)},
		{"ping", AppendPing(nil, 1<<60, false), pingFrame(1<<60, false)},
		{"ack", AppendPing(nil, 0, true), pingFrame(0, true)},
		{"body", AppendBody(nil, 7, KindStatus, hx("08 05")), &conduitv1.Frame{Call: 7, Kind: &conduitv1.Frame_Status{Status: &conduitv1.Status{Available: 5}}}},
	} {
		want := marshal(t, c.want)
		if !bytes.Equal(c.got, want) {
			t.Errorf("%s: got\n%x, want\n%x", c.name, c.got, want)
			continue
		}
		f := parseOne(t, c.got)
		if n := BodySize(f.Call, len(f.Body)); n != f.Size || n+packetOverhead(n) != len(c.got) {
			t.Errorf("%s: BodySize %d, overhead %d, Frame.Size %d of %d", c.name, n, packetOverhead(n), f.Size, len(c.got))
		}
	}
	if got := AppendPing([]byte("before"), 1, false); !bytes.Equal(got, append([]byte("before"), AppendPing(nil, 1, false)...)) {
		t.Errorf("dst is not kept: %x", got)
	}
	for _, k := range []Kind{KindUnknown, KindPing + 1} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("AppendBody of %v does not panic", k)
				}
			}()
			AppendBody(nil, 1, k, nil)
		}()
	}
}

// A frame passed on by its Body is the frame that came, for every kind.
func TestAppendBodyPassesOn(t *testing.T) {
	for _, c := range goodCases() {
		if c.packet != nil || len(c.frames) != 1 || c.frames[0].GetKind() == nil {
			continue
		}
		packet := marshal(t, c.frames...)
		f := parseOne(t, packet)
		if got := AppendBody(nil, f.Call, f.Kind, f.Body); !bytes.Equal(got, packet) {
			t.Errorf("%s: got\n%x, want\n%x", c.name, got, packet)
		}
	}
}

// Every length around the steps of a length varint.
func TestSizesAtVarintSteps(t *testing.T) {
	buf := make([]byte, 0, MaxPacket)
	payload := make([]byte, 1<<17)
	for _, step := range []int{0, 1 << 7, 1 << 14, 1 << 16, 1 << 17} {
		for n := max(0, step-24); n <= min(step+8, len(payload)); n++ {
			d := Data{Total: uint64(n), HasTotal: true, Bytes: payload[:n], Last: true}
			got := AppendData(buf, uint64(n), &d)
			f := parseOne(t, got)
			if want := DataSize(uint64(n), &d); f.Size != want || len(got) != want+packetOverhead(want) || len(f.Data.Bytes) != n {
				t.Fatalf("%d bytes: Size %d, DataSize %d, written %d", n, f.Size, want, len(got))
			}
			in := Invoke{HasData: true, Data: d}
			got = AppendInvoke(buf, uint64(n), &in)
			f = parseOne(t, got)
			if want := InvokeSize(uint64(n), &in); f.Size != want || len(got) != want+packetOverhead(want) {
				t.Fatalf("%d bytes: Size %d, InvokeSize %d, written %d", n, f.Size, want, len(got))
			}
		}
	}
}

func TestNoAllocs(t *testing.T) {
	full := parseOne(t, marshal(t, invokeFrame(300, fullInvoke())))
	packet := marshal(
		t, invokeFrame(300, fullInvoke()), dataFrame(300, &conduitv1.Data{Bytes: make([]byte, 32<<10), More: true}),
		creditFrame(0, 1<<20), pingFrame(1, true), &conduitv1.Frame{Call: 5, Kind: &conduitv1.Frame_Cancel{Cancel: &conduitv1.Cancel{Reason: "r"}}},
	)
	var p Parser
	var f Frame
	parse := func() {
		p.Reset(packet)
		for {
			ok, err := p.Next(&f)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				return
			}
		}
	}
	parse() // the chains grow once
	buf := make([]byte, 0, MaxPacket)
	data := Data{Total: 32 << 10, HasTotal: true, Bytes: make([]byte, 32<<10), Last: true}
	for _, c := range []struct {
		name string
		run  func()
	}{
		{"parse", parse},
		{"AppendInvoke", func() { AppendInvoke(buf, 300, &full.Invoke) }},
		{"AppendData", func() { AppendData(buf, 300, &data) }},
		{"AppendBody", func() { AppendBody(buf, 300, full.Kind, full.Body) }},
		{"AppendCancel", func() { AppendCancel(buf, 300, "deadline") }},
		{"AppendCredit", func() { AppendCredit(buf, 300, 1<<20) }},
		{"AppendPing", func() { AppendPing(buf, 300, true) }},
		{"sizes", func() {
			if packetOverhead(InvokeSize(300, &full.Invoke))+DataSize(300, &data)+BodySize(300, 5) == 0 {
				t.Fatal("no size")
			}
		}},
	} {
		if n := testing.AllocsPerRun(100, c.run); n != 0 {
			t.Errorf("%s: %v allocations", c.name, n)
		}
	}
}

// packetOverhead is how many bytes a frame of a size takes in its packet beyond itself:
// tag and length.
func packetOverhead(frameSize int) int { return 1 + protowire.SizeVarint(uint64(frameSize)) }
