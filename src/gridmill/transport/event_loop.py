"""The event loop of a control node's channels in one thread: a selector for sockets, polling for spools."""

import itertools
import logging
import selectors
import socket
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from gridmill.domain.pod_protocol import FromPod
from gridmill.errors import GridmillError
from gridmill.ports.link import Received
from gridmill.transport.socket import Wire
from gridmill.transport.transport import Channel, Monotonic, NewLiveness

_LOG = logging.getLogger(__name__)
_TICK_SECONDS = 1.0
_ACCEPTS_PER_TURN = 64
_READS_PER_POLL = 64

Accept: TypeAlias = Callable[[socket.socket], Wire]
"""Takes a listener and returns the next connection. Raises BlockingIOError if none waits."""
Watcher: TypeAlias = Callable[[int], None]
"""Receives what a descriptor is ready for (selectors.EVENT_READ | EVENT_WRITE)."""


class Folder(Protocol):
    """A polled source of wires."""

    def poll(self) -> Sequence[Wire]:
        """Connections that are new."""
        ...

    def stir(self) -> None:
        """Something happened: poll more quickly for a while."""
        ...

    def due_seconds(self) -> float:
        """How long until the next poll."""
        ...

    def close(self) -> None:
        """Take no more connections."""
        ...


class Exchange:
    """Not thread-safe: `Links` owns the thread. `deliver` takes what comes and its size in bytes; a
    channel's end is delivered once, as None, when something had come by it."""

    def __init__(self, deliver: Callable[[Received, int], None], monotonic: Monotonic) -> None:
        self._deliver = deliver
        self._monotonic = monotonic
        self._selector = selectors.DefaultSelector()
        self._numbers = itertools.count(1)
        self._channels: dict[int, Channel] = {}
        self._known: set[int] = set()  # channels by which something came
        self._folders: dict[Folder, NewLiveness] = {}
        self._folder_of: dict[int, Folder] = {}  # channels that are polled
        self._listeners: dict[socket.socket, Watcher] = {}
        self._next_tick = 0.0

    # what is watched

    def watch(self, sock: socket.socket, watcher: Watcher) -> None:
        """Call `watcher` whenever `sock` is readable."""
        self._selector.register(sock, selectors.EVENT_READ, watcher)

    def add_listener(
        self, listener: socket.socket, accept: Accept, new_liveness: NewLiveness | None = None
    ) -> None:
        """Take connections from `listener` from now on."""

        def watcher(_: int) -> None:
            self._accept(listener, accept, new_liveness)

        self._listeners[listener] = watcher
        self.watch(listener, watcher)

    def add_folder(self, folder: Folder, new_liveness: NewLiveness) -> None:
        """Poll `folder` from now on."""
        self._folders[folder] = new_liveness

    # what channels are told

    def send(self, number: int, lines: bytes) -> None:
        """Queue encoded messages; nothing happens when the channel is gone."""
        channel = self._channels.get(number)
        if channel is not None:
            self._settle(channel, channel.send(lines))
        if number in self._folder_of:
            self._folder_of[number].stir()  # an answer is likely

    def drop(self, number: int) -> None:
        """Send what is queued, then close."""
        channel = self._channels.get(number)
        if channel is not None:
            self._settle(channel, channel.finish())

    def close(self) -> None:
        """Send what goes at once, and close everything. What lies in spools stays for the pods to read."""
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

    # one turn

    def turn(self, timeout_seconds: float | None) -> None:
        """Wait for something to do (at most the timeout; None: for ever) and do it."""
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

    def _hear(self, number: int, message: FromPod, size_bytes: int) -> None:
        self._known.add(number)
        self._deliver(Received(channel=number, message=message), size_bytes)

    # channels

    def _open(self, wire: Wire, new_liveness: NewLiveness | None) -> Channel:
        number = next(self._numbers)
        liveness = new_liveness(self._monotonic) if new_liveness else None
        channel = Channel(number, wire, self._hear, liveness=liveness, monotonic=self._monotonic)
        self._channels[number] = channel
        return channel

    def _settle(self, channel: Channel, alive: bool) -> None:
        """Watch a channel for what it wants now, or close it."""
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
        if channel.number in self._known:
            self._known.discard(channel.number)
            self._deliver(Received(channel=channel.number, message=None), 0)

    # sockets

    def _accept(self, listener: socket.socket, accept: Accept, new_liveness: NewLiveness | None) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                wire = accept(listener)
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:  # out of descriptors: ask again with the next tick, do not spin
                _LOG.error("accept_failed reason=%s", error)
                self._selector.unregister(listener)
                return
            except GridmillError as error:
                _LOG.warning("connection_refused reason=%s", error)
                continue
            self._serve_socket(self._open(wire, new_liveness))

    def _serve_socket(self, channel: Channel) -> None:
        def watcher(events: int) -> None:
            self._settle(channel, _serve(channel, events))

        descriptor = channel.wire.fileno()
        if descriptor is not None:
            self._selector.register(descriptor, selectors.EVENT_READ, watcher)

    # folders

    def _poll(self, folder: Folder) -> None:
        for wire in folder.poll():
            self._folder_of[self._open(wire, self._folders[folder]).number] = folder
        for number in [number for number, of in self._folder_of.items() if of is folder]:
            alive = _drain(self._channels[number])
            if alive is not None:
                folder.stir()
                self._settle(self._channels[number], alive)


def _serve(channel: Channel, events: int) -> bool:
    alive = not events & selectors.EVENT_WRITE or channel.flush()
    if alive and events & selectors.EVENT_READ:
        return channel.read() is not False
    return alive


def _drain(channel: Channel) -> bool | None:
    """Take in what there is, within reason; None when there was nothing, False when the channel is over."""
    for count in range(_READS_PER_POLL):
        alive = channel.read()
        if not alive:
            return True if alive is None and count else alive
    return True
