"""No client uses up the connections, memory or time of a server: attacks on an HTTP server."""

import asyncio
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from gridmill.http.connections import Limits, within_descriptors
from gridmill.http.server import Server, serve

QUICK = Limits(
    connections=8,
    header_seconds=0.6,
    body_seconds=0.6,
    answer_seconds=0.6,
    step_bytes=1000,
    header_bytes=5000,
)


async def size(request: Request) -> Response:
    total = 0
    async for part in request.stream():
        total += len(part)
    return PlainTextResponse(str(total))


async def refuse(request: Request) -> Response:
    return PlainTextResponse("no", status_code=401)


async def endless(request: Request) -> Response:
    async def parts():
        while True:
            yield b"x" * 65_536
            await asyncio.sleep(0)  # others have their turn

    return StreamingResponse(parts())


APP = Starlette(
    routes=[
        Route("/size", size, methods=["GET", "POST"]),
        Route("/refuse", refuse, methods=["POST"]),
        Route("/endless", endless),
    ]
)


@contextmanager
def served(limits: Limits = QUICK) -> Iterator[Server]:
    server = serve(APP, limits=limits)
    try:
        yield server
    finally:
        server.stop()


def dial(server: Server) -> socket.socket:
    host, port = server.address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def seconds_until_cut(connection: socket.socket, trickle: bytes = b"") -> float:
    """Reads until the server ends the connection; sends `trickle` now and then."""
    since = time.monotonic()
    connection.settimeout(0.1)
    while time.monotonic() - since < 10:
        try:
            if trickle:
                connection.sendall(trickle)
            if not connection.recv(65_536):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - since


def answers(server: Server) -> bool:
    try:
        return httpx.post(f"{server.address}/size", content=b"abc", timeout=10).text == "3"
    except httpx.TransportError:
        return False


def until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if condition():
            return True
    return False


@pytest.mark.parametrize(
    ("begin", "trickle"),
    [
        (b"", b""),
        (b"GET /size HTTP/1.1\r\n", b""),
        (b"GET /size HTTP/1.1\r\n", b"a: b\r\n"),
        (b"POST /size HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n", b""),
        (b"POST /size HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n", b"x"),
        (b"POST /refuse HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n", b"x"),
        (b"GET /size HTTP/1.1\r\nhost: a\r\n\r\nGET /size HTTP/1.1\r\n", b"a: b\r\n"),
    ],
    ids=["silent", "half a header", "slow headers", "no body", "slow body", "refused body", "second request"],
)
def test_a_client_that_does_not_go_on_is_cut_off(begin: bytes, trickle: bytes):
    with served() as server, closing(dial(server)) as connection:
        connection.sendall(begin)
        assert seconds_until_cut(connection, trickle) < 5


def test_a_client_that_does_not_read_is_cut_off():
    with served() as server, closing(dial(server)) as connection:
        connection.sendall(b"GET /endless HTTP/1.1\r\nhost: a\r\n\r\n")
        assert until(lambda: not server_has(server))


def server_has(server: Server) -> bool:
    return bool(server._server.server_state.connections)


def test_headers_have_an_end():
    with served() as server, closing(dial(server)) as connection:
        connection.sendall(b"GET /size HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 6000)
        assert b"431" in connection.recv(1000)


def test_a_body_may_take_longer_than_its_limit_while_it_comes():
    with served() as server, closing(dial(server)) as connection:
        connection.sendall(b"POST /size HTTP/1.1\r\nhost: a\r\ncontent-length: 20000\r\n\r\n")
        since = time.monotonic()
        pause = threading.Event()
        for _ in range(20):
            connection.sendall(b"x" * 1000)
            pause.wait(0.08)
        assert connection.recv(10_000).endswith(b"20000")
        assert time.monotonic() - since > QUICK.body_seconds


def test_more_connections_than_the_limit_are_refused_until_others_end():
    with served(Limits(connections=8)) as server:
        with ExitStack() as stack:
            for _ in range(8):
                stack.enter_context(closing(dial(server)))
            assert until(lambda: not answers(server))
        assert until(lambda: answers(server))


def test_silent_connections_do_not_keep_others_out_for_long():
    with served() as server, ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(closing(dial(server)))
        assert until(lambda: answers(server))


def test_descriptors_are_left_for_everything_else():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        assert within_descriptors(Limits()).connections == (1024 - 256) // 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
