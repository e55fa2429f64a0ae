"""All channels of a control node, turned by one thread: sockets by a selector, spool folders by polling."""

import itertools
import logging
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

from gridmill.errors import GridmillError
from gridmill.links.channel import Channel, StreamChannel
from gridmill.links.liveness import Liveness
from gridmill.links.wire import Wire
from gridmill.model.message import FromPod
from gridmill.ports.link import Received

_LOG = logging.getLogger(__name__)
_TICK_SECONDS = 1.0
_ACCEPTS_PER_TURN = 64

Accept: TypeAlias = Callable[[socket.socket], Wire]
"""Takes a listener, gives the next connection. Raises BlockingIOError when none waits."""
NewLiveness: TypeAlias = Callable[[], Liveness]
Watcher: TypeAlias = Callable[[int], None]
"""Takes what a descriptor is ready for (selectors.EVENT_READ | EVENT_WRITE)."""


class Folder(Protocol):
    """A polled source of channels."""

    def poll(self, new_number: Iterator[int]) -> tuple[list[Channel], list[Channel]]:
        """Take in what has come; channels that opened and channels that are over."""
        ...

    def due_seconds(self) -> float:
        """How long until it wants to be polled again."""
        ...

    def close(self) -> None:
        """Withdraw from the folder."""
        ...


class Exchange:
    """Not thread-safe: `Links` owns the thread. `deliver` takes what comes and its size in bytes; a
    channel's end is delivered once, as None, when something had come by it."""

    def __init__(
        self, deliver: Callable[[Received, int], None], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._deliver = deliver
        self._monotonic = monotonic
        self._selector = selectors.DefaultSelector()
        self._numbers = itertools.count(1)
        self._channels: dict[int, Channel] = {}
        self._known: set[int] = set()  # channels by which something came
        self._folders: list[Folder] = []
        self._listeners: list[tuple[socket.socket, Watcher]] = []
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

        self._listeners.append((listener, watcher))
        self.watch(listener, watcher)

    def add_folder(self, folder: Folder) -> None:
        """Poll `folder` from now on."""
        self._folders.append(folder)

    # what channels are told

    def send(self, number: int, lines: bytes) -> None:
        """Queue encoded messages; nothing happens when the channel is gone."""
        channel = self._channels.get(number)
        if channel is not None:
            self._settle(channel, channel.send(lines))

    def drop(self, number: int) -> None:
        """Send what is queued, then close."""
        channel = self._channels.get(number)
        if channel is not None:
            self._settle(channel, channel.finish())

    def close(self) -> None:
        """Send what goes at once, and close everything."""
        for channel in list(self._channels.values()):
            channel.finish()
            channel.close()
        self._channels.clear()
        for folder in self._folders:
            folder.close()
        for listener, _ in self._listeners:
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
        for listener, watcher in self._listeners:
            if listener not in self._selector.get_map():
                self.watch(listener, watcher)

    def _poll(self, folder: Folder) -> None:
        opened, over = folder.poll(self._numbers)
        self._channels.update({channel.number: channel for channel in opened})
        for channel in over:
            self._settle(channel, alive=False)

    def hear(self, number: int, message: FromPod, size_bytes: int) -> None:
        """What channels call with a message."""
        self._known.add(number)
        self._deliver(Received(channel=number, message=message), size_bytes)

    # streams

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
            self._open(wire, new_liveness() if new_liveness else None)

    def _open(self, wire: Wire, liveness: Liveness | None) -> None:
        number = next(self._numbers)
        channel = StreamChannel(number, wire, self.hear, liveness=liveness, monotonic=self._monotonic)
        self._channels[number] = channel
        self._selector.register(wire, selectors.EVENT_READ, lambda events: self._serve(channel, events))

    def _serve(self, channel: StreamChannel, events: int) -> None:
        alive = not events & selectors.EVENT_WRITE or channel.flush()
        if alive and events & selectors.EVENT_READ:
            alive = channel.read()
        self._settle(channel, alive)

    def _settle(self, channel: Channel, alive: bool) -> None:
        """Watch a channel for what it wants now, or close it."""
        if not alive:
            self._close(channel)
        elif isinstance(channel, StreamChannel):
            key = self._selector.get_key(channel.wire)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.wire.wants_write else 0)
            if key.events != events:
                self._selector.modify(channel.wire, events, key.data)

    def _close(self, channel: Channel) -> None:
        if self._channels.pop(channel.number, None) is None:
            return
        if isinstance(channel, StreamChannel):
            self._selector.unregister(channel.wire)
        channel.close()
        if channel.number in self._known:
            self._known.discard(channel.number)
            self._deliver(Received(channel=channel.number, message=None), 0)
