"""Follows the HTTP messages of one connection while their bytes are passed on unchanged: how many requests
wait for an answer, and which id a request has."""

from collections import deque
from collections.abc import Callable

import httptools

_ID_CHARACTERS = 200


class RequestFollower:
    """Follows the requests that a client sends. `is_opaque` is True after bytes that are not HTTP."""

    def __init__(self, begun: Callable[[], None]) -> None:
        """`begun` is called at the first byte of each request."""
        self._begun = begun
        self._parser = httptools.HttpRequestParser(self)
        self.methods: deque[bytes] = deque()
        """The methods of the requests whose answers have not ended, oldest first. A method is empty until
        the head of its request has arrived."""
        self.request_id = ""
        self.is_opaque = self.is_in_request = False
        """`is_in_request` is whether a request has begun and not all of its bytes have arrived."""

    def feed(self, data: bytes) -> None:
        """Read the bytes that have arrived."""
        if not self.is_opaque:
            try:
                self._parser.feed_data(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade):
                self.is_opaque = True

    # --- callbacks of the parser

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._begun()
        self.request_id, self.is_in_request = "", True
        self.methods.append(b"")

    def on_message_complete(self) -> None:
        """End a request."""
        self.is_in_request = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note the id of the request."""
        if name.lower() == b"x-request-id" and len(value) <= _ID_CHARACTERS and value.isascii():
            text = value.decode("ascii")
            self.request_id = text if text.isprintable() else ""

    def on_headers_complete(self) -> None:
        """Note the method of the request."""
        if self.methods:
            self.methods[-1] = self._parser.get_method()


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
        self._has_length = False

    def feed(self, data: bytes) -> None:
        """Read the bytes that have arrived."""
        if self.is_opaque:
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.is_opaque = True
        if self._has_ended:  # the parser waits for the body, which an answer to HEAD does not have
            self._parser, self._has_ended = httptools.HttpResponseParser(self), False

    # --- callbacks of the parser

    def on_message_begin(self) -> None:
        """Begin an answer."""
        self.is_in_answer, self._has_length = True, False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note whether the head of the answer states where its body ends."""
        del value
        self._has_length |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        """End the answer if its request was a HEAD request."""
        self.is_in_answer &= self._has_length
        if not self._is_interim and self._methods and self._methods[0] == b"HEAD":
            self._has_ended = True
            self._end()

    def on_message_complete(self) -> None:
        """End the answer, unless it is an interim answer such as 100 Continue."""
        self.is_in_answer = False
        if not self._is_interim and not self._has_ended:
            self._end()

    @property
    def _is_interim(self) -> bool:
        return 100 <= self._parser.get_status_code() < 200

    def _end(self) -> None:
        self.is_in_answer = False
        if self._methods:
            self._methods.popleft()
        else:
            self.is_last = True  # an answer without a request, for example before the replica hangs up
        if not self._parser.should_keep_alive():
            self.is_last = True
