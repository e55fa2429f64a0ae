"""The control node's side of its links to pods: a thread that sends and receives messages, and the queues
between this thread and the control loop.

One thread runs an event loop for all channels, with a selector for sockets and with polling for spool
folders.
"""

import itertools
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

from gridmill.codec import encode_message
from gridmill.domain.pod_protocol import ToPod
from gridmill.errors import GridmillError
from gridmill.ports.link import ReceivedMessage
from gridmill.transport import unix
from gridmill.transport.channel import Channel, Monotonic, NewLiveness, for_spool, for_tls
from gridmill.transport.socket import SocketWire, Wire
from gridmill.transport.spool import SpoolFolder

_LOG = logging.getLogger(__name__)
_TICK_SECONDS = 1.0
_ACCEPTS_PER_TURN = 64
_READS_PER_POLL = 64

Accept: TypeAlias = Callable[[socket.socket], Wire]
"""A function that returns the next connection of a listener. The function raises BlockingIOError if no
connection waits."""
Watcher: TypeAlias = Callable[[int], None]
"""A function that receives the events of a file descriptor (selectors.EVENT_READ | EVENT_WRITE)."""


class WireSource(Protocol):
    """A source of new wires that must be polled."""

    def poll(self) -> Sequence[Wire]:
        """The new connections."""

    def stir(self) -> None:
        """Makes polling more frequent for a while, because a message was sent or received."""

    def due_seconds(self) -> float:
        """Returns the number of seconds until the next poll."""

    def close(self) -> None:
        """Accepts no more connections."""


class EventLoop:
    """The event loop for all channels of a control node. The event loop is not thread-safe, because
    `PodLinkServer` runs it in its own thread.

    `deliver` gets each message and its size in bytes. When a channel that has delivered a message ends, None
    is delivered once for this channel.
    """

    def __init__(self, deliver: Callable[[ReceivedMessage, int], None], monotonic: Monotonic) -> None:
        self._deliver = deliver
        self._monotonic = monotonic
        self._selector = selectors.DefaultSelector()
        self._numbers = itertools.count(1)
        self._channels: dict[int, Channel] = {}
        self._folders: dict[WireSource, NewLiveness] = {}
        self._folder_of: dict[int, WireSource] = {}
        """The folder of each channel that is polled."""
        self._listeners: dict[socket.socket, Watcher] = {}
        self._next_tick = 0.0

    # --- watched sockets and folders

    def watch(self, sock: socket.socket, watcher: Watcher) -> None:
        """Calls `watcher` whenever there is something to read from `sock`."""
        self._selector.register(sock, selectors.EVENT_READ, watcher)

    def add_listener(
        self,
        listener: socket.socket,
        accept: Accept,
        new_liveness: NewLiveness | None = None,
        most: int | None = None,
    ) -> None:
        """Accepts connections from `listener`. At most `most` of these connections exist at the same
        time."""
        limited = None if most is None else _Limited(most)

        def watcher(_: int) -> None:
            self._accept(listener, accept, new_liveness, limited)

        self._listeners[listener] = watcher
        self.watch(listener, watcher)

    def add_folder(self, folder: WireSource, new_liveness: NewLiveness) -> None:
        """Polls `folder`."""
        self._folders[folder] = new_liveness

    # --- commands for channels

    def send(self, number: int, lines: bytes) -> None:
        """Queues encoded messages for a channel. If the channel has ended, the function does nothing."""
        channel = self._channels.get(number)
        if channel is not None:
            self._settle(channel, channel.send(lines))
        if number in self._folder_of:
            self._folder_of[number].stir()  # polled soon, because an answer will probably come

    def drop(self, number: int) -> None:
        """Sends the queued messages of a channel, and then closes the channel."""
        channel = self._channels.get(number)
        if channel is not None:
            self._settle(channel, channel.finish())

    def close(self) -> None:
        """Sends the bytes that can be sent immediately, and closes all channels and listeners. Files in
        spool folders stay, so that the pods can read them."""
        for channel in self._channels.values():
            channel.finish()
            if channel.number not in self._folder_of:
                channel.wire.close()
        self._channels.clear()
        for folder in self._folders:
            folder.close()
        for listener in self._listeners:
            listener.close()
        self._selector.close()

    # --- one turn

    def turn(self, timeout_seconds: float | None) -> None:
        """Waits for events for at most this number of seconds (None means without a limit), and handles the
        events."""
        for key, events in self._selector.select(self._patience(timeout_seconds)):
            watcher: Watcher = key.data
            watcher(events)
        for folder in self._folders:
            if folder.due_seconds() <= 0:
                self._poll(folder)
        if self._monotonic() >= self._next_tick:
            self._next_tick = self._monotonic() + _TICK_SECONDS
            self._tick()

    def _patience(self, timeout_seconds: float | None) -> float | None:
        waits = [] if timeout_seconds is None else [timeout_seconds]
        waits += [max(0.0, folder.due_seconds()) for folder in self._folders]
        if self._channels:
            waits.append(_TICK_SECONDS)
        return min(waits, default=None)

    def _tick(self) -> None:
        for channel in list(self._channels.values()):
            self._settle(channel, channel.tick())
        for listener, watcher in self._listeners.items():
            if listener not in self._selector.get_map():
                self.watch(listener, watcher)

    # --- channels

    def _open(self, wire: Wire, new_liveness: NewLiveness | None) -> Channel:
        number = next(self._numbers)
        liveness = new_liveness(self._monotonic) if new_liveness else None
        channel = Channel(number, wire, self._deliver, liveness=liveness, monotonic=self._monotonic)
        self._channels[number] = channel
        return channel

    def _settle(self, channel: Channel, alive: bool) -> None:
        """Waits for the next event of a channel, or closes the channel."""
        descriptor = channel.wire.fileno()
        if not alive:
            self._close(channel)
        elif descriptor is not None:
            key = self._selector.get_key(descriptor)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.wire.wants_write() else 0)
            if key.events != events:
                self._selector.modify(descriptor, events, key.data)

    def _close(self, channel: Channel) -> None:
        if self._channels.pop(channel.number, None) is None:
            return
        descriptor = channel.wire.fileno()
        if descriptor is not None:
            self._selector.unregister(descriptor)
        self._folder_of.pop(channel.number, None)
        channel.wire.close()
        if channel.has_spoken:
            self._deliver(ReceivedMessage(channel=channel.number, message=None), 0)

    # --- sockets

    def _accept(
        self,
        listener: socket.socket,
        accept: Accept,
        new_liveness: NewLiveness | None,
        limited: "_Limited | None",
    ) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                wire = accept(listener)
            except (BlockingIOError, ConnectionError):
                return
            # no descriptor is free: tried again only at the next tick, because the loop would spin
            except OSError as error:
                _LOG.error("accept_failed reason=%s", error)
                self._selector.unregister(listener)
                return
            except GridmillError as error:
                _LOG.warning("connection_refused reason=%s", error)
                continue
            if limited is not None and not self._has_room(limited):
                wire.close()
                continue
            channel = self._open(wire, new_liveness)
            if limited is not None:
                limited.numbers[channel.number] = None
            self._serve_socket(channel)

    def _has_room(self, limited: "_Limited") -> bool:
        """Returns whether another connection may be accepted. If the limit is reached, the function closes
        the oldest connection that has sent no message."""
        for number in [number for number in limited.numbers if number not in self._channels]:
            del limited.numbers[number]
        if len(limited.numbers) < limited.most:
            return True
        channels = (self._channels[number] for number in limited.numbers)
        silent = next((channel for channel in channels if not channel.has_spoken), None)
        if silent is not None:
            self._close(silent)
        return silent is not None

    def _serve_socket(self, channel: Channel) -> None:
        def watcher(events: int) -> None:
            self._settle(channel, _serve(channel, events))

        descriptor = channel.wire.fileno()
        if descriptor is not None:
            self._selector.register(descriptor, selectors.EVENT_READ, watcher)

    # --- folders

    def _poll(self, folder: WireSource) -> None:
        for wire in folder.poll():
            self._folder_of[self._open(wire, self._folders[folder]).number] = folder
        for number in [number for number, of in self._folder_of.items() if of is folder]:
            alive = _drain(self._channels[number])
            if alive is not None:
                folder.stir()
                self._settle(self._channels[number], alive)


class _Limited:
    """The connections of a listener that limits their number. The oldest connection is first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.numbers: dict[int, None] = {}


def _serve(channel: Channel, events: int) -> bool:
    alive = not events & selectors.EVENT_WRITE or channel.flush()
    if alive and events & selectors.EVENT_READ:
        return channel.read() is not False
    return alive


def _drain(channel: Channel) -> bool | None:
    """Reads a limited amount of data. Returns None if there was no message, and False if the channel has
    ended."""
    for count in range(_READS_PER_POLL):
        alive = channel.read()
        if not alive:
            return True if alive is None and count else alive
    return True


RECEIVE_LIMIT_BYTES = 16 * 2**20
"""If this many bytes wait for the loop of the control node, no more messages are read. The pods store all
further messages in their journals."""
_CLOSE_SECONDS = 10.0
# a pause after an internal error, so that an error in each turn does not use a whole CPU
_BREATH_SECONDS = 0.1


class PodLinkServer:
    """Implements LinkServer. The function `on_ready` is called in the thread of the links after a message
    has arrived or a channel has been closed. `on_ready` must return immediately and must not raise an error.
    All methods may be called from any thread."""

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
        self._exchange = EventLoop(self._deliver, monotonic)
        self._received: deque[tuple[ReceivedMessage, int]] = deque()
        self._unread_bytes = 0
        self._fresh = False
        self._commands: deque[Callable[[], None]] = deque()
        self._lock = threading.Condition()
        self._closing = False
        self._sockets: list[tuple[Path, int]] = []
        """The paths of the sockets of this server, with their inodes."""
        self._bell, self._ring = socket.socketpair()
        for end in (self._bell, self._ring):
            end.setblocking(False)
        self._exchange.watch(self._bell, lambda _: self._answer_bell())
        self._thread = threading.Thread(target=self._loop, name="gridmill-links", daemon=True)
        self._thread.start()

    # --- addresses on which the links listen

    def listen_unix(self, path: Path | str, *, user: int | None = None, most: int | None = None) -> None:
        """Accepts pods at a Unix socket with mode 0600. Only the same user, root and the given `user` can
        connect, with at most `most` connections.

        Raises HomeInUseError, StorageError.
        """
        path = Path(path)
        listener = unix.listen(path)
        self._sockets.append((path, path.stat().st_ino))
        self._do(
            lambda: self._exchange.add_listener(
                listener, lambda sock: SocketWire(unix.accept(sock, user)), most=most
            )
        )

    def listens_at(self, path: Path) -> bool:
        """Returns whether the Unix socket at the path belongs to this server."""
        try:
            return (path, path.lstat().st_ino) in self._sockets
        except OSError:
            return False

    def listen_tls(self, host: str, port: int, certfile: Path, keyfile: Path) -> tuple[int, str]:
        """Accepts pods over TLS. Returns the port at which the server listens (a free port if `port` is 0),
        and the fingerprint of the certificate.

        Raises InputError if the files cannot be used, and UnavailableError if the address cannot be used.
        """
        # imported here, because it loads OpenSSL, which most grids do not need
        from gridmill.transport import tls

        context, fingerprint = tls.server_context(certfile, keyfile), tls.fingerprint_of(certfile)
        listener = tls.listen(host, port)
        self._do(
            lambda: self._exchange.add_listener(listener, lambda sock: tls.accept(sock, context), for_tls)
        )
        return int(listener.getsockname()[1]), fingerprint

    def watch_spool(self, folder: Path | str) -> None:
        """Accepts pods that communicate through files in `folder`. Raises StorageError."""
        watched = SpoolFolder(Path(folder), self._monotonic)
        self._do(lambda: self._exchange.add_folder(watched, for_spool))

    # --- LinkServer

    def receive(self) -> Sequence[ReceivedMessage]:
        """Returns all received messages. The messages of each channel are in order. The function never
        waits."""
        with self._lock:
            taken = [received for received, _ in self._received]
            self._received.clear()
            self._unread_bytes = 0
            self._lock.notify_all()
        return taken

    def send(self, channel: int, messages: Sequence[ToPod]) -> None:
        """Queues messages for a pod. The function never waits, and raises no error if the channel has
        ended."""
        lines = b"".join(encode_message(message) + b"\n" for message in messages)
        self._do(lambda: self._exchange.send(channel, lines))

    def drop(self, channel: int) -> None:
        """Sends the queued messages of a channel and closes the channel."""
        self._do(lambda: self._exchange.drop(channel))

    def close(self) -> None:
        """Sends the bytes that can be sent immediately, and closes all channels. The call may be repeated.
        When the server is closed, the pods try to connect again."""
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        self._do(lambda: None)
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_SECONDS)

    # --- the thread

    def _do(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        try:
            self._ring.send(b"!")
        except OSError:
            # no error: a full socket has a wake-up pending already, and after the end no wake-up is needed
            return

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
        self._run_commands()
        self._exchange.close()
        self._remove_sockets()
        self._ring.close()
        self._bell.close()

    def _turn(self) -> None:
        self._exchange.turn(0.0 if self._commands else None)
        self._run_commands()
        if self._fresh:
            self._fresh = False
            self._on_ready()
        self._wait_for_room()

    def _run_commands(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _deliver(self, received: ReceivedMessage, size_bytes: int) -> None:
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
