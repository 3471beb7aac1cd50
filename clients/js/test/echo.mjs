// Runs the client through all of it, against an instance that hosts plugins/echo:
//   node echo.mjs ws://127.0.0.1:7400 SESSION https://page.example
// The last two as they are on that instance; it exits 0, or says what is wrong.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

import { Client, ConduitError, Message } from "../conduit.js";

const [url, session, origin] = process.argv.slice(2);
const SERVICE = "*://echo/echo/conduit.example.Echo";

// A page in a browser needs none of this: the platform's WebSocket sends its origin.
function webSocket(target, protocols) {
  const headers = { Origin: origin };
  if (globalThis.WebSocket) return new WebSocket(target, { protocols, headers });
  const WS = createRequire(import.meta.url)("ws"); // before Node.js 22; NODE_PATH says where Debian has it
  return new WS(target, protocols, { headers });
}

async function failure(promise, want) {
  const err = await promise.then(() => assert.fail("no error"), (e) => e);
  assert.ok(err instanceof ConduitError, `${err?.stack}`);
  for (const [k, v] of Object.entries(want)) assert.deepEqual(err[k], v, `${k} of ${err.code} (${err.reason}): ${err.message}`);
  return err;
}

async function all(items) {
  const got = [];
  for await (const item of items) got.push(item);
  return got;
}

const pattern = (n) => new Uint8Array(n).map((_, i) => i);
const client = await Client.connect(url, { session, webSocket });
const echo = client.at(SERVICE);

const tests = {
  async "calls"() {
    assert.equal(await echo.call("Upper", "hello"), "HELLO");
    assert.deepEqual(await echo.call("EchoJSON", { a: [1, "ü", null] }), { a: [1, "ü", null] });
    assert.equal(await echo.call("Nothing"), undefined);
    assert.deepEqual(await echo.call("EchoJSON", new Message("application/json; charset=utf-8", new TextEncoder().encode("7"))), 7);
    const got = await Promise.all(Array.from({ length: 300 }, (_, i) => echo.call("EchoJSON", i)));
    assert.deepEqual(got, Array.from({ length: 300 }, (_, i) => i));
  },
  async "messages of any size"() {
    for (const n of [0, 1, 125, 126, 32768, 65400, 65536, 65537, 262100, 262144, 1 << 20, 10 << 20]) {
      const sent = pattern(n);
      const got = await echo.call("Echo", sent);
      assert.equal(Buffer.compare(got, sent), 0, `of ${n} bytes ${got.length} came back`);
    }
    await failure(echo.call("Echo", new Uint8Array((10 << 20) + 1)), { code: "resource_exhausted", reason: "payload_too_large", outcome: "not_sent" });
    await failure(echo.call("Big", { bytes: (10 << 20) + 1 }), { code: "resource_exhausted", reason: "payload_too_large" });
  },
  async "streams"() {
    assert.deepEqual(await all(echo.stream("Count", 1000)), Array.from({ length: 1000 }, (_, i) => i));
    assert.deepEqual(await all(echo.stream("Count", 0)), []);
    // Many times what there is credit for, in messages of all kinds: whole, in pieces, above the window.
    for (const [bytes, items] of [[1, 2000], [40000, 20], [200000, 6], [300000, 4], [2000000, 2]]) {
      let n = 0;
      for await (const item of echo.stream("BigItems", { bytes, items })) {
        assert.equal(item.length, bytes);
        assert.equal(item[bytes - 1], (bytes - 1) & 0xff);
        n++;
      }
      assert.equal(n, items);
    }
  },
  async "a stream that is not read stalls nobody else"() {
    const slow = echo.stream("BigItems", { bytes: 300000, items: 6 });
    assert.equal((await slow.next()).value.length, 300000);
    for (let i = 0; i < 10; i++) assert.equal((await echo.call("Echo", pattern(100000))).length, 100000);
    assert.equal((await all(slow)).length, 5);
  },
  async "further results"() {
    const parts = [];
    assert.equal(await echo.call("Parts", 3, { onPart: (part, value) => parts.push([part, value.i]) }), 3);
    assert.deepEqual(parts, [[1, 0], [2, 0], [1, 1], [2, 1], [1, 2], [2, 2]]);
  },
  async "uploads"() {
    assert.equal(await echo.upload("Sum", [1, 2, 39]), 42);
    assert.equal(await echo.upload("Sum", []), 0);
    async function* items() {
      for (let i = 0; i < 15; i++) yield pattern(i * 10000);
    }
    assert.deepEqual(await echo.upload("Size", items()), { items: 15, bytes: 1050000 });
    async function* broken() {
      yield 1;
      throw new TypeError("no more");
    }
    const err = await failure(echo.upload("Sum", broken()), { code: "canceled" });
    assert.equal(err.cause.message, "no more");
  },
  async "both ways"() {
    let answered;
    async function* questions() {
      yield { n: 0 };
      for (let n = 1; n < 5; n++) {
        await new Promise((resolve) => { answered = resolve; });
        yield { n };
      }
    }
    const got = [];
    for await (const item of echo.duplex("Chat", questions())) {
      got.push(item.n);
      answered?.();
    }
    assert.deepEqual(got, [0, 1, 2, 3, 4]);
  },
  async "cancels"() {
    for await (const n of echo.stream("CountSlow", { n: 2, interval_ms: 3600000 })) {
      assert.equal(n, 0);
      break;
    }
    const leave = new AbortController();
    const waiting = echo.call("Delay", { ms: 3600000 }, { signal: leave.signal });
    setTimeout(() => leave.abort(), 50);
    await failure(waiting, { code: "canceled", reason: "canceled", outcome: "unknown", method: "Delay", address: SERVICE });
    await failure(echo.call("Nothing", undefined, { signal: leave.signal }), { code: "canceled", outcome: "not_sent" });
    await failure(echo.call("Delay", { ms: 3600000 }, { timeoutMs: 50 }), { code: "deadline_exceeded" });
    const who = await echo.call("WhoAmI", undefined, { timeoutMs: 60000 });
    assert.ok(who.timeout_ms > 0 && who.timeout_ms <= 60000, `${who.timeout_ms}`);
  },
  async "typed errors"() {
    const details = { a: "1", "ü": "" };
    const failed = { code: "failed_precondition", reason: "too_early", outcome: "executed", retryable: false, details };
    const err = await failure(echo.call("Fail", { code: "failed_precondition", reason: "too_early", message: "not yet", details }), failed);
    assert.match(err.message, /not yet/);
    const got = [];
    await failure((async () => {
      for await (const n of echo.stream("Fail", { code: "failed_precondition", reason: "too_early", details, after: 3 })) got.push(n);
    })(), failed);
    assert.deepEqual(got, [0, 1, 2]);
    await failure(echo.call("RefuseMe", { reason: "later", retry_after_ms: 1500 }), { reason: "later", outcome: "refused", retryable: true, retryAfterMs: 1500 });
    await failure(echo.call("Nope"), { code: "not_found", reason: "method_not_found", outcome: "refused" });
    await failure(client.at("*://nope/echo/test.Echo").call("Echo"), { code: "not_found", outcome: "refused" });
    await failure(echo.call("SuperuserOnly"), { code: "permission_denied", outcome: "refused" });
    assert.throws(() => client.at("echo"), (e) => e.reason === "bad_address" && /instance:\/\//.test(e.message));
  },
  async "the session's sub-protocol"() {
    assert.equal((await echo.call("WhoAmI")).user, "ada");
    const nobody = await Client.connect(url, { webSocket });
    assert.equal((await nobody.at(SERVICE).call("WhoAmI")).level, "anonymous");
    await failure(nobody.at(SERVICE).call("UserOnly"), { code: "permission_denied", reason: "level_too_low", outcome: "refused" });
    nobody.close();
    assert.equal(await nobody.closed, undefined);
    await failure(nobody.at(SERVICE).call("WhoAmI"), { code: "unavailable", reason: "peer_lost", outcome: "not_sent", retryable: true });
    const err = await failure(Client.connect(url, { session: "wrong", webSocket }), { code: "unavailable", reason: "peer_unreachable", outcome: "not_sent" });
    assert.ok(!err.message.includes("wrong"), err.message);
  },
};

tests["a link that is lost"] = async () => {
  const other = await Client.connect(url, { session, webSocket });
  const waiting = other.at(SERVICE).call("Delay", { ms: 3600000 });
  const stream = other.at(SERVICE).stream("CountSlow", { n: 2, interval_ms: 3600000 });
  assert.equal((await stream.next()).value, 0);
  other.close();
  await failure(waiting, { code: "unavailable", reason: "peer_lost", outcome: "unknown" });
  await failure(stream.next(), { code: "unavailable", reason: "peer_lost", outcome: "unknown" });
};

for (const [name, test] of Object.entries(tests)) {
  try {
    await test();
  } catch (err) {
    console.error(`${name}: ${err.stack}`);
    process.exit(1);
  }
}
console.log("ready");

// What is left is the instance's part: it is told to drain with a call under way.
const last = echo.call("Delay", { ms: 500 });
await echo.call("Nothing");
console.log("calling");
assert.ok((await last).waited_ms >= 0);
const why = await client.closed;
assert.equal(why?.reason, "draining", `${why}`);
await failure(echo.call("Nothing"), { code: "unavailable", outcome: "not_sent", retryable: true });
console.log("drained");
