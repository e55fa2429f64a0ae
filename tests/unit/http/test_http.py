"""What a server does about clients that are gone: half of a request is not waited for for ever."""

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

from gridmill.http.errors import answer_errors, bounded
from gridmill.http.server import keep_alive


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


def option(connection: socket.socket, name: str) -> int:
    """Of TCP; -1 where this machine does not know it."""
    return connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) if hasattr(socket, name) else -1


def test_what_a_server_accepts_ends_where_nobody_is_at_the_other_end_but_not_where_one_pauses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        keep_alive(listener)
        with socket.create_connection(listener.getsockname()) as connection, listener.accept()[0] as accepted:
            keep_alive(connection, reads=True)
            for end in (connection, accepted):
                assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
                assert option(end, "TCP_KEEPIDLE") in (-1, 5)
            assert option(accepted, "TCP_USER_TIMEOUT") in (-1, 0)
            assert option(connection, "TCP_USER_TIMEOUT") in (-1, 20_000)


def test_whoever_pauses_in_a_request_is_told_to_send_it_again() -> None:
    app = FastAPI()
    answer_errors(app)
    explained: Any = app.exception_handlers[HTTPException]
    answer = asyncio.run(explained(None, HTTPException(503, "nothing more came")))
    assert b"nothing more came" in answer.body
    assert b"Send it again." in answer.body
    assert b"/docs" in asyncio.run(explained(None, HTTPException(413, "too large"))).body
