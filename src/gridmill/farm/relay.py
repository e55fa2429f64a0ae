"""Relays messages of a tenant's pods. The relay connects the links of the pods on the farm with one session
of the tenant."""

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

from gridmill.codec import decode_passed, encode_passed
from gridmill.domain.pod_protocol import AttemptOrder, Events, Hello, SecretRequest, Start, ToPod
from gridmill.errors import ConflictError, InputError, NotFoundError
from gridmill.ports.link import LinkServer, ReceivedMessage

HEARTBEAT_SECONDS = 2.0
"""A session without messages sends a heartbeat after this many seconds. A reader that receives nothing for
several such intervals treats the session as dead."""
_PIECE_BYTES = 2**20


class Session:
    """One connection of the tenant to the farm. The method `wake` can be called from any thread."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(16)
        self.closed = False
        self.read = False
        self.sequence = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None

    def begin(self) -> None:
        """Allows a task of the running event loop to read the lines after this call."""
        self.read = True
        self._loop, self._event = asyncio.get_running_loop(), asyncio.Event()

    def wake(self) -> None:
        """Wakes the task that reads this session, because a new message may have arrived."""
        if self._loop is not None and self._event is not None:
            with suppress(RuntimeError):  # raised if the loop of the server has ended
                self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        """Waits until the session is woken, or until the next heartbeat must be sent."""
        assert self._event is not None
        with suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), HEARTBEAT_SECONDS)
        self._event.clear()


class Relay:
    """The relay of one tenant on the farm. While no session is being read, pods stay connected and get no
    answers. While no home is connected, the pods store their events in their journals. When a new session
    starts, the pods of the previous session connect again and send Hello again."""

    def __init__(self, links: LinkServer, started: Callable[[str, AttemptOrder], None]) -> None:
        """`started` is called with an attempt and the id of its pod before the pod receives the attempt."""
        self._links, self._started = links, started
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._passed: dict[int, str] = {}
        """The channels that the session knows, and the pods of these channels."""
        self._dropped: set[int] = set()
        """The channels of an earlier session. Their remaining messages are dropped."""

    def wake(self) -> None:
        """Wakes the reader, because a message has arrived."""
        session = self._session
        if session is not None:
            session.wake()

    def open(self) -> str:
        """Opens a new session, which ends the previous session."""
        self.hang_up()
        with self._lock:
            self._session = Session()
            return self._session.name

    def hang_up(self) -> None:
        """Ends the session and closes the links of the pods, so that the pods notice that they have no
        control node. The call can be repeated."""
        self.end()
        with self._lock:
            for channel in self._passed:
                self._links.drop(channel)
            self._dropped |= self._passed.keys()
            self._passed.clear()

    def end(self) -> None:
        """End the session. Can be repeated."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.closed = True
            session.wake()

    def begin(self, name: str) -> Session:
        """Returns the session with this name. `lines` must read the session in the present event loop.
        Raises NotFoundError, ConflictError."""
        session = self._current(name)
        if session.read:
            raise ConflictError("another request already reads this session", hint="Open another session.")
        session.begin()
        return session

    async def lines(self, session: Session, stopping: Callable[[], bool]) -> AsyncIterator[bytes]:
        """Yields the messages of pods as complete lines, when they arrive. If there is no message for a
        while, an empty line is sent as a heartbeat. After each line, the relay takes no further messages
        from the pods until the line was read."""
        try:
            while not (session.closed or stopping()):
                pieces = _pieces(self._received_lines())
                for piece in pieces or (b"\n",):
                    yield piece
                if not pieces:
                    await session.wait()
        finally:
            self._over(session)

    def _received_lines(self) -> list[bytes]:
        with self._lock:
            return [line for received in self._links.receive() for line in self._line(received)]

    def _line(self, received: ReceivedMessage) -> Sequence[bytes]:
        channel, message = received.channel, received.message
        if channel in self._dropped:
            if message is None:
                self._dropped.discard(channel)
            return ()
        if message is None:
            self._passed.pop(channel, None)
        elif isinstance(message, Hello):
            self._passed[channel] = message.pod_id
        return (encode_passed(channel, message) + b"\n",)

    def _over(self, session: Session) -> None:
        session.closed = True
        with self._lock:
            if self._session is session:
                self._session = None

    def forward(self, name: str, sequence: int | None, body: bytes) -> None:
        """Forwards lines to pods. If the sequence number is not higher than in an earlier call, the lines
        were already forwarded, and are skipped. Raises NotFoundError, and InputError without forwarding any
        line."""
        messages = [_to_pod(line) for line in body.splitlines() if line.strip()]
        session = self._current(name)
        with self._lock:
            if sequence is not None and sequence <= session.sequence:
                return
            for channel, message in messages:
                if isinstance(message, Start) and channel in self._passed:
                    self._started(self._passed[channel], message.order)
            # counted, because a forwarded line must not be repeated, while a note may be
            if sequence is not None:
                session.sequence = sequence
            for channel, message in messages:
                self._pass_on(channel, message)

    def _pass_on(self, channel: int, message: ToPod | None) -> None:
        if message is None:
            return self._links.drop(channel)
        return self._links.send(channel, [message])

    def _current(self, name: str) -> Session:
        session = self._session
        if session is None or session.closed or session.name != name:
            raise NotFoundError("this session has ended", hint="Open another session.")
        return session


def _to_pod(line: bytes) -> tuple[int, ToPod | None]:
    channel, message = decode_passed(line)
    if isinstance(message, Hello | Events | SecretRequest):
        raise InputError(f"only pods send messages of the type {type(message).__name__}")
    return channel, message


def _pieces(lines: Sequence[bytes]) -> list[bytes]:
    """Joins lines into pieces that are small enough for the reader."""
    pieces, held, size = [], list[bytes](), 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= _PIECE_BYTES:
            pieces.append(b"".join(held))
            held, size = [], 0
    return [*pieces, b"".join(held)] if held else pieces
