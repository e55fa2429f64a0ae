"""The transfer engine. The engine sends missing chunks in parallel, verifies them, and can resume a
transfer.

The number of batches in flight is limited, because these batches are lost when the connection breaks.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from gridmill.domain.farm_protocol import FileEntry, Manifest
from gridmill.domain.frozen import dataclass
from gridmill.errors import ConflictError, DataError, InterruptedRunError, StorageError, UnavailableError
from gridmill.transfer.chunk_manifest import FairScheduler, scan_files
from gridmill.transfer.paths import FilesBelow, chunk_sizes
from gridmill.transfer.progress import TransferProgress
from gridmill.transfer.stream import (
    PIECE_BYTES,
    Chunk,
    ChunkStream,
    Content,
    StreamingReader,
    StreamingWriter,
    flow_of,
)

_THIN_BYTES_PER_SECOND = 1e6
"""If the rate is lower than this many bytes per second, four chunks at the same time take longer than ten
seconds."""
_BETTER = 1.25


class ParallelStreams:
    """Selects the number of batches that are in flight at the same time. The number `now` starts at one.

    On a fast connection, `most` batches are in flight. On a slow connection, another batch is added as long
    as the total rate grows. The rate grows on a connection with a long delay and lost packets, but not on a
    connection that is fully used.
    """

    def __init__(self, most: int) -> None:
        self.now, self.thin = 1, True
        self._most, self._worth = most, most
        self._known: dict[int, float] = {}

    def learn(self, streams: int, bytes_per_second: float) -> None:
        """Records the rate that was measured with this number of batches."""
        self.thin = bytes_per_second < _THIN_BYTES_PER_SECOND
        if not self.thin:
            self.now = self._most
            return
        # the line was fast until now, so what was learned about its streams is void
        if streams > 1 and streams - 1 not in self._known:
            self.now, self._worth, self._known = 1, self._most, {}
            return
        best = self._known[streams] = max(bytes_per_second, self._known.get(streams, 0.0))
        if best < _BETTER * self._known.get(streams - 1, 0.0):
            self._worth = min(self._worth, streams - 1)
        self.now = min(streams + 1, self._worth)


BATCH_BYTES = 8 << 20
_ASKED = 10_000
"""The number of hashes in one request."""
_BATCH_CHUNKS = 1000
_TOGETHER = 256
"""The number of small files that are read in one turn."""
_DAMAGED = 3
"""The number of times that a chunk may arrive damaged."""
_LONGEST_WAIT_SECONDS = 10.0
# small, so that a broken slow line loses little; a larger chunk is a batch of its own
_THIN_BATCH_BYTES = 1 << 20
# added for each chunk, because a chunk costs as much time as this many more bytes
_CHUNK_COST_BYTES = 1 << 10
_POLL_SECONDS = 0.5  # a waiting thread notices the end of the transfer within this time

T = TypeVar("T")


class ChunkReader(Protocol):
    """Reads chunks from one place. Several threads call a reader at the same time."""

    def fetch(self, chunks: Iterable[str]) -> Iterator[Chunk]:
        """Yields the contents of the chunks. Raises NotFoundError, UnavailableError."""


class ChunkWriter(Protocol):
    """Stores chunks in one place. Several threads call a writer at the same time."""

    def missing(self, chunks: Iterable[str]) -> tuple[str, ...]:
        """Returns the given chunks that this place does not have. Raises UnavailableError."""

    def send(self, chunks: Sequence[Chunk]) -> None:
        """Stores these chunks. May be repeated. Raises DataError if a content does not match its hash, and
        UnavailableError."""


class ChunkEndpoint(ChunkReader, ChunkWriter, Protocol):
    """A place that reads and stores chunks: a ChunkStore, a bucket, or a farm."""


@runtime_checkable
class MeteredEndpoint(Protocol):
    """A ChunkEndpoint that can report the progress inside a batch."""

    def metered(self, moved: Callable[[int], None], piece_bytes: int) -> ChunkEndpoint:
        """Returns an endpoint that calls `moved` with the bytes of each piece (at most `piece_bytes`) that
        it sends next or has received. If bytes are sent again, `moved` gets a negative number. If `moved`
        raises an error, the batch ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferLimits:
    """The limits of a transfer.

    At most `parallel` batches are in flight. All batches together use at most `limit_bytes_per_second` (None
    means no limit). On a slow connection, fewer and smaller batches are used, because an interruption loses
    the batches in flight. A failed request is retried after `wait_seconds`, and then after longer waits, for
    up to `patience_seconds`. The measurement of `patience_seconds` starts again whenever data arrives.
    """

    parallel: int = 4
    limit_bytes_per_second: float | None = None
    patience_seconds: float = 300.0
    wait_seconds: float = 0.2


USUAL = TransferLimits()


class ScannedTree:
    """Reads the chunks of a scanned folder from its files."""

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self._root, self._chunk_bytes, self._turns = root, manifest.chunk_bytes, FairScheduler()
        self.size_bytes = manifest.size_bytes
        self._places: dict[str, tuple[FileEntry, int]] = {}
        for entry in manifest.files:
            for index, chunk in enumerate(entry.chunks):
                self._places.setdefault(chunk, (entry, index))

    def fetch(self, chunks: Iterable[str]) -> Iterator[Chunk]:
        """See ChunkReader. Raises StorageError. The receiver detects content that has changed since the
        scan, because the hash does not match."""
        with FilesBelow(self._root) as below:
            for small, names in groupby(chunks, self._is_small):
                if small:
                    yield from self._together(names, below)
                else:
                    yield from (self._read(name, below) for name in names)

    def flows(self, chunks: Iterable[str]) -> Iterator[ChunkStream]:
        """See StreamingReader. Raises StorageError."""
        buffer = memoryview(bytearray(PIECE_BYTES))
        with FilesBelow(self._root) as below:
            for small, names in groupby(chunks, self._is_small):
                if small:
                    yield from map(flow_of, self._together(names, below))
                else:
                    yield from (self._flow(name, below, buffer) for name in names)

    def _is_small(self, name: str) -> bool:
        return self._range(name).stop <= PIECE_BYTES

    def _together(self, names: Iterable[str], below: FilesBelow) -> Iterator[Chunk]:
        left = iter(names)
        while some := list(islice(left, _TOGETHER)):
            with self._turns.turn(len(some)):
                contents = [self._read(name, below) for name in some]
            yield from contents

    def _read(self, name: str, below: FilesBelow) -> Chunk:
        where, path = self._range(name), self._places[name][0].path
        try:
            descriptor = below.open(path)
            try:
                return Chunk(hash=name, data=os.pread(descriptor, len(where), where.start))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._unreadable(error, path) from error

    def _flow(self, name: str, below: FilesBelow, buffer: memoryview) -> ChunkStream:
        where = self._range(name)
        pieces = self._pieces(below, self._places[name][0].path, where, buffer)
        return ChunkStream(hash=name, size_bytes=len(where), pieces=pieces)

    def _range(self, name: str) -> range:
        """Returns the position of the chunk in its file."""
        entry, index = self._places[name]
        offset = index * self._chunk_bytes
        return range(offset, min(offset + self._chunk_bytes, entry.size_bytes))

    def _pieces(self, below: FilesBelow, path: str, where: range, buffer: memoryview) -> Iterator[Content]:
        offset = where.start
        try:
            with below.file(path) as descriptor:
                while left := where.stop - offset:
                    read = os.preadv(descriptor, [buffer[:left]], offset)
                    if not read:
                        return
                    offset += read
                    yield buffer[:read]
        except OSError as error:
            raise self._unreadable(error, path) from error

    def _unreadable(self, error: OSError, path: str) -> StorageError:
        place = str(error.filename or self._root / path)
        return StorageError(f"cannot be read: {error.strerror}", place=place)


def push(
    manifest: Manifest,
    root: Path,
    far: ChunkWriter,
    *,
    progress: TransferProgress | None = None,
    terms: TransferLimits = USUAL,
    stop: threading.Event | None = None,
    only: Collection[str] | None = None,
) -> None:
    """Sends the chunks of the folder `root` that `far` does not have. If `only` is given, the function sends
    only the chunks that are in `only`. Raises the errors of `transfer_chunks`, and ConflictError if a file
    has changed since the scan."""
    tree = ScannedTree(root, manifest)
    sizes = chunk_sizes(manifest)
    if only is not None:
        sizes = {chunk: size_bytes for chunk, size_bytes in sizes.items() if chunk in only}
    try:
        transfer_chunks(sizes, tree, far, progress=progress, terms=terms, stop=stop)
    except DataError:
        _refuse_changed(manifest, root)
        raise


def _refuse_changed(manifest: Manifest, root: Path) -> None:
    now = scan_files(root, [entry.path for entry in manifest.files], chunk_bytes=manifest.chunk_bytes)
    for was, entry in zip(sorted(manifest.files, key=lambda entry: entry.path), now.files, strict=True):
        if was != entry:
            raise ConflictError(
                "the file changed while it was transferred",
                place=str(root / entry.path),
                hint="Run the job again when no program writes to the file.",
            )


def pull(
    manifest: Manifest,
    near: ChunkWriter,
    far: ChunkReader,
    *,
    progress: TransferProgress | None = None,
    terms: TransferLimits = USUAL,
    stop: threading.Event | None = None,
) -> None:
    """Receives the chunks of a folder at `far` that `near` does not have. After the chunks have arrived,
    TreeCheckout writes the folder. Raises the errors of `transfer_chunks`."""
    transfer_chunks(chunk_sizes(manifest), far, near, progress=progress, terms=terms, stop=stop)


def transfer_chunks(
    sizes: Mapping[str, int],
    giver: ChunkReader,
    taker: ChunkWriter,
    *,
    progress: TransferProgress | None = None,
    terms: TransferLimits = USUAL,
    stop: threading.Event | None = None,
) -> None:
    """Transfers those chunks that the writer does not have. `sizes` are the sizes in bytes of the chunks by
    their hashes. A chunk that has arrived is not sent again.

    Raises UnavailableError after `patience_seconds`. Raises StorageError immediately, because a full disk
    stays full. Raises DataError for a chunk that arrives damaged several times, NotFoundError for a chunk
    that the reader does not have, and InterruptedRunError after `stop` is set.
    """
    _RunningTransfer(giver, taker, progress or TransferProgress(), terms, stop or threading.Event()).run(
        sizes
    )


class _RunningTransfer:
    """One running transfer. The threads of a transfer process the waiting batches. The first error ends all
    threads."""

    def __init__(
        self,
        giver: ChunkReader,
        taker: ChunkWriter,
        progress: TransferProgress,
        terms: TransferLimits,
        stop: threading.Event,
    ) -> None:
        self._reader, self._writer, self._progress = giver, taker, progress
        self._limits, self._stop = terms, stop
        limit = terms.limit_bytes_per_second
        self._streams, self._none_left = ParallelStreams(terms.parallel), False
        self._piece_bytes = PIECE_BYTES if limit is None else min(PIECE_BYTES, max(1, int(limit)))
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._last_success = self._free = time.monotonic()

    def run(self, sizes: Mapping[str, int]) -> None:
        lacking = self._missing_chunks(list(sizes))
        total_bytes = sum(sizes.values())
        self._progress.expect(total_bytes, total_bytes - sum(sizes[chunk] for chunk in lacking))
        left = batches(lacking, sizes, self._batch_bytes)
        workers = min(self._limits.parallel, len(lacking))
        with ThreadPoolExecutor(self._limits.parallel) as threads:
            working = [threads.submit(self._work, number, left) for number in range(workers)]
            try:
                first, _ = wait(working, return_when=FIRST_EXCEPTION)
            finally:
                self._end()
        for done in (*first, *working):
            done.result()

    def _batch_bytes(self) -> int:
        return min(BATCH_BYTES, _THIN_BATCH_BYTES) if self._streams.thin else BATCH_BYTES

    def _end(self) -> None:
        with self._changed:
            self._stopped.set()
            self._changed.notify_all()

    def _missing_chunks(self, chunks: list[str]) -> list[str]:
        result: list[str] = []
        for at in range(0, len(chunks), _ASKED):
            some = chunks[at : at + _ASKED]
            result += self._retry(partial(self._writer.missing, some))
        return result

    def _work(self, number: int, left: Iterator[list[str]]) -> None:
        while batch := self._next(number, left):
            streams, began = self._streams.now, time.monotonic()
            size_bytes = self._retry(partial(self._pass, batch))
            self._last_success = time.monotonic()
            size_bytes += len(batch) * _CHUNK_COST_BYTES
            self._learn(streams, streams * size_bytes / max(1e-6, self._last_success - began))

    def _next(self, number: int, left: Iterator[list[str]]) -> list[str] | None:
        """Returns the next batch when the thread with this number may send, or None at the end of the
        transfer."""
        with self._changed:
            self._changed.wait_for(lambda: number < self._streams.now or self._is_over())
            batch = None if self._is_over() else next(left, None)
            if batch is None:
                self._none_left = True
                self._changed.notify_all()
            return batch

    def _is_over(self) -> bool:
        return self._none_left or self._stopped.is_set()

    def _learn(self, streams: int, bytes_per_second: float) -> None:
        with self._changed:
            self._streams.learn(streams, bytes_per_second)
            self._changed.notify_all()

    def _pass(self, batch: list[str]) -> int:
        """The number of bytes."""
        moved_bytes = 0

        def moved(size_bytes: int) -> None:
            nonlocal moved_bytes
            self._slow_down(max(0, size_bytes))
            self._last_success = time.monotonic()
            self._progress.moved(size_bytes)
            with self._lock:  # locked, because several threads may call this at the same time
                moved_bytes += size_bytes

        try:
            size_bytes = self._passed(batch, moved)
        except BaseException:
            self._progress.moved(-moved_bytes)
            raise
        self._progress.arrived(size_bytes, moved_bytes)
        return size_bytes

    def _passed(self, batch: list[str], moved: Callable[[int], None]) -> int:
        if isinstance(self._reader, MeteredEndpoint):
            chunks = list(self._reader.metered(moved, self._piece_bytes).fetch(batch))
            self._writer.send(chunks)
            return sum(len(chunk.data) for chunk in chunks)
        if isinstance(self._writer, MeteredEndpoint):
            chunks = list(self._reader.fetch(batch))
            self._writer.metered(moved, self._piece_bytes).send(chunks)
            return sum(len(chunk.data) for chunk in chunks)
        if isinstance(self._reader, StreamingReader) and isinstance(self._writer, StreamingWriter):
            sizes = list[int]()
            self._writer.receive(self._throttled(self._reader.flows(batch), sizes))
            return sum(sizes)
        chunks = list(self._reader.fetch(batch))
        size_bytes = sum(len(chunk.data) for chunk in chunks)
        self._slow_down(size_bytes)
        self._writer.send(chunks)
        return size_bytes

    def _throttled(self, flows: Iterable[ChunkStream], sizes: list[int]) -> Iterator[ChunkStream]:
        for flow in flows:
            self._slow_down(flow.size_bytes)
            sizes.append(flow.size_bytes)
            yield flow

    def _slow_down(self, size_bytes: int) -> None:
        if self._limits.limit_bytes_per_second is None:
            return self._wait(0)
        with self._lock:
            self._free = max(self._free, time.monotonic())
            mine, self._free = self._free, self._free + size_bytes / self._limits.limit_bytes_per_second
        return self._wait(mine - time.monotonic())

    def _retry(self, act: Callable[[], T]) -> T:
        damaged = tried = 0
        while True:
            self._wait(0)
            try:
                return act()
            except StorageError:
                raise
            except UnavailableError as error:
                if time.monotonic() - self._last_success > self._limits.patience_seconds:
                    raise
                self._progress.hindered(str(error))
            except DataError as error:
                damaged += 1
                self._progress.hindered(str(error))
                if damaged == _DAMAGED:
                    raise
            self._wait(min(_LONGEST_WAIT_SECONDS, self._limits.wait_seconds * 2**tried))
            tried += 1

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            left_seconds = until - time.monotonic()
            stopped = self._stop.wait(min(_POLL_SECONDS, max(0.0, left_seconds)))
            if stopped or self._stopped.is_set():
                raise InterruptedRunError(
                    "the transfer was stopped", hint="Chunks that arrived are kept and are not sent again."
                )
            if left_seconds <= _POLL_SECONDS:
                return


def batches(
    chunks: Iterable[str], sizes: Mapping[str, int], most_bytes: Callable[[], int] = lambda: BATCH_BYTES
) -> Iterator[list[str]]:
    """Yields batches of chunks. A batch has about `most_bytes` bytes, which may change during the iteration,
    and at least one chunk."""
    batch: list[str] = []
    size_bytes = 0
    for chunk in chunks:
        if batch and (size_bytes + sizes[chunk] > most_bytes() or len(batch) == _BATCH_CHUNKS):
            yield batch
            batch, size_bytes = [], 0
        batch.append(chunk)
        size_bytes += sizes[chunk]
    if batch:
        yield batch
