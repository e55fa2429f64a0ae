"""Passes the connections of clients on to the replicas of a service, which may run on another machine.

The bytes of a connection are passed on unchanged. The router follows the HTTP messages in them, so that a
client does not notice the end of a replica: a request that no replica has begun to answer is held, and sent
to another replica. A connection to a replica belongs to one client, and is opened when the client sends a
request.
"""

import asyncio
import itertools
import json
import math
import os
import random
import time
from collections import deque
from contextlib import suppress
from typing import cast

from gridmill.domain.amounts import KIB, MIB
from gridmill.domain.service_spec import DRAIN_SECONDS
from gridmill.domain.serving import MOST_OPEN
from gridmill.errors import GridmillError, UnavailableError, explained
from gridmill.ports.service_link import OpenedConnection, ServiceLink
from gridmill.serving.errors import NotReadyError, RequestError
from gridmill.serving.http_messages import HEAD_BYTES, AnswerFollower, RequestFollower
from gridmill.serving.pod_metrics import PodMetrics, is_for_metrics

KEPT_BYTES = MIB
"""A request of at most this many bytes is kept until its answer begins, so that it can be sent again."""
WHOLE_BYTES = 64 * KIB
"""An answer of at most this many bytes is passed on to the client when it is whole."""
MOST_HELD = 1_000
"""The largest number of requests that are held at the same time."""
IDLE_SECONDS = 5.0
"""A connection to a replica is closed if its client has sent no request for this time. The connection of the
client stays open."""
CLIENT_IDLE_SECONDS = 75.0
"""A client that has sent nothing for this time and waits for no answer is disconnected, as by a replica.
Clients that have vanished would otherwise use up the connections of the router."""
FORMER_SECONDS = DRAIN_SECONDS + 10.0
"""After a change of the way to the replicas, the link before ends after this time, so that the old replicas
can answer their last requests through it."""
HEAD_SECONDS, STEP_SECONDS, STEP_BYTES = 8.0, 25.0, 8 * KIB
"""The head of a request must arrive within the first time, and each further step of its body within the
second time. A slower client is disconnected, a little earlier than a replica would close the connection."""
_RETRY_SECONDS = 2
_PAUSE_SECONDS = (0.05, 1.0)
_OPENED_AT_ONCE = 64


class LostAnswerError(RequestError):
    """A replica ended before it answered, and the request cannot be sent again."""

    code = "lost-answer"
    status = 502
    retryable = True


class Replicas:
    """Opens connections to the replicas of a service. If no replica can be reached, one task tries it again
    and again, and all others wait for its success."""

    def __init__(self, link: ServiceLink) -> None:
        self._link = link
        self._former: list[tuple[ServiceLink, float]] = []
        self.changes = 0
        """The number of times that the way to the replicas has changed."""
        self._reachable = asyncio.Event()
        self._reachable.set()
        self._retry: asyncio.Task[None] | None = None
        self._at_once = asyncio.Semaphore(_OPENED_AT_ONCE)
        self.problem = ""
        """The reason why no replica can be reached now; empty if one can."""

    def change(self, link: ServiceLink) -> None:
        """Open all further connections with another link. The requests that were sent through the link
        before are still answered through it."""
        self._former.append((self._link, time.monotonic() + FORMER_SECONDS))
        self._link = link
        self.changes += 1
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._reachable.set()

    async def open(self, seconds: float) -> OpenedConnection:
        """Return a connection to a replica, which may take that many seconds. Raises UnavailableError."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    await self._reachable.wait()
                    opened = await self._try()
                    if opened is not None:
                        return opened
        except TimeoutError as error:
            # the problem names addresses and files of this machine, which are not for clients
            message = "their site does not answer" if self.problem else "the connection takes too long"
            raise UnavailableError(message) from error

    async def _try(self) -> OpenedConnection | None:
        link = self._link
        try:
            async with self._at_once:
                opened = await link.open()
            if opened.transport.is_closing():
                raise UnavailableError("the connection was closed at once")
        except (GridmillError, OSError) as error:
            if link is self._link:
                self._lost(error)
            return None
        self.problem = ""
        return opened

    def _lost(self, error: GridmillError | OSError) -> None:
        self.problem = explained(error) if isinstance(error, GridmillError) else str(error)
        self._reachable.clear()
        if self._retry is None or self._retry.done():
            self._retry = asyncio.get_running_loop().create_task(self._try_again())

    async def _try_again(self) -> None:
        pause, longest = _PAUSE_SECONDS
        while True:
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, longest)
            opened = await self._try()
            if opened is not None:
                opened.transport.abort()
                self._reachable.set()
                return

    def close_former(self, now: float) -> None:
        """End the links before a change whose requests were answered."""
        for one in [one for one in self._former if one[1] <= now]:
            self._former.remove(one)
            one[0].close()

    def close(self) -> None:
        """End the links."""
        if self._retry is not None:
            self._retry.cancel()
        self.close_former(math.inf)
        self._link.close()


class Router:
    """The clients of a router, and what they have in common. `hold_seconds` is the time for which a request
    is held, and `hold_bytes` the memory of all held requests."""

    def __init__(
        self,
        replicas: Replicas,
        *,
        hold_seconds: float,
        hold_bytes: int,
        most_clients: int = 1_000,
        most_open: int = MOST_OPEN,
        metrics: PodMetrics | None = None,
    ) -> None:
        self.replicas, self.most_clients, self.metrics = replicas, most_clients, metrics
        self.hold_seconds, self._hold_bytes = hold_seconds, hold_bytes
        self.clients: set[ClientConnection] = set()
        self.held: dict[ClientConnection, int] = {}
        """The bytes of each request that waits for a replica."""
        self._prefix, self._ids = os.urandom(4).hex(), itertools.count()
        self._most_open, self._open = most_open, 0
        self._turns: deque[asyncio.Future[None]] = deque()

    def new_id(self) -> str:
        """Return an id for a request that has none."""
        return f"{self._prefix}-{next(self._ids):x}"

    @property
    def has_room(self) -> bool:
        """Whether another request can be held."""
        return len(self.held) < MOST_HELD and sum(self.held.values()) < self._hold_bytes

    async def open(self, seconds: float) -> OpenedConnection:
        """Return a connection to a replica, which may take that many seconds. After its end, the caller calls
        `ended`. Raises UnavailableError."""
        begin = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                await self._take_turn()
        except TimeoutError as error:
            raise UnavailableError("too many requests are answered at the same time") from error
        try:
            return await self.replicas.open(max(0.1, begin + seconds - time.monotonic()))
        except BaseException:
            self.ended()
            raise

    @property
    def waiting(self) -> int:
        """The number of clients that wait because too many connections to replicas are open."""
        return len(self._turns)

    def limit_open(self, most_open: int) -> None:
        """Change the largest number of open connections to replicas."""
        self._most_open = most_open
        self._give_turns()

    async def _take_turn(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        if self.waiting == 1 and self._open >= self._most_open:
            for client in tuple(self.clients):
                client.release_if_idle(math.inf)
        self._give_turns()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):  # a given turn was left out because of the cancellation
                    self._turns.remove(turn)
            else:  # the turn was given, and is not used
                self.ended()
            raise

    def _give_turns(self) -> None:
        while self._turns and self._open < self._most_open:
            turn = self._turns.popleft()
            if not turn.done():
                self._open += 1
                turn.set_result(None)

    def ended(self) -> None:
        """Note that a connection to a replica has ended."""
        self._open -= 1
        self._give_turns()

    def release_idle(self) -> None:
        """Close the connections to replicas whose clients are idle, and the connections of clients that are
        idle for long."""
        now = time.monotonic()
        self.replicas.close_former(now)
        for client in tuple(self.clients):
            client.release_if_idle(now)
            client.close_if_idle(now, CLIENT_IDLE_SECONDS)
            client.close_if_slow(now)

    async def drain(self, seconds: float, idle_seconds: float, pause_seconds: float) -> None:
        """Wait until all requests are answered, and close the connections of idle clients."""
        until = time.monotonic() + seconds
        while self.clients and time.monotonic() < until:
            now = time.monotonic()
            for client in tuple(self.clients):
                client.close_if_idle(now, idle_seconds)
            await asyncio.sleep(pause_seconds)


class ClientConnection(asyncio.Protocol):
    """The connection of one client."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._requests = RequestFollower(self._begin)
        self._replica: _ReplicaEnd | None = None
        self._opening: asyncio.Task[None] | None = None
        self._kept: bytearray | None = bytearray()
        """The bytes of the requests without an answer; None if they are too many to be sent again."""
        self._unsent = 0
        """The number of the last bytes of them that no replica has got, because it is not known yet whether
        the request is answered here."""
        self._answer = bytearray()
        """The bytes of an answer that the client has not received yet."""
        self._is_answered = self._is_repeated = False
        self._of_change = 0
        """The number of changes of the way to the replicas before the present connection was opened."""
        self._deadline = 0.0
        self._idle_since = self._step_since = time.monotonic()
        self._step_bytes = 0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve the client."""
        # other event loops have transports of their own classes
        self.transport = cast(asyncio.Transport, transport)
        self._router.clients.add(self)
        if len(self._router.clients) > self._router.most_clients:
            self.transport.abort()

    def _begin(self) -> None:
        self._step_since, self._step_bytes = time.monotonic(), 0
        if not self._requests.methods:
            self._kept, self._unsent = bytearray(), 0
            self._is_answered = self._is_repeated = False

    @property
    def _is_waiting(self) -> bool:
        return bool(self._requests.methods) or self._requests.is_opaque

    def data_received(self, data: bytes) -> None:
        """Pass the bytes on to a replica, or hold them."""
        self._requests.feed(data)
        self._idle_since = time.monotonic()
        self._step_bytes += len(data)
        if self._step_bytes >= STEP_BYTES:
            self._step_since, self._step_bytes = self._idle_since, 0
        if self._kept is not None:
            self._kept += data
        if self._is_answered_here():
            self._unsent += len(data)
            return
        if self._replica is not None:
            if self._unsent and self._kept is not None:
                data, self._unsent = bytes(self._kept[-self._unsent - len(data) :]), 0
            if self._kept is not None and len(self._kept) > KEPT_BYTES:
                self._kept = None
            self._replica.transport.write(data)
            return
        self._hold()

    def _is_answered_here(self) -> bool:
        """Answer a request for metrics, if the replicas are in several pods. Returns whether the bytes belong
        to such a request, or are too few to know it."""
        metrics = self._router.metrics
        if metrics is None or not metrics.is_needed or self._is_answered or not self._kept:
            return False
        if len(self._kept) > HEAD_BYTES:  # a pod answers or refuses it as each other request
            return False
        is_first = len(self._requests.methods) == 1 and not self._requests.is_opaque
        is_asked = is_for_metrics(self._kept) if is_first else False
        if is_asked is None or (is_asked and self._requests.is_in_request):
            return True  # the rest of the head is awaited
        if is_asked and self._opening is None:
            _pause(self.transport)
            self._detach()
            gather = self._answer_metrics(metrics, bytes(self._kept))
            self._opening = asyncio.get_running_loop().create_task(gather)
        return is_asked

    def _detach(self) -> None:
        """Close the connection to the replica, which is idle."""
        if self._replica is not None:
            replica, self._replica = self._replica, None
            replica.transport.close()

    async def _answer_metrics(self, metrics: PodMetrics, head: bytes) -> None:
        answer = await metrics.answer(head)
        if answer is None:
            return self.refuse(NotReadyError("no pod can be reached", retry_seconds=_RETRY_SECONDS))
        self.transport.write(answer)
        self.transport.close()

    def _hold(self) -> None:
        size = len(self._kept or b"")
        if self not in self._router.held and not self._router.has_room:
            message = "too many requests wait for a replica"
            return self.refuse(NotReadyError(message, retry_seconds=_RETRY_SECONDS))
        if self not in self._router.held:
            self._deadline = time.monotonic() + self._router.hold_seconds
        self._router.held[self] = size
        if size > KEPT_BYTES:
            _pause(self.transport)
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        seconds = max(0.1, self._deadline - time.monotonic())
        try:
            opened = await self._router.open(seconds)
        except UnavailableError as error:
            self._opening = None
            self._router.held.pop(self, None)
            message = f"no replica can be reached: {error.message}"
            return self.refuse(NotReadyError(message, retry_seconds=_RETRY_SECONDS))
        self._opening = None
        self._router.held.pop(self, None)
        if self.transport.is_closing():
            self._router.ended()
            return opened.transport.abort()
        self._attach(opened)

    def _attach(self, opened: OpenedConnection) -> None:
        self._of_change = self._router.replicas.changes
        replica = self._replica = _ReplicaEnd(self, opened.transport, AnswerFollower(self._requests.methods))
        opened.transport.set_protocol(replica)
        opened.transport.write(bytes(self._kept or b""))
        self._unsent = 0
        if self._kept is not None and len(self._kept) > KEPT_BYTES:
            self._kept = None
        if opened.received:
            replica.data_received(opened.received)
        _resume(opened.transport)
        _resume(self.transport)

    def refuse(self, error: RequestError) -> None:
        """Answer with an error, and close the connection."""
        request_id = self._requests.request_id or self._router.new_id()
        body = json.dumps(error.body(request_id)).encode()
        phrase = {502: "Bad Gateway", 503: "Service Unavailable"}[error.status]
        head = (
            f"HTTP/1.1 {error.status} {phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nx-request-id: {request_id}\r\nretry-after: {_RETRY_SECONDS}\r\n"
            "connection: close\r\n\r\n"
        )
        is_head = bool(self._requests.methods) and self._requests.methods[0] == b"HEAD"
        self.transport.write(head.encode("latin-1") + (b"" if is_head else body))
        self.transport.close()

    # --- calls of the other end

    def answered(self, data: bytes, *, is_partial: bool) -> None:
        """Pass bytes of an answer on to the client. A small answer is passed on when it is whole, because its
        request can be sent again as long as the client has received nothing."""
        self._idle_since = time.monotonic()
        if self._answer or is_partial:
            self._answer += data
            if is_partial and not self._is_answered and len(self._answer) <= WHOLE_BYTES:
                return
            data = bytes(self._answer)
            self._answer.clear()
        self._is_answered, self._kept = True, None
        self.transport.write(data)
        if self._router.waiting or self._of_change != self._router.replicas.changes:
            self.release_if_idle(math.inf)

    def replica_ended(self, replica: "_ReplicaEnd") -> None:
        """Continue after the connection to the replica has ended."""
        self._router.ended()
        if replica is not self._replica:
            return
        self._replica = None
        self._answer.clear()
        if self.transport.is_closing():
            return
        if replica.answers.is_last or replica.answers.is_opaque or self._requests.is_opaque:
            return self.transport.close()
        if not self._is_waiting:
            # the rest of a request that was answered early belongs to no other replica
            return self.transport.close() if self._requests.is_in_request else None
        if self._is_answered:  # a part of the answer was sent, so nothing else can be
            return self.transport.close()
        if self._kept is None or self._is_repeated:
            message = "the replica ended before it answered"
            return self.refuse(LostAnswerError(message, retry_seconds=_RETRY_SECONDS))
        self._is_repeated = True
        self._hold()

    def release_if_idle(self, now: float) -> None:
        """Close the connection to the replica if the client is idle."""
        is_busy = self._is_waiting or self._requests.is_in_request
        if self._replica is not None and not is_busy and now - self._idle_since > IDLE_SECONDS:
            # the next request must not be written to a connection that ends
            self._detach()
            _resume(self.transport)

    def close_if_idle(self, now: float, seconds: float) -> None:
        """Close the connection if no request of the client waits for an answer."""
        if not self._is_waiting and now - self._idle_since > seconds:
            self.transport.close()

    def close_if_slow(self, now: float) -> None:
        """Close the connection if the client does not send the rest of its request in time. While this side
        does not read, no time passes."""
        if not self.transport.is_reading():
            self._step_since = now
        has_head = bool(self._requests.methods) and self._requests.methods[-1] != b""
        limit = STEP_SECONDS if has_head else HEAD_SECONDS
        if self._requests.is_in_request and now - self._step_since > limit:
            self.transport.abort()

    # --- the connection of the client

    def pause_writing(self) -> None:
        """Let the replica wait until the client has read."""
        if self._replica is not None:
            _pause(self._replica.transport)

    def resume_writing(self) -> None:
        """Let the replica continue."""
        if self._replica is not None:
            _resume(self._replica.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection to the replica too."""
        self._router.clients.discard(self)
        self._router.held.pop(self, None)
        if self._opening is not None:
            self._opening.cancel()
        if self._replica is not None:
            self._replica.transport.close()


class _ReplicaEnd(asyncio.Protocol):
    """The connection to a replica that belongs to one client."""

    def __init__(
        self, client: ClientConnection, transport: asyncio.Transport, answers: AnswerFollower
    ) -> None:
        self._client, self.transport, self.answers = client, transport, answers

    def data_received(self, data: bytes) -> None:
        answers = self.answers
        answers.feed(data)
        is_partial = answers.is_in_answer and not answers.is_opaque
        self._client.answered(data, is_partial=is_partial)

    def pause_writing(self) -> None:
        _pause(self._client.transport)

    def resume_writing(self) -> None:
        _resume(self._client.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.replica_ended(self)


def _pause(transport: asyncio.Transport) -> None:
    with suppress(RuntimeError):  # some event loops refuse this for a connection that ends
        transport.pause_reading()


def _resume(transport: asyncio.Transport) -> None:
    with suppress(RuntimeError):
        transport.resume_reading()
