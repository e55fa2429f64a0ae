"""The SDK's HTTP connections: kept, given up when stale, shared by threads, clear when nothing answers."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gridmill.errors import InputError, UnavailableError
from gridmill.sdk.connection import Connections, tcp_connections
from gridmill.sdk.grid_http import HttpGrid, over_tcp


class Server(ThreadingHTTPServer):
    """Answers its path; /broken is cut off, /bad is a gateway's page, /last closes after the answer, /late
    without one where the connection was used before; a POST gets none."""

    daemon_threads = True
    opened = 0

    def process_request(self, request: object, client_address: object) -> None:
        self.opened += 1
        super().process_request(request, client_address)  # type: ignore[arg-type]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    used = False

    def do_GET(self) -> None:
        if "late" in self.path and self.used:
            self.close_connection = True  # without an answer
            return
        self.used = True
        body = self.path.encode()
        self.send_response(502 if "bad" in self.path or "v1" in self.path else 200)
        self.send_header("Content-Length", str(len(body) + 10 * ("broken" in self.path)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = "last" in self.path or "broken" in self.path

    def do_POST(self) -> None:
        self.close_connection = True  # without an answer

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def connections(server: Server) -> Iterator[Connections]:
    made = tcp_connections(f"http://127.0.0.1:{server.server_port}", None)
    yield made
    made.close()


def test_a_connection_is_kept(server: Server, connections: Connections) -> None:
    assert [connections.request("GET", f"/{n}").body for n in range(5)] == [
        f"/{n}".encode() for n in range(5)
    ]
    assert server.opened == 1


def test_one_that_the_server_closed_is_not_used_again(server: Server, connections: Connections) -> None:
    assert connections.request("GET", "/last").body == b"/last"
    assert connections.request("GET", "/next").body == b"/next"
    assert server.opened == 2


def test_one_that_is_closed_just_when_it_is_used_again_costs_a_new_one(
    server: Server, connections: Connections
) -> None:
    assert [connections.request("GET", f"/late/{n}").body for n in range(2)] == [b"/late/0", b"/late/1"]
    assert server.opened == 2


def test_what_may_not_be_said_twice_is_not(server: Server, connections: Connections) -> None:
    connections.request("GET", "/first")
    with pytest.raises(UnavailableError, match="RemoteDisconnected"):
        connections.request("POST", "/runs")
    assert server.opened == 1


def test_an_answer_cut_short_is_no_answer(connections: Connections) -> None:
    with pytest.raises(UnavailableError, match="IncompleteRead"):
        connections.request("GET", "/broken")
    assert connections.request("GET", "/whole").body == b"/whole"


def test_threads_get_their_own_answers(connections: Connections) -> None:
    paths = [f"/{number}" for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda path: connections.request("GET", path).body.decode(), paths))
    assert answers == paths


def test_what_is_no_control_node_is_said(server: Server) -> None:
    grid = over_tcp(f"http://127.0.0.1:{server.server_port}", None)
    with pytest.raises(UnavailableError, match="gave an HTTP 502 answer"):
        grid.control()
    assert isinstance(grid, HttpGrid)
    grid.close()


@pytest.mark.parametrize("url", ["http://", "http://host:port", "http://[::1"])
def test_what_is_no_address_is_said(url: str) -> None:
    with pytest.raises(InputError, match="is not an address"):
        tcp_connections(url, None)
