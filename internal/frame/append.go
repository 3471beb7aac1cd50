package frame

import "google.golang.org/protobuf/encoding/protowire"

// The functions in this file append one element of Packet.frames to dst: tag,
// length and Frame. They write what the generated code writes, byte for byte,
// keep nothing of what they are given, and allocate only where dst is too small.
// They may be called concurrently with different dst.
//
// They check nothing: strings must be valid UTF-8 and chains at most MaxChain
// long, or the other end refuses the packet and closes the link. Whoever takes
// strings from outside checks them at the door.

// AppendInvoke appends a KindInvoke frame.
func AppendInvoke(dst []byte, call uint64, in *Invoke) []byte {
	dst = appendHead(dst, call, KindInvoke, invokeSize(in))
	dst = appendBytes(dst, 1, in.Instance)
	dst = appendBytes(dst, 2, in.Deployment)
	dst = appendBytes(dst, 3, in.Element)
	dst = appendBytes(dst, 4, in.Service)
	dst = appendBytes(dst, 5, in.Method)
	if in.HasOrdinal {
		dst = protowire.AppendVarint(append(dst, 6<<3|byte(protowire.VarintType)), uint64(in.Ordinal))
	}
	dst = appendBytes(dst, 7, in.ContentType)
	dst = appendBytes(dst, 8, in.Accept)
	dst = appendUint(dst, 9, in.TimeoutMicros)
	dst = appendUint(dst, 10, uint64(in.Units))
	dst = appendUint(dst, 11, uint64(in.ReplyCredit))
	dst = appendUint(dst, 12, uint64(in.Attempt))
	dst = appendBool(dst, 13, in.Background)
	if in.HasData {
		dst = appendLen(dst, 14, dataSize(&in.Data))
		dst = appendData(dst, &in.Data)
	}
	if in.HasAs {
		as := &in.As
		dst = appendLen(dst, 15, asSize(as))
		dst = appendUint(dst, 1, uint64(as.Kind))
		dst = appendBytes(dst, 2, as.Session)
		dst = appendBytes(dst, 3, as.Name)
		dst = appendUint(dst, 4, uint64(as.Level))
	}
	if in.HasCaller {
		c := &in.Caller
		dst = appendLen(dst, 16, callerSize(c))
		dst = appendBytes(dst, 1, c.User)
		dst = appendUint(dst, 2, uint64(c.Level))
		dst = appendChain(dst, 3, c.Chain)
		dst = appendBytes(dst, 4, c.Peer)
		dst = appendUint(dst, 5, uint64(c.Attempt))
	}
	dst = appendUint(dst, 17, in.Parent)
	dst = appendChain(dst, 18, in.Chain)
	dst = appendBytes(dst, 19, in.TraceParent)
	return appendBytes(dst, 20, in.TraceState)
}

// AppendData appends a KindData frame.
func AppendData(dst []byte, call uint64, d *Data) []byte {
	return appendData(appendHead(dst, call, KindData, dataSize(d)), d)
}

// AppendBody appends a frame of any kind from its encoded sub-message, which
// may be a [Frame.Body] passed on as it is. It panics for a kind that has no
// field, KindUnknown included.
func AppendBody(dst []byte, call uint64, kind Kind, body []byte) []byte {
	if kind == KindUnknown || kind > KindPing {
		panic("frame: AppendBody of " + kind.String())
	}
	return append(appendHead(dst, call, kind, len(body)), body...)
}

// AppendCancel appends a KindCancel frame.
func AppendCancel(dst []byte, call uint64, reason string) []byte {
	n := 0
	if reason != "" {
		n = 1 + protowire.SizeBytes(len(reason))
	}
	dst = appendHead(dst, call, KindCancel, n)
	if reason != "" {
		dst = append(appendLen(dst, 1, len(reason)), reason...)
	}
	return dst
}

// AppendCredit appends a KindCredit frame that grants n bytes more: of the
// link's credit on call 0, else of the call's.
func AppendCredit(dst []byte, call uint64, n uint64) []byte {
	return appendUint(appendHead(dst, call, KindCredit, uintSize(1, n)), 1, n)
}

// AppendPing appends a KindPing frame, on call 0.
func AppendPing(dst []byte, nonce uint64, ack bool) []byte {
	dst = appendHead(dst, 0, KindPing, uintSize(1, nonce)+boolSize(ack))
	return appendBool(appendUint(dst, 1, nonce), 2, ack)
}

func appendData(dst []byte, d *Data) []byte {
	dst = appendUint(dst, 1, uint64(d.Part))
	dst = appendBytes(dst, 2, d.ContentType)
	if d.HasTotal {
		dst = protowire.AppendVarint(append(dst, 3<<3|byte(protowire.VarintType)), d.Total)
	}
	dst = appendBytes(dst, 4, d.Bytes)
	dst = appendBool(dst, 5, d.More)
	return appendBool(dst, 6, d.Last)
}

// appendHead appends all of a frame that precedes its sub-message.
func appendHead(dst []byte, call uint64, kind Kind, bodyLen int) []byte {
	dst = appendLen(dst, 1, BodySize(call, bodyLen))
	dst = appendUint(dst, 1, call)
	return appendLen(dst, protowire.Number(kind)+1, bodyLen)
}

func appendLen(dst []byte, num protowire.Number, n int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(dst, num, protowire.BytesType), uint64(n))
}

func appendUint(dst []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return dst
	}
	return protowire.AppendVarint(protowire.AppendTag(dst, num, protowire.VarintType), v)
}

func appendBool(dst []byte, num protowire.Number, v bool) []byte {
	if !v {
		return dst
	}
	return append(protowire.AppendTag(dst, num, protowire.VarintType), 1)
}

func appendBytes(dst []byte, num protowire.Number, v []byte) []byte {
	if len(v) == 0 {
		return dst
	}
	return append(appendLen(dst, num, len(v)), v...)
}

func appendChain(dst []byte, num protowire.Number, chain [][]byte) []byte {
	for _, v := range chain {
		dst = append(appendLen(dst, num, len(v)), v...)
	}
	return dst
}
