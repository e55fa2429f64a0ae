"""Requests that are answered without a task get the same bytes as from the ASGI application."""

import asyncio
import gzip
import hashlib
import itertools
import json
import socket
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import uvicorn
from tests.kit.served_models import application, linear_model, order_of, row

from gridmill.domain.serving import RequestLog
from gridmill.http.connections import Acceptor, Connection, Limits
from gridmill.serving.api_keys import ApiKeys
from gridmill.serving.direct import DirectConnection, DirectRequest
from gridmill.serving.request_log import RequestLogWriter


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "plain": linear_model(folder / "plain"),
        "classes": linear_model(folder / "classes", classes=("no", "yes")),
        "sequence": linear_model(folder / "sequence", sequence=2),
    }


class Port:
    """A listener whose connections are of one class. `tasks` is the number of requests that the ASGI
    application answered."""

    def __init__(self, app, is_direct: bool) -> None:
        self.app, self.tasks = app, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.config = uvicorn.Config(
            self._call,
            http="httptools",
            loop="none",
            interface="asgi3",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            lifespan="off",
            ws="none",
        )
        self.config.load()
        server = uvicorn.Server(self.config)
        self.state = server.server_state
        self.acceptor = Acceptor(self._listener, None, Limits())
        self.acceptor.start(server, partial(DirectConnection, app) if is_direct else Connection)

    async def _call(self, scope, receive, send):
        self.tasks += 1
        await self.app(scope, receive, send)

    async def ask(self, *parts: bytes) -> bytes:
        """Send bytes on a new connection, and return everything that the server sends until it closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        for part in parts:
            writer.write(part)
            await writer.drain()
        writer.write(
            b"GET /v2/health/live HTTP/1.1\r\nhost: a\r\nx-request-id: last\r\nconnection: close\r\n\r\n"
        )
        received = await reader.read()
        writer.close()
        return received

    def close(self) -> None:
        self.acceptor.stop()
        self._listener.close()


@asynccontextmanager
async def both(app, hosted):
    ports = Port(app, True), Port(app, False)
    try:
        yield ports
    finally:
        for one in ports:
            one.close()
        for one in hosted:
            one.batcher.close()


def message(body, *, method="POST", path="/predict", version="1.1", **headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"host": "a", "content-type": "application/json", "content-length": str(len(content))}
    given |= {"x-request-id": "one"} | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items() if value)
    return f"{method} {path} HTTP/{version}\r\n{lines}\r\n".encode("latin-1") + content


def same_answers(order, folder, requests, *, tasks, **parts):
    """Check that both ways answer each request with the same bytes, and return them. `tasks` is the number of
    these requests that need the ASGI application."""

    async def scenario():
        app, hosted = application(order, folder, **parts)
        async with both(app, hosted) as (direct, general):
            answers = []
            for request in requests:
                answers.append(await direct.ask(request))
                assert answers[-1] == await general.ask(request)
            assert direct.tasks - len(requests) == tasks  # each connection ends with a request for the health
            assert direct.state.total_requests == general.state.total_requests
            assert all(one.batcher.requests == 0 for one in hosted)
        return answers

    return asyncio.run(scenario())


def statuses(answers):
    return [int(one.split(b" ", 2)[1]) for one in answers]


BODIES = [
    {"rows": [row()]},
    [row()],
    {"rows": []},
    [row(0.25, 0, None), row(1, 0, None)],  # also valid as probabilities
    {"rows": [row(n, -n / 3) for n in range(3)]},
    {"rows": [row(n) for n in range(40)]},  # more than a batch
    {"rows": [row(), row(None), row(1e308, 1e308)]},
    [row(None)] * 20,
    {"rows": [row(0.1 + 0.2), row(1e-300, 5e-324), row(1e22), row(-0.0, -0.0, None)]},
    {"rows": [row(), row("x"), {"temp": 1, "city": 3}, 4]},
    {"rows": 3},
    {},
    b"",
    b"{",
    b'{"rows": [{"temp": NaN}]}',
    b"[" * 10_000,
    b"\xff\xfe",
]


@pytest.mark.parametrize("name", ["plain", "classes"])
def test_both_ways_give_the_same_bytes(tmp_path, models, name):
    order = order_of(models[name], max_batch=16)
    found = statuses(same_answers(order, tmp_path, [message(one) for one in BODIES], tasks=0))
    if name == "plain":
        assert found == [200] * 9 + [422] * 3 + [400] * 5


def test_both_ways_answer_sequences_with_the_same_bytes(tmp_path, models):
    bodies = [[[row(1), row(2)], [row(3)], [row(n) for n in range(9)]], [[]], [row()], [[row(), 3]], []]
    order = order_of(models["sequence"])
    found = statuses(same_answers(order, tmp_path, [message(one) for one in bodies], tasks=0))
    assert found == [200, 422, 422, 422, 200]


HEADERS = [
    {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
    {"x_request_id": "a b c"},
    {"content_type": "application/json; charset=utf-8"},
    {"content_type": "Application/JSON"},
    {"content_type": ""},
    {"accept_encoding": "gzip"},
    {"origin": "https://a.example"},
    {"origin": "https://b.example"},
    {"authorization": "Bearer beta", "connection": "keep-alive"},
    {"x_api_key": "wrong"},
]
OTHERS = [
    message([row()], content_type="text/csv"),
    message(json.dumps(row()).encode(), content_type="application/x-ndjson"),
    message(gzip.compress(json.dumps([row()]).encode(), mtime=0), content_encoding="gzip"),
    message([row()], path="/predict?version=2"),
    message([row()], path="/predict?version=9"),
    message([row()], path="/v2/predict"),
    message(b"", method="GET"),
    message(b" " * 5000),
    message(b"5\r\n[    \r\n1\r\n]\r\n0\r\n\r\n", content_length="", transfer_encoding="chunked"),
]


def test_headers_keys_and_origins_have_the_same_effect(tmp_path, models):
    key = hashlib.sha256(b"beta").hexdigest()
    (tmp_path / "keys").write_text(f"{key} beta\n")
    order = order_of(models["plain"], models["plain"], cors_origins=("https://a.example",))
    first = [replace(order.versions[0], weight=1.0), replace(order.versions[1], weight=0.0)]
    order = replace(order, versions=tuple(first), max_body_bytes=4000)
    body = {"rows": [row(n) for n in range(60)]}
    requests = [message(body, **{"x_api_key": "beta", **one}) for one in HEADERS]
    found = same_answers(order, tmp_path, requests, tasks=0, keys=ApiKeys(tmp_path / "keys"))
    assert statuses(found) == [200] * 8 + [200, 401]
    assert b"traceparent: 00-4bf92" in found[0]
    assert b"content-encoding: gzip" in found[5]
    assert b"access-control-allow-origin: https://a.example" in found[6]
    found = same_answers(order, tmp_path, OTHERS[:-1], tasks=len(OTHERS) - 1)
    assert statuses(found) == [415, 200, 200, 200, 404, 404, 405, 413]
    assert statuses(same_answers(order, tmp_path, OTHERS[-1:], tasks=0)) == [200]


@pytest.mark.parametrize(
    "request_bytes",
    [
        message([row()], connection="close"),
        message([row()], version="1.0"),
        message([row()], expect="100-continue"),
        message([row()], connection="upgrade", upgrade="websocket"),
    ],
    ids=["close", "1.0", "expect", "upgrade"],
)
def test_unusual_requests_are_answered_by_the_application(tmp_path, models, request_bytes):
    async def scenario():
        app, hosted = application(order_of(models["plain"]), tmp_path)
        async with both(app, hosted) as (direct, general):
            answer = await direct.ask(request_bytes)
            assert answer == await general.ask(request_bytes)
            assert direct.tasks == general.tasks
            # the parser reads no body after an upgrade
            assert (b'{"prediction":121.0}' in answer) != (b"upgrade: websocket" in request_bytes)

    asyncio.run(scenario())


class MemoryTransport(asyncio.Transport):
    """Collects what a connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self._closing = b"", False

    def write(self, data):
        self.written += data

    def is_closing(self):
        return self._closing

    def close(self):
        self._closing = True

    abort = close

    def pause_reading(self):
        """Ignore that the connection reads no more: the test decides what arrives."""

    resume_reading = pause_reading


def connect(port: Port):
    """A connection without a network, and its transport."""
    transport = MemoryTransport()
    connection = DirectConnection(port.app, port.acceptor, "127.0.0.1", port.config, port.state)
    connection.connection_made(transport)
    return connection, transport


async def settled(test) -> None:
    """Let the loop run until `test` is true."""
    while not test():
        await asyncio.sleep(0)


def test_a_request_can_arrive_in_any_pieces(tmp_path, models):
    request = message([row()])

    async def scenario():
        app, hosted = application(order_of(models["plain"]), tmp_path)
        async with both(app, hosted) as (direct, _):
            answers = set()
            for at in range(1, len(request)):
                connection, transport = connect(direct)
                connection.data_received(request[:at])
                connection.data_received(request[at:])
                await settled(lambda t=transport: t.written.count(b"}]}") == 1)
                connection.data_received(request)
                await settled(lambda t=transport: t.written.count(b"}]}") == 2)
                answers.add(transport.written)
                connection.connection_lost(None)
            assert len(answers) == 1
            assert direct.tasks == 0

    asyncio.run(scenario())


def test_a_large_body_in_pieces_and_a_wrong_length_need_the_application(tmp_path, models):
    large = message([row(n) for n in range(400)])
    endless = message(b"[", content_length="", transfer_encoding="chunked")[:-1] + b"2000\r\n" + b" " * 0x2000
    refused = message(b"[", content_length="50000")

    async def scenario():
        app, hosted = application(order_of(models["plain"], max_body_bytes=30_000), tmp_path)
        async with both(app, hosted) as (direct, general):
            for number, parts in enumerate(
                [(large[:200], large[200:]), (large[:9000], large[9000:])], start=1
            ):
                connection, transport = connect(direct)
                for part in parts:
                    connection.data_received(part)
                await settled(lambda t=transport: t.written.endswith(b"}]}"))
                assert direct.tasks == number
                assert (await general.ask(large)).startswith(transport.written)
            for number, part in enumerate((endless, refused), start=3):
                connection, transport = connect(direct)
                connection.data_received(part)
                assert isinstance(connection.cycle, DirectRequest) is False
                await settled(lambda n=number: direct.tasks == n)
            await settled(lambda: transport.written)
            assert statuses([transport.written]) == [413]

    asyncio.run(scenario())


def test_a_request_whose_body_is_missing_keeps_its_connection_busy_until_its_time_limit(tmp_path, models):
    request = message([row()])

    async def scenario():
        app, hosted = application(order_of(models["plain"]), tmp_path)
        async with both(app, hosted) as (direct, _):
            now = asyncio.get_running_loop().time()
            connection, transport = connect(direct)
            connection.data_received(request[:-5])
            assert not connection.cycle.response_complete  # a draining replica waits for it
            connection.end_if_late(now + Limits().body_seconds - 1)
            assert not transport.is_closing()
            connection.shutdown()
            connection.data_received(request[-5:])
            await settled(lambda: transport.written)
            assert b"connection: close" in transport.written
            connection, transport = connect(direct)
            connection.data_received(request[:-5])
            connection.end_if_late(now + Limits().body_seconds + 60)
            assert transport.is_closing()
            connection.connection_lost(None)

    asyncio.run(scenario())


def test_pipelined_requests_are_answered_in_their_order(tmp_path, models):
    bodies = [[row(n)] for n in range(5)]

    async def scenario():
        app, hosted = application(order_of(models["plain"]), tmp_path)
        async with both(app, hosted) as ports:
            requests = [message(one, x_request_id=f"n{n}") for n, one in enumerate(bodies)]
            direct, general = [await port.ask(b"".join(requests)) for port in ports]
            assert direct == general
            assert [direct.index(b"x-request-id: n%d" % n) for n in range(5)] == sorted(
                direct.index(b"x-request-id: n%d" % n) for n in range(5)
            )

    asyncio.run(scenario())


def test_a_client_that_leaves_does_not_harm_its_batch(tmp_path, models):
    async def scenario():
        app, hosted = application(order_of(models["plain"]), tmp_path)
        async with both(app, hosted) as (direct, _):
            connections = [connect(direct) for _ in range(3)]
            for connection, _ in connections:
                connection.data_received(message([row()]))
            connections[1][0].connection_lost(ConnectionResetError())
            await settled(lambda: connections[2][1].written)
            assert [bool(transport.written) for _, transport in connections] == [True, False, True]
            assert hosted[0].batcher.requests == 0

    asyncio.run(scenario())


def test_a_draining_replica_closes_the_connection_after_the_answer(tmp_path, models):
    async def scenario():
        app, hosted = application(order_of(models["plain"]), tmp_path)
        async with both(app, hosted) as (direct, general):
            busy, transport = connect(direct)
            busy.data_received(message([row()]))
            assert not busy.cycle.response_complete
            busy.shutdown()  # as uvicorn does
            await settled(transport.is_closing)
            assert transport.written.count(b"connection: close\r\n") == 1
            app.is_draining = True
            answer = await direct.ask(message([row()]))
            assert answer.count(b"connection: close\r\n") == 1
            assert answer == await general.ask(message([row()]))

    asyncio.run(scenario())


def test_an_idle_connection_is_closed(tmp_path, models):
    async def scenario():
        app, hosted = application(order_of(models["plain"]), tmp_path)
        async with both(app, hosted) as (direct, _):
            connection, transport = connect(direct)
            connection.data_received(message([row()]))
            await settled(lambda: transport.written)
            now, seconds = asyncio.get_running_loop().time(), direct.config.timeout_keep_alive
            connection.end_if_late(now + seconds - 1)
            assert not transport.is_closing()
            connection.end_if_late(now + seconds + 1)
            assert transport.is_closing()

    asyncio.run(scenario())


def test_a_model_that_fails_answers_500_for_that_request_only(tmp_path, models):
    def fails_for_seven(model):
        def predict(inputs):
            if (inputs[:, 0] == 7).any():
                raise OSError("seven")
            return model.predict(inputs)

        return predict

    requests = [message([row(7)]), message([row()])]
    found = same_answers(order_of(models["plain"]), tmp_path, requests, tasks=0, predict=fails_for_seven)
    assert statuses(found) == [500, 200]


def test_a_wrong_output_of_a_model_is_a_defect_of_one_request(tmp_path, models):
    def predict(model):
        return lambda inputs: np.array(["x"] * len(inputs), object)

    (found,) = same_answers(
        order_of(models["classes"]), tmp_path, [message([row()])], tasks=0, predict=predict
    )
    assert statuses([found]) == [500]


def test_batches_that_do_not_fit_together_are_a_defect_of_one_request(tmp_path, models):
    widths = itertools.count(1)

    def predict(model):
        return lambda inputs: np.zeros((len(inputs), next(widths)))

    (found,) = same_answers(
        order_of(models["plain"], max_batch=8), tmp_path, [message([row()] * 20)], tasks=0, predict=predict
    )
    assert statuses([found]) == [500]


def test_requests_beyond_the_limit_are_refused_and_late_ones_end(tmp_path, models):
    gate = threading.Event()

    def slow(model):
        def predict(inputs):
            assert gate.wait(60)
            return model.predict(inputs)

        return predict

    async def scenario():
        order = order_of(models["plain"], max_concurrent=1, queue_limit=1, timeout_seconds=30)
        app, hosted = application(order, tmp_path, predict=slow, inline=False)
        async with both(app, hosted) as (direct, general):
            waiting = [connect(direct) for _ in range(2)]
            for connection, _ in waiting:
                connection.data_received(message([row()]))
            assert hosted[0].batcher.requests == 2
            refused = await direct.ask(message([row()]))
            assert statuses([refused]) == [429]
            assert b"retry-after: 1" in refused
            assert refused == await general.ask(message([row()]))
            hosted[0].batcher.expire(asyncio.get_running_loop().time() + 31)
            assert statuses([one.written for _, one in waiting]) == [504, 504]
            assert hosted[0].batcher.requests == 0
            gate.set()

    asyncio.run(scenario())


def test_metrics_and_the_request_log_are_the_same(tmp_path, models):
    requests = [message(one) for one in BODIES]

    async def scenario(is_direct, folder):
        folder.mkdir()
        log = RequestLogWriter(RequestLog(folder=str(folder), bodies=True, rows=True), "weather", 0)
        app, hosted = application(order_of(models["plain"], max_batch=16), folder, log=log)
        async with both(app, hosted) as ports:
            for one in requests:
                await ports[0 if is_direct else 1].ask(one)
        log.flush(ends=True)
        lines = [json.loads(line) for line in (folder / "requests-0.jsonl").read_text().splitlines()]
        counts = [
            line
            for line in app._metrics_text().body.decode().splitlines()
            if "request" in line and "seconds" not in line
        ]
        return [{k: v for k, v in line.items() if k not in ("time", "seconds")} for line in lines], counts

    direct, general = [asyncio.run(scenario(way, tmp_path / f"{way}")) for way in (True, False)]
    assert direct == general
    assert sum(line["rows"] for line in direct[0]) > 60
