"""The link of a service whose replicas have an address that this machine can reach."""

import asyncio
import socket

from gridmill.domain.serving import Upstream
from gridmill.errors import UnavailableError
from gridmill.ports.service_link import OpenedConnection, ServiceLink

UNANSWERED_SECONDS = 5
"""A connection ends if the other machine does not confirm what was sent, or a probe, for this number of
seconds. A node without power ends no connection, and the router sends a request to another replica only after
the end."""
_PROBES = {
    "TCP_KEEPIDLE": 2,
    "TCP_KEEPINTVL": 1,
    "TCP_KEEPCNT": UNANSWERED_SECONDS - 2,
    "TCP_USER_TIMEOUT": UNANSWERED_SECONDS * 1000,
}


class AddressLink:
    """Opens connections to HOST:PORT."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    async def open(self) -> OpenedConnection:
        """See ServiceLink."""
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, self._host, self._port)
        transport.pause_reading()
        _end_when_unanswered(transport.get_extra_info("socket"))
        return OpenedConnection(transport=transport)

    def close(self) -> None:
        """See ServiceLink. The link has no tunnel."""


def _end_when_unanswered(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES.items():
        if hasattr(socket, name):  # macOS lacks some of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class AbsentLink:
    """The link of a service whose replicas were not started yet."""

    async def open(self) -> OpenedConnection:
        """See ServiceLink."""
        raise UnavailableError("no replica was started yet")

    def close(self) -> None:
        """See ServiceLink."""


def make_absent(upstream: Upstream) -> ServiceLink:
    """Makes the link of a service without replicas."""
    del upstream
    return AbsentLink()


def make_link(upstream: Upstream) -> ServiceLink:
    """Makes the link to the settings `host` and `port` of the upstream."""
    return AddressLink(upstream.settings["host"], int(upstream.settings["port"]))


def upstream_at(host: str, port: int, attempt_id: str) -> Upstream:
    """Returns the upstream of a service whose replicas listen at this address."""
    return Upstream(link="tcp", attempt_id=attempt_id, settings={"host": host, "port": str(port)})
