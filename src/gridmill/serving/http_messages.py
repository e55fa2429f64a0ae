"""Follows the HTTP messages of one connection while their bytes are passed on unchanged: how many requests
wait for an answer, and which id a request has.

The followers do not look at headers, because a call for each header would be half of their time. The few
headers that are needed in rare cases are read from the bytes of the head when they are needed.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress

import httptools

from gridmill.domain.amounts import KIB

HEAD_BYTES = 16 * KIB
"""The number of bytes of a message in which its headers are looked for."""
_ID_CHARACTERS = 200
_PARSER_ERRORS = (httptools.HttpParserError, httptools.HttpParserUpgrade)


class RequestFollower:
    """Follows the requests that a client sends. `is_opaque` is True after bytes that are not HTTP."""

    def __init__(self, begun: Callable[[], None]) -> None:
        """`begun` is called at the first byte of each request."""
        self._begun = begun
        self._parser = httptools.HttpRequestParser(self)
        self.methods: deque[bytes] = deque()
        """The methods of the requests whose answers have not ended, oldest first. A method is empty until
        the head of its request has arrived."""
        self._head, self._begins = b"", 0  # the begin of a request, and the requests that began since
        self.is_opaque = self.is_in_request = False
        """`is_in_request` is whether a request has begun and not all of its bytes have arrived."""

    def feed(self, data: bytes) -> None:
        """Read the bytes that have arrived."""
        if self.is_opaque:
            return
        if not self.is_in_request:
            self._head, self._begins = data[:HEAD_BYTES], 0
        elif self.methods and not self.methods[-1]:
            self._head = (self._head + data)[:HEAD_BYTES]
        try:
            self._parser.feed_data(data)
        except _PARSER_ERRORS:
            self.is_opaque = True

    @property
    def request_id(self) -> str:
        """The id of the newest request; empty if it has none that can be returned in an answer, or if
        its first bytes arrived together with the last bytes of another request."""
        reader = _RequestId()
        with suppress(*_PARSER_ERRORS):
            httptools.HttpRequestParser(reader).feed_data(self._head)
        return reader.value if reader.begins == self._begins else ""

    # --- callbacks of the parser

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._begun()
        self.is_in_request = True
        self._begins += 1
        self.methods.append(b"")

    def on_message_complete(self) -> None:
        """End a request."""
        self.is_in_request = False

    def on_headers_complete(self) -> None:
        """Note the method of the request."""
        if self.methods:
            self.methods[-1] = self._parser.get_method()


class _RequestId:
    """Reads the id of the last request in some bytes, and counts the requests."""

    def __init__(self) -> None:
        self.value, self.begins = "", 0

    def on_message_begin(self) -> None:
        self.value, self.begins = "", self.begins + 1

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id" and len(value) <= _ID_CHARACTERS and value.isascii():
            text = value.decode("ascii")
            self.value = text if text.isprintable() else ""


class AnswerFollower:
    """Follows the answers of one connection to a replica. `is_opaque` is True after bytes that are not HTTP,
    and `is_last` after an answer that announces the end of the connection."""

    def __init__(self, methods: deque[bytes]) -> None:
        """`methods` are the methods of the requests without an answer. An answered request is removed."""
        self._methods = methods
        self._parser = httptools.HttpResponseParser(self)
        self._has_ended = False
        self.is_opaque = self.is_last = self.is_in_answer = False
        """`is_in_answer` is whether an answer has begun whose end has not arrived. It is False for an answer
        that ends with its connection."""
        self._head = b""
        self._is_in_head = self._is_interim = False

    def feed(self, data: bytes) -> None:
        """Read the bytes that have arrived."""
        if self.is_opaque:
            return
        self._head = (self._head + data)[:HEAD_BYTES] if self._is_in_head else data
        try:
            self._parser.feed_data(data)
        except _PARSER_ERRORS:
            self.is_opaque = True
        if not self._is_in_head:
            self._head = b""
        if self._has_ended:  # the parser waits for the body, which an answer to HEAD does not have
            self._parser, self._has_ended = httptools.HttpResponseParser(self), False

    # --- callbacks of the parser

    def on_message_begin(self) -> None:
        """Begin an answer."""
        self.is_in_answer = self._is_in_head = True

    def on_headers_complete(self) -> None:
        """End the answer if its request was a HEAD request."""
        self._is_in_head = False
        self._is_interim = 100 <= self._parser.get_status_code() < 200
        # an answer after which the connection stays open always states where its body ends
        if not self._parser.should_keep_alive():
            self.is_in_answer = _states_length(self._head)
        if not self._is_interim and self._methods and self._methods[0] == b"HEAD":
            self._has_ended = True
            self._end()

    def on_message_complete(self) -> None:
        """End the answer, unless it is an interim answer such as 100 Continue."""
        self.is_in_answer = False
        if not self._is_interim and not self._has_ended:
            self._end()

    def _end(self) -> None:
        self.is_in_answer = False
        if self._methods:
            self._methods.popleft()
        else:
            self.is_last = True  # an answer without a request, for example before the replica hangs up
        if not self._parser.should_keep_alive():
            self.is_last = True


class _LengthHeaders:
    """Notes whether the head of the last answer in some bytes states where its body ends."""

    def __init__(self) -> None:
        self.is_there = False

    def on_message_begin(self) -> None:
        self.is_there = False

    def on_header(self, name: bytes, value: bytes) -> None:
        del value
        self.is_there |= name.lower() in (b"content-length", b"transfer-encoding")


def _states_length(head: bytes) -> bool:
    reader = _LengthHeaders()
    with suppress(*_PARSER_ERRORS):
        httptools.HttpResponseParser(reader).feed_data(head)
    return reader.is_there
