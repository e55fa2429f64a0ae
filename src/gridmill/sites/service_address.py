"""The link of a service whose replicas have an address that this machine can reach."""

import asyncio

from gridmill.domain.serving import Upstream
from gridmill.errors import UnavailableError
from gridmill.ports.service_link import OpenedConnection, ServiceLink


class AddressLink:
    """Opens connections to HOST:PORT."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    async def open(self) -> OpenedConnection:
        """See ServiceLink."""
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, self._host, self._port)
        transport.pause_reading()
        return OpenedConnection(transport=transport)

    def close(self) -> None:
        """See ServiceLink. The link has no tunnel."""


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
