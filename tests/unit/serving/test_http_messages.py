"""The followers read what the router needs from the bytes of a connection, in whatever pieces they arrive."""

from collections import deque

import pytest

from gridmill.serving.http_messages import HEAD_BYTES, AnswerFollower, RequestFollower


def request(name: str = "", body: bytes = b"") -> bytes:
    id_line = f"X-Request-ID: {name}\r\n" if name else ""
    return f"POST /predict HTTP/1.1\r\n{id_line}content-length: {len(body)}\r\n\r\n".encode() + body


def followed(*pieces: bytes) -> RequestFollower:
    follower = RequestFollower(lambda: None)
    for piece in pieces:
        follower.feed(piece)
    return follower


def answered(*pieces: bytes, method: bytes = b"POST") -> AnswerFollower:
    follower = AnswerFollower(deque([method]))
    for piece in pieces:
        follower.feed(piece)
    return follower


def test_the_id_of_a_request_is_found_wherever_its_bytes_are_divided() -> None:
    data = request("me-7", b"body")
    for end in range(1, len(data)):
        follower = followed(data[:end], data[end:])
        assert (follower.request_id, follower.is_in_request, list(follower.methods)) == (
            "me-7",
            False,
            [b"POST"],
        )


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        pytest.param((request("one"), request("two")), "two", id="the newest request"),
        pytest.param((request("one"), request()), "", id="no id after a request with one"),
        pytest.param((request("one", b"b") + request("two", b"b"),), "two", id="two requests in one piece"),
        pytest.param((request("one", b"body")[:-2], b"dy" + request("two")), "", id="begun in a piece"),
        pytest.param((request("one", bytes(HEAD_BYTES)) + request("two"),), "", id="beyond the kept bytes"),
        pytest.param((request("one", bytes(3 * HEAD_BYTES)),), "one", id="a large body"),
        pytest.param((request("x" * 201),), "", id="too long"),
        pytest.param((request("a\tb"),), "", id="not printable"),
        pytest.param((b"no HTTP",), "", id="no HTTP"),
    ],
)
def test_no_request_gets_the_id_of_another_one(pieces: tuple[bytes, ...], expected: str) -> None:
    assert followed(*pieces).request_id == expected


@pytest.mark.parametrize("length", ["content-length: 4", "Transfer-Encoding: chunked"])
def test_the_last_answer_of_a_connection_is_incomplete_until_its_stated_end(length: str) -> None:
    """So that its request is sent again if the replica ends before."""
    body = b"body" if "length" in length else b"4\r\nbody\r\n0\r\n\r\n"
    data = f"HTTP/1.1 200 OK\r\nconnection: close\r\n{length}\r\n\r\n".encode() + body
    for end in range(1, len(data)):
        follower = answered(data[:end])
        assert follower.is_in_answer
        assert not follower.is_last
        follower.feed(data[end:])
        assert not follower.is_in_answer
        assert follower.is_last


def test_an_answer_without_a_stated_end_is_never_incomplete() -> None:
    data = b"HTTP/1.1 200 OK\r\nx: content-length: 4\r\n\r\n"
    for end in range(1, len(data)):
        assert not answered(data[:end], data[end:], b"content-length: 4\r\n").is_in_answer


def test_the_answer_to_head_ends_with_its_head_and_interim_answers_end_nothing() -> None:
    follower = answered(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n", method=b"HEAD")
    assert not follower.is_in_answer
    assert not follower.is_last
    follower = answered(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert not follower.is_in_answer
    assert not follower.is_last
    follower.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    assert not follower.is_last
    follower.feed(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")  # an answer to no request
    assert follower.is_last
