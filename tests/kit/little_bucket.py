"""A bucket in memory, behind real HTTP, that does what it is told: fails, breaks off, forgets."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

from gridmill.errors import NotFoundError, UnavailableError
from gridmill.transfer.stream import UNMETERED, ByteMeter

SECRET = "5ec5ec5ec"
REFUSED = b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"


class LittleBucket:
    """`objects` by name; `put_at` (Unix) by name. `fault` is asked before each request by a signed URL: a
    status, or `cut`, `short` or `damage`; empty: none. It is the owner's view too (kept.Listed)."""

    def __init__(self, port: int) -> None:
        self.objects: dict[str, bytes] = {}
        self.put_at: dict[str, float] = {}
        self.seen: list[tuple[str, str]] = []
        self.fault: Callable[[str, str], str] = lambda method, name: ""
        self.pass_seconds = 900.0
        self.fails_to_remove = False
        self._port, self._numbers = port, count()
        self._passes: dict[str, tuple[str, str, float]] = {}

    def put(self, name: str, content: bytes, meter: ByteMeter = UNMETERED) -> None:
        for _ in meter.sending(content):
            pass
        self.objects[name], self.put_at[name] = content, time.time()

    def get(self, name: str, most_bytes: int, meter: ByteMeter = UNMETERED) -> bytes:
        if name not in self.objects:
            raise NotFoundError("is not there", place=name)
        assert len(self.objects[name]) <= most_bytes
        meter.moved(len(self.objects[name]))
        return self.objects[name]

    def remove(self, name: str) -> None:
        if self.fails_to_remove:
            raise UnavailableError("not now")
        self.objects.pop(name, None)

    def has(self, name: str) -> bool:
        return name in self.objects

    def names(self, folder: str) -> Iterator[list[str]]:
        yield [name for name in self.objects if name.startswith(f"{folder}/")]

    def older(self, before: datetime, folder: str | None = None) -> Iterator[str]:
        inside = [name for name in self.objects if folder is None or name.startswith(f"{folder}/")]
        yield from [name for name in inside if self.put_at[name] < before.timestamp()]

    def sign(self, method: str, name: str) -> str:
        number = str(next(self._numbers))
        self._passes[number] = method, name, time.monotonic() + self.pass_seconds
        return f"http://127.0.0.1:{self._port}/{name}?number={number}&signature={SECRET}"

    def allows(self, method: str, path: str) -> str | None:
        """The object's name, where that URL opens it so, now."""
        name, _, query = path.removeprefix("/").partition("?")
        wanted = self._passes.get(query.partition("&")[0].removeprefix("number="), ("", "", 0.0))
        return name if wanted[:2] == (method, name) and time.monotonic() < wanted[2] else None


class _Handler(BaseHTTPRequestHandler):
    bucket: LittleBucket

    def do_GET(self) -> None:
        self._serve(b"")

    def do_PUT(self) -> None:
        self._serve(self.rfile.read(int(self.headers["Content-Length"])))

    def _serve(self, body: bytes) -> None:
        name = self.bucket.allows(self.command, self.path)
        if name is None:
            return self._answer(403, REFUSED)
        self.bucket.seen.append((self.command, name))
        fault = self.bucket.fault(self.command, name)
        if fault.isdigit():
            self.send_response(int(fault))
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_address[1]}{self.path}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if fault == "cut":
            return None
        if self.command == "PUT":
            self.bucket.put(name, body[:-1] + b"?" if fault == "damage" else body)
            return self._answer(200, b"")
        if name not in self.bucket.objects:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        content = self.bucket.objects[name][int(first) : int(last) + 1]
        content = content[:-1] + b"?" if fault == "damage" else content
        return self._answer(206, content[: len(content) // 2] if fault == "short" else content, len(content))

    def _answer(self, status: int, body: bytes, said_bytes: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if said_bytes is None else said_bytes))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def little_bucket() -> Iterator[LittleBucket]:
    """Until the block ends."""
    handler = type("Handler", (_Handler,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        handler.bucket = LittleBucket(server.server_address[1])
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield handler.bucket
        server.shutdown()


def moment(ago_seconds: float) -> datetime:
    """So long ago."""
    return datetime.fromtimestamp(time.time() - ago_seconds, UTC)
