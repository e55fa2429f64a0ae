"""What a server does about clients that are gone: half of a request is not waited for for ever."""

import asyncio
import socket
from collections.abc import Iterator

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

from gridmill.http.alive import keep_alive
from gridmill.http.answers import bounded


def piece(more: bool) -> Message:
    return {"type": "http.request", "body": b"half", "more_body": more}


def saying(*messages: Message) -> Receive:
    """Then nothing more ever comes."""
    left: Iterator[Message] = iter(messages)

    async def receive() -> Message:
        message = next(left, None)
        return message if message is not None else await asyncio.Future()

    return receive


def test_the_rest_of_a_body_that_does_not_come_is_given_up() -> None:
    async def read() -> None:
        taken = bounded(saying(piece(more=True)), 100, patience_seconds=0.01)
        assert (await taken())["body"] == b"half"
        await taken()

    with pytest.raises(HTTPException, match=r"nothing more of the request came in 0\.01 s") as caught:
        asyncio.run(read())
    assert caught.value.status_code == 503


def test_whoever_waits_for_the_end_of_an_answer_may_wait() -> None:
    async def read() -> bool:
        taken = bounded(saying(piece(more=False)), 100, patience_seconds=0.001)
        await taken()
        waiting = asyncio.create_task(taken())
        done, _ = await asyncio.wait({waiting}, timeout=0.05)
        waiting.cancel()
        return bool(done)

    assert not asyncio.run(read())


def test_what_a_server_accepts_ends_where_nobody_is_at_the_other_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        keep_alive(listener)
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert 0 < accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 20
            assert 0 < accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 60_000
