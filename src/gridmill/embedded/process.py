"""Runs the embedded control node in its own process, which ends with its last client."""

import logging
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType

from gridmill.bootstrap.clients import RETURN_SECONDS, attend
from gridmill.bootstrap.node import EmbeddedNode, embed
from gridmill.ports.site import SitePort
from gridmill.process_memory import share_memory_areas
from gridmill.rpc.client import SOCKET, differences
from gridmill.rpc.connected_clients import Attendance
from gridmill.rpc.protocol import readable
from gridmill.rpc.server import CallServer
from gridmill.settings import Settings, is_farm

_OWNER_SECONDS = 15.0
"""The number of seconds for which this process waits until another control node of the home has ended."""
_ARRIVAL_SECONDS = 30.0
"""The number of seconds in which the command that started this process must become its client."""


class NodeProcess:
    """A control node with its server for calls, and the conditions for its end."""

    def __init__(self, settings: Settings, starter: socket.socket, site: SitePort) -> None:
        """`site` is the prepared local site. Raises HomeInUseError, StoreInUseError, StorageError and
        InputError."""
        share_memory_areas()
        self._attendance: Attendance | None = None
        self._over = threading.Event()
        self._tear_down = True
        until = time.monotonic() + _OWNER_SECONDS
        self._node: EmbeddedNode = embed(
            settings,
            site=site,
            warn=self._warn,
            waits=lambda: time.monotonic() < until and not is_farm(settings.home) and not readable(starter),
            await_seconds=RETURN_SECONDS,
            end=self._shut_down,
        )
        self._attendance = attend(self._node, stays=False, warn=self._warn)
        self._release_hold: Callable[[], None] | None = None
        self._node.node.watchers.append(self._stay_while_needed)
        self._stay_while_needed()
        self._server = CallServer(
            settings.home / SOCKET,
            self._node.grid,
            self._attendance,
            give_way=self._leave,
            release=self._node.node.begin_release,
            notices=lambda hello: differences(settings, hello, stays=False),
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)

    def wait_for_clients(self, starter: socket.socket) -> None:
        """Runs until the last client has ended."""
        attendance = self._attendance
        assert attendance is not None
        threading.Thread(target=_wait_for, args=(starter, attendance.hold()), daemon=True).start()
        attendance.keep(lambda: self._over.is_set() or self._node.node.ending)
        self._server.close()
        self._node.close(tear_down=self._tear_down)

    def _stay_while_needed(self) -> None:
        """Keeps this process running without clients while machines are rented, so that no machine is left,
        and while services run."""
        node, attendance = self._node.node, self._attendance
        is_needed = node.rents_machines or node.runs_services
        if attendance is not None and is_needed and self._release_hold is None:
            self._release_hold = attendance.stay()
        elif not is_needed and self._release_hold is not None:
            self._release_hold()
            self._release_hold = None

    def _leave(self) -> None:
        """Ends this control node, because a permanent control node continues its runs and deployments."""
        self._tear_down = False
        self._shut_down()

    def _shut_down(self) -> None:
        self._over.set()
        if self._attendance is not None:
            self._attendance.wake()

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._tear_down = False
        self._over.set()

    def _warn(self, message: str) -> None:
        """Prints a message to the log and sends it to all clients."""
        logging.warning("%s", message)
        if self._attendance is not None:
            self._attendance.warn_clients(message)


def _wait_for(starter: socket.socket, release: Callable[[], None]) -> None:
    """Waits until the process that started this process closes its end of the socket. The process that
    started this process has then become a client, or it was killed."""
    readable(starter, milliseconds=int(_ARRIVAL_SECONDS * 1000))
    release()
