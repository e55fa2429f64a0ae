"""The client with a fixed rate does not wait for earlier answers, and counts from when a request was due."""

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import pytest
from tests.kit.paced_load import PacedLoad

from gridmill.errors import UnavailableError

BODY = b"{}"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
OVERLOADED = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"


@contextmanager
def server(connections: int, answer: Callable[[list[socket.socket]], None]) -> Iterator[int]:
    """The port of a server that accepts so many connections and then calls `answer` in a thread."""
    with socket.create_server(("127.0.0.1", 0), backlog=connections) as listener:

        def serve() -> None:
            streams = [listener.accept()[0] for _ in range(connections)]
            try:
                answer(streams)
                for stream in streams:
                    with suppress(ConnectionError):
                        stream.recv(1)  # the client closes its connections first
            finally:
                for stream in streams:
                    stream.close()

        thread = Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def sent(port: int, *, requests: int, rate: float, connections: int) -> PacedLoad:
    """The client after so many requests."""
    load = PacedLoad(port, BODY, rate, connections)
    try:
        load.run((requests + 0.5) / rate)
    finally:
        load.close()
    assert load.latencies.total() == load.lateness.total() == requests
    return load


def receive(stream: socket.socket) -> None:
    text = b""
    while not text.endswith(BODY):
        part = stream.recv(1 << 16)
        assert part
        text += part


def test_requests_are_sent_although_the_first_is_not_answered():
    def answer(streams: list[socket.socket]) -> None:
        for stream in streams:
            receive(stream)
        for stream in streams:
            stream.sendall(ANSWER)

    with server(4, answer) as port:
        load = sent(port, requests=4, rate=1000.0, connections=4)
    assert load.quantile(1.0) >= 3.0  # the first was answered after the last was due, 3 ms later


def test_the_latency_of_a_request_that_waits_for_a_connection_counts_from_when_it_was_due():
    arrivals: list[float] = []

    def answer(streams: list[socket.socket]) -> None:
        for _ in range(200):
            receive(streams[0])
            arrivals.append(time.perf_counter())
            streams[0].sendall(ANSWER)

    with server(1, answer) as port:
        load = sent(port, requests=200, rate=1e6, connections=1)
    # All were due within 0.2 ms, the first before it arrived.
    milliseconds = [(arrival - arrivals[0]) * 1000 - 0.2 for arrival in arrivals]
    assert load.quantile(1.0) >= milliseconds[-1]
    assert load.lateness_quantile(1.0) >= milliseconds[-2]


def test_an_answer_that_is_not_200_is_an_error():
    def answer(streams: list[socket.socket]) -> None:
        receive(streams[0])
        streams[0].sendall(OVERLOADED)

    with server(1, answer) as port, pytest.raises(UnavailableError, match="503"):
        sent(port, requests=1, rate=1000.0, connections=1)


def test_connections_send_in_turn():
    order: list[int] = []

    def answer(streams: list[socket.socket]) -> None:
        while len(order) < 6:
            for stream in select.select(streams, [], [])[0]:
                receive(stream)
                order.append(streams.index(stream))
                stream.sendall(ANSWER)

    with server(3, answer) as port:
        load = PacedLoad(port, BODY, 1000.0, 3)
        try:
            for _ in range(6):
                load.run(0.0015)  # one request
        finally:
            load.close()
    assert order == [0, 1, 2, 0, 1, 2]
