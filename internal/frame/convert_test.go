package frame

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// parseAll returns the packet's frames as the generated type. If a cold body is
// malformed the frame is returned with an empty one and the error in cold.
func parseAll(packet []byte) (frames []*conduitv1.Frame, sizes []int, cold, err error) {
	var p Parser
	var f Frame
	p.Reset(packet)
	for {
		ok, err := p.Next(&f)
		if !ok || err != nil {
			return frames, sizes, cold, err
		}
		g, err := toGenerated(&f)
		if err != nil {
			cold = err
		}
		frames = append(frames, g)
		sizes = append(sizes, f.Size)
	}
}

func toGenerated(f *Frame) (*conduitv1.Frame, error) {
	g := &conduitv1.Frame{Call: f.Call}
	var err error
	switch f.Kind {
	case KindUnknown:
	case KindHello:
		m := &conduitv1.Hello{}
		err = unmarshalCold(f.Body, m)
		g.Kind = &conduitv1.Frame_Hello{Hello: m}
	case KindInvoke:
		g.Kind = &conduitv1.Frame_Invoke{Invoke: toInvoke(&f.Invoke)}
	case KindData:
		g.Kind = &conduitv1.Frame_Data{Data: toData(&f.Data)}
	case KindFailure:
		m := &conduitv1.Failure{}
		err = unmarshalCold(f.Body, m)
		g.Kind = &conduitv1.Frame_Failure{Failure: m}
	case KindCancel:
		g.Kind = &conduitv1.Frame_Cancel{Cancel: &conduitv1.Cancel{Reason: string(f.Reason)}}
	case KindCredit:
		g.Kind = &conduitv1.Frame_Credit{Credit: &conduitv1.Credit{Bytes: f.Credit}}
	case KindGoAway:
		m := &conduitv1.GoAway{}
		err = unmarshalCold(f.Body, m)
		g.Kind = &conduitv1.Frame_GoAway{GoAway: m}
	case KindStatus:
		m := &conduitv1.Status{}
		err = unmarshalCold(f.Body, m)
		g.Kind = &conduitv1.Frame_Status{Status: m}
	case KindPing:
		g.Kind = &conduitv1.Frame_Ping{Ping: &conduitv1.Ping{Nonce: f.Ping.Nonce, Ack: f.Ping.Ack}}
	default:
		err = fmt.Errorf("kind %v", f.Kind)
	}
	return g, err
}

func unmarshalCold(body []byte, m proto.Message) error {
	err := proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(body, m)
	if err != nil {
		proto.Reset(m)
	}
	return err
}

func toData(d *Data) *conduitv1.Data {
	g := &conduitv1.Data{Part: d.Part, ContentType: string(d.ContentType), Bytes: d.Bytes, More: d.More, Last: d.Last}
	if d.HasTotal {
		g.Total = new(d.Total)
	}
	return g
}

func toInvoke(in *Invoke) *conduitv1.Invoke {
	g := &conduitv1.Invoke{
		Instance:      string(in.Instance),
		Deployment:    string(in.Deployment),
		Element:       string(in.Element),
		Service:       string(in.Service),
		Method:        string(in.Method),
		ContentType:   string(in.ContentType),
		Accept:        string(in.Accept),
		TimeoutMicros: in.TimeoutMicros,
		Units:         in.Units,
		ReplyCredit:   in.ReplyCredit,
		Attempt:       in.Attempt,
		Background:    in.Background,
		Parent:        in.Parent,
		Chain:         toStrings(in.Chain),
		Traceparent:   string(in.TraceParent),
		Tracestate:    string(in.TraceState),
	}
	if in.HasOrdinal {
		g.Ordinal = new(in.Ordinal)
	}
	if in.HasData {
		g.Data = toData(&in.Data)
	}
	if in.HasAs {
		g.As = &conduitv1.AsWhom{
			Kind:    conduitv1.AsWhom_Kind(in.As.Kind),
			Session: string(in.As.Session),
			Name:    string(in.As.Name),
			Level:   conduitv1.Level(in.As.Level),
		}
	}
	if in.HasCaller {
		g.Caller = &conduitv1.Caller{
			User:    string(in.Caller.User),
			Level:   conduitv1.Level(in.Caller.Level),
			Chain:   toStrings(in.Caller.Chain),
			Peer:    string(in.Caller.Peer),
			Attempt: in.Caller.Attempt,
		}
	}
	return g
}

func toStrings(chain [][]byte) []string {
	var s []string
	for _, v := range chain {
		s = append(s, string(v))
	}
	return s
}

// generatedAll is what the generated code makes of a packet.
func generatedAll(packet []byte) ([]*conduitv1.Frame, error) {
	var m conduitv1.Packet
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(packet, &m); err != nil {
		return nil, err
	}
	return m.GetFrames(), nil
}

func equalFrames(t *testing.T, got, want []*conduitv1.Frame) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d frames, want %d", len(got), len(want))
	}
	for i := range got {
		if !proto.Equal(got[i], want[i]) {
			t.Fatalf("frame %d:\n got %v\nwant %v", i, got[i], want[i])
		}
	}
}

// emptyCold rewrites a packet that the parser takes with the bodies of the cold
// kinds empty, so that what is left must please the generated code too.
func emptyCold(t *testing.T, packet []byte) []byte {
	t.Helper()
	return rewrite(t, packet, func(num protowire.Number, frame []byte) []byte {
		if num != 1 {
			return frame
		}
		return rewrite(t, frame, func(num protowire.Number, body []byte) []byte {
			switch Kind(num - 1) {
			case KindHello, KindFailure, KindGoAway, KindStatus:
				return nil
			default:
				return body
			}
		})
	})
}

// rewrite passes each length-delimited field of a message through edit.
func rewrite(t *testing.T, b []byte, edit func(protowire.Number, []byte) []byte) []byte {
	t.Helper()
	var out []byte
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			t.Fatalf("tag: %v", protowire.ParseError(n))
		}
		v := protowire.ConsumeFieldValue(num, typ, b[n:])
		if v < 0 {
			t.Fatalf("value: %v", protowire.ParseError(v))
		}
		if typ == protowire.BytesType {
			body, _ := protowire.ConsumeBytes(b[n:])
			out = protowire.AppendTag(out, num, typ)
			out = protowire.AppendBytes(out, edit(num, body))
		} else {
			out = append(out, b[:n+v]...)
		}
		b = b[n+v:]
	}
	return out
}

// stricter holds the faults that the generated code does not know.
func stricter(what string) bool {
	switch what {
	case faultRepeatedKind, faultRepeatedData, faultRepeatedAs, faultRepeatedCaller, faultChain, faultEnum:
		return true
	default:
		return false
	}
}
