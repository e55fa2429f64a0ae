"""Relays the connections of a tenant to the services that run in its pods.

A tenant asks for a connection with an HTTP request. The farm answers with status 101, and from then on passes
the bytes of the connection on to the socket of the service and back.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gridmill.http.connections import TAKE_OVER, TakenOver

_SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: gridmill-service\r\n\r\n"


class _End(asyncio.Protocol):
    """One of two connections. The bytes that arrive are written to the other connection, and both
    connections end together."""

    transport: asyncio.Transport | None = None
    other: "_End"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # other event loops have transports of their own classes
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other.transport is not None:
            self.other.transport.close()


class _TenantEnd(_End):
    lost: Callable[[Exception | None], None]

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost(exc)


class ServiceConnection(Response):
    """The answer that hands a connection of a tenant over to a service."""

    def __init__(self, service: socket.socket) -> None:
        super().__init__(status_code=101)
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with status 101, and pass the bytes of the connection on to the service and back."""
        del receive, send
        self._service.setblocking(False)
        tenant, inside = _TenantEnd(), _End()
        tenant.other, inside.other = inside, tenant
        # first, so that nothing of the tenant can arrive before it can be passed on
        await asyncio.get_running_loop().create_connection(lambda: inside, sock=self._service)
        taken: TakenOver = scope[TAKE_OVER](tenant)
        tenant.transport, tenant.lost = taken.transport, taken.lost
        tenant.transport.write(_SWITCHED)
        if inside.transport is None or inside.transport.is_closing():
            tenant.transport.close()
