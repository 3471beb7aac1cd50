// A client of Elemental Conduit for Node.js and browsers: calls, streams and uploads
// over one link to one instance. Written from docs/protocol.md, which every rule here
// comes from; it uses what both platforms have, and no package.

import { decode, encode, join } from "./wire.js";

const PATH = "/cluster/v1";
const SUB_PROTOCOL = "conduit.v1";

// What this end says in its Hello, and its windows; in bytes but for times, in ms.
const MAX_MESSAGE = 10485760;
const MAX_PACKET = 262144;
const LINK_CREDIT = 262144;
const LINK_CREDIT_DUE = 32768;
const REPLY_CREDIT = 262144;
const PIECE = 32768;
const DATA_COST = 32; // of call credit, beside the bytes
const DATA_ROOM = 64; // that the fields of a Data beside its bytes take, but for the content type
const CREDIT_MOST = 2 ** 40;
const HELLO_TIMEOUT = 5000;
const PROBE = 1000; // while calls are under way
const IDLE_PING = 20000;
const DEAD_AFTER = 3000;
const CALL_TIMEOUT = 30000;

const JSON_TYPE = "application/json";
const BYTES_TYPE = "application/octet-stream";

const CODES = [
  "unspecified", "canceled", "unknown", "invalid_argument", "deadline_exceeded", "not_found", "already_exists",
  "permission_denied", "resource_exhausted", "failed_precondition", "aborted", "out_of_range", "unimplemented",
  "internal", "unavailable", "data_loss", "unauthenticated",
];
const OUTCOMES = ["unknown", "not_sent", "refused", "executed"];

/** Why a call failed. docs/errors.md lists the reasons. */
export class ConduitError extends Error {
  /**
   * @param {object} of code ("not_found", ...), reason, outcome ("not_sent", "refused",
   *   "executed" or "unknown"), retryable, retryAfterMs, message, op, peer, address,
   *   method and details (an object of strings). cause as of any Error.
   */
  constructor({ message, cause, ...of }) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = "ConduitError";
    Object.assign(this, {
      code: "unknown", reason: "", outcome: "unknown", retryable: false, retryAfterMs: 0,
      op: "", peer: "", address: "", method: "", details: {}, ...of,
    });
  }
}

/** A message that is neither JSON nor plain bytes. */
export class Message {
  /** @param {string} contentType @param {Uint8Array} data */
  constructor(contentType, data) {
    this.contentType = contentType;
    this.data = data;
  }
}

function encodeValue(value) {
  if (value instanceof Message) return value;
  if (value instanceof Uint8Array) return new Message(BYTES_TYPE, value);
  const json = JSON.stringify(value);
  if (json === undefined) {
    throw new ConduitError({ code: "invalid_argument", reason: "bad_content", outcome: "not_sent", message: `a ${typeof value} has no form as JSON` });
  }
  return new Message(JSON_TYPE, new TextEncoder().encode(json));
}

function decodeValue(message) {
  const bare = message.contentType.split(";")[0].trim().toLowerCase();
  if (bare === BYTES_TYPE) return message.data;
  if (bare !== JSON_TYPE) return message;
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(message.data));
  } catch (cause) {
    throw new ConduitError({ code: "internal", reason: "bad_content", outcome: "executed", message: `the answer is no JSON: ${cause.message}`, cause });
  }
}

const ADDRESS = /^([^:/]+):\/\/([^/]+)\/([^/[\]]+)(?:\[(\d{1,5})\])?\/([^/]+)$/;

/** One call; what Client and Element do with it is theirs. */
class Call {
  constructor(link, method) {
    this.link = link;
    this.method = method;
    this.id = 0; // 0 until its Invoke is written
    this.over = false; // the other end, or we, have ended it
    this.error = undefined; // a ConduitError, if that was no success
    this.contentType = ""; // of the request
    // Sending.
    this.room = 0; // call credit, in bytes
    // Receiving.
    this.window = REPLY_CREDIT;
    this.left = REPLY_CREDIT; // what the other end may still send
    this.due = 0; // taken by the application, not returned yet
    this.open = undefined; // the message that is being received
    this.lent = false; // a large message has been given room of its own, and is not taken yet
    this.queue = []; // whole messages
    this.wake = []; // resolves of those who wait for something of this call to change
  }

  changed() {
    for (const resolve of this.wake.splice(0)) resolve();
  }

  /** Resolves when something has changed; to be asked for in a loop. */
  wait() {
    return new Promise((resolve) => this.wake.push(resolve));
  }

  end(error) {
    if (this.over) return;
    this.over = true;
    this.error = error;
    this.open = undefined;
    this.link.forget(this);
    this.changed();
  }

  /** Ends the call from this side. */
  cancel(error) {
    if (this.over) return;
    if (this.id !== 0) this.link.write({ call: this.id, cancel: { reason: error.reason.slice(0, 64) } });
    this.queue = [];
    this.end(error);
  }

  /** Takes a Data of the other end. */
  take(d) {
    const fault = (message) => this.cancel(new ConduitError({
      code: "internal", reason: "protocol", outcome: "unknown", message: `the answer breaks the protocol: ${message}`,
    }));
    this.left -= d.bytes.length + DATA_COST;
    if (this.left < 0) return fault("more than the call's credit allows");
    let now = 0; // to be returned at once
    if (d.total === undefined && this.open === undefined) {
      if (d.bytes.length > 0 || d.more) return fault("bytes without a message");
      now = DATA_COST;
    } else {
      if (d.total !== undefined) {
        if (this.open !== undefined) return fault("a message within another");
        if (d.total > MAX_MESSAGE) {
          return this.cancel(new ConduitError({
            code: "resource_exhausted", reason: "payload_too_large", outcome: "unknown",
            message: `the answer has a message of ${d.total} bytes, the cap is ${MAX_MESSAGE}`,
          }));
        }
        this.open = { part: d.part, contentType: d.contentType, total: d.total, got: 0, bytes: new Uint8Array(0), pieces: [], whole: !d.more, large: d.more && d.total > this.window - 2 * DATA_COST, lent: false };
      } else if (d.part !== 0 && d.part !== this.open.part) {
        return fault("another part within a message");
      }
      const m = this.open;
      // A copy: what came with it in its packet must not be kept alive by it.
      m.pieces.push(d.bytes.slice());
      m.got += d.bytes.length;
      if (m.got > m.total || (!d.more && m.got !== m.total) || (d.more && d.last)) return fault("lengths that do not add up");
      if (!m.whole) now = DATA_COST;
      if (!d.more) {
        this.open = undefined;
        this.queue.push({
          part: m.part, message: new Message(m.contentType || this.contentType, join(m.pieces)),
          lent: m.lent, cost: m.lent ? 0 : m.total + (m.whole ? DATA_COST : 0),
        });
      }
    }
    if (d.last) return this.end(undefined);
    this.lend();
    this.repay(now);
    this.changed();
  }

  /** Gives a large message room of its own, one at a time. */
  lend() {
    const m = this.open;
    if (!m?.large || m.lent || this.lent) return;
    m.lent = this.lent = true;
    this.grant(m.total);
  }

  /** Returns credit if it has to be returned by now; at once if now is above 0. */
  repay(now) {
    this.due += now;
    const short = this.open !== undefined && this.left < this.window / 4;
    if (this.due > 0 && (now > 0 || this.due >= this.window / 2 || short)) {
      this.grant(this.due);
      this.due = 0;
    }
  }

  grant(n) {
    if (this.over) return;
    this.left += n;
    this.link.write({ call: this.id, credit: { bytes: n } });
  }

  /** The next message, or undefined at the end of them. Throws the call's error. */
  async receive() {
    while (this.queue.length === 0) {
      if (this.error !== undefined) throw this.error;
      if (this.over) return undefined;
      await this.wait();
    }
    const next = this.queue.shift();
    if (next.lent) {
      this.lent = false;
      this.lend();
    }
    this.due += next.cost;
    this.repay(0);
    return next;
  }

  /** Waits for room to send at least one byte, and returns how many there is for. */
  async roomFor(size, extra) {
    for (;;) {
      if (this.id === 0) this.link.check(this);
      if (this.over) return -1;
      const n = Math.min(size, PIECE, this.room - DATA_COST, this.link.room - extra - DATA_ROOM);
      if (n >= Math.min(size, 1)) return n;
      await Promise.race([this.wait(), this.link.wait()]);
    }
  }

  /** Sends one message; invoke is what opens the call, if that is not done yet. */
  async send(message, last, invoke) {
    const { data, contentType } = message;
    if (data.length > this.link.theirs.maxMessage) {
      throw new ConduitError({
        code: "resource_exhausted", reason: "payload_too_large", outcome: this.id === 0 ? "not_sent" : "unknown",
        message: `a message of ${data.length} bytes: the peer takes ${this.link.theirs.maxMessage} at most`,
      });
    }
    const own = contentType === this.contentType ? "" : contentType;
    let at = 0;
    do {
      const first = at === 0;
      const extra = first ? own.length * 3 + (invoke === undefined ? 0 : encode("Invoke", invoke).length + DATA_ROOM) : 0;
      const n = await this.roomFor(data.length - at, extra);
      if (n < 0) return;
      const more = at + n < data.length;
      const d = { bytes: data.subarray(at, at + n), more, last: last && !more };
      if (first) Object.assign(d, { total: data.length, contentType: own });
      this.room -= n + DATA_COST;
      at += n;
      if (invoke !== undefined) {
        this.link.open(this, { ...invoke, data: d });
        invoke = undefined;
      } else {
        this.link.spend({ call: this.id, data: d });
      }
    } while (at < data.length);
  }

  /** Opens the call without a message. */
  async invoke(invoke, last) {
    const d = last ? { last: true } : undefined;
    if (await this.roomFor(0, encode("Invoke", invoke).length + DATA_ROOM) < 0) return;
    if (d !== undefined) this.room -= DATA_COST;
    this.link.open(this, { ...invoke, data: d });
  }

  /** Ends the request. */
  async finish() {
    if (await this.roomFor(0, 0) < 0) return;
    this.room -= DATA_COST;
    this.link.spend({ call: this.id, data: { last: true } });
  }
}

/** An element's service, to be called. */
export class Element {
  #client;
  #to;

  constructor(client, address) {
    const m = ADDRESS.exec(address);
    if (m === null) {
      throw new ConduitError({
        code: "invalid_argument", reason: "bad_address", outcome: "not_sent",
        message: `${JSON.stringify(address)} is no address: write instance://deployment/element/Service, with * for any instance`,
      });
    }
    this.#client = client;
    this.#to = { instance: m[1], deployment: m[2], element: m[3], service: m[5] };
    if (m[4] !== undefined) this.#to.ordinal = Number(m[4]);
  }

  /**
   * Calls a method with one request and one reply. A Uint8Array travels as it is, a
   * Message as it says, anything else as JSON; undefined is no message. The reply is
   * undefined if there is none.
   *
   * @param {object} [options] signal (an AbortSignal), timeoutMs (default 30000 here, none
   *   for streams), units, accept (a content type), onPart (called with number and value of
   *   each further result).
   */
  async call(method, request, options = {}) {
    let reply;
    for await (const value of this.#run(method, request === undefined ? [] : [request], { timeoutMs: CALL_TIMEOUT, ...options }, true)) {
      reply = value;
    }
    return reply;
  }

  /** Calls a method that answers with many messages: an async iterator. Leaving it cancels the call. */
  stream(method, request, options = {}) {
    return this.#run(method, request === undefined ? [] : [request], options, true);
  }

  /** Calls a method that takes many messages, of an iterable or async iterable, and answers with one. */
  async upload(method, items, options = {}) {
    let reply;
    for await (const value of this.#run(method, items, options, false)) reply = value;
    return reply;
  }

  /** Calls a method with many messages both ways, as they come. */
  duplex(method, items, options = {}) {
    return this.#run(method, items, options, false);
  }

  async *#run(method, items, options, whole) {
    const call = this.#client.newCall(method);
    const stop = () => call.cancel(new ConduitError({
      code: "canceled", reason: "canceled", outcome: call.id === 0 ? "not_sent" : "unknown", message: "the caller has left", cause: options.signal?.reason,
    }));
    const timer = options.timeoutMs === undefined ? undefined : setTimeout(() => call.cancel(new ConduitError({
      code: "deadline_exceeded", reason: "deadline_exceeded", outcome: call.id === 0 ? "not_sent" : "unknown", message: `no answer within ${options.timeoutMs} ms`,
    })), options.timeoutMs);
    if (options.signal?.aborted) stop();
    options.signal?.addEventListener("abort", stop);
    const sending = this.#send(call, method, items, options, whole);
    sending.catch((err) => call.cancel(err instanceof ConduitError ? err : new ConduitError({
      code: "canceled", reason: "canceled", outcome: "unknown", message: `the caller's messages have failed: ${err?.message ?? err}`, cause: err,
    })));
    try {
      for (;;) {
        const next = await call.receive();
        if (next === undefined) return;
        const value = decodeValue(next.message);
        if (next.part === 0) yield value;
        else options.onPart?.(next.part, value);
      }
    } catch (err) {
      if (err instanceof ConduitError) {
        err.method ||= method;
        err.address ||= this.toString();
      }
      throw err;
    } finally {
      clearTimeout(timer);
      options.signal?.removeEventListener("abort", stop);
      stop();
    }
  }

  async #send(call, method, items, options, whole) {
    const invoke = { ...this.#to, method, replyCredit: REPLY_CREDIT, accept: options.accept, units: options.units };
    if (options.timeoutMs !== undefined) invoke.timeoutMicros = Math.max(1, Math.floor(options.timeoutMs * 1000));
    if (whole) {
      const message = items.length === 0 ? undefined : encodeValue(items[0]);
      if (message === undefined) return call.invoke(invoke, true);
      call.contentType = invoke.contentType = message.contentType;
      return call.send(message, true, invoke);
    }
    await call.invoke(invoke, false);
    for await (const item of items) { // what is over is left, and the iterator with it
      if (call.over) return undefined;
      await call.send(encodeValue(item), false);
    }
    return call.finish();
  }

  toString() {
    const { instance, deployment, element, ordinal, service } = this.#to;
    return `${instance}://${deployment}/${element}${ordinal === undefined ? "" : `[${ordinal}]`}/${service}`;
  }
}

/**
 * A link to one instance. It does not dial again: when it is lost (see closed), connect
 * another one.
 */
export class Client {
  /** Resolves with a ConduitError, or undefined after close, when the link has ended. */
  closed;
  /** What the instance says of itself: its instance id, limits and first credits. */
  theirs;
  room = 0; // link credit

  #ws;
  #calls = new Map();
  #nextID = 1;
  #due = 0; // link credit to be returned
  #ended = false;
  #away; // GoAway's error, once it has come
  #resolveClosed;
  #waiters = [];
  #timer;
  #heard = 0;
  #pinged = 0; // when the first ping that nothing followed was sent
  #pings = 0;
  #tick = 0;
  #ready;

  constructor(ws) {
    this.#ws = ws;
    this.closed = new Promise((resolve) => { this.#resolveClosed = resolve; });
  }

  /**
   * Opens a link.
   *
   * @param {string} url ws://host:port or wss://host:port of an instance.
   * @param {object} [options] session (the secret; none = anonymous), timeoutMs (5000), and
   *   webSocket: (url, protocols) => WebSocket, where the platform has none or it takes
   *   more, as a header in Node.js.
   * @throws {ConduitError}
   */
  static async connect(url, { session, timeoutMs = HELLO_TIMEOUT, webSocket = (u, p) => new WebSocket(u, p) } = {}) {
    const target = new URL(url);
    if (target.pathname === "/") target.pathname = PATH;
    const protocols = [SUB_PROTOCOL];
    if (session) protocols.push(`conduit.session.${session}`);
    const ws = webSocket(target.href, protocols);
    ws.binaryType = "arraybuffer";
    const client = new Client(ws);
    await new Promise((resolve, reject) => {
      const refused = (message) => reject(new ConduitError({
        code: "unavailable", reason: "peer_unreachable", outcome: "not_sent", retryable: true, peer: target.href, op: "connect", message: `${target.href}: ${message}`,
      }));
      const timer = setTimeout(() => {
        refused(`no Hello within ${timeoutMs} ms`);
        client.#fail(1002, "no Hello");
      }, timeoutMs);
      client.#ready = (err) => {
        clearTimeout(timer);
        if (err === undefined) resolve();
        else refused(err.message);
      };
      client.#listen();
    });
    return client;
  }

  /** The service at an address, such as "*://greeter/greeter/example.Greeter". */
  at(address) {
    return new Element(this, address);
  }

  /** Ends the link, and all calls that are under way. */
  close() {
    this.#end(undefined);
    this.#closeSocket(1000, "");
  }

  #listen() {
    const ws = this.#ws;
    this.#heard = performance.now();
    let said = "the connection was refused or cut; browsers do not say why";
    ws.addEventListener("error", (e) => { said = e.message || e.error?.message || said; });
    ws.addEventListener("close", (e) => {
      this.#end(this.#lost(e.reason || (e.code === 1006 ? said : `closed with ${e.code}`)));
    });
    ws.addEventListener("open", () => {
      if (ws.protocol !== SUB_PROTOCOL) this.#fail(1002, `the sub-protocol is ${JSON.stringify(ws.protocol)}`);
    });
    ws.addEventListener("message", ({ data }) => {
      if (this.#ended) return;
      if (typeof data === "string") return this.#fail(1003, "text messages are refused");
      if (data.byteLength > MAX_PACKET) return this.#fail(1009, `a packet of ${data.byteLength} bytes, the cap is ${MAX_PACKET}`);
      this.#heard = performance.now();
      this.#pings = 0;
      try {
        for (const frame of decode("Packet", new Uint8Array(data)).frames) {
          this.#frame(frame);
          if (this.#ended) return;
        }
      } catch (err) {
        this.#fail(1002, err.message);
      }
    });
  }

  #lost(message) {
    return new ConduitError({ code: "unavailable", reason: "peer_lost", outcome: "unknown", peer: this.theirs?.instance ?? "", message: `the link was lost: ${message}` });
  }

  #end(error) {
    if (this.#ended) return;
    this.#ended = true;
    clearInterval(this.#timer);
    const ready = this.#ready;
    this.#ready = undefined;
    ready?.(error ?? this.#lost("closed"));
    for (const call of [...this.#calls.values()]) call.end(error ?? this.#lost("closed by this end"));
    this.changed();
    this.#resolveClosed(error);
  }

  /** Ends the link for a fault of the other end's. */
  #fail(code, message) {
    this.#end(this.#lost(message));
    this.#closeSocket(code, message);
  }

  // A browser lets a program say 1000 and 3000 to 4999 only.
  #closeSocket(code, reason) {
    let text = reason.slice(0, 123);
    while (new TextEncoder().encode(text).length > 123) text = text.slice(0, -1);
    this.#ws.close(code === 1000 ? code : code + 3000, text);
  }

  #frame(f) {
    if (this.theirs === undefined) {
      if (f.goAway !== undefined) throw new Error(`refused: ${f.goAway.message || f.goAway.reason}`);
      if (f.hello === undefined || f.call !== 0) throw new Error("frames before Hello");
      return this.#hello(f.hello);
    }
    if (f.data !== undefined || f.failure !== undefined) {
      this.#due += f.size;
      if (this.#due >= LINK_CREDIT_DUE) {
        this.write({ call: 0, credit: { bytes: this.#due } });
        this.#due = 0;
      }
    }
    if (f.call === 0) {
      if (f.hello !== undefined) throw new Error("a second Hello");
      if (f.data !== undefined || f.failure !== undefined || f.cancel !== undefined) throw new Error("a call's frame on call 0");
      if (f.credit !== undefined) {
        this.room += f.credit.bytes;
        if (this.room > CREDIT_MOST) throw new Error("link credit over 2^40");
        this.changed();
      }
      if (f.ping !== undefined && !f.ping.ack) this.write({ call: 0, ping: { nonce: f.ping.nonce, ack: true } });
      if (f.goAway !== undefined) this.#goAway(f.goAway);
      return;
    }
    if (f.invoke !== undefined || f.cancel !== undefined) throw new Error("the acceptor may not call");
    if (f.data === undefined && f.failure === undefined && f.credit === undefined) return;
    if (f.call >= this.#nextID || f.call % 2 === 0) throw new Error(`call ${f.call} was never made`);
    const call = this.#calls.get(f.call);
    if (call === undefined) return; // it has ended here
    if (f.data !== undefined) call.take(f.data);
    if (f.credit !== undefined) {
      call.room += f.credit.bytes;
      if (call.room > CREDIT_MOST) throw new Error("call credit over 2^40");
      call.changed();
    }
    if (f.failure !== undefined) {
      const { code, outcome, retryAfterMicros, ...rest } = f.failure;
      // It was sent, whatever the hop behind could do.
      const was = OUTCOMES[outcome] ?? "unknown";
      call.end(new ConduitError({ ...rest, code: CODES[code] ?? "unknown", outcome: was === "not_sent" ? "refused" : was, retryAfterMs: retryAfterMicros / 1000 }));
    }
  }

  #hello(h) {
    if (h.required.length > 0 || h.versionMin > 1 || h.versionMax < 1) {
      const why = h.required.length > 0 ? `features that are not known here: ${h.required}` : `versions ${h.versionMin} to ${h.versionMax}, and version 1 is spoken here`;
      this.write({ call: 0, goAway: { reason: "protocol", message: why } });
      throw new Error(why);
    }
    this.theirs = {
      instance: h.instance,
      maxMessage: h.maxMessage || MAX_MESSAGE, maxPacket: h.maxPacket || MAX_PACKET, maxCalls: h.maxCalls || 4096,
      linkCredit: h.linkCredit || LINK_CREDIT, callCredit: h.callCredit || 65536,
    };
    if (this.theirs.maxPacket < 65536 || this.theirs.linkCredit < 65536 || this.theirs.callCredit < 4096) {
      this.write({ call: 0, goAway: { reason: "protocol", message: "limits below the least" } });
      throw new Error("limits below the least");
    }
    this.room = this.theirs.linkCredit;
    this.write({ call: 0, hello: { versionMin: 1, versionMax: 1, maxMessage: MAX_MESSAGE, maxPacket: MAX_PACKET, linkCredit: LINK_CREDIT } });
    this.#tick = performance.now();
    this.#timer = setInterval(() => this.#probe(), PROBE);
    const ready = this.#ready;
    this.#ready = undefined;
    ready();
  }

  #goAway(g) {
    if (this.#away !== undefined) return;
    const of = { code: "unavailable", reason: g.reason, retryable: true, retryAfterMs: g.retryAfterMicros / 1000, message: g.message || "the instance takes no more calls on this link" };
    this.#away = () => new ConduitError({ ...of, outcome: "not_sent" });
    for (const [id, call] of [...this.#calls]) {
      if (id > g.lastCall) call.end(new ConduitError({ ...of, outcome: "refused" }));
    }
    this.changed();
    this.#leave();
  }

  // After a GoAway the link ends with its last call.
  #leave() {
    if (this.#away === undefined || this.#calls.size > 0 || this.#ended) return;
    this.#end(this.#away());
    this.#closeSocket(1001, "");
  }

  // Finds out that the other end is dead, though its connection is not.
  #probe() {
    const now = performance.now();
    const late = now - this.#tick > 2 * PROBE; // our own timer was
    this.#tick = now;
    if (late) {
      this.#heard = now;
      this.#pings = 0;
      return;
    }
    if (this.#pings >= 2 && now - this.#pinged >= DEAD_AFTER) {
      this.#fail(1000, `nothing came for ${Math.round(now - this.#heard)} ms`);
      return;
    }
    if (this.#pings === 0 && now - this.#heard < (this.#calls.size > 0 ? PROBE : IDLE_PING)) return;
    if (this.#pings++ === 0) this.#pinged = now;
    this.write({ call: 0, ping: { nonce: this.#pings } });
  }

  // What follows is for calls.

  newCall(method) {
    const call = new Call(this, method);
    call.room = this.theirs.callCredit;
    return call;
  }

  /** Writes a frame that costs no credit. */
  write(frame) {
    if (this.#ws.readyState !== 1) return;
    this.#ws.send(encode("Packet", { frames: [frame] }));
  }

  /** Writes a frame that costs link credit; that there is some has been seen to. */
  spend(frame) {
    this.room -= encode("Frame", frame).length;
    this.write(frame);
  }

  /** Ends a call that is not sent yet, if the link takes none any more. */
  check(call) {
    const why = this.#ended ? this.#lost("it has ended") : this.#away?.();
    if (why !== undefined) call.end(Object.assign(why, { outcome: "not_sent", retryable: true }));
  }

  /** Writes an Invoke, and so gives the call its id. */
  open(call, invoke) {
    call.id = this.#nextID;
    this.#nextID += 2;
    this.#calls.set(call.id, call);
    this.spend({ call: call.id, invoke });
  }

  forget(call) {
    if (this.#calls.delete(call.id)) this.#leave();
  }

  changed() {
    for (const resolve of this.#waiters.splice(0)) resolve();
  }

  wait() {
    return new Promise((resolve) => this.#waiters.push(resolve));
  }
}
