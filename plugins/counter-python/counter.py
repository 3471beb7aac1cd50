#!/usr/bin/python3
"""counter: an element of Elemental Conduit in Python, in one file.

It is written from docs/plugins-in-any-language.md alone, and shows all of it: unary
calls, streams both ways, typed errors, cancellation, a state that outlives the process.
It needs gRPC for Python (Debian: python3-grpcio) and nothing else; the few protobuf
messages are taken apart by hand, in the first hundred lines.

    cp counter.py <deployments>/counter
    conduit-host call '*://counter/counter/example.Counter' Add '{"name":"a","by":2}'
"""

import concurrent.futures
import hmac
import json
import os
import queue
import signal
import sys
import threading

try:
    import grpc
except ImportError:  # to be described, the element does without
    grpc = None

COOKIE = ("CONDUIT_PLUGIN", "7c0f3d1b5a9e42d68e1b0c4f2a6d9358")
JSON, BYTES = "application/json", "application/octet-stream"
UNARY, SERVER_STREAM, CLIENT_STREAM = 0, 1, 2
CODES = """canceled unknown invalid_argument deadline_exceeded not_found already_exists permission_denied
resource_exhausted failed_precondition aborted out_of_range unimplemented internal unavailable data_loss unauthenticated""".split()
CANCELLED, INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED, INTERNAL = 1, 3, 5, 7, 8, 13
REFUSED, EXECUTED = 2, 3  # outcomes
MAX_CALLS = 256  # each has a thread
MAX_WAITING = 8 << 20  # bytes of one upload that its handler has not taken, beside one message

# -- protobuf ---------------------------------------------------------------------------


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def field(number, value):
    """One field. An empty value is left out, as proto3 does; see present for one that is not."""
    return present(number, value) if value else b""


def present(number, value):
    if isinstance(value, int):  # bool, too
        return varint(number << 3) + varint(value)
    if isinstance(value, str):
        value = value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def parse(data):
    """A message as {number: [values]}; numbers are int, all else is memoryview."""
    data, at, out = memoryview(data), 0, {}

    def number():
        nonlocal at
        n = shift = 0
        while True:
            b = data[at]
            at += 1
            n |= (b & 127) << shift
            shift += 7
            if b < 128:
                return n

    while at < len(data):
        key = number()
        kind = key & 7
        if kind == 0:
            out.setdefault(key >> 3, []).append(number())
            continue
        size = {1: 8, 5: 4}.get(kind) or number()
        if at + size > len(data):
            raise ValueError("a field is cut short")
        out.setdefault(key >> 3, []).append(data[at : at + size])
        at += size
    return out


def one(message, number, default=0):
    return message.get(number, [default])[-1]


def text(message, number):
    return bytes(one(message, number, b"")).decode()


# -- the element ------------------------------------------------------------------------


class Failure(Exception):
    """An error as callers get it: with one of gRPC's codes, and a name of its own."""

    def __init__(self, code, reason, message, outcome=EXECUTED, **details):
        super().__init__(message)
        self.code, self.reason, self.outcome, self.details = code, reason, outcome, details

    def encode(self):
        out = field(1, self.code) + field(2, self.reason) + field(3, self.outcome) + field(6, str(self))
        for key, value in self.details.items():
            out += field(11, field(1, key) + field(2, value))
        return out


def canceled():
    return Failure(CANCELLED, "canceled", "the caller is gone", outcome=0)


class Counters:
    """What the element is for. A handler gets its call and returns the last message."""

    def __init__(self):
        self.lock, self.values, self.path = threading.Lock(), {}, None

    def open(self, data_dir):
        self.path = os.path.join(data_dir, "counters.json")
        if os.path.exists(self.path):
            with open(self.path, encoding="utf-8") as f:
                self.values = json.load(f)

    def add(self, call):
        ask = call.json()
        name, by = ask.get("name"), ask.get("by", 1)
        if not isinstance(name, str) or not name or not isinstance(by, int):
            raise Failure(INVALID_ARGUMENT, "bad_content", 'a request is {"name": text, "by": whole number}')
        with self.lock:
            self.values[name] = self.values.get(name, 0) + by
            half = self.path + ".new"
            with open(half, "w", encoding="utf-8") as f:
                json.dump(self.values, f)
            os.replace(half, self.path)  # it outlives a crash, whole
            return {"name": name, "value": self.values[name]}

    def get(self, call):
        name = call.json().get("name", "")
        with self.lock:
            if name not in self.values:
                raise Failure(NOT_FOUND, "no_such_counter", f"there is no counter {name!r}", name=str(name))
            return {"name": name, "value": self.values[name]}

    def count(self, call):
        """Counts to n, with a pause before each number but the first."""
        ask = call.json()
        for i in range(1, int(ask.get("n", 0)) + 1):
            try:
                if i > 1:
                    call.sleep(ask.get("interval_ms", 0) / 1000)
                call.send({"i": i})
            except Failure:
                print(f"counting was given up at {i}", file=sys.stderr, flush=True)
                raise

    def sum(self, call):
        return {"sum": sum(int(m.get("value", 0)) for m in iter(call.json, None))}

    def echo(self, call):
        return bytes(call.receive() or b"")


class Conformance:
    """What the checks of `conduit-host plugin verify --full` call. It crashes and logs for
    whoever asks, so it is there only when the file is run by a name with "conformance" in
    it, which a host never does: docs/plugins.md, Conformance."""

    def __init__(self):
        self.lock, self.busy = threading.Lock(), 0

    def counted(self, handler):
        """The handler, counted by Running while it is under way."""

        def run(call):
            with self.lock:
                self.busy += 1
            try:
                return handler(call)
            finally:
                with self.lock:
                    self.busy -= 1

        return run

    def running(self, _):
        with self.lock:
            return self.busy

    def big(self, call):
        return bytes(call.value())

    def sleep(self, call):
        call.sleep(call.json()["ms"] / 1000)
        return {}

    def count(self, call):
        for i in range(call.value()):
            call.send(i)

    def upload(self, call):
        sizes = [len(item) for item in iter(call.receive, None)]
        return {"items": len(sizes), "bytes": sum(sizes)}

    def fail(self, call):
        ask = call.json()
        raise Failure(CODES.index(ask["code"]) + 1, ask["reason"], ask["message"])

    def crash(self, _):
        raise RuntimeError("Crash of the conformance service was called")

    def log(self, call):
        ask = call.json()
        print(json.dumps({"@level": ask["level"], "@message": ask["message"]}), file=sys.stderr, flush=True)
        return {}


COUNTERS = Counters()
SERVICES = {  # by name: their methods, as name: handler, shape, idempotent, content type, remote
    "example.Counter": {
        "Add": (COUNTERS.add, UNARY, False, JSON, True),
        "Get": (COUNTERS.get, UNARY, True, JSON, True),
        "Count": (COUNTERS.count, SERVER_STREAM, True, JSON, True),
        "Sum": (COUNTERS.sum, CLIENT_STREAM, True, JSON, True),
        "Echo": (COUNTERS.echo, UNARY, True, BYTES, True),
    }
}
if "conformance" in os.path.basename(sys.argv[0]):
    CHECKED = Conformance()
    SERVICES["conduit.conformance.v1.Conformance"] = {
        "Echo": (COUNTERS.echo, UNARY, False, BYTES, True),
        "Big": (CHECKED.big, UNARY, False, JSON, True),
        "Sleep": (CHECKED.counted(CHECKED.sleep), UNARY, False, JSON, True),
        "Count": (CHECKED.counted(CHECKED.count), SERVER_STREAM, False, JSON, True),
        "Upload": (CHECKED.counted(CHECKED.upload), CLIENT_STREAM, False, BYTES, True),
        "Running": (CHECKED.running, UNARY, False, JSON, True),
        "Fail": (CHECKED.fail, UNARY, False, JSON, True),
        "Crash": (CHECKED.crash, UNARY, False, JSON, True),
        "Log": (CHECKED.log, UNARY, False, JSON, True),
        "Hidden": (CHECKED.running, UNARY, False, JSON, False),
    }
ELEMENT, VERSION = "counter", "1.0.0"


def description():
    services = b""
    for service, methods in SERVICES.items():
        out = field(1, service)
        for name, (_, shape, idempotent, content, remote) in methods.items():
            out += field(2, field(1, name) + field(2, remote) + field(3, shape) + field(6, idempotent) + field(11, content))
        services += field(3, out)
    return field(1, ELEMENT) + field(2, VERSION) + services


def describe_json():
    shapes = ["SHAPE_UNARY", "SHAPE_SERVER_STREAM", "SHAPE_CLIENT_STREAM"]
    services = [
        {
            "name": service,
            "methods": [
                {"name": name, "remote": remote, "shape": shapes[shape], "idempotent": idempotent, "content_types": [content]}
                for name, (_, shape, idempotent, content, remote) in methods.items()
            ],
        }
        for service, methods in SERVICES.items()
    ]
    return json.dumps({"element": ELEMENT, "version": VERSION, "services": services}, indent=2)


# -- the link ---------------------------------------------------------------------------


class Call:
    """One call, from its handler's side."""

    def __init__(self, link, number, invoke):
        self.link, self.number = link, number
        self.method, self.content = text(invoke, 5), text(invoke, 7)
        self.gone = threading.Event()  # cancelled, or too slow, or the link is over
        self.why = canceled()
        self.waiting, self.size = queue.Queue(), 0  # messages, then None

    def receive(self):
        """The next message of the request; None at its end."""
        message = self.waiting.get()
        if self.gone.is_set():
            raise self.why
        with self.link.changed:
            self.size -= len(message or b"")
        return message

    def leave(self, why):
        """Has the handler end, wherever it waits."""
        self.why = why
        self.gone.set()
        self.waiting.put(None)

    def value(self):
        message = self.receive()
        if message is None:
            return None
        try:
            return json.loads(bytes(message))
        except ValueError as e:
            raise Failure(INVALID_ARGUMENT, "bad_content", f"the request is no JSON: {e}") from e

    def json(self):
        value = self.value()
        if value is not None and not isinstance(value, dict):
            raise Failure(INVALID_ARGUMENT, "bad_content", "the request is no JSON object")
        return value

    def sleep(self, seconds):
        if self.gone.wait(seconds):
            raise self.why

    def send(self, value, last=False):
        """One message down: bytes as they are, all else as JSON."""
        message = value if isinstance(value, bytes) else json.dumps(value).encode()
        if len(message) > self.link.most:
            raise Failure(RESOURCE_EXHAUSTED, "payload_too_large", f"{len(message)} bytes are more than {self.link.most}")
        kind = BYTES if isinstance(value, bytes) else JSON
        self.link.write(self, field(4, field(2, kind) + present(3, len(message)) + field(4, message) + field(6, last)))

    def run(self, handler):
        try:
            value = handler(self)
            if value is not None:
                self.send(value, last=True)
            else:
                self.link.write(self, field(4, field(6, True)))
        except Failure as e:
            self.link.control(self.number, field(5, e.encode()))
        except Exception as e:  # pylint: disable=broad-except  # a bug costs one call
            print(f"{self.method}: {e!r}", file=sys.stderr, flush=True)
            self.link.control(self.number, field(5, Failure(INTERNAL, "panic", repr(e)).encode()))
        finally:
            self.link.ended(self.number)


class Link:
    """The host's link: a reader, a writer, and the calls."""

    def __init__(self, token):
        self.token, self.most, self.greeted = token, 10 << 20, False
        self.calls, self.last, self.draining, self.read_all = {}, 0, False, False
        self.changed = threading.Condition()
        self.packets, self.over = [], False
        hello = field(1, 1) + field(2, 1) + field(9, MAX_CALLS) + field(15, True)  # version 1, simple
        self.control(0, field(2, hello))

    def write(self, call, kind):
        """Queues a frame of a call once the host has taken what came before."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.packets) < 4 or call.gone.is_set())
            if call.gone.is_set():
                raise call.why
            self.packets.append(field(1, field(1, call.number) + kind))
            self.changed.notify_all()

    def control(self, number, kind):
        """Queues a frame that must not wait: of the reader's, or a call's end."""
        with self.changed:
            self.packets.append(field(1, field(1, number) + kind))
            self.changed.notify_all()

    def ended(self, number):
        with self.changed:
            self.calls.pop(number, None)
            self.changed.notify_all()

    def outgoing(self):
        """The packets for gRPC to write, one after another."""
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.packets or self.over)
                if not self.packets:
                    return
                packet = self.packets.pop(0)
                self.changed.notify_all()
            yield packet

    def read(self, packets):
        try:
            for packet in packets:
                for frame in map(parse, parse(packet).get(1, [])):
                    for kind, take in self.KINDS.items():
                        if kind in frame:
                            if not self.greeted and kind != 2:
                                raise ValueError("a frame before the host's Hello")
                            take(self, one(frame, 1), parse(one(frame, kind)))
        except grpc.RpcError:
            pass  # the stream has ended
        except (ValueError, IndexError, TypeError) as e:  # what comes is not of this protocol
            print(f"the link is given up: {e}", file=sys.stderr, flush=True)
        finally:
            self.close()

    def close(self):
        with self.changed:
            self.over = True
            for call in self.calls.values():
                call.leave(canceled())
            self.changed.notify_all()

    def hello(self, _, hello):
        if not hmac.compare_digest(bytes(one(hello, 14, b"")), self.token) or not one(hello, 15):
            self.control(0, field(8, field(2, "protocol") + field(4, "not this plugin's host, or one without the simple profile")))
            raise ValueError("a stranger, or no simple profile")
        self.most, self.greeted = one(hello, 7) or self.most, True

    def invoke(self, number, invoke):
        call = Call(self, number, invoke)
        service, why = text(invoke, 4), None
        if service not in SERVICES:
            why = Failure(NOT_FOUND, "service_not_found", f"there is no service {service}", REFUSED)
        elif call.method not in SERVICES[service]:
            why = Failure(NOT_FOUND, "method_not_found", f"there is no method {call.method}", REFUSED)
        elif not SERVICES[service][call.method][4]:
            why = Failure(PERMISSION_DENIED, "not_remote", f"{call.method} is not for callers of other processes", REFUSED)
        if why:
            self.control(number, field(5, why.encode()))
            return
        with self.changed:
            if self.draining:
                return  # it is above last_call, so the host knows
            self.last, self.calls[number] = number, call
        threading.Thread(target=call.run, args=(SERVICES[service][call.method][0],), daemon=True).start()
        if 14 in invoke:
            self.data(number, parse(one(invoke, 14)))

    def data(self, number, data):
        call = self.calls.get(number)
        if call is None:
            return  # it has ended
        if 3 in data:  # a total: there is a message
            if call.size > MAX_WAITING:  # there is no credit by which to slow down its caller
                call.leave(Failure(RESOURCE_EXHAUSTED, "overloaded", "more came than could be worked on"))
                return
            message = one(data, 4, b"")
            with self.changed:
                call.size += len(message)
            call.waiting.put(message)
        if one(data, 6):
            call.waiting.put(None)

    def cancel(self, number, _):
        call = self.calls.get(number)
        if call:
            with self.changed:
                call.leave(canceled())
                self.changed.notify_all()

    def ping(self, _, ping):
        if not one(ping, 2):
            self.control(0, field(10, field(1, one(ping, 1)) + field(2, True)))
            return
        with self.changed:  # the answer to drain's
            self.read_all = True
            self.changed.notify_all()

    KINDS = {2: hello, 3: invoke, 4: data, 6: cancel, 10: ping}

    def drain(self):
        """No new calls; returns when those under way have ended, and the host has read so."""
        with self.changed:
            self.draining = True
            self.control(0, field(8, present(1, self.last) + field(2, "draining")))
            self.changed.wait_for(lambda: self.over or not self.calls, timeout=25)
            self.control(0, field(10, field(1, 1)))
            self.changed.wait_for(lambda: self.over or self.read_all, timeout=5)


# -- the process ------------------------------------------------------------------------


class Process:
    def __init__(self):
        self.link, self.configured, self.stop = None, False, threading.Event()

    def handlers(self):
        return {
            "/grpc.health.v1.Health/Check": lambda request, context: field(1, 1),  # SERVING
            "/plugin.GRPCController/Shutdown": self.shutdown,
            "/conduit.v1.Plugin/Describe": lambda request, context: description(),
            "/conduit.v1.Plugin/Configure": self.configure,
            "/conduit.v1.Plugin/Health": lambda request, context: field(1, 1),  # HEALTHY
            "/conduit.v1.Plugin/Stop": lambda request, context: b"",  # nothing is unwritten
        }

    def configure(self, request, context):
        try:
            COUNTERS.open(text(parse(request), 4))
        except (OSError, ValueError) as e:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"the counters cannot be read: {e}")
        self.configured = True
        return b""

    def shutdown(self, request, context):
        self.stop.set()
        return b""

    def run_link(self, packets, context):
        if not self.configured or self.link:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "Configure comes before Link, and there is one link")
        self.link = Link(bytes.fromhex(os.environ.get("CONDUIT_PLUGIN_TOKEN", "")))
        # What is read must never wait for what is written.
        threading.Thread(target=self.link.read, args=(packets,), daemon=True).start()
        context.add_callback(self.link.close)
        yield from self.link.outgoing()

    def serve(self):
        class Service(grpc.GenericRpcHandler):
            def service(handler, details):  # pylint: disable=no-self-argument
                if details.method == "/conduit.v1.Plugin/Link":
                    return grpc.stream_stream_rpc_method_handler(self.run_link)
                method = self.handlers().get(details.method)
                return method and grpc.unary_unary_rpc_method_handler(method)

        # gRPC's own bound of 4 MiB must not show through.
        limits = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(8), handlers=[Service()], options=limits)
        path = os.path.join(os.environ["PLUGIN_UNIX_SOCKET_DIR"], "counter.sock")
        server.add_insecure_port("unix:" + path)
        server.start()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the host's to handle
        signal.signal(signal.SIGTERM, self.terminated)
        print(f"1|1|unix|{path}|grpc|", flush=True)  # the handshake, the first line on stdout
        self.stop.wait()
        server.stop(0.5).wait()  # so long what is under way, as the answer to Shutdown, may take

    def terminated(self, *_):
        def drain():
            if self.link:
                self.link.drain()
            self.stop.set()

        threading.Thread(target=drain, daemon=True).start()


USAGE = f"""{ELEMENT} {VERSION} is an element of Elemental Conduit: it runs inside of conduit-host.
Copy the file into the host's deployments directory. To see what it offers: {sys.argv[0]} describe
"""


def main():
    if sys.argv[1:] == ["describe"]:
        print(describe_json())
        return 0
    if os.environ.get(COOKIE[0]) == COOKIE[1]:
        if grpc is None:
            print("gRPC for Python is missing: apt-get install python3-grpcio", file=sys.stderr)
            return 1
        with open("/proc/self/comm", "w", encoding="utf-8") as f:  # or tools such as top show a number
            f.write(ELEMENT)
        Process().serve()
        return 0
    if sys.argv[1:] in (["--help"], ["-h"], ["help"]):
        print(USAGE, end="")
        return 0
    print(USAGE, end="", file=sys.stderr)
    return 64


if __name__ == "__main__":
    STATUS = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(STATUS)  # handlers that still run do not keep the process
