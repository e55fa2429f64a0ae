"""The control node's end of all its links: a thread that moves messages, and queues on both sides of it."""

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from gridmill.codec import encode_message
from gridmill.domain.pod_protocol import ToPod
from gridmill.ports.link import Received
from gridmill.transport import unix
from gridmill.transport.event_loop import Exchange
from gridmill.transport.socket import SocketWire
from gridmill.transport.spool import SpoolFolder
from gridmill.transport.transport import Monotonic, for_spool, for_tls

_LOG = logging.getLogger(__name__)
RECEIVE_LIMIT_BYTES = 64 * 2**20
"""If this much waits for the control loop, nothing more is read: the pods keep the rest in their journals."""
_CLOSE_SECONDS = 10.0
_BREATH_SECONDS = 0.1  # after a defect: what fails each time must not take a whole CPU


class Links:
    """A LinkServer. `on_ready` is called from the links' thread after something came or a channel closed;
    it must return at once and not raise. All methods may be called from any thread."""

    def __init__(
        self,
        on_ready: Callable[[], None],
        *,
        monotonic: Monotonic = time.monotonic,
        receive_limit_bytes: int = RECEIVE_LIMIT_BYTES,
    ) -> None:
        self._on_ready = on_ready
        self._monotonic = monotonic
        self._receive_limit_bytes = receive_limit_bytes
        self._exchange = Exchange(self._deliver, monotonic)
        self._received: deque[tuple[Received, int]] = deque()
        self._unread_bytes = 0
        self._fresh = False
        self._commands: deque[Callable[[], None]] = deque()
        self._lock = threading.Condition()
        self._closing = False
        self._sockets: list[tuple[Path, int]] = []  # paths with the inodes that are ours
        self._bell, self._ring = socket.socketpair()
        for end in (self._bell, self._ring):
            end.setblocking(False)
        self._exchange.watch(self._bell, lambda _: self._answer_bell())
        self._thread = threading.Thread(target=self._loop, name="gridmill-links", daemon=True)
        self._thread.start()

    # what the links listen to

    def listen_unix(self, path: Path | str, *, user: int | None = None) -> None:
        """Take pods at a Unix socket: mode 0600, same user or root only, or that `user`.

        Raises HomeInUseError, StorageError.
        """
        path = Path(path)
        listener = unix.listen(path)
        self._sockets.append((path, path.stat().st_ino))
        self._do(
            lambda: self._exchange.add_listener(listener, lambda sock: SocketWire(unix.accept(sock, user)))
        )

    def listen_tls(self, host: str, port: int, certfile: Path, keyfile: Path) -> tuple[int, str]:
        """Take pods over TLS; the port (0 picks one) and the certificate's fingerprint.

        Raises InputError for the files, UnavailableError for the address.
        """
        from gridmill.transport import tls  # and with it OpenSSL: most grids never leave the machine

        context, fingerprint = tls.server_context(certfile, keyfile), tls.fingerprint_of(certfile)
        listener = tls.listen(host, port)
        self._do(
            lambda: self._exchange.add_listener(listener, lambda sock: tls.accept(sock, context), for_tls)
        )
        return int(listener.getsockname()[1]), fingerprint

    def watch_spool(self, folder: Path | str) -> None:
        """Take pods through files in `folder`. Raises StorageError."""
        watched = SpoolFolder(Path(folder), self._monotonic)
        self._do(lambda: self._exchange.add_folder(watched, for_spool))

    # LinkServer

    def receive(self) -> Sequence[Received]:
        """Everything that has come, in order per channel; never waits."""
        with self._lock:
            taken = [received for received, _ in self._received]
            self._received.clear()
            self._unread_bytes = 0
            self._lock.notify_all()
        return taken

    def send(self, channel: int, messages: Sequence[ToPod]) -> None:
        """Queue messages; never waits, never raises for a channel that is gone."""
        lines = b"".join(encode_message(message) + b"\n" for message in messages)
        self._do(lambda: self._exchange.send(channel, lines))

    def drop(self, channel: int) -> None:
        """Send what is queued and close the channel."""
        self._do(lambda: self._exchange.drop(channel))

    def close(self) -> None:
        """Send what goes at once and close everything; may be repeated. Pods will try again."""
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        self._do(lambda: None)
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_SECONDS)

    # the thread

    def _do(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        try:
            self._ring.send(b"!")
        except OSError:
            return  # full: the bell rings already; closed: nobody is left to do it

    def _answer_bell(self) -> None:
        try:
            self._bell.recv(4096)
        except BlockingIOError:
            return

    def _loop(self) -> None:
        while not self._closing:
            try:
                self._turn()
            except Exception:  # noqa: BLE001  the outermost loop: no pod may take the others' link down
                _LOG.exception("links_turn_failed")
                with self._lock:
                    self._lock.wait_for(lambda: self._closing, _BREATH_SECONDS)
        self._carry_out()
        self._exchange.close()
        self._remove_sockets()
        self._ring.close()
        self._bell.close()

    def _turn(self) -> None:
        self._exchange.turn(0.0 if self._commands else None)
        self._carry_out()
        if self._fresh:
            self._fresh = False
            self._on_ready()
        self._wait_for_room()

    def _carry_out(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _deliver(self, received: Received, size_bytes: int) -> None:
        self._fresh = True
        with self._lock:
            self._received.append((received, size_bytes))
            self._unread_bytes += size_bytes

    def _wait_for_room(self) -> None:
        with self._lock:
            self._lock.wait_for(lambda: self._closing or self._unread_bytes < self._receive_limit_bytes)

    def _remove_sockets(self) -> None:
        for path, inode in self._sockets:
            try:
                if path.stat().st_ino == inode:
                    path.unlink()
            except OSError:
                continue
