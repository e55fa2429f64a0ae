"""The HTTPS client of a farm: it uses the standard library only, and accepts only the pinned certificate of
the farm.

Chunks are sent and received as the bodies of HTTP requests and responses. The bytes of chunks are counted
piece by piece during the transfer.
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
    BucketObject,
    BucketObjects,
    ChunkHashes,
    DeployRequest,
    EarlyTree,
    FarmStatus,
    JoinRequest,
    JoinResponse,
    LogFileNames,
    Manifest,
    MissingChunks,
    PlaceTree,
    PodNames,
    ResultExport,
    check_versions,
)
from gridmill.domain.frozen import dataclass
from gridmill.errors import AwayError, GridmillError, InputError, UnavailableError
from gridmill.http.server import keep_alive, little_unsent
from gridmill.ports.site import PodReports
from gridmill.sites.farm.credentials import CredentialFiles, FarmCredentials
from gridmill.sites.farm.errors import refusal
from gridmill.sites.farm.tunnel import Tunnel
from gridmill.transfer import stream
from gridmill.transfer.signed_urls import PARCEL_SECONDS
from gridmill.transfer.stream import UNMETERED, ByteMeter, Chunk
from gridmill.version import __version__


class RepeatableBody:
    """The body of a request that may be sent again. If the body is sent again, the bytes that were sent
    before are not counted."""

    def __init__(self, contents: Sequence[stream.Content], meter: ByteMeter) -> None:
        self._contents, self._meter, self._sent_bytes = contents, meter, 0

    def __iter__(self) -> Iterator[stream.Content]:
        if self._sent_bytes:
            self._meter.moved(-self._sent_bytes)
            self._sent_bytes = 0
        for content in self._contents:
            for piece in self._meter.sending(content):
                self._sent_bytes += len(piece)
                yield piece


def read_chunks(answer: http.client.HTTPResponse, meter: ByteMeter) -> list[Chunk]:
    """Reads the chunks from a response of the farm. The caller must check the hashes of the chunks. Raises
    HTTPException if the connection breaks."""
    return list(stream.decode(_pieces(answer, meter)))


def _pieces(answer: http.client.HTTPResponse, meter: ByteMeter) -> Iterator[memoryview]:
    piece, got_bytes = memoryview(bytearray(meter.piece_bytes)), 0
    try:
        while size := answer.readinto(piece):
            meter.moved(size)
            got_bytes += size
            yield piece[:size]
        if answer.length:
            raise http.client.IncompleteRead(b"", answer.length)
    except (OSError, http.client.HTTPException):
        # subtracts the bytes, because the request may be repeated and would count them twice
        meter.moved(-got_bytes)
        raise


def pinned_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    """Returns the TLS settings for connections to a farm, whose certificate `check_certificate` must check.
    Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # not needed, because the fingerprint proves more than a name and an authority
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


def check_certificate(shown_certificate: bytes | None, pinned: str, place: str) -> None:
    """Raises InputError if the certificate (DER) that a farm presents does not have the pinned
    fingerprint."""
    shown = hashlib.sha256(shown_certificate or b"").hexdigest()
    if not hmac.compare_digest(shown, pinned):
        raise InputError(
            f"{place} shows the certificate {shown[:16]}…, not {pinned[:16]}…",
            hint="If the farm was set up again, join it again with its new join line. If not, somebody "
            "may intercept the connection.",
        )


class PinnedConnection(http.client.HTTPSConnection):
    """A connection to a farm that presents the pinned certificate. The connection refuses every other
    certificate."""

    def __init__(
        self,
        credentials: FarmCredentials,
        context: ssl.SSLContext,
        seconds: float,
        tunnel_socket: Path | None,
    ) -> None:
        super().__init__(credentials.host, credentials.port, timeout=seconds, context=context)
        self._pinned, self._secured, self._tunnel_socket = credentials.fingerprint, context, tunnel_socket

    def connect(self) -> None:
        """Opens the connection to the farm, and sends no secret before the certificate is checked. Raises
        OSError, InputError."""
        if self._tunnel_socket is None:
            super().connect()
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(self.sock, reads=True)
            little_unsent(self.sock)
        else:
            plain = socket.socket(socket.AF_UNIX)
            plain.settimeout(self.timeout)
            plain.connect(str(self._tunnel_socket))
            self.sock = self._secured.wrap_socket(plain)
        sock: Any = self.sock
        # otherwise a connection that is cut within a header would look like the end of the answer
        sock.suppress_ragged_eofs = False
        check_certificate(
            self._secure.getpeercert(binary_form=True), self._pinned, f"{self.host}:{self.port}"
        )

    @property
    def _secure(self) -> ssl.SSLSocket:
        sock: Any = self.sock
        secure: ssl.SSLSocket = sock
        return secure

    def patience(self, seconds: float) -> None:
        """Sets the timeout in seconds for a response on this connection."""
        if self.sock is not None:
            self.sock.settimeout(seconds)

    def cut(self) -> None:
        """Ends the connection. The calling thread is not the thread that uses the connection. The TLS
        shutdown is skipped, because otherwise the thread that uses the connection would continue without
        TLS."""
        if self.sock is not None:
            try:
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)
            except OSError:
                return


T = TypeVar("T")
ANSWER_SECONDS = 20.0
STATUS_SECONDS = 10.0
LONG_SECONDS = 300.0
CONNECT_SECONDS = 10.0
QUEUED_SECONDS = 120.0
"""The timeout for a request that waits behind other data in the same SSH connection."""
SILENCE_SECONDS = 10.0
"""The timeout of a relay session without any line, because the farm sends a line every two seconds."""
_DATA = ("/v1/staging/", "/v1/probe")
Body = bytes | RepeatableBody
MOST_LINE_BYTES = 64 * 2**20
_ASKED_LAST = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConnectionPool:
    """Stores idle connections to a farm, and the SSH tunnel if the farm is reached through SSH.

    Bulk data has its own pool of connections. If bulk data shared one SSH connection with messages, the
    messages would wait behind all the data.
    """

    tunnel: Tunnel | None
    idle: list[PinnedConnection] = field(default_factory=list)


def _tunnel(at: FarmCredentials) -> Tunnel | None:
    return Tunnel(at.ssh, at.host, at.port, at.ssh_options) if at.ssh else None


class FarmClient:
    """Calls the server of a farm over HTTPS. The client is safe to call from several threads, and it reuses
    connections.

    All calls to the farm may be repeated. Each call raises UnavailableError if the farm does not answer, or
    the error that the farm's answer contains.
    """

    def __init__(
        self,
        credentials: FarmCredentials,
        certificate: Path | None = None,
        key: Path | None = None,
        version: str = __version__,
    ) -> None:
        """`version` is the version of Gridmill that the client sends to the farm."""
        self._credentials, self._version = credentials, version
        self._context = pinned_context(certificate, key)
        self._closed = False
        self.reached = float("-inf")
        """The latest time (monotonic clock) at which the farm may have received a request, even if the farm
        did not answer."""
        self._took: deque[float] = deque(maxlen=_ASKED_LAST)
        self._messages, self._data = (_ConnectionPool(tunnel=_tunnel(credentials)) for _ in range(2))
        self._open: set[PinnedConnection] = set()
        self._lock = threading.Lock()

    def join(self, request: JoinRequest) -> JoinResponse:
        """Joins the farm as a tenant. Raises InputError if the version of the farm is not compatible."""
        joined = decode(self._ask("POST", "/v1/join", encode(request)), JoinResponse)
        check_versions(tenant=self._version, farm=joined.version, protocol=joined.protocol)
        return joined

    @property
    def round_trip_seconds(self) -> float | None:
        """Returns the shortest of the latest response times of the farm, or None if the farm has not
        responded yet."""
        return min(tuple(self._took), default=None)

    def greet(self) -> None:
        """Whether the farm answers."""
        self._ask("GET", "/healthz")

    def clock(self) -> float:
        """Returns the time of day at the farm as Unix time, with a precision of one second. Raises
        UnavailableError if the farm does not report its time."""
        result = self._exchange("GET", "/healthz", b"", _read_date, seconds=STATUS_SECONDS, more={})
        if result is None:
            raise UnavailableError(f"the farm at {self._place} does not report its time")
        return result

    def probe(self, there_bytes: int, back_bytes: int) -> None:
        """Sends `there_bytes` bytes to the farm and receives `back_bytes` bytes, to measure the speed of the
        connection."""
        kind = {"Content-Type": "application/octet-stream"}
        self._ask("POST", f"/v1/probe?back={back_bytes}", os.urandom(there_bytes), more=kind)

    def status(self) -> FarmStatus:
        """Returns the nodes and the load of the farm. Raises InputError if the version of the farm is not
        compatible."""
        result = decode(self._ask("GET", "/v1/farm", seconds=STATUS_SECONDS), FarmStatus)
        check_versions(tenant=self._version, farm=result.version, protocol=result.protocol)
        return result

    def deploy(self, deployment_id: str, wanted: DeployRequest) -> None:
        """Requests pods from the farm. The pods start when the farm has free capacity."""
        self._ask("PUT", f"/v1/deployments/{quote(deployment_id, safe='')}", encode(wanted))

    def observe(self, pods: Sequence[str]) -> PodReports:
        """Returns the states of these pods at the farm."""
        wanted = encode(PodNames(pods=tuple(pods)))
        return decode(self._ask("POST", "/v1/pods/observe", wanted, seconds=STATUS_SECONDS), PodReports)

    def end(self, pods: Sequence[str]) -> None:
        """Ends the pods at the farm. When this function returns, the pods have ended."""
        self._ask("POST", "/v1/pods/end", encode(PodNames(pods=tuple(pods))), seconds=60.0)

    def open_relay(self) -> str:
        """Opens a new relay session for messages, which ends any older session of this home."""
        answer: dict[str, str] = json.loads(self._ask("POST", "/v1/relay"))
        return answer["session"]

    def receive_lines(self, session: str) -> Iterator[bytes]:
        """Yields the lines of the relay session as they arrive. Raises UnavailableError when the relay
        session ends."""
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
            raise self._unavailable(error, self._messages) from error
        finally:
            self._discard_connection(connection)
        raise UnavailableError(f"the farm at {self._place} ended the session")

    def send_lines(self, session: str, number: int, lines: Sequence[bytes]) -> None:
        """Sends numbered lines to the farm. The farm ignores a number that it has received before."""
        body = b"".join(line + b"\n" for line in lines)
        self._ask("POST", f"/v1/relay/{session}", body, more={"Sequence": str(number)})

    # --- transferred data

    def missing(self, chunks: Iterable[str], *, seconds: float = LONG_SECONDS) -> tuple[str, ...]:
        """Returns the chunks of this list that the farm does not have. `seconds` is the timeout."""
        wanted = encode(ChunkHashes(chunks=tuple(chunks)))
        return decode(self._ask("POST", "/v1/staging/missing", wanted, seconds=seconds), MissingChunks).chunks

    def metered(self, moved: Callable[[int], None], piece_bytes: int) -> "MeteredFarmClient":
        """See MeteredEndpoint."""
        return MeteredFarmClient(farm=self, meter=ByteMeter(moved=moved, piece_bytes=piece_bytes))

    def send(self, chunks: Sequence[Chunk], meter: ByteMeter = UNMETERED, *, early: str = "") -> None:
        """Sends these chunks. With `early`, they are for an attempt that has not started yet, and the farm
        refuses them with UnavailableError if they have to give way to other data."""
        path = f"/v1/staging/chunks?early={quote(early, safe='')}" if early else "/v1/staging/chunks"
        size = str(stream.size_bytes(chunks))
        kind = {"Content-Type": "application/octet-stream", "Content-Length": size}
        body = RepeatableBody(tuple(stream.encode(chunks)), meter)
        self._ask("POST", path, body, seconds=LONG_SECONDS, more=kind)

    def fetch(self, chunks: Iterable[str], meter: ByteMeter = UNMETERED) -> Iterator[Chunk]:
        """Downloads these chunks from the farm. The caller must check the hashes of the chunks."""
        wanted, read = encode(ChunkHashes(chunks=tuple(chunks))), partial(read_chunks, meter=meter)
        yield from self._exchange("POST", "/v1/staging/fetch", wanted, read, seconds=LONG_SECONDS, more={})

    def take(self, parcels: Sequence[BucketObject]) -> tuple[str, ...]:
        """Asks the farm to read chunks from a bucket. Returns the requested objects that do not exist in the
        bucket."""
        wanted = encode(BucketObjects(parcels=tuple(parcels)))
        return decode(
            self._ask("POST", "/v1/staging/take", wanted, seconds=PARCEL_SECONDS + ANSWER_SECONDS),
            MissingChunks,
        ).chunks

    def give(self, parcel: BucketObject) -> None:
        """Asks the farm to put chunks into a bucket."""
        self._ask("POST", "/v1/staging/give", encode(parcel), seconds=PARCEL_SECONDS + ANSWER_SECONDS)

    def place(self, place: PlaceTree) -> tuple[str, ...]:
        """Asks the farm to build a folder from chunks. Returns the chunks that the farm does not have."""
        return decode(
            self._ask("POST", "/v1/staging/place", encode(place), seconds=LONG_SECONDS), MissingChunks
        ).chunks

    def place_early(self, tree: EarlyTree) -> tuple[str, ...]:
        """Asks the farm to keep the chunks of a folder for an attempt that has not started yet. Returns the
        chunks that the farm does not have. Raises NotFoundError if the farm is too old."""
        return decode(
            self._ask("POST", "/v1/staging/early", encode(tree), seconds=LONG_SECONDS), MissingChunks
        ).chunks

    def end_early(self, attempt_id: str) -> None:
        """Asks the farm to release the chunks that it keeps for an attempt that has not started yet."""
        self._ask("DELETE", f"/v1/staging/early/{quote(attempt_id, safe='')}")

    def permit_export(self, attempt_id: str, export: ResultExport) -> None:
        """Permits the farm to upload the result of an attempt to a bucket while this home is away. Raises
        NotFoundError if the farm is too old."""
        self._ask("PUT", f"/v1/staging/exports/{quote(attempt_id, safe='')}", encode(export))

    def scan(self, uri: str) -> Manifest:
        """Returns the manifest of a folder at the farm. Raises NotFoundError."""
        wanted = json.dumps({"uri": uri}).encode()
        return decode(self._ask("POST", "/v1/staging/scan", wanted, seconds=LONG_SECONDS), Manifest)

    def delete_log_files(self, attempt_id: str, names: Sequence[str]) -> None:
        """Asks the farm to delete files of the request log of a service that this home has taken."""
        path = f"/v1/staging/attempts/{quote(attempt_id, safe='')}/taken-logs"
        self._ask("POST", path, encode(LogFileNames(names=tuple(names))), seconds=LONG_SECONDS)

    def delete_attempt(self, attempt_id: str, *, keep: bool = False) -> None:
        """Asks the farm to delete the files of the attempt and to evict the chunks of its inputs. With
        `keep`, the farm does not evict the chunks of the attempt's inputs and results."""
        path = f"/v1/staging/attempts/{quote(attempt_id, safe='')}"
        self._ask("DELETE", f"{path}?keep=true" if keep else path, seconds=LONG_SECONDS)

    def close(self) -> None:
        """Closes all connections. Callers that still wait for the farm get the error that the farm does not
        answer."""
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
        headers = {"Gridmill-Version": self._version}
        return {**headers, "Authorization": f"Bearer {token}"} if token else headers

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
                self._discard_connection(used)
                if connection is None or isinstance(error, TimeoutError):
                    raise self._unavailable(error, lane) from error
                continue  # tried again with another connection, because an idle connection may have ended
            except GridmillError:
                self._leave(used, answer, lane)
                raise
            self._leave(used, answer, lane)
            return content
        raise AssertionError("a new connection was tried")

    def _leave(
        self, connection: PinnedConnection, answer: http.client.HTTPResponse | None, lane: _ConnectionPool
    ) -> None:
        """Stores the connection for reuse if its response was read completely."""
        if answer is None or answer.will_close or not answer.isclosed():
            return self._discard_connection(connection)
        with self._lock:
            return lane.idle.append(connection)

    def _connect(self, seconds: float, lane: _ConnectionPool) -> PinnedConnection:
        tunnel_socket = lane.tunnel.path() if lane.tunnel is not None else None
        # a longer patience, because the request waits behind data, and ssh itself reports a broken line
        behind_data = tunnel_socket is not None and lane is self._data
        patience = min(seconds, QUEUED_SECONDS if behind_data else CONNECT_SECONDS)
        connection = PinnedConnection(self._credentials, self._context, patience, tunnel_socket)
        try:
            connection.connect()
            connection.patience(seconds)
        except OSError as error:
            connection.close()
            raise self._unavailable(error, lane) from error
        except InputError:
            connection.close()
            raise
        with self._lock:
            if not self._closed:
                self._open.add(connection)
                return connection
        connection.close()
        raise UnavailableError(f"the farm at {self._place} was closed and gets no more requests")

    def _discard_connection(self, connection: PinnedConnection) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def _unavailable(self, error: Exception, lane: _ConnectionPool) -> AwayError:
        tunnel_message = lane.tunnel.last_message() if lane.tunnel is not None else ""
        late = "no answer within the timeout" if isinstance(error, TimeoutError) else ""
        why = tunnel_message or late or getattr(error, "strerror", None) or str(error) or type(error).__name__
        return AwayError(f"the farm at {self._place} does not answer: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteredFarmClient:
    """A chunk endpoint at a farm. The endpoint counts the bytes that it sends and receives."""

    farm: FarmClient
    meter: ByteMeter

    def missing(self, chunks: Iterable[str]) -> tuple[str, ...]:
        """See ChunkWriter."""
        return self.farm.missing(chunks)

    def send(self, chunks: Sequence[Chunk]) -> None:
        """See ChunkWriter."""
        self.farm.send(chunks, self.meter)

    def fetch(self, chunks: Iterable[str]) -> Iterator[Chunk]:
        """See ChunkReader."""
        return self.farm.fetch(chunks, self.meter)


def _read_all(answer: http.client.HTTPResponse) -> bytes:
    return answer.read()


def _read_date(answer: http.client.HTTPResponse) -> float | None:
    answer.read()
    try:
        return parsedate_to_datetime(answer.headers.get("Date", "")).timestamp()
    except ValueError:
        return None


def member(keeping: CredentialFiles, at: FarmCredentials | None = None) -> FarmClient:
    """Returns the client of a joined farm. The client uses the stored address of the farm, or the address
    `at`. Raises InputError."""
    return FarmClient(stored_credentials(keeping, at), keeping.certificate, keeping.key)


def stored_credentials(keeping: CredentialFiles, at: FarmCredentials | None = None) -> FarmCredentials:
    """Returns the stored credentials of a joined farm, with the stored address or the address `at`. Raises
    InputError."""
    credentials = keeping.read()
    if at is not None:
        credentials = replace(credentials, host=at.host, port=at.port, ssh=at.ssh, ssh_options=at.ssh_options)
    return credentials
