"""The HTTP server of the simulated EC2, which listens on loopback only."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gridmill.errors import GridmillError
from gridmill.testing.cloud.ec2.actions import Answer, Services

CONTROL = "/_simulation/"
"""The paths that control the simulation. All other paths belong to the services."""
_JSON = "application/json"
Control = Callable[[str, dict[str, Any]], Any]


class Ec2Server:
    """A server on a free port of 127.0.0.1. `control` carries out a command of the control paths: it gets the
    name of the command and the JSON object of the request, and returns a JSON value."""

    def __init__(self, services: Services, control: Control, port: int = 0) -> None:
        self._server = _Server(("127.0.0.1", port), _handler(services, control))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="ec2", daemon=True
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


def _handler(services: Services, control: Control) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path.startswith(CONTROL):
                self._send(_controlled(control, self.path.removeprefix(CONTROL), body))
                return
            headers = {name.title(): value for name, value in self.headers.items()}
            self._send(services.answer("POST", self.path, _Headers(headers), body))

        def do_GET(self) -> None:
            self.do_POST()

        def _send(self, answer: Answer) -> None:
            if answer.body is None:
                self.close_connection = True
                return
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
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
    return Answer(status=status, body=json.dumps(value).encode(), content_type=_JSON)
