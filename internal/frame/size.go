package frame

import "google.golang.org/protobuf/encoding/protowire"

// BodySize returns the [Frame.Size] of a frame whose sub-message is bodyLen
// bytes long.
func BodySize(call uint64, bodyLen int) int {
	return uintSize(1, call) + 1 + protowire.SizeBytes(bodyLen)
}

// DataSize returns the [Frame.Size] of what [AppendData] writes. It takes the
// same time whatever the length of the bytes.
func DataSize(call uint64, d *Data) int {
	return BodySize(call, dataSize(d))
}

// InvokeSize returns the [Frame.Size] of what [AppendInvoke] writes.
func InvokeSize(call uint64, in *Invoke) int {
	return BodySize(call, invokeSize(in))
}

func dataSize(d *Data) int {
	n := uintSize(1, uint64(d.Part)) + bytesSize(1, d.ContentType) + bytesSize(1, d.Bytes) + boolSize(d.More) + boolSize(d.Last)
	if d.HasTotal {
		n += 1 + protowire.SizeVarint(d.Total)
	}
	return n
}

func invokeSize(in *Invoke) int {
	n := bytesSize(1, in.Instance) + bytesSize(1, in.Deployment) + bytesSize(1, in.Element) +
		bytesSize(1, in.Service) + bytesSize(1, in.Method) +
		bytesSize(1, in.ContentType) + bytesSize(1, in.Accept) +
		uintSize(1, in.TimeoutMicros) + uintSize(1, uint64(in.Units)) +
		uintSize(1, uint64(in.ReplyCredit)) + uintSize(1, uint64(in.Attempt)) +
		boolSize(in.Background) + uintSize(2, in.Parent) + chainSize(2, in.Chain) +
		bytesSize(2, in.TraceParent) + bytesSize(2, in.TraceState)
	if in.HasOrdinal {
		n += 1 + protowire.SizeVarint(uint64(in.Ordinal))
	}
	if in.HasData {
		n += 1 + protowire.SizeBytes(dataSize(&in.Data))
	}
	if in.HasAs {
		n += 1 + protowire.SizeBytes(asSize(&in.As))
	}
	if in.HasCaller {
		n += 2 + protowire.SizeBytes(callerSize(&in.Caller))
	}
	return n
}

func asSize(as *AsWhom) int {
	return uintSize(1, uint64(as.Kind)) + bytesSize(1, as.Session) + bytesSize(1, as.Name) + uintSize(1, uint64(as.Level))
}

func callerSize(c *Caller) int {
	return bytesSize(1, c.User) + uintSize(1, uint64(c.Level)) + chainSize(1, c.Chain) +
		bytesSize(1, c.Peer) + uintSize(1, uint64(c.Attempt))
}

// The sizes below are of a field with a tag of tagLen bytes, one for numbers up
// to 15 and two from 16 on, without presence: a zero value is not written.

func uintSize(tagLen int, v uint64) int {
	if v == 0 {
		return 0
	}
	return tagLen + protowire.SizeVarint(v)
}

func boolSize(v bool) int {
	if v {
		return 2
	}
	return 0
}

func bytesSize(tagLen int, v []byte) int {
	if len(v) == 0 {
		return 0
	}
	return tagLen + protowire.SizeBytes(len(v))
}

// chainSize counts empty entries too: in a repeated field they are written.
func chainSize(tagLen int, chain [][]byte) int {
	n := 0
	for _, v := range chain {
		n += tagLen + protowire.SizeBytes(len(v))
	}
	return n
}
