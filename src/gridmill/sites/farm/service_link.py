"""The link of a service whose replicas run at a farm. Each connection is one TLS connection to the farm's own
port, directly or through an SSH tunnel. The farm hands it over to the socket of the service."""

import asyncio
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import cast

from gridmill.domain.frozen import dataclass
from gridmill.domain.serving import Upstream
from gridmill.errors import UnavailableError
from gridmill.http.server import keep_alive
from gridmill.ports.service_link import OpenedConnection, ServiceLink
from gridmill.sites.farm.client import check_certificate, pinned_context, stored_credentials
from gridmill.sites.farm.credentials import CredentialFiles, FarmCredentials
from gridmill.sites.farm.errors import refusal
from gridmill.sites.farm.join import read_controller
from gridmill.sites.farm.tunnel import Tunnel
from gridmill.version import __version__

OPEN_SECONDS = 20.0
"""The timeout for opening one connection, which includes the start of the SSH tunnel."""
_MOST_HEAD_BYTES = 64 * 1024


class _Handshake(asyncio.Protocol):
    """Collects the head of the farm's answer, and what follows it."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.has_head: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # other event loops have transports of their own classes
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received += data
        if b"\r\n\r\n" in self.received or len(self.received) > _MOST_HEAD_BYTES:
            self.transport.pause_reading()
            if not self.has_head.done():
                self.has_head.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.has_head.done():
            self.has_head.set_exception(UnavailableError(f"the farm closed the connection: {exc or ''}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """The credentials and the TLS settings with which connections are opened."""

    credentials: FarmCredentials
    context: ssl.SSLContext
    tunnel: Tunnel | None


class FarmServiceLink:
    """Opens connections to the service of one attempt at a farm."""

    def __init__(self, folder: Path, controller: str, attempt_id: str) -> None:
        """`folder` has the credentials for the farm. `controller` is the configured address of the farm, or
        empty for the stored address."""
        self._kept = CredentialFiles(folder=folder)
        self._controller, self._attempt_id = controller, attempt_id
        self._opened: _Opened | None = None

    async def open(self) -> OpenedConnection:
        """See ServiceLink."""
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                return await self._open()
        except TimeoutError as error:
            raise UnavailableError("the farm does not answer within the timeout") from error
        except (OSError, UnavailableError):
            raise
        except Exception:
            self._opened = None  # read again, because this home may have joined the farm again
            raise

    async def _open(self) -> OpenedConnection:
        opened = self._opened or self._read()
        self._opened = opened
        transport, handshake = await self._connect(opened)
        try:
            secure: ssl.SSLObject = transport.get_extra_info("ssl_object")
            at = opened.credentials
            check_certificate(secure.getpeercert(binary_form=True), at.fingerprint, f"{at.host}:{at.port}")
            transport.write(self._request(at.token))
            await handshake.has_head
            head, _, rest = bytes(handshake.received).partition(b"\r\n\r\n")
            status = int(head.split(b" ", 2)[1])
            if status != 101:
                await self._refused(status, rest)
        except BaseException:
            transport.abort()
            raise
        return OpenedConnection(transport=transport, received=rest)

    async def _refused(self, status: int, body: bytes) -> None:
        error = refusal(status, body)
        # the attempt may have ended, and its successor may not have started yet
        raise UnavailableError(f"the farm does not connect to the service: {error.message}") from error

    def _read(self) -> _Opened:
        at = read_controller(self._controller) if self._controller else None
        credentials = stored_credentials(self._kept, at)
        tunnel = None
        if credentials.ssh:
            tunnel = Tunnel(credentials.ssh, credentials.host, credentials.port, credentials.ssh_options)
        context = pinned_context(self._kept.certificate, self._kept.key)
        return _Opened(credentials=credentials, context=context, tunnel=tunnel)

    async def _connect(self, opened: _Opened) -> tuple[asyncio.Transport, _Handshake]:
        loop, at = asyncio.get_running_loop(), opened.credentials
        name = at.host
        if opened.tunnel is not None:
            path = await loop.run_in_executor(None, opened.tunnel.path)
            return await loop.create_unix_connection(
                _Handshake, str(path), ssl=opened.context, server_hostname=name
            )
        transport, handshake = await loop.create_connection(
            _Handshake, at.host, at.port, ssl=opened.context, server_hostname=name
        )
        plain = transport.get_extra_info("socket")
        with suppress(OSError):
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(plain)
        return transport, handshake

    def _request(self, token: str) -> bytes:
        return (
            f"POST /v1/attempts/{self._attempt_id}/connection HTTP/1.1\r\nhost: farm\r\n"
            f"authorization: Bearer {token}\r\ngridmill-version: {__version__}\r\ncontent-length: 0\r\n\r\n"
        ).encode()

    def close(self) -> None:
        """See ServiceLink."""
        opened, self._opened = self._opened, None
        if opened is not None and opened.tunnel is not None:
            opened.tunnel.close()


def make(upstream: Upstream) -> ServiceLink:
    """Makes the link from the settings `folder` and `controller` of the upstream."""
    settings = upstream.settings
    return FarmServiceLink(Path(settings["folder"]), settings.get("controller", ""), upstream.attempt_id)


def upstream_at_farm(folder: Path, controller: str, attempt_id: str) -> Upstream:
    """Returns the upstream of a service that runs in an attempt at a farm."""
    settings = {"folder": str(folder), "controller": controller}
    return Upstream(link="farm", attempt_id=attempt_id, settings=settings)
