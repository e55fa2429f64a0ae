"""What a server does about clients that are gone: half of a request is not waited for for ever."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

from gridmill.http.errors import answer_errors, bounded, pass_on
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

    with pytest.raises(HTTPException, match=r"rest of the request did not arrive within 0\.01 s") as caught:
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
    assert b"Send the request again." in answer.body
    large = explained(Request({"type": "http", "app": app}), HTTPException(413, "too large"))
    assert b"/docs" in asyncio.run(large).body


def test_a_server_without_a_thread_left_says_so_and_no_hint_names_a_page_that_is_missing() -> None:
    farm = FastAPI(docs_url=None)
    answer_errors(farm)

    async def starts_no_thread(scope: Any, receive: Receive, send: Any) -> None:
        raise RuntimeError("can't start new thread")

    async def nothing_there(scope: Any, receive: Receive, send: Any) -> None:
        await farm(scope, receive, send)

    for app, status, text in (
        (starts_no_thread, 503, b"has reached the limit of processes and threads"),
        (nothing_there, 404, b"gridmill doctor"),
    ):
        sent: list[Message] = []

        async def send(message: Message, sent: list[Message] = sent) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/no", "headers": [], "query_string": b""}
        asyncio.run(pass_on(app, scope, saying(), send, who="the farm", log=logging.getLogger("test")))
        assert sent[0]["status"] == status
        assert text in sent[1]["body"]
        assert b"/docs" not in sent[1]["body"]
