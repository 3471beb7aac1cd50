// The few protobuf messages that a client needs, taken apart and put together by
// hand: see proto/conduit/v1/conduit.proto. Nothing here knows of a link.

const utf8 = new TextEncoder();
const text = new TextDecoder("utf-8", { fatal: true });

// What a message's fields are called, by number, and how each is written:
//   u = uint64 or an enum, as a number; a number above 2^53 cannot come: see varint
//   b = bool, s = string, y = bytes, m = map<string, string>, a name = that message.
// A + behind it: repeated. A ? behind it: optional, so that its absence can be told
// from 0.
const MESSAGES = {
  Packet: { 1: ["frames", "Frame", "+"] },
  Frame: {
    1: ["call", "u"], 2: ["hello", "Hello"], 3: ["invoke", "Invoke"], 4: ["data", "Data"],
    5: ["failure", "Failure"], 6: ["cancel", "Cancel"], 7: ["credit", "Credit"],
    8: ["goAway", "GoAway"], 10: ["ping", "Ping"],
  },
  Hello: {
    1: ["versionMin", "u"], 2: ["versionMax", "u"], 3: ["required", "s", "+"], 5: ["instance", "s"],
    7: ["maxMessage", "u"], 8: ["maxPacket", "u"], 9: ["maxCalls", "u"], 10: ["linkCredit", "u"],
    11: ["callCredit", "u"], 12: ["authStore", "s"],
  },
  Invoke: {
    1: ["instance", "s"], 2: ["deployment", "s"], 3: ["element", "s"], 4: ["service", "s"], 5: ["method", "s"],
    6: ["ordinal", "u", "?"], 7: ["contentType", "s"], 8: ["accept", "s"], 9: ["timeoutMicros", "u"],
    10: ["units", "u"], 11: ["replyCredit", "u"], 14: ["data", "Data"], 19: ["traceparent", "s"], 20: ["tracestate", "s"],
  },
  Data: { 1: ["part", "u"], 2: ["contentType", "s"], 3: ["total", "u", "?"], 4: ["bytes", "y"], 5: ["more", "b"], 6: ["last", "b"] },
  Failure: {
    1: ["code", "u"], 2: ["reason", "s"], 3: ["outcome", "u"], 4: ["retryable", "b"], 5: ["retryAfterMicros", "u"],
    6: ["message", "s"], 7: ["op", "s"], 8: ["peer", "s"], 9: ["address", "s"], 10: ["method", "s"], 11: ["details", "m"],
  },
  Cancel: { 1: ["reason", "s"] },
  Credit: { 1: ["bytes", "u"] },
  GoAway: { 1: ["lastCall", "u"], 2: ["reason", "s"], 3: ["retryAfterMicros", "u"], 4: ["message", "s"] },
  // The nonce goes back as it came, and may have all 64 bits.
  Ping: { 1: ["nonce", "n"], 2: ["ack", "b"] },
  Entry: { 1: ["key", "s"], 2: ["value", "s"] },
};

const VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5;

/** Encodes a message of the given type. @returns {Uint8Array} */
export function encode(type, message) {
  const out = [];
  write(out, type, message);
  return join(out);
}

/** Puts pieces of bytes one behind the other. @returns {Uint8Array} */
export function join(pieces) {
  const all = new Uint8Array(pieces.reduce((n, p) => n + p.length, 0));
  let at = 0;
  for (const p of pieces) {
    all.set(p, at);
    at += p.length;
  }
  return all;
}

function write(out, type, message) {
  for (const [number, [name, kind, count]] of Object.entries(MESSAGES[type])) {
    const value = message[name];
    if (value === undefined) continue;
    if (kind === "m") {
      for (const [key, v] of Object.entries(value)) field(out, number, "Entry", { key, value: v });
    } else if (count === "+") {
      for (const v of value) field(out, number, kind, v);
    } else if (count === "?" || kind in MESSAGES || !(value === 0 || value === 0n || value === false || value.length === 0)) {
      field(out, number, kind, value);
    }
  }
}

function field(out, number, kind, value) {
  const tag = (wire) => out.push(varint(number * 8 + wire));
  switch (kind) {
    case "u":
    case "n":
      tag(VARINT);
      out.push(varint(value));
      return;
    case "b":
      tag(VARINT);
      out.push(varint(1));
      return;
  }
  const bytes = kind === "s" ? utf8.encode(value) : kind === "y" ? value : encode(kind, value);
  tag(BYTES);
  out.push(varint(bytes.length), bytes);
}

function varint(value) {
  const out = [];
  let v = BigInt(value);
  for (; v > 0x7fn; v >>= 7n) out.push(Number(v & 0x7fn) | 0x80);
  out.push(Number(v));
  return Uint8Array.from(out);
}

/**
 * Decodes a message of the given type. Fields that are absent have their zero, but
 * for messages and what is optional: those are undefined. What is not known is
 * skipped. Bytes are views into what was given. A Frame in a Packet has its encoded
 * length as size.
 * @throws {Error} if it is no such message.
 */
export function decode(type, bytes) {
  const fields = MESSAGES[type];
  const message = {};
  for (const [name, kind, count] of Object.values(fields)) {
    if (count === "+") message[name] = [];
    else if (kind === "m") message[name] = {};
    else if (count !== "?" && !(kind in MESSAGES)) message[name] = zero(kind);
  }
  const r = { bytes, at: 0 };
  while (r.at < bytes.length) {
    const tag = readVarint(r);
    const number = Number(tag >> 3n), wire = Number(tag & 7n);
    if (number === 0 || tag > 0xffffffffn) throw new Error("a field without a number");
    const [name, kind, count] = fields[number] ?? [];
    const wants = kind === undefined ? undefined : "unb".includes(kind) ? VARINT : BYTES;
    if (wants !== wire) { // not known, or not as we know it
      skip(r, wire, number, 0);
      continue;
    }
    if (wire === VARINT) {
      const v = readVarint(r);
      message[name] = kind === "b" ? v !== 0n : kind === "n" ? v : Number(v);
      continue;
    }
    const b = take(r, readVarint(r));
    if (kind === "m") {
      const entry = decode("Entry", b);
      message[name][entry.key] = entry.value;
      continue;
    }
    const v = kind === "s" ? text.decode(b) : kind === "y" ? b : decode(kind, b);
    if (kind === "Frame") v.size = b.length; // what it costs of link credit
    if (count === "+") message[name].push(v);
    else message[name] = v;
  }
  return message;
}

function zero(kind) {
  switch (kind) {
    case "u": return 0;
    case "n": return 0n;
    case "b": return false;
    case "s": return "";
    default: return new Uint8Array(0);
  }
}

function readVarint(r) {
  let v = 0n;
  for (let shift = 0n; shift < 70n; shift += 7n) {
    if (r.at >= r.bytes.length) throw new Error("a varint is cut");
    const b = r.bytes[r.at++];
    v |= BigInt(b & 0x7f) << shift;
    if (b < 0x80) {
      if (v > 0xffffffffffffffffn) break;
      return v;
    }
  }
  throw new Error("a varint has more than 64 bits");
}

function take(r, n) {
  if (n > BigInt(r.bytes.length - r.at)) throw new Error("a field is cut");
  const b = r.bytes.subarray(r.at, r.at + Number(n));
  r.at += Number(n);
  return b;
}

function skip(r, wire, number, depth) {
  switch (wire) {
    case VARINT: readVarint(r); return;
    case FIXED64: take(r, 8n); return;
    case FIXED32: take(r, 4n); return;
    case BYTES: take(r, readVarint(r)); return;
    case 3: // a group, of protobuf's first days
      for (;;) {
        const tag = readVarint(r);
        if ((tag & 7n) === 4n && Number(tag >> 3n) === number) return;
        if (depth > 100) throw new Error("groups within groups");
        skip(r, Number(tag & 7n), Number(tag >> 3n), depth + 1);
      }
    default: throw new Error(`a wire type ${wire}`);
  }
}
