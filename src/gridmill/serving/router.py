"""A router: a process that passes the requests of a service on to its replicas, which run on another machine.

The parent process starts it like a replica: it passes the order on standard input, and two file descriptors,
the listening socket and a pipe for signs of life. The router reads a changed upstream from the order in the
folder of the service.
"""

import argparse
import asyncio
import json
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import uvicorn

from gridmill.codec import decode
from gridmill.domain.serving import ServiceOrder, Upstream
from gridmill.errors import GridmillError, explained
from gridmill.http.connections import raise_open_files
from gridmill.plugins import find
from gridmill.ports.service_link import ServiceLink
from gridmill.process_log import BoundedHandler
from gridmill.process_memory import share_memory_areas
from gridmill.serving.parent_process import end_with_parent, write_beat
from gridmill.serving.pod_metrics import PodMetrics
from gridmill.serving.routing import ClientConnection, Replicas, Router
from gridmill.serving.service_files import OrderFile
from gridmill.serving.spread_link import SpreadLink
from gridmill.serving.tls import TlsContext

_LOG = logging.getLogger(__name__)
BEAT_SECONDS = 0.25
_DRAIN_PAUSE_SECONDS = 0.05
_IDLE_SECONDS = 1.0
"""The connection of an idle client is closed after this time when the router stops."""
_RESERVED_FILES = 256


def link_to(upstreams: Sequence[Upstream]) -> ServiceLink:
    """Return the link to the replicas, which are in several pods if there are several upstreams. Raises
    NotFoundError for an unknown kind of link."""
    links = links_to(upstreams)
    return links[0] if len(links) == 1 else SpreadLink(links)


def links_to(upstreams: Sequence[Upstream]) -> Sequence[ServiceLink]:
    """Return a link to the replicas in each pod. Raises NotFoundError for an unknown kind of link."""
    return [find("service_links", one.link)(one) for one in upstreams]


async def route(order: ServiceOrder, listener: socket.socket, folder: Path, beats: int) -> None:
    """Pass requests on until the process gets SIGTERM, and then drain."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    replicas, metrics = Replicas(link_to(order.upstreams)), PodMetrics(folder)
    metrics.follow(order.upstreams, links_to)
    router = Router(
        replicas,
        hold_seconds=order.hold_seconds,
        hold_bytes=order.hold_bytes,
        most_clients=_most_clients(),
        most_open=order.most_open,
        metrics=metrics,
    )
    tls = TlsContext(order)
    server = await loop.create_server(
        lambda: ClientConnection(router), sock=listener, ssl=tls.context, backlog=4_096
    )
    watched = _Watched(folder, order.upstreams)
    while not stop.is_set():
        watched.look(replicas, router)
        router.release_idle()
        tls.reload()
        if not write_beat(beats, {"ready": True, "busy_seconds": 0.0, "versions": []}):
            break
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), BEAT_SECONDS)
    server.close()
    await router.drain(order.drain_seconds, _IDLE_SECONDS, _DRAIN_PAUSE_SECONDS)
    replicas.close()
    metrics.close()


class _Watched:
    """The upstreams in the order of the service, which may change while the router runs."""

    def __init__(self, folder: Path, upstreams: Sequence[Upstream]) -> None:
        self._file, self._upstreams = OrderFile(folder), upstreams
        self._problem = ""

    def look(self, replicas: Replicas, router: Router) -> None:
        """Use the upstreams and the number of connections of the order if they have changed."""
        try:
            order = self._file.changed()
            if order is not None:
                router.limit_open(order.most_open)
            upstreams = order.upstreams if order is not None else ()
            if upstreams and upstreams != self._upstreams:
                replicas.change(link_to(upstreams))
                if router.metrics is not None:
                    router.metrics.follow(upstreams, links_to)
                self._upstreams = upstreams
        except GridmillError as error:
            _LOG.warning("the order is not used: %s", explained(error))
        if replicas.problem != self._problem:
            self._problem = replicas.problem
            _LOG.warning("%s", self._problem or "a replica can be reached again")


def _most_clients() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # each client may have a connection to a replica
    return 8_000 if soft == resource.RLIM_INFINITY else max(16, (soft - _RESERVED_FILES) // 2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a router. The exit code is 1 if its link cannot be made."""
    parser = argparse.ArgumentParser(description="Run the router of a service.")
    for name in ("listener", "beats", "number", "parent"):
        parser.add_argument(name, type=int)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args(arguments)
    end_with_parent(given.parent)
    share_memory_areas()
    raise_open_files()
    logging.basicConfig(
        level=logging.WARNING,
        handlers=[BoundedHandler()],
        format="%(asctime)s router: %(levelname)s %(message)s",
    )
    order = decode(sys.stdin.buffer.read(), ServiceOrder)
    listener = socket.socket(fileno=given.listener)
    listener.setblocking(False)
    os.set_blocking(given.beats, False)
    try:
        # uvloop where it is installed
        with asyncio.Runner(loop_factory=uvicorn.Config("", loop="auto").get_loop_factory()) as runner:
            runner.run(route(order, listener, given.folder, given.beats))
    except GridmillError as error:
        os.write(given.beats, json.dumps({"failure": explained(error)}).encode() + b"\n")
        _LOG.error("%s", explained(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
