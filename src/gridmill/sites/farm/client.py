"""The HTTPS client of a farm, with the standard library and the farm's certificate pinned.

Chunks are the bodies of requests and answers; their bytes are counted as they move, piece by piece.
"""

import hashlib
import hmac
import http.client
import json
import os
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from gridmill.codec import decode, encode
from gridmill.domain.farm_protocol import (
    Deploy,
    FarmLook,
    Hashes,
    Joined,
    JoinRequest,
    Lacking,
    Manifest,
    Parcel,
    Parcels,
    Place,
    PodNames,
    check_versions,
)
from gridmill.domain.frozen import dataclass
from gridmill.errors import AwayError, GridmillError, InputError, UnavailableError
from gridmill.http.server import keep_alive, little_unsent
from gridmill.ports.site import Sights
from gridmill.sites.farm.credentials import Credentials, Keeping
from gridmill.sites.farm.errors import refusal
from gridmill.sites.farm.tunnel import Tunnel
from gridmill.transfer import stream
from gridmill.transfer.signed_urls import PARCEL_SECONDS
from gridmill.transfer.stream import UNMETERED, Chunk, Meter
from gridmill.version import __version__


class Frames:
    """A body that may be sent again: then what was sent before counts for nothing."""

    def __init__(self, contents: Sequence[stream.Content], meter: Meter) -> None:
        self._contents, self._meter, self._sent_bytes = contents, meter, 0

    def __iter__(self) -> Iterator[stream.Content]:
        if self._sent_bytes:
            self._meter.moved(-self._sent_bytes)
            self._sent_bytes = 0
        for content in self._contents:
            for piece in self._meter.sending(content):
                self._sent_bytes += len(piece)
                yield piece


def read_chunks(answer: http.client.HTTPResponse, meter: Meter) -> list[Chunk]:
    """All of an answer's; their hashes are still to be compared. Raises HTTPException where it breaks off."""
    return list(stream.decode(_pieces(answer, meter)))


def _pieces(answer: http.client.HTTPResponse, meter: Meter) -> Iterator[memoryview]:
    piece, got_bytes = memoryview(bytearray(meter.piece_bytes)), 0
    try:
        while size := answer.readinto(piece):
            meter.moved(size)
            got_bytes += size
            yield piece[:size]
        if answer.length:
            raise http.client.IncompleteRead(b"", answer.length)
    except (OSError, http.client.HTTPException):
        meter.moved(-got_bytes)  # it may be asked for again
        raise


class Connection(http.client.HTTPSConnection):
    """To a farm that shows the pinned certificate, or none."""

    def __init__(
        self, credentials: Credentials, context: ssl.SSLContext, seconds: float, way: Path | None
    ) -> None:
        super().__init__(credentials.host, credentials.port, timeout=seconds, context=context)
        self._pinned, self._secured, self._way = credentials.fingerprint, context, way

    def connect(self) -> None:
        """Nothing secret is said before the certificate is known. Raises OSError, InputError."""
        if self._way is None:
            super().connect()
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(self.sock, reads=True)
            little_unsent(self.sock)
        else:
            plain = socket.socket(socket.AF_UNIX)
            plain.settimeout(self.timeout)
            plain.connect(str(self._way))
            self.sock = self._secured.wrap_socket(plain)
        sock: Any = self.sock
        sock.suppress_ragged_eofs = False  # what is cut off is an error, also within a header
        shown = hashlib.sha256(self._secure.getpeercert(binary_form=True) or b"").hexdigest()
        if not hmac.compare_digest(shown, self._pinned):
            raise InputError(
                f"{self.host}:{self.port} shows the certificate {shown[:16]}…, not {self._pinned[:16]}…",
                hint="Either the farm was set up anew (join it again with its new line), or somebody is "
                "between you and it.",
            )

    @property
    def _secure(self) -> ssl.SSLSocket:
        sock: Any = self.sock
        secure: ssl.SSLSocket = sock
        return secure

    def patience(self, seconds: float) -> None:
        """How long an answer may take."""
        if self.sock is not None:
            self.sock.settimeout(seconds)

    def cut(self) -> None:
        """End it from another thread. Not as TLS ends it: what uses it now would go on without."""
        if self.sock is not None:
            try:
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)
            except OSError:
                return


T = TypeVar("T")
ANSWER_SECONDS = 20.0
LOOK_SECONDS = 10.0
LONG_SECONDS = 300.0
CONNECT_SECONDS = 10.0
QUEUED_SECONDS = 120.0
"""Timeout for a connection that waits behind data in the same SSH connection."""
SILENCE_SECONDS = 10.0
"""Timeout of a relay session; the farm sends something every two seconds."""
_DATA = ("/v1/staging/", "/v1/probe")
Body = bytes | Frames
MOST_LINE_BYTES = 64 * 2**20
_ASKED_LAST = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lane:
    """Connections that wait to be used again, and what leads there where SSH does. Data has a lane of its
    own: in one SSH connection messages would come after all of it that is on its way."""

    tunnel: Tunnel | None
    idle: list[Connection] = field(default_factory=list)


def _tunnel(at: Credentials) -> Tunnel | None:
    return Tunnel(at.ssh, at.host, at.port) if at.ssh else None


class Farm:
    """Safe to call from several threads; connections are used again. All calls may be repeated, and raise
    UnavailableError where the farm does not answer, and the error that it answers."""

    def __init__(
        self,
        credentials: Credentials,
        certificate: Path | None = None,
        key: Path | None = None,
        version: str = __version__,
    ) -> None:
        """`version` is the one that is told of us."""
        self._credentials, self._version = credentials, version
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.check_hostname = False  # the fingerprint says more than a name and an authority could
        self._context.verify_mode = ssl.CERT_NONE
        if certificate is not None:
            self._context.load_cert_chain(certificate, key)
        self._closed = False
        self.reached = float("-inf")
        """When it may have heard of us last (monotonic), also where no answer came."""
        self._took: deque[float] = deque(maxlen=_ASKED_LAST)
        self._messages, self._data = (_Lane(tunnel=_tunnel(credentials)) for _ in range(2))
        self._open: set[Connection] = set()
        self._lock = threading.Lock()

    def join(self, request: JoinRequest) -> Joined:
        """Become a source of it. Raises InputError for one of a version that does not fit."""
        joined = decode(self._ask("POST", "/v1/join", encode(request)), Joined)
        check_versions(source=self._version, farm=joined.version, protocol=joined.protocol)
        return joined

    @property
    def round_trip_seconds(self) -> float | None:
        """The quickest of the latest answers; None before the first."""
        return min(tuple(self._took), default=None)

    def greet(self) -> None:
        """Whether it answers."""
        self._ask("GET", "/healthz")

    def clock(self) -> float:
        """What time of day it has (Unix), to the second. Raises UnavailableError where it does not say."""
        told = self._exchange("GET", "/healthz", b"", _read_date, seconds=LOOK_SECONDS, more={})
        if told is None:
            raise UnavailableError(f"the farm at {self._place} does not tell the time")
        return told

    def probe(self, there_bytes: int, back_bytes: int) -> None:
        """Carry so many bytes there, and so many back, for nothing."""
        kind = {"Content-Type": "application/octet-stream"}
        self._ask("POST", f"/v1/probe?back={back_bytes}", os.urandom(there_bytes), more=kind)

    def look(self) -> FarmLook:
        """What it has, and what goes on there. Raises InputError for one of a version that does not fit."""
        found = decode(self._ask("GET", "/v1/farm", seconds=LOOK_SECONDS), FarmLook)
        check_versions(source=self._version, farm=found.version, protocol=found.protocol)
        return found

    def deploy(self, deployment_id: str, wanted: Deploy) -> None:
        """Bring up pods, as soon as there is room."""
        self._ask("PUT", f"/v1/deployments/{quote(deployment_id, safe='')}", encode(wanted))

    def observe(self, pods: Sequence[str]) -> Sights:
        """How they look."""
        wanted = encode(PodNames(pods=tuple(pods)))
        return decode(self._ask("POST", "/v1/pods/observe", wanted, seconds=LOOK_SECONDS), Sights)

    def end(self, pods: Sequence[str]) -> None:
        """They are gone when this returns."""
        self._ask("POST", "/v1/pods/end", encode(PodNames(pods=tuple(pods))), seconds=60.0)

    def open_relay(self) -> str:
        """A new session of messages; an older one ends."""
        told: dict[str, str] = json.loads(self._ask("POST", "/v1/relay"))
        return told["session"]

    def heard(self, session: str) -> Iterator[bytes]:
        """Its lines, as they come. Ends by UnavailableError when the session does."""
        connection = self._connect(SILENCE_SECONDS, self._messages)
        try:
            connection.request("GET", f"/v1/relay/{session}", headers=self._headers())
            answer = connection.getresponse()
            if answer.status != 200:
                raise refusal(answer.status, answer.read())
            while line := answer.readline(MOST_LINE_BYTES):
                if line.strip():
                    yield line
        except (OSError, http.client.HTTPException) as error:
            raise self._away(error, self._messages) from error
        finally:
            self._forget(connection)
        raise UnavailableError(f"the farm at {self._place} ended the session")

    def say(self, session: str, number: int, lines: Sequence[bytes]) -> None:
        """Pass lines on; the same number again is ignored there."""
        body = b"".join(line + b"\n" for line in lines)
        self._ask("POST", f"/v1/relay/{session}", body, more={"Sequence": str(number)})

    # what is carried

    def missing(self, chunks: Iterable[str], *, seconds: float = LONG_SECONDS) -> tuple[str, ...]:
        """Which of them are not there. `seconds`: how long the answer may take."""
        wanted = encode(Hashes(chunks=tuple(chunks)))
        return decode(self._ask("POST", "/v1/staging/missing", wanted, seconds=seconds), Lacking).chunks

    def metered(self, moved: Callable[[int], None], piece_bytes: int) -> "MeteredFarm":
        """See Metered."""
        return MeteredFarm(farm=self, meter=Meter(moved=moved, piece_bytes=piece_bytes))

    def send(self, chunks: Sequence[Chunk], meter: Meter = UNMETERED) -> None:
        """Carry these there."""
        size = str(stream.size_bytes(chunks))
        kind = {"Content-Type": "application/octet-stream", "Content-Length": size}
        body = Frames(tuple(stream.encode(chunks)), meter)
        self._ask("POST", "/v1/staging/chunks", body, seconds=LONG_SECONDS, more=kind)

    def fetch(self, chunks: Iterable[str], meter: Meter = UNMETERED) -> Iterator[Chunk]:
        """Carry these here; their hashes are still to be compared."""
        wanted, read = encode(Hashes(chunks=tuple(chunks))), partial(read_chunks, meter=meter)
        yield from self._exchange("POST", "/v1/staging/fetch", wanted, read, seconds=LONG_SECONDS, more={})

    def take(self, parcels: Sequence[Parcel]) -> tuple[str, ...]:
        """Let it take chunks from a bucket; those that are not there."""
        wanted = encode(Parcels(parcels=tuple(parcels)))
        return decode(
            self._ask("POST", "/v1/staging/take", wanted, seconds=PARCEL_SECONDS + ANSWER_SECONDS), Lacking
        ).chunks

    def give(self, parcel: Parcel) -> None:
        """Let it put chunks into a bucket."""
        self._ask("POST", "/v1/staging/give", encode(parcel), seconds=PARCEL_SECONDS + ANSWER_SECONDS)

    def place(self, place: Place) -> tuple[str, ...]:
        """Make a tree there; the chunks it lacks, if any."""
        return decode(
            self._ask("POST", "/v1/staging/place", encode(place), seconds=LONG_SECONDS), Lacking
        ).chunks

    def scan(self, uri: str) -> Manifest:
        """A tree that is there. Raises NotFoundError."""
        wanted = json.dumps({"uri": uri}).encode()
        return decode(self._ask("POST", "/v1/staging/scan", wanted, seconds=LONG_SECONDS), Manifest)

    def forget(self, attempt_id: str, *, keep: bool = False) -> None:
        """What was carried for the attempt may go, what it made there goes; `keep`: its chunks stay, as those
        that were carried there do."""
        path = f"/v1/staging/attempts/{quote(attempt_id, safe='')}"
        self._ask("DELETE", f"{path}?keep=true" if keep else path, seconds=LONG_SECONDS)

    def close(self) -> None:
        """End all connections; whoever waits for one is told that the farm does not answer."""
        with self._lock:
            self._closed = True
            for connection in self._open:
                connection.cut()
        for lane in (self._messages, self._data):
            if lane.tunnel is not None:
                lane.tunnel.close()

    @property
    def _place(self) -> str:
        at = f"{self._credentials.host}:{self._credentials.port}"
        return f"{at} behind {self._credentials.ssh}" if self._credentials.ssh else at

    def _headers(self) -> dict[str, str]:
        token = self._credentials.token
        said = {"Gridmill-Version": self._version}
        return {**said, "Authorization": f"Bearer {token}"} if token else said

    def _ask(
        self,
        method: str,
        path: str,
        body: Body = b"",
        *,
        seconds: float = ANSWER_SECONDS,
        more: dict[str, str] | None = None,
    ) -> bytes:
        return self._exchange(method, path, body, _read_all, seconds=seconds, more=more or {})

    def _exchange(
        self,
        method: str,
        path: str,
        body: Body,
        read: Callable[[http.client.HTTPResponse], T],
        *,
        seconds: float,
        more: dict[str, str],
    ) -> T:
        headers = {**self._headers(), "Content-Type": "application/json", **more}
        lane = self._data if path.startswith(_DATA) else self._messages
        with self._lock:
            kept = lane.idle.pop() if lane.idle else None
        for connection in ([kept] if kept is not None else []) + [None]:
            used, answer = connection or self._connect(seconds, lane), None
            try:
                used.patience(seconds)
                began = time.monotonic()
                self.reached = time.monotonic()
                used.request(method, path, body, headers)
                answer = used.getresponse()
                if answer.status >= 300:
                    raise refusal(answer.status, answer.read())
                content = read(answer)
                self._took.append(time.monotonic() - began)
            except (OSError, http.client.HTTPException) as error:
                self._forget(used)
                if connection is None or isinstance(error, TimeoutError):
                    raise self._away(error, lane) from error
                continue  # a kept connection may have ended while nobody used it
            except GridmillError:
                self._leave(used, answer, lane)
                raise
            self._leave(used, answer, lane)
            return content
        raise AssertionError("a new connection was tried")

    def _leave(self, connection: Connection, answer: http.client.HTTPResponse | None, lane: _Lane) -> None:
        """To be used again, if its answer was read to the end."""
        if answer is None or answer.will_close or not answer.isclosed():
            return self._forget(connection)
        with self._lock:
            return lane.idle.append(connection)

    def _connect(self, seconds: float, lane: _Lane) -> Connection:
        way = lane.tunnel.path() if lane.tunnel is not None else None
        behind_data = way is not None and lane is self._data  # where ssh says that the line is cut
        patience = min(seconds, QUEUED_SECONDS if behind_data else CONNECT_SECONDS)
        connection = Connection(self._credentials, self._context, patience, way)
        try:
            connection.connect()
            connection.patience(seconds)
        except OSError as error:
            connection.close()
            raise self._away(error, lane) from error
        except InputError:
            connection.close()
            raise
        with self._lock:
            if not self._closed:
                self._open.add(connection)
                return connection
        connection.close()
        raise UnavailableError(f"the farm at {self._place} is asked no more")

    def _forget(self, connection: Connection) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def _away(self, error: Exception, lane: _Lane) -> AwayError:
        said = lane.tunnel.said() if lane.tunnel is not None else ""
        late = "nothing came in time" if isinstance(error, TimeoutError) else ""
        why = said or late or getattr(error, "strerror", None) or str(error) or type(error).__name__
        return AwayError(f"the farm at {self._place} does not answer: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteredFarm:
    """A farm's Carrier (see `carry`) that tells what moves."""

    farm: Farm
    meter: Meter

    def missing(self, chunks: Iterable[str]) -> tuple[str, ...]:
        """See Taker."""
        return self.farm.missing(chunks)

    def send(self, chunks: Sequence[Chunk]) -> None:
        """See Taker."""
        self.farm.send(chunks, self.meter)

    def fetch(self, chunks: Iterable[str]) -> Iterator[Chunk]:
        """See Giver."""
        return self.farm.fetch(chunks, self.meter)


def _read_all(answer: http.client.HTTPResponse) -> bytes:
    return answer.read()


def _read_date(answer: http.client.HTTPResponse) -> float | None:
    answer.read()
    try:
        return parsedate_to_datetime(answer.headers.get("Date", "")).timestamp()
    except ValueError:
        return None


def member(keeping: Keeping, at: Credentials | None = None) -> Farm:
    """The farm that was joined, dialled where it was or `at` another place. Raises InputError."""
    known = keeping.read()
    if at is not None:
        known = replace(known, host=at.host, port=at.port, ssh=at.ssh)
    return Farm(known, keeping.certificate, keeping.key)
