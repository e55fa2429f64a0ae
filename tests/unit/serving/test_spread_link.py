"""The router of a service in several pods: it leaves out the pods that cannot be reached."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest
from test_routing import OK, Link, answer_of, request, run, taken

from gridmill.errors import UnavailableError
from gridmill.ports.service_link import OpenedConnection
from gridmill.serving import spread_link
from gridmill.serving.routing import ClientConnection, Replicas, Router
from gridmill.serving.spread_link import SpreadLink


class Pod(Link):
    """A server of this test that counts its requests; `end` ends it with all its connections."""

    def __init__(self) -> None:
        super().__init__()
        self.requests, self.holds = 0, asyncio.Event()
        self.holds.set()
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while True:
                await taken(reader)
                self.requests += 1
                await self.holds.wait()
                writer.write(OK)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def end(self) -> None:
        self.port = 0
        self._server.close()
        for one in self._writers:
            one.transport.abort()


async def routed(stack: AsyncExitStack, *pods: Link) -> tuple[int, Router]:
    router = Router(Replicas(SpreadLink(pods)), hold_seconds=30.0, hold_bytes=2**20)
    front = await asyncio.get_running_loop().create_server(lambda: ClientConnection(router), "127.0.0.1", 0)
    stack.callback(router.replicas.close)
    stack.callback(lambda: [client.transport.abort() for client in tuple(router.clients)])
    stack.callback(front.close)
    return front.sockets[0].getsockname()[1], router


async def pods_of(stack: AsyncExitStack, count: int) -> list[Pod]:
    pods = [Pod() for _ in range(count)]
    for one in pods:
        await one.start()
        stack.callback(one.end)
    return pods


async def status(port: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(b"{}"))
    answer = await answer_of(reader)
    writer.close()
    return answer[0]


def test_clients_are_spread_over_all_pods() -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            pods = await pods_of(stack, 3)
            port, _ = await routed(stack, *pods)
            assert [await status(port) for _ in range(9)] == [200] * 9
            assert [one.requests for one in pods] == [3, 3, 3]

    run(test)


def test_no_request_fails_when_a_pod_ends_while_it_computes_answers() -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            pods = await pods_of(stack, 2)
            pods[0].holds.clear()
            port, _ = await routed(stack, *pods)
            clients = [asyncio.create_task(status(port)) for _ in range(20)]
            while pods[0].requests < 10:
                await asyncio.sleep(0)
            pods[0].end()
            assert Counter(await asyncio.gather(*clients)) == {200: 20}
            assert [await status(port) for _ in range(4)] == [200] * 4

    run(test)


def test_a_pod_that_is_reached_again_gets_requests_again() -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            pods = await pods_of(stack, 2)
            port, _ = await routed(stack, *pods)
            there, pods[0].port = pods[0].port, 0
            assert [await status(port) for _ in range(4)] == [200] * 4
            tried = pods[0].opened
            pods[0].port = there
            while pods[0].opened == tried:  # without a request
                await asyncio.sleep(0.01)
            before = pods[0].requests
            while pods[0].requests == before:
                assert await status(port) == 200

    run(test)


def test_a_pod_that_does_not_answer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Link):
        async def open(self) -> OpenedConnection:
            self.opened += 1
            await asyncio.Event().wait()
            raise AssertionError

    monkeypatch.setattr(spread_link, "TRY_SECONDS", 0.01)

    async def test() -> None:
        async with AsyncExitStack() as stack:
            [pod] = await pods_of(stack, 1)
            port, _ = await routed(stack, Silent(), pod)
            assert [await status(port) for _ in range(6)] == [200] * 6
            assert pod.requests == 6

    run(test)


def test_requests_are_held_while_no_pod_can_be_reached() -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            pods = await pods_of(stack, 2)
            there = [one.port for one in pods]
            for one in pods:
                one.port = 0
            port, router = await routed(stack, *pods)
            held = asyncio.create_task(status(port))
            while not router.replicas.problem:
                await asyncio.sleep(0.01)
            assert router.replicas.problem.count("the machine does not answer") == 1
            pods[1].port = there[1]
            assert await held == 200

    run(test)


def test_the_reasons_of_all_pods_are_given_once() -> None:
    async def test() -> None:
        link = SpreadLink([Link(), Link()])
        with pytest.raises(UnavailableError) as raised:
            await link.open()
        assert raised.value.message.count("the machine does not answer") == 1
        link.close()

    run(test)
