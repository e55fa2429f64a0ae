"""Accesses the objects of a bucket from a farm by signed URLs. Each URL is valid for one object, and the
farm needs no credentials."""

import http.client
import re
import socket
import ssl
import time
import urllib.request
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from gridmill.domain.farm_protocol import BucketObject, ChunkSlice
from gridmill.errors import DataError, InputError, NotFoundError, UnavailableError
from gridmill.http.server import little_unsent
from gridmill.transfer.paths import LARGEST_CHUNK_BYTES, check_hash
from gridmill.transfer.stream import PIECE_BYTES, Chunk, ChunkStream, Content, in_pieces

SILENCE_SECONDS = 30.0
"""The timeout in seconds without any byte from the bucket."""
PARCEL_SECONDS = 900.0
"""The timeout in seconds for the content of one object. After this time, the object is requested again."""
_BUCKET = re.compile(r"(s3|gs)://[A-Za-z0-9._-]{3,}(/[^?#]*)?")
_HTTP = re.compile(r"https?://[!-~]+")
_CODE = re.compile(rb"<Code>([A-Za-z]{1,60})</Code>")
_MESSAGE = re.compile(rb"<Message>([^<]{1,200})</Message>")
_PASSING = frozenset({408, 429})
_TOLD_BYTES = 4096
_SENT_BYTES = 1 << 14
_TELLING = frozenset({"fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"})
"""The addresses of the metadata services of AWS, Google, Alibaba, Azure and Oracle, in addition to
169.254.169.254."""
_TRANSLATED = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"), IPv6Network("::/96"))


class SignedUrlFarm(Protocol):
    """A farm that reads and writes objects by signed URLs. All methods raise UnavailableError."""

    def missing(self, chunks: Iterable[str]) -> tuple[str, ...]:
        """See ChunkWriter."""

    def take(self, parcels: Sequence[BucketObject]) -> tuple[str, ...]:
        """Stores the chunks in these objects at the farm. Returns the objects that do not exist. Raises
        InputError if the bucket refuses access, and DataError if a content does not match its hash."""

    def give(self, parcel: BucketObject) -> None:
        """Puts the chunks that `parcel` lists into its object. Raises NotFoundError, and InputError if the
        bucket refuses access."""


def check_bucket(url: str, place: str = "") -> None:
    """Raises InputError if the URL is not the URL of a bucket. The error shows `place`, or the URL if
    `place` is empty."""
    if not _BUCKET.fullmatch(url) or ".." in url.split("/"):
        raise InputError(
            f"{url!r} is not the address of a bucket" if place else "is no bucket",
            place=place or url,
            hint="Write s3://BUCKET/PREFIX or gs://BUCKET/PREFIX.",
        )


def sliced(sizes: Iterable[tuple[str, int]]) -> tuple[ChunkSlice, ...]:
    """Returns the positions of chunks that follow each other in an object. `sizes` has the hash and the size
    in bytes of each chunk."""
    buffers, begin = [], 0
    for chunk, size_bytes in sizes:
        buffers.append(ChunkSlice(chunk=chunk, begin=begin, size_bytes=size_bytes))
        begin += size_bytes
    return tuple(buffers)


def cut(content: bytes, slices: Iterable[ChunkSlice]) -> Iterator[Chunk]:
    """Yields the chunks in the content of an object. The receiver detects damaged chunks by their hashes."""
    view = memoryview(content)
    for one in slices:
        yield Chunk(hash=one.chunk, data=view[one.begin : one.begin + one.size_bytes])


def read(parcel: BucketObject, allowed: Container[str] = ()) -> Iterator[Chunk]:
    """Yields the chunks of the object. The caller must check the hashes of the chunks. The function has the
    same parameters and errors as `flows`."""
    return (flow.gathered() for flow in flows(parcel, allowed))


def flows(parcel: BucketObject, allowed: Container[str] = ()) -> Iterator[ChunkStream]:
    """Yields the chunks of the object while they arrive.

    `allowed` are the hosts that may be contacted at any address. Raises NotFoundError if the object does not
    exist, DataError if it is too short, InputError if the bucket refuses access, and UnavailableError.
    """
    until = time.monotonic() + PARCEL_SECONDS
    for run in _runs(parcel.slices):
        first, end = run[0].begin, run[-1].begin + run[-1].size_bytes
        if first == end:
            yield from (ChunkStream(hash=one.chunk, size_bytes=0, pieces=iter(())) for one in run)
            continue
        request = urllib.request.Request(_checked(parcel.url), headers={"Range": f"bytes={first}-{end - 1}"})
        with _opened(request, allowed) as answer:
            if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
                raise UnavailableError(
                    "the bucket does not support reading a part of an object", place=_shown(parcel.url)
                )
            _refuse_short(answer, end - first, parcel.url)
            for one in run:
                pieces = _exactly(answer, one.size_bytes, parcel.url, until)
                yield ChunkStream(hash=one.chunk, size_bytes=one.size_bytes, pieces=pieces)


def write(parcel: BucketObject, chunks: Iterable[Chunk], allowed: Container[str] = ()) -> None:
    """Puts these chunks as one object, in the order of `parcel`. The object is written completely or not at
    all. `allowed` are the hosts that may be contacted at any address.

    Raises InputError if the bucket refuses access, DataError if a chunk has another size, and
    UnavailableError.
    """
    size_bytes = sum(one.size_bytes for one in parcel.slices)
    headers = {"Content-Length": str(size_bytes), "Content-Type": "application/octet-stream"}
    body: Any = _bodies(parcel.slices, chunks)
    request = urllib.request.Request(_checked(parcel.url), body, headers, method="PUT")
    with _opened(request, allowed) as answer:
        answer.read(_TOLD_BYTES)


def send(url: str, size_bytes: int, pieces: Iterable[Content]) -> None:
    """Puts an object from the home into the bucket. Any host may be contacted, and the proxy in the
    environment is used.

    Raises HTTPError if the bucket refuses the request, URLError, OSError, and HTTPException.
    """
    headers = {"Content-Length": str(size_bytes), "Content-Type": "application/octet-stream"}
    body: Any = _little(pieces)
    request = urllib.request.Request(url, body, headers, method="PUT")
    opener = urllib.request.build_opener(_NoRedirect, _PlainHandler(ANY_HOST), _SecureHandler(ANY_HOST))
    with opener.open(request, timeout=SILENCE_SECONDS) as answer:
        answer.read(_TOLD_BYTES)


def _bodies(slices: Iterable[ChunkSlice], chunks: Iterable[Chunk]) -> Iterator[Content]:
    for one, chunk in zip(slices, chunks, strict=True):
        if len(chunk.data) != one.size_bytes:
            raise DataError(f"has {len(chunk.data)} bytes, not {one.size_bytes}", place=f"chunk {one.chunk}")
        yield from _little([chunk.data])


def _little(contents: Iterable[Content]) -> Iterator[Content]:
    """Splits contents into small pieces, because SILENCE_SECONDS is the time limit for all bytes of one
    call. Small pieces arrive in time even on a slow, shared connection."""
    for content in contents:
        yield from in_pieces(content, _SENT_BYTES)


def _runs(slices: Iterable[ChunkSlice]) -> Iterator[list[ChunkSlice]]:
    """Groups chunks that follow each other in an object, because each group needs only one request."""
    run: list[ChunkSlice] = []
    for one in sorted(slices, key=lambda one: one.begin):
        check_hash(one.chunk)
        if one.begin < 0 or not 0 <= one.size_bytes <= LARGEST_CHUNK_BYTES:
            raise InputError(f"{one.size_bytes} bytes from byte {one.begin} are not a valid chunk")
        if run and run[-1].begin + run[-1].size_bytes != one.begin:
            yield run
            run = []
        run.append(one)
    if run:
        yield run


def _refuse_short(answer: http.client.HTTPResponse, size_bytes: int, url: str) -> None:
    """Raises DataError if the object is too short, because a retry would read the same object. If only the
    connection broke, a retry may succeed."""
    if answer.length is not None and answer.length < size_bytes:
        raise DataError(f"has {answer.length} bytes, but {size_bytes} were uploaded", place=_shown(url))


def _exactly(answer: http.client.HTTPResponse, size_bytes: int, url: str, until: float) -> Iterator[Content]:
    while size_bytes:
        piece = answer.read1(min(size_bytes, PIECE_BYTES))
        if not piece:
            raise UnavailableError(
                "the bucket closed the connection before the end of the object", place=_shown(url)
            )
        if time.monotonic() > until:
            raise UnavailableError("the bucket sends too slowly", place=_shown(url))
        size_bytes -= len(piece)
        yield piece


def _checked(url: str) -> str:
    try:
        host, _ = urlsplit(url).hostname, urlsplit(url).port
    except ValueError:
        host = None
    if not host or not _HTTP.fullmatch(url):
        raise InputError("a URL must begin with https:// or http:// and a host", place="url")
    return url


def _shown(url: str) -> str:
    """Returns the URL without its signature."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{parts.path}"


class _AnyHost(Container[str]):
    def __contains__(self, _: object) -> bool:
        return True


ANY_HOST = _AnyHost()
"""The home may contact any host, because its owner configured the hosts."""


@contextmanager
def _opened(request: urllib.request.Request, allowed: Container[str]) -> Iterator[Any]:
    place = _shown(request.full_url)
    try:
        with _opener(allowed).open(request, timeout=SILENCE_SECONDS) as answer:
            yield answer
    except HTTPError as error:
        # without the cause, because its text contains the whole URL with the signature
        raise refusal(error, request.get_method(), place) from None
    except URLError as error:
        raise UnavailableError(f"the bucket does not answer: {_why(error.reason)}", place=place) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UnavailableError(f"the bucket does not answer: {_why(error)}", place=place) from None


def _why(error: object) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def refusal(error: HTTPError, method: str, place: str) -> InputError | NotFoundError | UnavailableError:
    """Returns the error for the bucket's response to a request. The function reads the response to its
    end."""
    with error:
        try:
            body = error.read(_TOLD_BYTES)
        except (OSError, http.client.HTTPException):
            body = b""
    words = [match[1].decode(errors="replace") for rule in (_CODE, _MESSAGE) if (match := rule.search(body))]
    text = f"the bucket answers {error.code} {': '.join(words)}".strip()
    if error.code >= 500 or error.code in _PASSING:
        return UnavailableError(text, place=place)
    if error.code == http.HTTPStatus.NOT_FOUND and method == "GET":
        return NotFoundError(text, place=place)
    if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return DataError(text, place=place)
    hint = "Check at home: the credentials must permit reading and writing, the clock must be right, and "
    return InputError(text, place=place, hint=f"{hint}`endpoint` must be the server of this bucket.")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:  # noqa: ANN401  a signature is for one address
        return None


class _PlainHandler(urllib.request.HTTPHandler):
    def __init__(self, allowed: Container[str]) -> None:
        super().__init__()
        self._allowed = allowed

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_connection, http.client.HTTPConnection, self._allowed), req)


class _SecureHandler(urllib.request.HTTPSHandler):
    def __init__(self, allowed: Container[str]) -> None:
        super().__init__()
        self._allowed = allowed

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        made = partial(_connection, http.client.HTTPSConnection, self._allowed, context=_authorities())
        return self.do_open(made, req)


@cache
def _authorities() -> ssl.SSLContext:
    return ssl.create_default_context()


def _connection(
    kind: type[http.client.HTTPConnection],
    allowed: Container[str],
    host: str,
    **more: Any,  # noqa: ANN401
) -> http.client.HTTPConnection:
    """Makes a connection that checks the address of the host before it sends anything."""
    made = kind(host, **more)

    def dial(address: tuple[str, int], *rest: Any) -> socket.socket:  # noqa: ANN401
        host, port = address
        resolved = host if host in allowed else _far_address(host, port)
        dialled = socket.create_connection((resolved, port), *rest)
        little_unsent(dialled)
        return dialled

    made._create_connection = dial  # type: ignore[attr-defined]  # the only place before its TLS
    return made


def _far_address(host: str, port: int) -> str:
    """Returns the address to connect to.

    The host name is looked up once, and its address is checked before anything is sent. Therefore a later
    change of the name's address cannot bypass this check. Raises InputError, OSError.
    """
    addresses = [str(one[4][0]) for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for address in addresses:
        if is_refused(address) or _is_own(address):
            raise InputError(
                f"the farm does not open {address}: it is not an address of a bucket",
                hint="If the bucket is in the farm's own network, set GRIDMILL_BUCKET_HOSTS at the farm to "
                "its host.",
            )
    return addresses[0]


def _is_own(address: str) -> bool:
    """Returns whether the address belongs to this machine. A socket can be bound only to the machine's own
    addresses."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as tried:
        try:
            tried.bind((address, 0))
        except OSError:
            return False
    return True


def is_refused(address: str) -> bool:
    """Returns whether a farm must not connect to the address, in any notation. The function refuses the
    machine itself, addresses that are never routed, and metadata services. A metadata service gives the
    machine's own credentials to any client."""
    ip = ip_address(address.partition("%")[0])
    return any(_is_near(one) for one in (ip, *_within(ip)))


def _is_near(ipv4_address: IPv4Address | IPv6Address) -> bool:
    odd = (
        ipv4_address.is_link_local
        or ipv4_address.is_loopback
        or ipv4_address.is_unspecified
        or ipv4_address.is_multicast
    )
    return odd or str(ipv4_address) in _TELLING


def _within(ipv4_address: IPv4Address | IPv6Address) -> Iterator[IPv4Address]:
    """Yields the IPv4 addresses to which an IPv6 address is translated."""
    if isinstance(ipv4_address, IPv4Address):
        return
    yield from (one for one in (ipv4_address.ipv4_mapped, ipv4_address.sixtofour) if one is not None)
    if any(ipv4_address in network for network in _TRANSLATED):
        yield IPv4Address(int(ipv4_address) & 0xFFFF_FFFF)


def _opener(allowed: Container[str]) -> urllib.request.OpenerDirector:
    """Uses no proxy, because with a proxy, the checked address would be the address of the proxy."""
    straight = urllib.request.ProxyHandler({})
    return urllib.request.build_opener(straight, _NoRedirect, _PlainHandler(allowed), _SecureHandler(allowed))
