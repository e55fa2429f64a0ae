"""The pod's side of a link to the control node, over any kind of wire, and functions that open a link over a
Unix socket or TLS."""

import logging
import select
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TypeAlias

from gridmill.codec import encode_message
from gridmill.domain.pod_protocol import FromPod, Heartbeat, ToPod
from gridmill.errors import InputError
from gridmill.ports.link import PodLink
from gridmill.transport import unix
from gridmill.transport.channel import LineSplitter, Liveness, Monotonic, NewLiveness, to_pod
from gridmill.transport.socket import SocketWire, Wire

_LOG = logging.getLogger(__name__)
_PATIENCE_SECONDS = 0.2  # the pod watches its jobs in the same thread, so it must not wait longer
_LOOK_AGAIN_SECONDS = 0.005
_READS_PER_TURN = 64

Waiting: TypeAlias = tuple[int, int] | None
"""The file descriptor and the poll events for which the opening of a wire waits. The value None means that
the caller should check again soon."""
Dial: TypeAlias = Callable[[], Generator[Waiting, None, Wire]]
"""A function that opens a wire in steps, and that may raise OSError. Each of the steps can be repeated
immediately."""


class StreamLink:
    """Implements PodLink over a wire.

    If the link uses heartbeats, `receive` sends and checks them. A pod must call `receive` at least every
    few seconds, even if there is nothing to read.
    """

    def __init__(
        self,
        dial: Dial,
        *,
        new_liveness: NewLiveness | None = None,
        attempt_seconds: float = 10.0,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._dial = dial
        self._attempt_seconds = attempt_seconds
        self._monotonic = monotonic
        self._new_liveness = new_liveness
        self._opening: Generator[Waiting, None, Wire] | None = None
        self._opening_since = 0.0
        self._wire: Wire | None = None
        self._lines = LineSplitter()
        self._liveness: Liveness | None = None

    def connect(self) -> bool:
        """Tries for at most 0.2 s to open the link. If the link is not open after this time, the next call
        continues at the same step."""
        if self._wire is not None:
            return True
        if self._opening is None:
            self._opening, self._opening_since = self._dial(), self._monotonic()
        wire = self._go_on(self._opening)
        if wire is None:
            return False
        self._wire, self._lines = wire, LineSplitter()
        self._liveness = self._new_liveness(self._monotonic) if self._new_liveness else None
        return True

    def _go_on(self, opening: Generator[Waiting, None, Wire]) -> Wire | None:
        until = time.monotonic() + _PATIENCE_SECONDS
        try:
            while _ready(next(opening), until - time.monotonic()):
                pass
        except StopIteration as done:
            self._opening = None
            wire: Wire = done.value
            return wire
        except OSError as error:
            _LOG.debug("link_not_open reason=%s", error)
            self._opening = None
            return None
        if self._monotonic() - self._opening_since > self._attempt_seconds:
            self._give_up()
        return None

    def _give_up(self) -> None:
        if self._opening is not None:
            self._opening.close()
            self._opening = None

    def fileno(self) -> int | None:
        """Returns the file descriptor of the socket, or None if the link is closed."""
        return None if self._wire is None else self._wire.fileno()

    def receive(self) -> Sequence[ToPod] | None:
        """Returns the received messages, without heartbeats, or None if the link is closed."""
        if self._wire is None:
            return None
        messages: list[ToPod] = []
        ended = not self._read_into(self._wire, messages)
        if ended or not self._keep_alive():
            self.close()
        return messages if messages or not ended else None

    def _read_into(self, wire: Wire, messages: list[ToPod]) -> bool:
        """Reads messages, and returns False if the stream has ended or is invalid."""
        for _ in range(_READS_PER_TURN):
            data = wire.read()
            if not data:
                return data is not None
            if self._liveness:
                self._liveness.note_received()
            try:
                decoded = [to_pod(line) for line in self._lines.feed(data)]
            except InputError as error:
                _LOG.warning("link_closed reason=%s", error)
                return False
            messages += [message for message in decoded if not isinstance(message, Heartbeat)]
        return True

    def _keep_alive(self) -> bool:
        """Sends and checks heartbeats, and returns False if the control node must be considered dead."""
        if self._liveness is None:
            return True
        if self._liveness.is_silent():
            _LOG.warning("link_closed reason=silence")
            return False
        return not self._liveness.should_speak() or self.send([Heartbeat(time=time.time())])

    def send(self, messages: Sequence[FromPod]) -> bool:
        """Sends messages to the control node. Returns False if the link is closed. If the link is closed,
        messages that arrived earlier can still be received."""
        if self._wire is None:
            return False
        if self._liveness:
            self._liveness.note_sent()
        return self._wire.write(b"".join(encode_message(message) + b"\n" for message in messages))

    def pending(self) -> bool:
        """True while some bytes wait until the socket can be written to."""
        return self._wire is not None and self._wire.wants_write()

    def flush(self) -> bool:
        """Sends as many buffered bytes as possible. Returns False if the link is closed."""
        return self._wire is not None and self._wire.flush()

    def close(self) -> None:
        """Closes the link. The call may be repeated."""
        self._give_up()
        if self._wire is not None:
            self._wire.close()
            self._wire = None


def _ready(waiting: Waiting, seconds: float) -> bool:
    poll = select.poll()
    if waiting is None:
        poll.poll(_LOOK_AGAIN_SECONDS * 1000)
        return seconds > 0
    poll.register(*waiting)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def make_unix(address: str) -> PodLink:
    """Makes the link to a control node that listens at the path `address`."""

    def dial() -> Generator[Waiting, None, Wire]:
        yield from ()  # never waits, because a local connection opens at once or never
        return SocketWire(unix.dial(Path(address)))

    return StreamLink(dial)
