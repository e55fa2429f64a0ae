"""An HTTP server of a simulated service, which listens on loopback only."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gridmill.domain.frozen import dataclass
from gridmill.errors import GridmillError

CONTROL = "/_simulation/"
"""The paths that control the simulation. All other paths belong to the service."""
_JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer. None as the body means that the connection is closed without an answer."""

    status: int
    body: bytes | None
    headers: Mapping[str, str] = field(default_factory=dict)


NO_ANSWER = Answer(status=0, body=None)

Serve = Callable[[str, str, Mapping[str, str], bytes], Answer]
"""Carries out a request: its method, path with query, headers and body. The names of the headers have the
form `X-Amz-Date`."""
Control = Callable[[str, dict[str, Any]], Any]
"""Carries out a command of the control paths: its name and the JSON object of the request. Returns a JSON
value."""


class LoopbackServer:
    """A server on a port of 127.0.0.1; 0 means any free port."""

    def __init__(self, name: str, serve: Serve, control: Control, port: int = 0) -> None:
        self._server = _Server(("127.0.0.1", port), _handler(serve, control))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name=name, daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Returns the address of the server."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Ends the server. Open connections are closed."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # clients keep connections open
    request_queue_size = 256


def _handler(serve: Serve, control: Control) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path.startswith(CONTROL):
                self._send(_controlled(control, self.path.removeprefix(CONTROL), body))
                return
            headers = _Headers({name.title(): value for name, value in self.headers.items()})
            self._send(serve(self.command, self.path, headers, body))

        def do_GET(self) -> None:
            self.do_POST()

        def do_DELETE(self) -> None:
            self.do_POST()

        def _send(self, answer: Answer) -> None:
            if answer.body is None:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in ({"Content-Type": _JSON} | dict(answer.headers)).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: object) -> None:
            """Writes nothing: tests read the requests from the simulation."""

    return Handler


class _Headers(dict[str, str]):
    """Headers whose names have any case."""

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401
        return super().get(name.title(), default)


def _controlled(control: Control, command: str, body: bytes) -> Answer:
    try:
        value, status = control(command, json.loads(body or b"{}")), 200
    except GridmillError as error:
        value, status = {"error": str(error), "hint": error.hint}, 400
    return Answer(status=status, body=json.dumps(value).encode())
