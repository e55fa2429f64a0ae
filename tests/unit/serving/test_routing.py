"""The router of a service passes connections on to replicas that end, and holds requests meanwhile."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from gridmill.errors import UnavailableError
from gridmill.ports.service_link import OpenedConnection
from gridmill.serving.routing import (
    CLIENT_IDLE_SECONDS,
    FORMER_SECONDS,
    HEAD_SECONDS,
    KEPT_BYTES,
    STEP_BYTES,
    STEP_SECONDS,
    WHOLE_BYTES,
    ClientConnection,
    Replicas,
    Router,
)

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Link:
    """A link to a server of this test, which can be away."""

    def __init__(self) -> None:
        self.port = 0
        self.opened = 0
        self.tried = asyncio.Event()

    async def open(self) -> OpenedConnection:
        self.tried.set()
        if not self.port:
            raise UnavailableError("the machine does not answer", hint="Read /srv/farm.log.")
        self.opened += 1
        transport, _ = await asyncio.get_running_loop().create_connection(
            asyncio.Protocol, "127.0.0.1", self.port
        )
        transport.pause_reading()
        return OpenedConnection(transport=transport)

    def close(self) -> None:
        self.port = 0


@asynccontextmanager
async def routed(answer: Answer | None, **limits: Any) -> AsyncIterator[tuple[int, Link, Router]]:
    """A router, with a replica that answers so; None: no replica can be reached."""
    link = Link()
    router = Router(Replicas(link), **{"hold_seconds": 30.0, "hold_bytes": 2**20, **limits})
    front = await asyncio.get_running_loop().create_server(lambda: ClientConnection(router), "127.0.0.1", 0)
    back = None
    if answer is not None:
        back = await asyncio.start_server(answer, "127.0.0.1", 0, limit=2**22)
        link.port = back.sockets[0].getsockname()[1]
    try:
        yield front.sockets[0].getsockname()[1], link, router
    finally:
        front.close()
        if back is not None:
            back.close()
        for client in tuple(router.clients):
            client.transport.abort()
        router.replicas.close()


def request(body: bytes = b"", **headers: str) -> bytes:
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
    head = f"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n{''.join(lines)}\r\n"
    return head.encode() + body


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    lines = head.split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
    body = await reader.readexactly(int(headers["content-length"]))
    return int(lines[0].split()[1]), headers, body


async def taken(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if line.startswith(b"content-length")]
    return await reader.readexactly(int(lines[0].split(b":")[1]))


async def always(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while not reader.at_eof():
        try:
            await taken(reader)
        except asyncio.IncompleteReadError:
            break
        writer.write(OK)
    writer.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(limited())


def test_a_connection_of_a_client_survives_the_connections_to_replicas() -> None:
    """Each connection to a replica ends after one answer, and the client keeps its own."""

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await taken(reader)
        writer.write(OK)
        writer.close()

    async def test() -> None:
        async with routed(once) as (port, link, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(3):
                writer.write(request(b"{}"))
                assert (await answer_of(reader))[0] == 200
            assert link.opened == 3
            writer.close()

    run(test)


def test_a_request_whose_replica_ends_before_its_answer_is_sent_to_another_one_once() -> None:
    seen: list[bytes] = []

    async def first_dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await taken(reader))
        if len(seen) > 1:
            writer.write(OK)
        writer.close()

    async def test() -> None:
        async with routed(first_dies) as (port, _, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(b'{"rows": 1}'))
            assert (await answer_of(reader))[0] == 200
            assert seen == [b'{"rows": 1}'] * 2
            writer.close()

    run(test)


@pytest.mark.parametrize("body", [b"small", b"x" * (2 * KEPT_BYTES)])
def test_a_request_that_cannot_be_sent_again_is_answered_with_502_and_its_id(body: bytes) -> None:
    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await taken(reader)
        writer.close()

    async def test() -> None:
        async with routed(dies) as (port, link, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(body, x_request_id="me-7"))
            status, headers, content = await answer_of(reader)
            assert (status, headers["x-request-id"]) == (502, "me-7")
            assert headers["retry-after"] == "2"
            assert json.loads(content)["request_id"] == "me-7"
            assert link.opened == (2 if len(body) < KEPT_BYTES else 1)
            assert await reader.read() == b""
            writer.close()

    run(test)


def test_requests_are_held_until_a_replica_can_be_reached_again() -> None:
    async def test() -> None:
        async with routed(None) as (port, link, router):
            clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
            for _, writer in clients:
                writer.write(request(b"{}"))
            await link.tried.wait()
            while len(router.held) < 20:
                await asyncio.sleep(0)
            assert router.replicas.problem == "the machine does not answer. Read /srv/farm.log."
            back = await asyncio.start_server(always, "127.0.0.1", 0)
            link.port = back.sockets[0].getsockname()[1]
            for reader, writer in clients:
                assert (await answer_of(reader))[0] == 200
                writer.close()
            assert router.replicas.problem == ""
            assert not router.held
            back.close()

    run(test)


def test_requests_that_wait_too_long_or_are_too_many_are_answered_with_503() -> None:
    async def test() -> None:
        async with routed(None, hold_seconds=0.2, hold_bytes=100) as (port, _, router):
            first, second = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            first[1].write(request(b"x" * 200))
            while not router.held:
                await asyncio.sleep(0)
            second[1].write(request(b"{}", x_request_id="two"))
            status, headers, content = await answer_of(second[0])
            assert (status, headers["x-request-id"], headers["retry-after"]) == (503, "two", "2")
            assert "too many requests wait" in json.loads(content)["error"]
            status, _, content = await answer_of(first[0])
            assert status == 503
            assert json.loads(content)["error"] == "no replica can be reached: their site does not answer"
            for _, writer in (first, second):
                writer.close()

    run(test)


def test_a_changed_link_is_used_by_held_requests() -> None:
    async def test() -> None:
        async with routed(None) as (port, link, router):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(b"{}"))
            await link.tried.wait()
            back = await asyncio.start_server(always, "127.0.0.1", 0)
            other = Link()
            other.port = back.sockets[0].getsockname()[1]
            router.replicas.change(other)
            assert (await answer_of(reader))[0] == 200
            writer.close()
            back.close()

    run(test)


@pytest.mark.parametrize(("size", "opened"), [(2, 2), (WHOLE_BYTES + 1, 1)])
def test_a_small_answer_that_breaks_off_is_requested_again_and_a_large_one_ends_the_connection(
    size: int, opened: int
) -> None:
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (size, b"x" * size)
    tried: list[int] = []

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await taken(reader)
        tried.append(1)
        writer.write(whole[:-1] if len(tried) == 1 else whole)
        writer.close()

    async def test() -> None:
        async with routed(half) as (port, link, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
            writer.write(request(b"{}"))
            if opened == 2:
                assert (await answer_of(reader))[0] == 200
            else:
                with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                    await answer_of(reader)
            assert link.opened == opened
            writer.close()

    run(test)


def test_an_answer_that_ends_with_its_connection_is_passed_on() -> None:
    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await taken(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")
        writer.close()

    async def test() -> None:
        async with routed(closes) as (port, _, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(b"{}"))
            assert (await reader.read()).endswith(b"all of it")
            writer.close()

    run(test)


def test_answers_without_a_body_and_interim_answers_do_not_confuse_the_router() -> None:
    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")  # to HEAD: without the body
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" + OK)
        writer.close()

    async def test() -> None:
        async with routed(odd) as (port, link, router):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            assert (await answer_of(reader))[0] == 200
            assert link.opened == 1
            assert len(router.clients) == 1
            writer.close()

    run(test)


def test_a_client_that_is_idle_for_long_is_disconnected_and_one_that_waits_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        async with routed(None) as (port, _, router):
            idle, _ = await asyncio.open_connection("127.0.0.1", port)
            waiting, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(b"{}"))
            while not router.held or len(router.clients) < 2:
                await asyncio.sleep(0)
            router.release_idle()
            assert len(router.clients) == 2
            later = time.monotonic() + CLIENT_IDLE_SECONDS + 1.0
            monkeypatch.setattr("gridmill.serving.routing.time.monotonic", lambda: later)
            router.release_idle()
            monkeypatch.undo()
            assert await idle.read() == b""
            assert len(router.clients) == 1
            assert not waiting.at_eof()

    run(test)


def test_many_clients_take_turns_on_few_connections_to_replicas() -> None:
    now, most = 0, 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await always(reader, writer)
        now -= 1

    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(5):
            writer.write(request(b"{}"))
            assert (await answer_of(reader))[0] == 200
        finished.append(port)
        if len(finished) == 10:
            served.set()
        await done.wait()  # the connection of an idle client stays open
        writer.close()

    async def test() -> None:
        async with routed(answer, most_open=2) as (port, _, router):
            clients = [asyncio.create_task(client(port)) for _ in range(10)]
            await served.wait()
            assert router.waiting == 0
            assert len(router.clients) == len(clients)
            done.set()
            await asyncio.gather(*clients)

    done, served = asyncio.Event(), asyncio.Event()
    finished: list[int] = []
    run(test)
    assert 1 <= most <= 3  # a connection may end here before the replica notices it


def test_after_a_change_of_the_link_answers_still_arrive_and_the_next_request_uses_the_new_link() -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await taken(reader)
        begun.set()
        await goes_on.wait()
        writer.write(OK)

    async def test() -> None:
        async with routed(slow) as (port, old, router):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(b"{}"))
            await begun.wait()
            back = await asyncio.start_server(always, "127.0.0.1", 0)
            new = Link()
            new.port = back.sockets[0].getsockname()[1]
            router.replicas.change(new)
            router.release_idle()
            assert old.port, "the old link stays open for its last answers"
            goes_on.set()
            assert (await answer_of(reader))[0] == 200
            writer.write(request(b"{}"))
            assert (await answer_of(reader))[0] == 200
            assert (old.opened, new.opened) == (1, 1)
            router.replicas.close_former(time.monotonic() + FORMER_SECONDS)
            assert not old.port
            writer.close()
            back.close()

    run(test)


@pytest.mark.parametrize(
    ("sent", "limit"),
    [
        (b"POST /predict HT", HEAD_SECONDS),
        (request(b"{}")[:-1], STEP_SECONDS),
        (request(bytes(3 * STEP_BYTES))[: -2 * STEP_BYTES], STEP_SECONDS),
    ],
)
def test_a_client_that_does_not_send_the_rest_of_its_request_is_disconnected(
    sent: bytes, limit: float
) -> None:
    arrived = asyncio.Event()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(sent))
        arrived.set()
        await reader.read()
        writer.close()

    async def test() -> None:
        async with routed(never) as (port, _, router):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            await arrived.wait()
            (client,) = router.clients
            client.close_if_slow(time.monotonic() + limit - 3.0)
            assert not client.transport.is_closing()
            client.close_if_slow(time.monotonic() + limit + 0.1)
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()

    run(test)


def test_a_client_has_no_time_limit_while_its_answer_is_computed_or_nothing_is_read_from_it() -> None:
    arrived = asyncio.Event()

    async def later(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await taken(reader)
        arrived.set()
        await reader.read()
        writer.close()

    async def test() -> None:
        async with routed(later) as (port, _, router):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(b"{}"))
            await arrived.wait()
            (client,) = router.clients
            client.close_if_slow(time.monotonic() + 1e6)
            assert not client.transport.is_closing()
            arrived.clear()
            writer.write(request(b"{}")[:-1])
            await writer.drain()
            client.transport.pause_reading()
            client.close_if_slow(time.monotonic() + 1e6)
            assert not client.transport.is_closing()
            writer.close()

    run(test)


def test_fewer_connections_to_replicas_can_be_allowed_while_clients_take_turns() -> None:
    entered, leave = asyncio.Semaphore(0), asyncio.Event()
    now, most = 0, 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal now, most
        await taken(reader)
        now += 1
        most = max(most, now)
        entered.release()
        await leave.wait()
        now -= 1
        writer.write(OK)
        writer.close()

    async def client(port: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(b"{}"))
        status = (await answer_of(reader))[0]
        writer.close()
        return status

    async def test() -> None:
        async with routed(answer, most_open=1) as (port, _, router):
            clients = [asyncio.create_task(client(port)) for _ in range(6)]
            await entered.acquire()
            assert most == 1
            router.limit_open(3)
            for _ in range(2):
                await entered.acquire()
            assert most == 3
            router.limit_open(1)
            leave.set()
            assert await asyncio.gather(*clients) == [200] * 6
            assert router.waiting == 0

    run(test)
    assert most <= 4  # a connection may end here before the replica notices it
