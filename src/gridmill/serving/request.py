"""A request and an answer, as the handlers of all protocols use them."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import msgspec

from gridmill.domain.amounts import show_bytes
from gridmill.domain.frozen import dataclass
from gridmill.serving.errors import MalformedError, MediaTypeError, TooLargeError

JSON = b"application/json"
LINES = (b"application/x-ndjson", b"application/jsonl", b"application/jsonlines", b"application/json-lines")
"""The content types of JSON lines: one row per line."""
ARROW = b"application/vnd.apache.arrow.stream"
"""The content type of a stream of Apache Arrow."""
_ENCODE = msgspec.json.Encoder().encode
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
COMPRESSED_BYTES = 1024
"""An answer with fewer bytes than this is not compressed."""

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(slots=True, kw_only=True)
class Request:
    """A request whose body was read completely. The names of `headers` are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    body: bytes
    request_id: str
    version: str = ""
    """The label of the version that answers, which a handler sets."""
    rows: int = 0
    """The number of rows of the request, which a handler sets."""
    objects: Callable[[], list[dict[str, Any]]] | None = None
    """Returns the rows as JSON has them, if the body is not JSON. A handler sets it."""
    as_of_us: int = 0
    """The as-of time of rows that name none, in microseconds since 1970; 0 is the time of the request. A
    handler that computes features by key sets it to the time for which it has computed them."""
    traceparent: bytes = b""
    """The trace of the request; empty if the request has no header `traceparent`."""

    def content_type(self) -> bytes:
        """Return the media type of the body, without parameters, in lower case."""
        return media_type(self.headers)


def headers_of(pairs: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the headers of a request by name. Several values of `traceparent` are joined, so that the header
    is not valid. Of another header that is repeated, the last value counts."""
    headers = dict(pairs)
    if len(headers) < len(pairs) and b"traceparent" in headers:
        headers[b"traceparent"] = b",".join(value for name, value in pairs if name == b"traceparent")
    return headers


def media_type(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the media type of a body, without parameters, in lower case."""
    given = headers.get(b"content-type", b"")
    return given if given == JSON else given.split(b";", 1)[0].strip().lower()


@dataclass(slots=True, kw_only=True)
class Answer:
    """An answer to a request."""

    body: bytes
    status: int = 200
    media_type: bytes = JSON
    headers: Headers = field(default=())


def is_stream(content: bytes) -> bool:
    """Return whether an answer is an Arrow stream, and not JSON."""
    return content.startswith(b"\xff\xff\xff\xff")


def json_answer(content: Any, status: int = 200, headers: Headers = ()) -> Answer:  # noqa: ANN401  any JSON
    """Return an answer with JSON. NaN and infinity become null."""
    return Answer(body=_ENCODE(content), status=status, headers=headers)


def decompressed(body: bytes, encoding: bytes, most: int) -> bytes:
    """Return a body as it was before its content encoding. Raises TooLargeError if it would have more than
    `most` bytes, MalformedError, MediaTypeError."""
    name = encoding.strip().lower()
    if name in (b"", b"identity"):
        return body
    if name not in (b"gzip", b"x-gzip", b"deflate"):
        raise MediaTypeError(f"the content encoding {name.decode('latin-1')!r} is not supported; use gzip")
    stream = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        content = stream.decompress(body, most + 1)
    except zlib.error as error:
        reason = str(error).rpartition(": ")[2]  # zlib writes its number of the error before the reason
        raise MalformedError(f"the body is not valid {name.decode()} data: {reason}") from error
    if len(content) > most:
        raise too_large(most)
    if not stream.eof:
        raise MalformedError(f"the body is not complete {name.decode()} data")
    if stream.unused_data:
        # a second member would be lost without a notice, and many small members take too long
        raise MalformedError(f"{len(stream.unused_data)} bytes follow the end of the {name.decode()} data")
    return content


def too_large(most: int) -> TooLargeError:
    """Return the error for a body of more than `most` bytes."""
    return TooLargeError(
        f"the body has more than {show_bytes(most)}",
        hint="Send fewer rows in each request. `gridmill predict` predicts a file of any size.",
    )


def compressed(answer: Answer, accepted: bytes) -> Answer:
    """Compress the body of an answer if the client accepts gzip, and the body is long enough."""
    if len(answer.body) < COMPRESSED_BYTES or not _accepts_gzip(accepted):
        return answer
    packer = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    answer.body = packer.compress(answer.body) + packer.flush()
    answer.headers = (*answer.headers, (b"content-encoding", b"gzip"), (b"vary", b"accept-encoding"))
    return answer


def _accepts_gzip(accepted: bytes) -> bool:
    for one in accepted.lower().split(b","):
        name, _, rest = one.partition(b";")
        if name.strip() in (b"gzip", b"*"):
            return rest.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False
