package frame

import (
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// What can be wrong with a packet, as [Error.What] says it. The golden vectors
// hold these texts, so they are the same in every language that uses them.
const (
	faultTruncated   = "truncated"
	faultVarint      = "varint overflow"
	faultFieldNumber = "field number out of range"
	faultWireType    = "reserved wire type"
	faultGroup       = "malformed group"
	faultUTF8        = "invalid UTF-8 in string"

	// From here on we are stricter than protobuf: see "Stricter than protobuf"
	// in the package comment.
	faultRepeatedKind   = "repeated kind"
	faultRepeatedData   = "repeated data in invoke"
	faultRepeatedAs     = "repeated as in invoke"
	faultRepeatedCaller = "repeated caller in invoke"
	faultChain          = "chain too long"
	faultEnum           = "enum value over 255"
)

// Error says that a packet is malformed. It costs the link: a reader that
// cannot trust one frame's bounds cannot find the next frame.
type Error struct {
	// Offset is where in the packet the fault lies, in bytes: at a field's tag,
	// or at its value when that is a bad varint, length or string.
	Offset int
	// What is the fault, in fixed words without any of the packet's content.
	What string
}

func (e *Error) Error() string {
	return fmt.Sprintf("frame: malformed packet: %s at byte %d", e.What, e.Offset)
}

// Parser walks the frames of one packet. Its zero value is a parser at the end
// of an empty packet. It keeps the packet until the next Reset and never writes
// to it. A Parser must not be used concurrently; several may read one packet.
type Parser struct {
	s   scanner
	err *Error
}

// Reset starts over with a packet. The packet must not change while the frames
// that alias it are in use. Reset(nil) lets go of the last one.
func (p *Parser) Reset(packet []byte) {
	p.s = scanner{b: packet}
	p.err = nil
}

// Next reads the packet's next frame into f. At the packet's end it returns
// false and nil; f is then as it was. A malformed packet gives false and an
// [*Error], the same at each further call; f then holds nothing of use.
//
// Frames before a malformed one are returned first: whoever must act on all of
// a packet or on nothing of it walks it twice.
func (p *Parser) Next(f *Frame) (bool, error) {
	if p.err != nil {
		return false, p.err
	}
	ok, err := p.next(f)
	if err != nil {
		p.err = err
		return false, err
	}
	return ok, nil
}

func (p *Parser) next(f *Frame) (bool, *Error) {
	s := &p.s
	for s.more() {
		at := s.i
		num, typ, err := s.tag()
		if err != nil {
			return false, err
		}
		if num != 1 || typ != protowire.BytesType {
			if err := s.skip(num, typ, at); err != nil {
				return false, err
			}
			continue
		}
		sub, err := s.sub()
		if err != nil {
			return false, err
		}
		return true, parseFrame(sub, f)
	}
	return false, nil
}

func parseFrame(s scanner, f *Frame) *Error {
	f.Call = 0
	f.Kind = KindUnknown
	f.Size = len(s.b) - s.i
	f.Body = nil
	for s.more() {
		at := s.i
		num, typ, err := s.tag()
		if err != nil {
			return err
		}
		switch {
		case num == 1 && typ == protowire.VarintType:
			f.Call, err = s.varint()
		case num >= 2 && num <= 10 && typ == protowire.BytesType:
			kind := Kind(num - 1)
			if kind == f.Kind {
				return &Error{at, faultRepeatedKind}
			}
			// The last kind wins, and what it replaces must be well formed too.
			f.Kind = kind
			err = parseBody(&s, f)
		default:
			err = s.skip(num, typ, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func parseBody(s *scanner, f *Frame) *Error {
	sub, err := s.sub()
	if err != nil {
		return err
	}
	f.Body = sub.b[sub.i:len(sub.b):len(sub.b)]
	switch f.Kind {
	case KindInvoke:
		return parseInvoke(sub, &f.Invoke)
	case KindData:
		return parseData(sub, &f.Data)
	case KindCancel:
		return parseCancel(sub, f)
	case KindCredit:
		return parseCredit(sub, f)
	case KindPing:
		return parsePing(sub, &f.Ping)
	default: // cold: the user unmarshals Body
		return nil
	}
}

func parseInvoke(s scanner, in *Invoke) *Error {
	*in = Invoke{Chain: in.Chain[:0], Caller: Caller{Chain: in.Caller.Chain[:0]}}
	for s.more() {
		at := s.i
		num, typ, err := s.tag()
		if err != nil {
			return err
		}
		switch typ {
		case protowire.BytesType:
			err = s.invokeBytes(num, at, in)
		case protowire.VarintType:
			err = s.invokeVarint(num, in)
		default:
			err = s.skip(num, typ, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *scanner) invokeBytes(num protowire.Number, at int, in *Invoke) (err *Error) {
	switch num {
	case 1:
		in.Instance, err = s.str()
	case 2:
		in.Deployment, err = s.str()
	case 3:
		in.Element, err = s.str()
	case 4:
		in.Service, err = s.str()
	case 5:
		in.Method, err = s.str()
	case 7:
		in.ContentType, err = s.str()
	case 8:
		in.Accept, err = s.str()
	case 14:
		sub, err := s.once(&in.HasData, at, faultRepeatedData)
		if err != nil {
			return err
		}
		return parseData(sub, &in.Data)
	case 15:
		sub, err := s.once(&in.HasAs, at, faultRepeatedAs)
		if err != nil {
			return err
		}
		return parseAs(sub, &in.As)
	case 16:
		sub, err := s.once(&in.HasCaller, at, faultRepeatedCaller)
		if err != nil {
			return err
		}
		return parseCaller(sub, &in.Caller)
	case 18:
		in.Chain, err = s.link(in.Chain, at)
	case 19:
		in.TraceParent, err = s.str()
	case 20:
		in.TraceState, err = s.str()
	default:
		_, err = s.bytes()
	}
	return err
}

func (s *scanner) invokeVarint(num protowire.Number, in *Invoke) *Error {
	v, err := s.varint()
	if err != nil {
		return err
	}
	switch num {
	case 6:
		in.Ordinal, in.HasOrdinal = uint32(v), true
	case 9:
		in.TimeoutMicros = v
	case 10:
		in.Units = uint32(v)
	case 11:
		in.ReplyCredit = uint32(v)
	case 12:
		in.Attempt = uint32(v)
	case 13:
		in.Background = v != 0
	case 17:
		in.Parent = v
	}
	return nil
}

func parseData(s scanner, d *Data) *Error {
	*d = Data{}
	for s.more() {
		at := s.i
		num, typ, err := s.tag()
		if err != nil {
			return err
		}
		switch {
		case typ == protowire.BytesType && num == 4:
			d.Bytes, err = s.bytes()
		case typ == protowire.BytesType && num == 2:
			d.ContentType, err = s.str()
		case typ == protowire.VarintType:
			var v uint64
			v, err = s.varint()
			switch num {
			case 1:
				d.Part = uint32(v)
			case 3:
				d.Total, d.HasTotal = v, true
			case 5:
				d.More = v != 0
			case 6:
				d.Last = v != 0
			}
		default:
			err = s.skip(num, typ, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func parseAs(s scanner, as *AsWhom) *Error {
	for s.more() {
		at := s.i
		num, typ, err := s.tag()
		if err != nil {
			return err
		}
		switch {
		case num == 1 && typ == protowire.VarintType:
			var v uint8
			v, err = s.enum(at)
			as.Kind = AsKind(v)
		case num == 2 && typ == protowire.BytesType:
			as.Session, err = s.str()
		case num == 3 && typ == protowire.BytesType:
			as.Name, err = s.str()
		case num == 4 && typ == protowire.VarintType:
			as.Level, err = s.enum(at)
		default:
			err = s.skip(num, typ, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func parseCaller(s scanner, c *Caller) *Error {
	for s.more() {
		at := s.i
		num, typ, err := s.tag()
		if err != nil {
			return err
		}
		switch {
		case num == 1 && typ == protowire.BytesType:
			c.User, err = s.str()
		case num == 2 && typ == protowire.VarintType:
			c.Level, err = s.enum(at)
		case num == 3 && typ == protowire.BytesType:
			c.Chain, err = s.link(c.Chain, at)
		case num == 4 && typ == protowire.BytesType:
			c.Peer, err = s.str()
		case num == 5 && typ == protowire.VarintType:
			var v uint64
			v, err = s.varint()
			c.Attempt = uint32(v)
		default:
			err = s.skip(num, typ, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func parseCancel(s scanner, f *Frame) *Error {
	f.Reason = nil
	for s.more() {
		at := s.i
		num, typ, err := s.tag()
		if err != nil {
			return err
		}
		if num == 1 && typ == protowire.BytesType {
			f.Reason, err = s.str()
		} else {
			err = s.skip(num, typ, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func parseCredit(s scanner, f *Frame) *Error {
	f.Credit = 0
	for s.more() {
		at := s.i
		num, typ, err := s.tag()
		if err != nil {
			return err
		}
		if num == 1 && typ == protowire.VarintType {
			f.Credit, err = s.varint()
		} else {
			err = s.skip(num, typ, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func parsePing(s scanner, p *Ping) *Error {
	*p = Ping{}
	for s.more() {
		at := s.i
		num, typ, err := s.tag()
		if err != nil {
			return err
		}
		switch {
		case num == 1 && typ == protowire.VarintType:
			p.Nonce, err = s.varint()
		case num == 2 && typ == protowire.VarintType:
			var v uint64
			v, err = s.varint()
			p.Ack = v != 0
		default:
			err = s.skip(num, typ, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// scanner reads the fields of one message. b ends where the message ends but
// begins where the packet begins, so that i is an offset in the packet.
type scanner struct {
	b []byte
	i int
}

func (s *scanner) more() bool { return s.i < len(s.b) }

// tag reads a field's number and wire type. What makes protobuf refuse a tag is
// refused here: a number of 0 or beyond 2^29-1, and an end of a group that did
// not begin.
func (s *scanner) tag() (protowire.Number, protowire.Type, *Error) {
	at := s.i
	v, err := s.varint()
	if err != nil {
		return 0, 0, err
	}
	if n := v >> 3; n < uint64(protowire.MinValidNumber) || n > uint64(protowire.MaxValidNumber) {
		return 0, 0, &Error{at, faultFieldNumber}
	}
	return protowire.Number(v >> 3), protowire.Type(v & 7), nil
}

func (s *scanner) varint() (uint64, *Error) {
	if s.i < len(s.b) && s.b[s.i] < 0x80 {
		v := uint64(s.b[s.i])
		s.i++
		return v, nil
	}
	return s.longVarint()
}

func (s *scanner) longVarint() (uint64, *Error) {
	v, n := protowire.ConsumeVarint(s.b[s.i:])
	if n < 0 {
		return 0, &Error{s.i, consumeFault(n, faultVarint)}
	}
	s.i += n
	return v, nil
}

// enum reads an enum as protobuf does, in its low 32 bits, and refuses what a
// uint8 cannot hold: neither dropping it nor clipping it would be honest.
func (s *scanner) enum(at int) (uint8, *Error) {
	v, err := s.varint()
	if err != nil {
		return 0, err
	}
	if uint32(v) > 255 {
		return 0, &Error{at, faultEnum}
	}
	return uint8(v), nil
}

// sub reads a length and returns a scanner of the message behind it.
func (s *scanner) sub() (scanner, *Error) {
	at := s.i
	n, err := s.varint()
	if err != nil {
		return scanner{}, err
	}
	if n > uint64(len(s.b)-s.i) {
		return scanner{}, &Error{at, faultTruncated}
	}
	sub := scanner{s.b[:s.i+int(n)], s.i}
	s.i += int(n)
	return sub, nil
}

func (s *scanner) bytes() ([]byte, *Error) {
	sub, err := s.sub()
	if err != nil {
		return nil, err
	}
	return sub.b[sub.i:len(sub.b):len(sub.b)], nil
}

func (s *scanner) str() ([]byte, *Error) {
	at := s.i
	v, err := s.bytes()
	if err != nil {
		return nil, err
	}
	if !utf8.Valid(v) {
		return nil, &Error{at, faultUTF8}
	}
	return v, nil
}

// link reads one entry of a chain.
func (s *scanner) link(chain [][]byte, at int) ([][]byte, *Error) {
	if len(chain) == MaxChain {
		return chain, &Error{at, faultChain}
	}
	v, err := s.str()
	return append(chain, v), err
}

// once is sub for a message that may be there once.
func (s *scanner) once(has *bool, at int, fault string) (scanner, *Error) {
	if *has {
		return scanner{}, &Error{at, fault}
	}
	*has = true
	return s.sub()
}

// skip passes over the value of a field that we do not know, or know by another
// wire type, which to protobuf is the same.
func (s *scanner) skip(num protowire.Number, typ protowire.Type, at int) *Error {
	n := protowire.ConsumeFieldValue(num, typ, s.b[s.i:])
	if n < 0 {
		other := faultWireType
		switch typ {
		case protowire.VarintType, protowire.BytesType:
			other = faultVarint
		case protowire.StartGroupType, protowire.EndGroupType:
			other = faultGroup
		}
		return &Error{at, consumeFault(n, other)}
	}
	s.i += n
	return nil
}

// consumeFault names a negative length of protowire: truncated, or what else can
// go wrong where it came from.
func consumeFault(n int, other string) string {
	if errors.Is(protowire.ParseError(n), io.ErrUnexpectedEOF) {
		return faultTruncated
	}
	return other
}
