"""Transfers the inputs of the next attempts to a farm while other attempts run there.

The farm keeps these inputs for a time, which is renewed as long as the attempt is the next one. Each transfer
gives way: on the link to the transfers of running attempts, and on the disk of the farm to their data. A
failure concerns only the early transfer, because the attempt transfers its missing inputs when it starts.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from threading import Event

from gridmill.domain.farm_protocol import EarlyTree, Manifest
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.route import Staging, Transfer
from gridmill.errors import GridmillError, InterruptedRunError, UnavailableError
from gridmill.sites.attempt_inputs import InputTree, InputTrees
from gridmill.sites.farm.client import FarmClient
from gridmill.transfer.engine import ChunkWriter, ScannedTree, TransferLimits, batches, transfer_chunks
from gridmill.transfer.link_priority import LinkPriority
from gridmill.transfer.paths import chunk_sizes
from gridmill.transfer.progress import TransferProgress
from gridmill.transfer.stream import UNMETERED, ByteMeter, Chunk

_LOG = logging.getLogger(__name__)
KEPT_SECONDS = 600.0
"""The time for which the farm keeps the inputs without a renewal: long enough for a restart of the control
node."""
_RENEW_SECONDS = KEPT_SECONDS / 4
_PAUSE_SECONDS = (2.0, 60.0)
"""The shortest and the longest time after which a failed transfer is tried again."""
_LEAVE_SECONDS = 10.0
"""The farm keeps the inputs of an attempt that is no longer the next one for this time, because the attempt
may be about to start."""
_PATIENCE_SECONDS = 1.0
_CLOSE_SECONDS = 5.0
_BATCH_BYTES = (1 << 20, 8 << 20)
_BATCH_SECONDS = 0.5
"""A batch takes about this time, because a transfer with priority shares the link with one batch at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyChunks:
    """A writer of chunks at a farm, for an attempt that has not started yet."""

    farm: FarmClient
    attempt_id: str
    meter: ByteMeter = UNMETERED

    def missing(self, chunks: Iterable[str]) -> tuple[str, ...]:
        """See ChunkWriter."""
        return self.farm.missing(chunks)

    def send(self, chunks: Sequence[Chunk]) -> None:
        """See ChunkWriter. Raises UnavailableError if the chunks have to give way to other data."""
        self.farm.send(chunks, self.meter, early=self.attempt_id)

    def metered(self, moved: Callable[[int], None], piece_bytes: int) -> "EarlyChunks":
        """See MeteredEndpoint."""
        return replace(self, meter=ByteMeter(moved=moved, piece_bytes=piece_bytes))


@dataclass(slots=True, kw_only=True)
class _NextAttempt:
    """An attempt that has not started, and how much of its inputs was sent. `due` is the time of the next
    try, or of the release of its inputs at the farm (monotonic). `trouble` is the reason why the last try
    failed."""

    order: AttemptOrder
    due: float
    stop: Event = field(default_factory=Event)
    total_bytes: int = 0
    left_bytes: int = 0
    sent_bytes: int = 0
    seconds: float = 0.0
    batch: TransferProgress = field(default_factory=TransferProgress)
    batch_bytes: int = _BATCH_BYTES[0]
    pause_seconds: float = _PAUSE_SECONDS[0]
    is_complete: bool = False
    is_hopeless: bool = False
    trouble: str = ""

    @property
    def share(self) -> float:
        """The fraction of the inputs that is at the farm, from 0 to 1."""
        if not self.total_bytes:
            return 0.0
        left_bytes = self.left_bytes - self.batch.look().transferred_bytes
        return 1.0 - max(0, left_bytes) / self.total_bytes


class EarlyInputs:
    """The early transfers to one farm, one after the other. This class is safe to use from several
    threads."""

    def __init__(
        self,
        farm: FarmClient,
        trees: InputTrees,
        link: LinkPriority,
        endpoint: Callable[[Staging, Manifest], ChunkWriter],
        limits: TransferLimits,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`endpoint` returns the place for the chunks of a folder, by the way of staging."""
        self._farm, self._trees, self._link, self._endpoint = farm, trees, link, endpoint
        self._limits = replace(limits, parallel=1, patience_seconds=_PATIENCE_SECONDS)
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._next: dict[str, _NextAttempt] = {}
        self._left: dict[str, _NextAttempt] = {}
        """The attempts whose inputs are not transferred early any more, and are released at the farm."""
        self._wakeup, self._closed = Event(), Event()
        self._thread: threading.Thread | None = None

    def want(self, orders: Sequence[AttemptOrder]) -> None:
        """Transfers the inputs of these attempts, which have not started yet, in this order. The transfers
        for all other attempts end. Returns at once. May be repeated."""
        with self._lock:
            if self._closed.is_set() or not (orders or self._next or self._left):
                return
            by_id = {order.attempt_id: order for order in orders}
            for attempt_id in self._next.keys() - by_id.keys():
                self._leave(attempt_id, self._next.pop(attempt_id), _LEAVE_SECONDS)
            now, known = self._monotonic(), self._next
            self._next = {
                key: known.get(key) or _NextAttempt(order=order, due=now) for key, order in by_id.items()
            }
            is_changed = self._next.keys() != known.keys() or bool(self._left)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="gridmill-early", daemon=True)
                self._thread.start()
        if is_changed:
            self._wakeup.set()

    def started(self, attempt_id: str) -> Transfer:
        """Ends the early transfer of an attempt that starts at the farm. Returns what was transferred since
        the last call. What an earlier control node transferred is not included."""
        with self._lock:
            one = self._next.pop(attempt_id, None) or self._left.get(attempt_id)
            if one is None:
                return Transfer()
            self._leave(attempt_id, one, _LEAVE_SECONDS)
            done = Transfer(transferred_bytes=one.sent_bytes, seconds=one.seconds)
            one.sent_bytes, one.seconds = 0, 0.0
            return done

    def release(self, attempt_id: str) -> None:
        """Releases the early inputs of an attempt at the farm, because its own transfer is complete. Returns
        at once."""
        with self._lock:
            one = self._left.get(attempt_id)
            if one is None:
                return
            one.due = self._monotonic()
        self._wakeup.set()

    def _leave(self, attempt_id: str, one: _NextAttempt, seconds: float) -> None:
        one.stop.set()
        one.due = self._monotonic() + seconds
        self._left[attempt_id] = one

    def progress(self) -> Mapping[str, str]:
        """Returns a text about each early transfer, by the id of the attempt."""
        with self._lock:
            some = dict(self._next)
        return {attempt_id: _text(one) for attempt_id, one in some.items() if not one.is_hopeless}

    def close(self) -> None:
        """Stops all transfers. The farm keeps the inputs for a time. May be repeated."""
        with self._lock:
            self._closed.set()
            for one in self._next.values():
                one.stop.set()
        self._wakeup.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_SECONDS)

    # --- work of the thread

    def _run(self) -> None:
        while not self._closed.is_set():
            self._wakeup.clear()
            try:
                seconds = self.tick()
            except Exception:  # noqa: BLE001  the outermost loop: the next turn may succeed
                _LOG.exception("early_transfers_failed")
                seconds = _PAUSE_SECONDS[1]
            self._wakeup.wait(seconds)

    def tick(self) -> float:
        """Does all work that is due. Returns the seconds until more work is due."""
        for attempt_id in self._due(self._left):
            self._release_at_farm(attempt_id)
        for attempt_id in self._due(self._next):
            one = self._next.get(attempt_id)
            if one is not None and not one.stop.is_set():
                self._try(one)
        with self._lock:
            some = (*self._left.values(), *(one for one in self._next.values() if not one.is_hopeless))
            due = min((one.due for one in some), default=self._monotonic() + _PAUSE_SECONDS[1])
        return max(0.0, due - self._monotonic())

    def _due(self, attempts: Mapping[str, _NextAttempt]) -> list[str]:
        with self._lock:
            now = self._monotonic()
            return [name for name, one in attempts.items() if one.due <= now and not one.is_hopeless]

    def _release_at_farm(self, attempt_id: str) -> None:
        try:
            self._farm.end_early(attempt_id)
        except GridmillError as error:  # the farm releases the inputs itself when their time has passed
            _LOG.debug("early_inputs_not_released attempt=%s reason=%s", attempt_id, error)
        with self._lock:
            self._left.pop(attempt_id, None)

    def _try(self, one: _NextAttempt) -> None:
        try:
            self._transfer(one)
        except InterruptedRunError:
            return
        except UnavailableError as error:
            if one.is_complete:  # the farm may have evicted all of it
                one.is_complete, one.left_bytes = False, one.total_bytes
            one.trouble, one.due = error.message, self._monotonic() + one.pause_seconds
            one.pause_seconds = min(2 * one.pause_seconds, _PAUSE_SECONDS[1])
            _LOG.info("early_transfer_waits attempt=%s reason=%s", one.order.attempt_id, error)
        except GridmillError as error:  # such as an older farm, or a file that has changed
            one.is_hopeless = True
            _LOG.info("no_early_transfer attempt=%s reason=%s", one.order.attempt_id, error)
        else:
            one.trouble, one.pause_seconds, one.is_complete = "", _PAUSE_SECONDS[0], True
            one.due = self._monotonic() + _RENEW_SECONDS

    def _transfer(self, one: _NextAttempt) -> None:
        self._link.wait(one.stop)
        trees = list(self._trees.of(one.order))
        # all trees are reserved first, so that the transfer does not begin if there is not enough space
        lacking = [(tree, self._place(one, tree)) for tree in trees]
        sizes = {chunk: size for tree in trees for chunk, size in chunk_sizes(tree.manifest).items()}
        left = {chunk: sizes[chunk] for _, chunks in lacking for chunk in chunks}
        one.total_bytes, one.left_bytes = sum(sizes.values()), sum(left.values())
        for tree, chunks in lacking:
            self._send(one, tree, {chunk: left.pop(chunk) for chunk in chunks if chunk in left})

    def _place(self, one: _NextAttempt, tree: InputTree) -> tuple[str, ...]:
        early = EarlyTree(
            uri=tree.uri,
            manifest=tree.manifest,
            attempt_id=one.order.attempt_id,
            seconds=KEPT_SECONDS,
        )
        return self._farm.place_early(early)

    def _send(self, one: _NextAttempt, tree: InputTree, sizes: Mapping[str, int]) -> None:
        order, reader = one.order, ScannedTree(tree.path, tree.manifest)
        writer: ChunkWriter = EarlyChunks(farm=self._farm, attempt_id=order.attempt_id)
        if order.staging is not Staging.DIRECT:
            writer = self._endpoint(order.staging, tree.manifest)
        for batch in batches(sizes, sizes, lambda: one.batch_bytes):
            self._link.wait(one.stop)
            self._send_batch(one, {chunk: sizes[chunk] for chunk in batch}, reader, writer)

    def _send_batch(
        self, one: _NextAttempt, sizes: Mapping[str, int], reader: ScannedTree, writer: ChunkWriter
    ) -> None:
        began = self._monotonic()
        progress = one.batch = TransferProgress()
        try:
            transfer_chunks(sizes, reader, writer, progress=progress, terms=self._limits, stop=one.stop)
        finally:
            seconds = self._monotonic() - began
            with self._lock:
                one.batch, sent = TransferProgress(), progress.look().transferred_bytes
                one.sent_bytes, one.left_bytes = one.sent_bytes + sent, one.left_bytes - sent
                one.seconds += seconds
        least, most = _BATCH_BYTES
        rate = sum(sizes.values()) / max(seconds, 1e-3)
        one.batch_bytes = int(min(most, max(least, _BATCH_SECONDS * rate)))


def _text(one: _NextAttempt) -> str:
    job = one.order.job.name
    if one.is_complete:
        return f"the inputs of job {job} are transferred"
    waits = f" (waits: {one.trouble})" if one.trouble else ""
    return f"transferring inputs of job {job}: {100 * one.share:.0f} %{waits}"
