package frame

import (
	"testing"

	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// benchInvoke is a usual unary request with a payload of n bytes.
func benchInvoke(n int) *conduitv1.Frame {
	return invokeFrame(12345, &conduitv1.Invoke{
		Deployment: "greeter", Element: "greeter", Service: "example.Greeter", Method: "Greet",
		ContentType: "application/json", TimeoutMicros: 5_000_000, Units: 1, ReplyCredit: 256 << 10,
		Data: &conduitv1.Data{Total: new(uint64(n)), Bytes: make([]byte, n), Last: true},
		As:   &conduitv1.AsWhom{Kind: conduitv1.AsWhom_KIND_LINK},
	})
}

func benchData(n int) *conduitv1.Frame {
	return dataFrame(12345, &conduitv1.Data{Total: new(uint64(n)), Bytes: make([]byte, n), Last: true})
}

func BenchmarkParseInvoke32(b *testing.B) { benchParse(b, benchInvoke(32)) }
func BenchmarkParseData32(b *testing.B)   { benchParse(b, benchData(32)) }
func BenchmarkParseData32K(b *testing.B)  { benchParse(b, benchData(32<<10)) }

func benchParse(b *testing.B, frame *conduitv1.Frame) {
	b.Helper()
	packet := marshal(b, frame)
	var p Parser
	var f Frame
	b.ReportAllocs()
	for b.Loop() {
		p.Reset(packet)
		if ok, err := p.Next(&f); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}

func BenchmarkAppendInvoke32(b *testing.B) {
	f := parseOne(b, marshal(b, benchInvoke(32)))
	buf := make([]byte, 0, MaxPacket)
	b.ReportAllocs()
	for b.Loop() {
		AppendInvoke(buf, f.Call, &f.Invoke)
	}
}

func BenchmarkAppendData32K(b *testing.B) {
	f := parseOne(b, marshal(b, benchData(32<<10)))
	buf := make([]byte, 0, MaxPacket)
	b.SetBytes(32 << 10)
	b.ReportAllocs()
	for b.Loop() {
		AppendData(buf, f.Call, &f.Data)
	}
}

// The generated code, to compare with.
func BenchmarkGeneratedParseInvoke32(b *testing.B) {
	packet := marshal(b, benchInvoke(32))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := generatedAll(packet); err != nil {
			b.Fatal(err)
		}
	}
}
