package pluginlink

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// codecName is the content subtype of the link's stream: its messages are
// Packets already encoded. A server that knows no such codec reads and writes
// the same bytes as protobuf. Part of the protocol.
const codecName = "conduit-raw"

// The codec is chosen by name for the link's stream alone; all other RPCs, ours
// and go-plugin's, keep protobuf.
func init() { encoding.RegisterCodecV2(rawCodec{}) } //nolint:gochecknoinits // gRPC has no other place to register a codec

// rawMessage is one message of the link's stream.
type rawMessage struct {
	// out is what to write. gRPC keeps a message after SendMsg has returned,
	// so that the codec copies it into a pooled buffer of gRPC's.
	out []byte
	// in is what was read; its bytes are valid until free.
	in mem.Buffer
}

func (m *rawMessage) free() {
	if m.in != nil {
		m.in.Free()
		m.in = nil
	}
}

// rawCodec passes bytes. It has no state.
type rawCodec struct{}

func (rawCodec) Name() string { return codecName }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *rawMessage:
		return mem.BufferSlice{mem.Copy(m.out, packets)}, nil
	case proto.Message:
		b, err := proto.Marshal(m)
		if err != nil {
			return nil, err
		}
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return nil, fmt.Errorf("codec %s cannot write a %T", codecName, v)
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *rawMessage:
		m.free()
		// No copy when the message came in one HTTP/2 frame.
		m.in = data.MaterializeToBuffer(packets)
		return nil
	case proto.Message:
		return proto.Unmarshal(data.Materialize(), m)
	}
	return fmt.Errorf("codec %s cannot read a %T", codecName, v)
}
