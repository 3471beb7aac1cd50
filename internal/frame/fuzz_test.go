package frame

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// FuzzParse holds the parser to the generated code. Where one takes what the
// other refuses, it must be for one of the reasons in the package comment.
func FuzzParse(f *testing.F) {
	for _, c := range goodCases() {
		if c.packet == nil {
			c.packet = marshal(f, c.frames...)
		}
		f.Add(c.packet)
	}
	for _, c := range faultCases() {
		f.Add(c.packet)
	}
	f.Add(hx("0a 03 12 01 ff"))                   // a cold body that protobuf refuses
	f.Add(hx("0a 05 2a 01 07 3a 00"))             // the same, replaced by a later kind
	f.Add(hx("0a 08 12 03 0a 01 61 22 00 12 00")) // a cold kind again behind another

	f.Fuzz(func(t *testing.T, packet []byte) {
		before := bytes.Clone(packet)
		ours, _, cold, err := parseAll(packet)
		if !bytes.Equal(packet, before) {
			t.Fatal("the packet was written to")
		}
		theirs, gerr := generatedAll(packet)

		if err != nil {
			var fe *Error
			if !errors.As(err, &fe) {
				t.Fatalf("error %T", err)
			}
			if fe.Offset < 0 || fe.Offset > len(packet) {
				t.Fatalf("offset %d of %d", fe.Offset, len(packet))
			}
			if gerr == nil && !stricter(fe.What) {
				t.Fatalf("only we refuse: %v", err)
			}
			if gerr == nil && len(ours) <= len(theirs) {
				// What came before the fault must be right.
				equalFrames(t, ours, theirs[:len(ours)])
			}
			return
		}
		if gerr == nil {
			if cold != nil {
				t.Fatalf("a body of a packet that protobuf takes: %v", cold)
			}
			equalFrames(t, ours, theirs)
			return
		}
		// Only what is in a body that we do not look into may be the reason.
		emptied := emptyCold(t, packet)
		theirs, gerr = generatedAll(emptied)
		if gerr != nil {
			t.Fatalf("only protobuf refuses: %v", gerr)
		}
		ours, _, _, err = parseAll(emptied)
		if err != nil {
			t.Fatal(err)
		}
		equalFrames(t, ours, theirs)
	})
}

// FuzzAppend: what we write is what the generated code writes, has the size that
// we said, and reads back the same.
func FuzzAppend(f *testing.F) {
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{1}, 400))
	f.Add(bytes.Repeat([]byte("\xff\x03abc\x80"), 90))
	f.Add(bytes.Repeat([]byte("\x7f\x00\x81\xffz"), 120))

	f.Fuzz(func(t *testing.T, raw []byte) {
		s := source{raw}
		call := s.uint()
		in := s.invoke()
		d := s.data()

		packet := AppendInvoke(nil, call, &in)
		split := len(packet)
		packet = AppendData(packet, call, &d)

		// An Invoke or a Data that is there is there, even when empty.
		want := []*conduitv1.Frame{invokeFrame(call, toInvoke(&in)), dataFrame(call, toData(&d))}
		if generated := marshal(t, want...); !bytes.Equal(packet, generated) {
			t.Fatalf("got\n%x, want\n%x", packet, generated)
		}
		n, m := InvokeSize(call, &in), DataSize(call, &d)
		if n+packetOverhead(n) != split || m+packetOverhead(m) != len(packet)-split {
			t.Fatalf("sizes %d and %d, written %d and %d", n, m, split, len(packet)-split)
		}
		got, sizes, _, err := parseAll(packet)
		if err != nil {
			t.Fatal(err)
		}
		equalFrames(t, got, want)
		if sizes[0] != n || sizes[1] != m {
			t.Fatalf("Frame.Size %v, want %d, %d", sizes, n, m)
		}
	})
}

// source makes values of a fuzzer's bytes; at their end all is zero.
type source struct{ b []byte }

func (s *source) byte() byte {
	if len(s.b) == 0 {
		return 0
	}
	v := s.b[0]
	s.b = s.b[1:]
	return v
}

func (s *source) bool() bool { return s.byte()&1 != 0 }

// uint takes up to eight bytes, so that every length of varint comes up.
func (s *source) uint() uint64 {
	var v [8]byte
	for i := range min(int(s.byte()), 8) {
		v[i] = s.byte()
	}
	return binary.LittleEndian.Uint64(v[:])
}

func (s *source) bytes() []byte {
	n := min(int(s.byte()), len(s.b))
	v := s.b[:n]
	s.b = s.b[n:]
	return v
}

func (s *source) str() []byte { return []byte(strings.ToValidUTF8(string(s.bytes()), "?")) }

func (s *source) chain() [][]byte {
	var chain [][]byte
	for range s.byte() % (MaxChain + 1) {
		chain = append(chain, s.str())
	}
	return chain
}

func (s *source) data() Data {
	return Data{
		Part: uint32(s.uint()), ContentType: s.str(), Total: s.uint(), HasTotal: s.bool(),
		Bytes: s.bytes(), More: s.bool(), Last: s.bool(),
	}
}

func (s *source) invoke() Invoke {
	return Invoke{
		Instance: s.str(), Deployment: s.str(), Element: s.str(), Service: s.str(), Method: s.str(),
		Ordinal: uint32(s.uint()), HasOrdinal: s.bool(), ContentType: s.str(), Accept: s.str(),
		TimeoutMicros: s.uint(), Units: uint32(s.uint()), ReplyCredit: uint32(s.uint()), Attempt: uint32(s.uint()), Background: s.bool(),
		HasData: s.bool(), Data: s.data(),
		HasAs: s.bool(), As: AsWhom{Kind: AsKind(s.byte()), Session: s.str(), Name: s.str(), Level: s.byte()},
		HasCaller: s.bool(), Caller: Caller{User: s.str(), Level: s.byte(), Chain: s.chain(), Peer: s.str(), Attempt: uint32(s.uint())},
		Parent: s.uint(), Chain: s.chain(), TraceParent: s.str(), TraceState: s.str(),
	}
}
