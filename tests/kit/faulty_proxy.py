"""A proxy in front of an S3 server that does not always do what it should."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

Fault = Callable[[str, str], str]
"""Asked with method and path of each request: a status (as `503`), `cut` (no answer), `short` (half of the
body), or nothing."""


class FaultyProxy:
    """`fault` may be changed at any time; `faults` counts those that were had."""

    def __init__(self, endpoint: str) -> None:
        self.upstream = urlsplit(endpoint).netloc
        self.fault: Fault = lambda method, path: ""
        self.faults = 0
        self.endpoint = ""


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultyProxy
    protocol_version = "HTTP/1.0"

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.proxy.fault(self.command, self.path)
        self.proxy.faults += bool(fault)
        if fault.isdigit():
            return self._answer(int(fault), [], b"<Error><Code>SlowDown</Code></Error>")
        if fault == "cut":
            return None
        upstream = http.client.HTTPConnection(self.proxy.upstream, timeout=120)
        upstream.request(self.command, self.path, body, dict(self.headers))  # with its own Host: it is signed
        answer = upstream.getresponse()
        told, headers = answer.read(), answer.getheaders()
        upstream.close()
        return self._answer(answer.status, headers, told, cut=fault == "short")

    def do_GET(self) -> None:
        self._pass_on()

    def do_PUT(self) -> None:
        self._pass_on()

    def do_HEAD(self) -> None:
        self._pass_on()

    def do_DELETE(self) -> None:
        self._pass_on()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, *, cut: bool = False) -> None:
        kept = {
            name: value for name, value in headers if name.lower() not in ("transfer-encoding", "connection")
        }
        if self.command != "HEAD":
            kept = {name: value for name, value in kept.items() if name.lower() != "content-length"}
            kept["Content-Length"] = str(len(body))
        self.send_response_only(status)
        for name, value in kept.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def faulty_proxy(endpoint: str) -> Iterator[FaultyProxy]:
    """Until the block ends."""
    handler = type("Handler", (_Handler,), {"proxy": FaultyProxy(endpoint)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        handler.proxy.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield handler.proxy
        server.shutdown()
