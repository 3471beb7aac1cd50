// Holds wire.js to the golden vectors of the wire: node vectors.mjs frames.jsonl
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

import { decode, encode } from "../wire.js";

const KNOWN = new Set(["call", "hello", "invoke", "data", "failure", "cancel", "credit", "goAway", "ping"]);
// Faults in what only a server hears, which is skipped here.
const SERVERS = new Set(["UTF-8 in chain", "UTF-8 in session", "UTF-8 in user"]);
let taken = 0, refused = 0, same = 0;
for (const line of readFileSync(process.argv[2], "utf8").trim().split("\n")) {
  const v = JSON.parse(line);
  const bytes = Uint8Array.from(Buffer.from(v.hex ?? "", "hex"));
  let packet;
  try {
    packet = decode("Packet", bytes);
  } catch (err) {
    assert.ok(v.error, `${v.name}: ${err.message}`);
    refused++;
    continue;
  }
  if (v.error) {
    assert.ok(v.stricter || SERVERS.has(v.name), `${v.name} is taken, but: ${v.error}`);
    continue;
  }
  taken++;
  assert.deepEqual(packet.frames.map((f) => f.size), v.sizes ?? [], v.name);
  for (const [i, want] of (v.frames ?? []).entries()) {
    const got = packet.frames[i];
    assert.equal(got.call, Number(want.call ?? 0), v.name); // above 2^53 they are rounded, both
    for (const kind of Object.keys(want)) {
      const name = kind.replace(/_(.)/g, (_, c) => c.toUpperCase());
      if (KNOWN.has(name)) assert.notEqual(got[name], undefined, `${v.name}: no ${kind}`);
    }
    if (got.data !== undefined) {
      assert.equal(Buffer.from(got.data.bytes).toString("base64"), want.data.bytes ?? "", v.name);
      assert.equal(got.data.total, want.data.total === undefined ? undefined : Number(want.data.total), v.name);
    }
  }
  if (v.canonical && Buffer.from(encode("Packet", packet)).toString("hex") === v.hex) same++;
}
console.log(JSON.stringify({ taken, refused, same }));
