"""The interface by which the router of a service opens connections to the replicas of the service, which may
run on another machine."""

import asyncio
from typing import Protocol

from gridmill.domain.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedConnection:
    """A connection over which HTTP requests reach a replica. The reading of `transport` is paused, so that
    its protocol can be replaced before anything arrives. `received` are the bytes that have arrived."""

    transport: asyncio.Transport
    received: bytes = b""


class ServiceLink(Protocol):
    """Opens connections to the replicas of one service."""

    async def open(self) -> OpenedConnection:
        """Opens a connection. Raises UnavailableError if no replica can be reached now, and another
        GridmillError if a person has to correct something. Raises OSError."""

    def close(self) -> None:
        """Ends the tunnel of the link, if it has one. The connections may end with it."""
