"""The HTTP server of a simulated cloud, and the faults that every request passes."""

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gridmill.domain.frozen import dataclass
from gridmill.errors import GridmillError
from gridmill.testing.cloud.cloud_faults import Outcome, PlannedFault

CONTROL = "/_simulation/"
"""The paths that control the simulation. All other paths belong to the simulated services."""
JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer. None as the body means that the connection is closed without an answer."""

    status: int
    body: bytes | None
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


Respond = Callable[[str, str, Mapping[str, str], bytes], Answer]
"""Answers a request: the method, the path with its query, the headers and the body."""
Control = Callable[[str, dict[str, Any]], Any]
"""Carries out a command of the control paths: the name of the command and the JSON object of the request. It
returns a JSON value."""
NO_ANSWER = Answer(status=0, body=None)


def json_answer(value: object, status: int = 200) -> Answer:
    """Returns an answer with a JSON value as its body."""
    return Answer(status=status, body=json.dumps(value).encode())


def with_fault(
    fault: PlannedFault | None, effect: Callable[[], Answer], error: Callable[[PlannedFault], Answer]
) -> Answer:
    """Carries out a request that a fault may apply to, and returns its answer. `error` returns the answer
    for a fault in the dialect of the service."""
    if fault is None:
        return effect()
    match fault.outcome:
        case Outcome.LOST_BEFORE:
            return NO_ANSWER
        case Outcome.ERROR:
            return error(fault)
        case Outcome.LOST:
            effect()
            return NO_ANSWER
        case Outcome.ERROR_AFTER:
            effect()
            return error(fault)


class SimulationServer:
    """A server on a free port of 127.0.0.1, or on the given port and address."""

    def __init__(
        self, name: str, respond: Respond, control: Control, port: int = 0, address: str = "127.0.0.1"
    ) -> None:
        self._address = address
        self._server = _Server((address, port), _handler(respond, control))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name=name, daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Returns the address of the server."""
        return f"http://{self._address}:{self._server.server_address[1]}"

    def close(self) -> None:
        """Ends the server. Open connections are closed."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # clients keep connections open
    request_queue_size = 256


def _handler(respond: Respond, control: Control) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path.startswith(CONTROL):
                self._send(_controlled(control, self.path.removeprefix(CONTROL), body))
                return
            headers = {name.title(): value for name, value in self.headers.items()}
            self._send(respond(self.command, self.path, _Headers(headers), body))

        def do_GET(self) -> None:
            self.do_POST()

        def do_HEAD(self) -> None:
            self.do_POST()

        def do_PUT(self) -> None:
            self.do_POST()

        def do_PATCH(self) -> None:
            self.do_POST()

        def do_DELETE(self) -> None:
            self.do_POST()

        def _send(self, answer: Answer) -> None:
            if answer.body is None:
                self.close_connection = True
                return
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            for name, value in answer.headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            with suppress(ConnectionError):  # a client that was killed does not wait for its answer
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else answer.body)

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
    return json_answer(value, status)
