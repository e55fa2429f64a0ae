"""A link to the replicas of a service in several pods: connections are opened to the pods in turn, and a pod
that cannot be reached is left out until a connection to it succeeds again."""

import asyncio
import random
from collections.abc import Sequence

from gridmill.errors import GridmillError, UnavailableError, explained
from gridmill.ports.service_link import OpenedConnection, ServiceLink

TRY_SECONDS = 2.0
"""The time for one connection to a pod. After it, the connection is opened to another pod, because a node
without power does not refuse connections."""
_PAUSE_SECONDS = (0.1, 2.0)


class _Way:
    """The link to the replicas in one pod. `problem` is the reason why they cannot be reached; empty if they
    can. `retry` opens a connection again and again until one succeeds."""

    def __init__(self, link: ServiceLink) -> None:
        self.link, self.problem = link, ""
        self.retry: asyncio.Task[None] | None = None


class SpreadLink:
    """Opens connections to the replicas in several pods in turn."""

    def __init__(self, links: Sequence[ServiceLink]) -> None:
        self._ways = [_Way(link) for link in links]
        self._next = random.randrange(len(self._ways))  # not all routers begin with the same pod

    async def open(self) -> OpenedConnection:
        """See ServiceLink. The pods that could be reached before are tried first."""
        self._next += 1
        turn = self._next % len(self._ways)
        ways = self._ways[turn:] + self._ways[:turn]
        ways.sort(key=lambda way: bool(way.problem))
        for way in ways:
            opened = await _try(way)
            if opened is not None:
                return opened
            self._keep_trying(way)
        raise UnavailableError("; ".join(dict.fromkeys(way.problem for way in ways)))

    def _keep_trying(self, way: _Way) -> None:
        if way.retry is None or way.retry.done():
            way.retry = asyncio.get_running_loop().create_task(_try_again(way))

    def close(self) -> None:
        """See ServiceLink."""
        for way in self._ways:
            if way.retry is not None:
                way.retry.cancel()
            way.link.close()


async def _try(way: _Way) -> OpenedConnection | None:
    """Return a connection, or None with the reason in the `problem` of the way."""
    try:
        async with asyncio.timeout(TRY_SECONDS):
            opened = await way.link.open()
        if opened.transport.is_closing():
            raise UnavailableError("the connection was closed at once")
    except TimeoutError as error:
        way.problem = str(error) or f"no connection within {TRY_SECONDS:g} s"
    except (GridmillError, OSError) as error:
        way.problem = explained(error) if isinstance(error, GridmillError) else str(error)
    else:
        way.problem = ""
        return opened
    return None


async def _try_again(way: _Way) -> None:
    pause, longest = _PAUSE_SECONDS
    while way.problem:
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, longest)
        opened = await _try(way)
        if opened is not None:
            opened.transport.abort()
