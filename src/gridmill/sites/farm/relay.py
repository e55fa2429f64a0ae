"""Relays messages between the control node and the pods of a farm, and delays messages until the data
transfers that they need are complete.

The farm numbers each connection of a pod, and calls it a channel. In the home, the relay opens a separate
link to the home's socket for each channel, so that the control node treats a remote pod like any other pod.
Messages to a pod pass through `AttemptData`. The Start of an attempt waits until the inputs of the attempt
are at the farm, and the end of an attempt waits until its outputs are in the home. When the session with the
farm ends, all links are closed. The pods send their greeting again in the next session.

The last messages of pods that have ended, and the outputs that these messages report, are downloaded in the
background while other pods are observed. If a transfer cannot be done yet, it is retried later, and no
thread waits in the meantime.
"""

import logging
import queue
import random
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import field
from functools import partial
from threading import Lock
from typing import Generic, Protocol, TypeVar

from gridmill.codec import decode_passed, encode_passed
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import (
    Ack,
    AttemptOrder,
    Events,
    EventType,
    FromPod,
    Hello,
    PodEvent,
    ServiceUpdate,
    Start,
    Stop,
    ToPod,
)
from gridmill.errors import (
    GridmillError,
    InputError,
    InternalError,
    InterruptedRunError,
    StorageError,
    UnavailableError,
)
from gridmill.ports.link import PodLink
from gridmill.sites.farm.client import FarmClient

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_PAUSE_SECONDS = (0.1, 5.0)


def may_come(error: BaseException) -> bool:
    """Returns whether a retry after this error can help. If a disk at the farm is full, for example, waiting
    does not make space."""
    return isinstance(error, UnavailableError) and not isinstance(error, StorageError)


def is_unavailable(error: BaseException) -> bool:
    """Returns True if a retry can succeed after this error, because disk space may become free meanwhile."""
    return isinstance(error, UnavailableError)


class PolledValue(Generic[T]):
    """Computes a result that may need several tries. One thread checks it. A task given to `submit` does not
    wait for its retry. Therefore a waiting task never blocks the tasks on which it depends."""

    def __init__(
        self, submit: Callable[[], Future[T]], again: Callable[[BaseException], bool] = may_come
    ) -> None:
        """`again` returns whether a retry after the given error can help."""
        self._submit, self._again = submit, again
        self._pause_seconds = _PAUSE_SECONDS[0]
        self._due: float | None = None
        self.future = submit()

    def is_ready(self) -> bool:
        """Returns whether `future` has a result or a permanent error. If the time of a scheduled retry has
        come, this function starts the retry."""
        if self._due is not None and time.monotonic() >= self._due:
            self._due, self.future = None, self._submit()
        if self._due is not None or not self.future.done():
            return False
        error = None if self.future.cancelled() else self.future.exception()
        if error is None or not self._again(error):
            return True
        _LOG.info("transfer_waits reason=%s", error)
        self._due = time.monotonic() + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, _PAUSE_SECONDS[1])
        return False

    @property
    def due_seconds(self) -> float:
        """Returns the seconds until the next retry, or infinity while the result is being computed."""
        return float("inf") if self._due is None else max(0.0, self._due - time.monotonic())


_HELD_MESSAGES = 1000
"""If this many messages wait for the control node, the relay reads no more messages from the farm. The pods
store all further messages in their journals."""
_AT_ONCE = 256
_WORD_SECONDS = 5.0
_POLL_SECONDS = 1.0
_BACK_OFF_SECONDS = (0.1, 5.0)
_CARRIERS = 4


class AttemptData(Protocol):
    """Transfers the data of attempts to and from a farm. Calls of `upload_inputs` and `download_results` may
    take long, and several threads make such calls."""

    def note(self, order: AttemptOrder, pod_id: str) -> None:
        """Notes that the pod was asked to start the attempt. Returns at once."""

    def refuse(self, attempt_id: str, why: GridmillError) -> None:
        """Notes that the attempt cannot start for this reason. The reason becomes the end of the attempt."""

    def upload_inputs(self, order: AttemptOrder) -> AttemptOrder:
        """Transfers the inputs of the attempt to the farm. Returns the order in the form that the farm's pod
        needs. Raises UnavailableError if the call should be repeated, and another GridmillError if a retry
        cannot help."""

    def upload_service(self, update: ServiceUpdate) -> ServiceUpdate:
        """Transfers the versions of a service to the farm. Returns the update in the form that the farm's pod
        needs. Raises the same errors as `upload_inputs`."""

    def download_results(self, events: Events) -> Events:
        """Downloads the results of attempts that have ended. Returns the events with their final outcomes.
        Raises UnavailableError if the call should be repeated."""

    def confirm(self, attempt_id: str) -> None:
        """Notes that the control node has committed the end of the attempt. May be repeated."""

    def abandon(self, attempt_id: str) -> None:
        """Stops the uploads of an attempt that will be ended."""


@dataclass(slots=True)
class _RemotePod:
    """The connection of one pod at the farm, with its link to the control node and its queued messages.
    `ends` has the numbers of delivered events that ended an attempt, until the control node has committed
    them."""

    link: PodLink
    pod_id: str = ""
    waiting: deque[FromPod] = field(default_factory=deque)
    fetching: PolledValue[Events] | None = None
    ends: dict[int, str] = field(default_factory=dict)


class Relay:
    """Relays messages of a farm's pods: one thread runs the loop, and other threads read the farm's lines,
    send lines to the farm, and transfer data."""

    def __init__(self, farm: FarmClient, dial: Callable[[], PodLink], carrying: AttemptData) -> None:
        self._farm, self._dial, self._carrying = farm, dial, carrying
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gridmill-farm", daemon=True)
        self._online = ThreadPoolExecutor(_CARRIERS, thread_name_prefix="gridmill-carry")
        self._home = ThreadPoolExecutor(_CARRIERS, thread_name_prefix="gridmill-home")

    def start(self) -> None:
        """Connects to the farm now, and again each time the session ends."""
        self._thread.start()

    def close(self) -> None:
        """Stops the relay. The pods continue to run, and the next relay connects to them. May be
        repeated."""
        self._closed.set()
        self._farm.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(5.0)
        for pool in (self._online, self._home):
            pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        pause, longest = _BACK_OFF_SECONDS
        while not self._closed.is_set():
            try:
                pools = self._online, self._home
                session = _RelaySession(self._farm, self._dial, self._carrying, *pools, self._closed)
                pause = _BACK_OFF_SECONDS[0]
                session.run()
            # also caught if the farm refuses this home, because the user may join the farm again
            except GridmillError as error:
                _LOG.info("farm_session_ended reason=%s", error)
            except Exception:  # noqa: BLE001  the outermost loop: the farm is dialled again
                _LOG.exception("farm_session_failed")
            self._closed.wait(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, longest)


class _RelaySession:
    """One session with the farm, from its start to its end. Raises UnavailableError if the farm does not
    answer."""

    def __init__(
        self,
        farm: FarmClient,
        dial: Callable[[], PodLink],
        carrying: AttemptData,
        farm_executor: ThreadPoolExecutor,
        home_executor: ThreadPoolExecutor,
        closed: threading.Event,
    ) -> None:
        """Downloads use their own threads in `home_executor`, because a download can free the space for
        which an upload waits."""
        self._farm, self._dial, self._carrying, self._closed = farm, dial, carrying, closed
        self._online, self._home = farm_executor, home_executor
        self._name = farm.open_relay()
        self._closed_event = threading.Event()
        self._received: queue.Queue[bytes] = queue.Queue(_HELD_MESSAGES)
        self._outgoing: queue.Queue[bytes | None] = queue.Queue()
        self._remote_pods: dict[int, _RemotePod] = {}
        self._staged: deque[tuple[int, AttemptOrder, PolledValue[AttemptOrder]]] = deque()
        self._updates: deque[tuple[int, ServiceUpdate, PolledValue[ServiceUpdate]]] = deque()
        self._wakeup, self._ring = socket.socketpair()
        for end in (self._wakeup, self._ring):
            end.setblocking(False)

    def run(self) -> None:
        """Runs the loop until the session ends."""
        threads = [
            threading.Thread(target=self._receive, name="gridmill-farm-hears", daemon=True),
            threading.Thread(target=self._send, name="gridmill-farm-says", daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            while not (self._closed_event.is_set() or self._closed.is_set()):
                self._turn()
        finally:
            self._closed_event.set()
            self._outgoing.put(None)
            for far in self._remote_pods.values():
                far.link.close()
            self._wakeup.close()
            self._ring.close()

    # --- work of the other threads

    def _receive(self) -> None:
        try:
            for line in self._farm.receive_lines(self._name):
                self._put(line)
                self._wake()
                if self._closed_event.is_set():
                    return
        except GridmillError as error:
            _LOG.info("farm_session_ended reason=%s", error)
        finally:
            self._closed_event.set()
            self._wake()

    def _put(self, line: bytes) -> None:
        while not self._closed_event.is_set():
            try:
                return self._received.put(line, timeout=_POLL_SECONDS)
            except queue.Full:
                continue

    def _send(self) -> None:
        number = 0
        while (line := self._next()) is not None:
            lines = [line, *self._more()] if line else []
            number += 1
            try:
                number = self._send_lines(number, lines)
            except GridmillError as error:
                _LOG.info("farm_session_ended reason=%s", error)
                self._closed_event.set()
                return self._wake()

    def _next(self) -> bytes | None:
        """Returns the next lines to send, or None at the end of the session. From time to time, the result is
        empty, which shows the farm that the session is alive."""
        try:
            return self._outgoing.get(timeout=_WORD_SECONDS)
        except queue.Empty:
            return b""

    def _send_lines(self, number: int, lines: list[bytes]) -> int:
        """Sends lines to the farm and returns the number of the last line. Lines that the farm refuses are
        not sent again."""
        try:
            self._repeat(number, lines)
        except InputError as error:
            if len(lines) == 1:
                self._refused(lines[0], error)
                return number
            for line in lines:
                number = self._send_lines(number + 1, [line])
        return number

    def _refused(self, line: bytes, error: InputError) -> None:
        """Handles a line that the farm refused, for example because an older farm does not support a kind of
        job. The attempt then ends with this reason. A refusal with a place concerns the session itself."""
        channel, message = decode_passed(line)
        if error.place or not isinstance(message, Start):
            raise error
        attempt = message.order.attempt_id
        self._carrying.refuse(
            attempt, InputError(f"the farm refuses the job: {error.message}", hint=error.hint)
        )
        self._outgoing.put(encode_passed(channel, Stop(attempt_id=attempt, reason=error.message)))

    def _more(self) -> list[bytes]:
        result: list[bytes] = []
        while len(result) < _AT_ONCE:
            try:
                line = self._outgoing.get_nowait()
            except queue.Empty:
                break
            if line is None:
                self._outgoing.put(None)
                break
            result.append(line)
        return result

    def _repeat(self, number: int, lines: list[bytes]) -> None:
        """Sends the lines once more if the response was lost. The farm ignores lines that it has received."""
        try:
            self._farm.send_lines(self._name, number, lines)
        except UnavailableError:
            if self._closed_event.is_set():
                raise
            self._farm.send_lines(self._name, number, lines)

    def _wake(self) -> None:
        try:
            self._ring.send(b"!")
        except OSError:
            # no error: a full socket has a wake-up pending already, and after the end no wake-up is needed
            return

    # --- work of the loop's thread

    def _turn(self) -> None:
        ready = {far.link.fileno(): channel for channel, far in self._remote_pods.items()}
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        for descriptor, channel in ready.items():
            if descriptor is not None:
                pending = self._remote_pods[channel].link.pending()
                poll.register(descriptor, select.POLLIN | (select.POLLOUT if pending else 0))
        for descriptor, _ in poll.poll(1000 * min((_POLL_SECONDS, *self._due()))):
            if descriptor == self._wakeup.fileno():
                self._drain_wakeup()
            else:
                self._read(ready[descriptor])
        self._process_received()
        self._go_on()

    def _due(self) -> Iterator[float]:
        """Yields the seconds until each scheduled retry."""
        yield from (value.due_seconds for _, _, value in self._staged)
        yield from (value.due_seconds for _, _, value in self._updates)
        yield from (
            far.fetching.due_seconds for far in self._remote_pods.values() if far.fetching is not None
        )

    def _drain_wakeup(self) -> None:
        try:
            self._wakeup.recv(4096)
        except BlockingIOError:
            return

    def _process_received(self) -> None:
        for _ in range(_HELD_MESSAGES):
            if sum(len(far.waiting) for far in self._remote_pods.values()) >= _HELD_MESSAGES:
                return
            try:
                line = self._received.get_nowait()
            except queue.Empty:
                return
            channel, message = decode_passed(line)
            if message is None:
                self._hang_up(channel)
            else:
                self._from_pod(channel, message)  # type: ignore[arg-type]  # a farm passes on what pods say

    def _from_pod(self, channel: int, message: FromPod) -> None:
        far = self._remote_pods.get(channel)
        if far is None:
            far = self._remote_pods[channel] = _RemotePod(self._dial())
            if not far.link.connect():
                return self._close(channel)
        if isinstance(message, Hello):
            far.pod_id = message.pod_id
        far.waiting.append(message)

    def _go_on(self) -> None:
        for channel, far in tuple(self._remote_pods.items()):
            if not self._deliver(far) or not far.link.flush():
                self._close(channel)
        for _ in range(len(self._staged)):
            channel, order, value = self._staged.popleft()
            if value.is_ready():
                self._start(channel, order, value.future)
            else:
                self._staged.append((channel, order, value))
        for _ in range(len(self._updates)):
            channel, update, polled = self._updates.popleft()
            # after the start, because a pod ignores updates for an attempt that it does not have
            is_early = any(order.attempt_id == update.attempt_id for _, order, _ in self._staged)
            if polled.is_ready() and not is_early:
                self._update(channel, update, polled.future)
            else:
                self._updates.append((channel, update, polled))

    def _update(self, channel: int, update: ServiceUpdate, future: Future[ServiceUpdate]) -> None:
        """Sends the newest order of a service to its pod after its versions were transferred. If they cannot
        be transferred, the service continues with the order that it has."""
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._outgoing.put(encode_passed(channel, future.result()))
        elif not isinstance(error, InterruptedRunError):
            _LOG.error("service_not_updated attempt=%s reason=%s", update.attempt_id, error)

    def _deliver(self, far: _RemotePod) -> bool:
        """Delivers all messages of a pod that may be delivered now. Returns False if the control node has
        closed the link of the pod."""
        while far.waiting:
            message = far.waiting[0]
            if isinstance(message, Events) and any(event.type == EventType.ENDED for event in message.events):
                if far.fetching is None:
                    far.fetching = PolledValue(partial(self._bring, message), is_unavailable)
                if not far.fetching.is_ready():
                    return True
                try:
                    message = far.fetching.future.result()
                except Exception:  # noqa: BLE001  one pod's trouble is not the others'
                    _LOG.exception("results_not_transferred")
                    return False
                far.fetching = None
            far.waiting.popleft()
            if isinstance(message, Events):
                far.ends |= {
                    one.number: one.attempt_id for one in message.events if one.type == EventType.ENDED
                }
            if not far.link.send([message]):
                return False
        return True

    def _bring(self, events: Events) -> Future[Events]:
        return self._later(self._home, partial(self._carrying.download_results, events))

    def _read(self, channel: int) -> None:
        far = self._remote_pods.get(channel)
        if far is None:
            return
        messages = far.link.receive()
        for message in messages or ():
            self._to_pod(channel, message)
        if messages is None:
            self._close(channel)

    def _to_pod(self, channel: int, message: ToPod) -> None:
        if isinstance(message, Start):
            order = message.order
            self._carrying.note(order, self._remote_pods[channel].pod_id)
            self._staged.append((channel, order, PolledValue(partial(self._take, order))))
            return
        if isinstance(message, ServiceUpdate):
            same = (channel, message.attempt_id, message.order)
            if any((number, one.attempt_id, one.order) == same for number, one, _ in self._updates):
                return None  # its transfer sends the newest views too, and may take long
            bring = partial(self._later, self._online, partial(self._carrying.upload_service, message))
            self._drop_updates(message.attempt_id)  # the new update has what the earlier ones had
            # retried also after an error of a disk, because the service waits for its update
            return self._updates.append((channel, message, PolledValue(bring, is_unavailable)))
        if isinstance(message, Stop):
            self._staged = deque(one for one in self._staged if one[1].attempt_id != message.attempt_id)
            self._drop_updates(message.attempt_id)
            self._carrying.abandon(message.attempt_id)
        if isinstance(message, Ack):
            self._confirm(self._remote_pods[channel].ends, message.number)
        self._outgoing.put(encode_passed(channel, message))

    def _confirm(self, ends: dict[int, str], committed: int) -> None:
        for number in [one for one in ends if one <= committed]:
            self._carrying.confirm(ends.pop(number))

    def _drop_updates(self, attempt_id: str) -> None:
        self._updates = deque(one for one in self._updates if one[1].attempt_id != attempt_id)

    def _take(self, order: AttemptOrder) -> Future[AttemptOrder]:
        return self._later(self._online, partial(self._carrying.upload_inputs, order))

    def _start(self, channel: int, order: AttemptOrder, future: Future[AttemptOrder]) -> None:
        """Sends the Start message to the pod after the inputs of the attempt were transferred. If the inputs
        cannot be transferred, the attempt ends with the error of the transfer. To end the attempt, the relay
        sends the pod a Stop for an attempt that the pod does not have. The pod then reports the end of the
        attempt and refuses a later start."""
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._outgoing.put(encode_passed(channel, Start(order=future.result())))
        else:
            refusal = (
                error
                if isinstance(error, GridmillError)
                else InternalError(f"the data of the job could not be prepared: {error}")
            )
            if refusal is not error:
                _LOG.error("staging_failed attempt=%s", order.attempt_id, exc_info=error)
            self._carrying.refuse(order.attempt_id, refusal)
            self._outgoing.put(encode_passed(channel, Stop(attempt_id=order.attempt_id, reason=str(refusal))))

    def _later(self, pool: ThreadPoolExecutor, act: Callable[[], T]) -> Future[T]:
        future = pool.submit(self._unless_over, act)
        future.add_done_callback(lambda _: self._wake())
        return future

    def _unless_over(self, act: Callable[[], T]) -> T:
        """Runs the task unless the session has ended. The next session then repeats the task."""
        if self._closed_event.is_set():
            raise UnavailableError("the session with the farm is over")
        return act()

    def _hang_up(self, channel: int) -> None:
        """Handles a connection that the pod has closed. Its earlier messages are delivered if possible."""
        far = self._remote_pods.pop(channel, None)
        if far is not None:
            far.link.close()

    def _close(self, channel: int) -> None:
        """Handles a link that the control node has closed."""
        self._hang_up(channel)
        self._outgoing.put(encode_passed(channel, None))


Words = tuple[PodEvent, ...]
_LOG_REQUESTS_AT_ONCE = 4
_MOMENT_SECONDS = 1.0
"""Most attempts have small results, which arrive within this time, so that the caller does not need to call
again."""


class UndeliveredEvents:
    """The last events of pods of one farm that are not delivered yet. This class is safe to call from
    several threads."""

    def __init__(self, bring: Callable[[str, Words], Words]) -> None:
        """`bring` downloads the results that a pod's journal lists, and returns the final events of the pod.
        If `bring` raises UnavailableError, it is called again later."""
        self._download = bring
        self._pool = ThreadPoolExecutor(_LOG_REQUESTS_AT_ONCE, thread_name_prefix="gridmill-words")
        self._pending: dict[str, PolledValue[Words]] = {}
        self._lock = Lock()

    def downloaded(self, journalled: Mapping[str, Words]) -> frozenset[str]:
        """Starts the downloads of results for these pods, which are listed in the pods' journals. Returns
        the pods whose last events are complete. Raises UnavailableError after this object was closed."""
        with self._lock:
            for pod, words in journalled.items():
                if pod not in self._pending:
                    self._pending[pod] = PolledValue(partial(self._submit, pod, words), is_unavailable)
            pending = {pod: self._pending[pod] for pod in journalled}
        wait([one.future for one in pending.values()], _MOMENT_SECONDS)
        with self._lock:
            return frozenset(pod for pod, one in pending.items() if one.is_ready())

    def _submit(self, pod: str, words: Words) -> Future[Words]:
        try:
            return self._pool.submit(self._download, pod, words)
        except RuntimeError as error:
            raise UnavailableError("the site is closed and downloads no more results") from error

    def take(self, pod: str) -> Words | None:
        """Returns the final events of the pod, or None if these events are not complete. Raises the errors
        that `bring` raised for this pod."""
        with self._lock:
            value = self._pending.get(pod)
            if value is None or not value.is_ready():
                return None
            del self._pending[pod]
        return None if value.future.cancelled() else value.future.result()

    def drop(self, pods: Sequence[str]) -> None:
        """Forgets these pods, because their events are not needed any more."""
        with self._lock:
            for pod in pods:
                self._pending.pop(pod, None)

    def close(self) -> None:
        """Stops all downloads. May be repeated."""
        self._pool.shutdown(wait=False, cancel_futures=True)
