"""The logs of a home: the files in its folder `logs`, the limits for each job and for all logs, and the
thread that seals chunks and deletes text.

Writes are not synced to the disk, as in the record store. Written text survives the end of the process.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from gridmill.domain.amounts import MIB
from gridmill.domain.job_log import LogEntry, LogLimits, LogRecord
from gridmill.errors import StorageError
from gridmill.ports.logs import LogQuery
from gridmill.storage.log_format import Block, BlockContents
from gridmill.storage.log_index import RunFiles, RunIndex, files_of_run, run_of_file
from gridmill.storage.log_reader import read_page, search_page, tail_page
from gridmill.storage.log_writer import RunWriter, beyond_limit

CHUNK_BYTES = MIB
SEGMENT_BLOCKS = 16
_LEAST_CHUNK_BYTES = 64
_OPEN_FILES = 64
"""The largest number of chunks that are open for writing at the same time."""
_INDEXES = 8
"""The number of logs whose indexes stay in memory, which are the logs that were read last."""
_MOST_WAITING = 32
"""The largest number of full chunks of a run that wait for compression. If more chunks wait, `append`
compresses them itself."""
_HOME_SLACK = 16
"""If all logs together exceed their limit, the text that is dropped exceeds the needed amount by a sixteenth
of the limit."""


class LogFiles:
    """Implements ports.logs.LogStore. With `background`, a thread seals chunks and enforces the limits."""

    def __init__(
        self,
        folder: Path,
        limits: LogLimits | None = None,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        segment_blocks: int = SEGMENT_BLOCKS,
        background: bool = True,
    ) -> None:
        self.folder = folder
        self.limits = limits or LogLimits()
        self._chunk_bytes = max(_LEAST_CHUNK_BYTES, min(chunk_bytes, self.limits.job_bytes // 16))
        self._segment_blocks = segment_blocks
        self._background = background
        self._writers: OrderedDict[str, RunWriter] = OrderedDict()
        self._indexes: OrderedDict[str, RunIndex] = OrderedDict()
        self._lock = threading.Lock()
        """Guards the two tables above, and the set of due work."""
        self._sealing = threading.RLock()
        """Held while logs are sealed, dropped or deleted."""
        self._due: dict[str, None] = {}
        self._finished: set[str] = set()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._stored: int | None = None
        self._unchecked = 0

    def append(self, records: Sequence[LogRecord]) -> None:
        """See LogStore."""
        by_run: dict[str, list[LogRecord]] = {}
        for record in records:
            by_run.setdefault(record.run_id, []).append(record)
        for run_id, some in by_run.items():
            writer = self._writer(run_id)
            more = writer.append(some)
            self._grow(more)
            self._unchecked += more
            if writer.waiting > _MOST_WAITING:
                # no error on a full disk, because the next append fails and reports it
                with suppress(OSError):
                    self._seal(run_id)
            elif writer.waiting or self._unchecked >= self._chunk_bytes:
                self._unchecked = 0
                self._set_due(run_id)

    def _writer(self, run_id: str) -> RunWriter:
        if (known := self._known_writer(run_id)) is not None:
            return known
        files = files_of_run(self.folder, run_id)
        with self._sealing:  # held, because dropping logs writes to the disk too
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                writer = self._open_writer(files)
            except OSError as error:
                raise StorageError(
                    f"a log cannot be opened: {error.strerror}", place=str(self.folder)
                ) from error
            with self._lock:
                self._writers[run_id] = writer
        return writer

    def _open_writer(self, files: RunFiles) -> RunWriter:
        return RunWriter(files, chunk_bytes=self._chunk_bytes, segment_blocks=self._segment_blocks)

    def _known_writer(self, run_id: str) -> RunWriter | None:
        """Returns the open writer of a run. If too many writers are open, the file of the least recently
        used writer is closed."""
        with self._lock:
            self._finished.discard(run_id)
            known = self._writers.get(run_id)
            if known is not None:
                self._writers.move_to_end(run_id)
            for old in islice(reversed(self._writers.values()), _OPEN_FILES, _OPEN_FILES + 1):
                old.close()
        return known

    def _grow(self, size: int) -> None:
        with self._lock:
            if self._stored is not None:
                self._stored += size

    def _set_due(self, run_id: str) -> None:
        with self._lock:
            self._due[run_id] = None
        if not self._background:
            self._work()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="logs", daemon=True)
            self._thread.start()
        self._wake.set()

    def _loop(self) -> None:
        while not self._closed:
            self._wake.wait()
            self._wake.clear()
            self._work()

    def _work(self) -> None:
        while True:
            with self._lock:
                run_id = next(iter(self._due), None)
                if run_id is not None:
                    del self._due[run_id]
            if run_id is None:
                return
            with suppress(OSError):  # no error on a full disk, because the chunk stays and is sealed later
                self._seal(run_id)
                self._keep_home_limit()

    def _seal(self, run_id: str) -> None:
        """Seals waiting chunks, and drops the text of each job that exceeds its limit. Raises OSError."""
        with self._sealing:
            with self._lock:
                writer = self._writers.get(run_id)
            while writer is not None and writer.waiting:
                self._grow(writer.seal())
                if any(size > self.limits.job_bytes for size in writer.kept.values()):
                    self._grow(-writer.drop(beyond_limit(writer, self.limits.job_bytes)))
            with self._lock:
                if run_id in self._finished and writer is not None and not writer.waiting:
                    self._finished.discard(run_id)
                    self._writers.pop(run_id, None)

    def _keep_home_limit(self) -> None:
        """Drops logs while all logs together are too large. The logs of the runs whose last line is oldest
        are dropped first."""
        with self._sealing:
            if self._stored is None:
                self._stored = sum(self.sizes().values())
            if self._stored <= self.limits.home_bytes:
                return
            wanted = self.limits.home_bytes - self.limits.home_bytes // _HOME_SLACK
            for run_id in self._oldest_first():
                if self._stored <= wanted:
                    return
                self._drop_run(run_id, self._stored - wanted)

    def _drop_run(self, run_id: str, excess: int) -> None:
        """Drops the log of a run. If the run is still being written, the first segment and the newest block
        of its log stay."""
        with self._lock:
            live = self._writers.get(run_id)
        writer = live or self._open_writer(files_of_run(self.folder, run_id))
        if live is None:
            writer.finish()
            while writer.waiting:
                self._grow(writer.seal())
        left = [excess]

        def some(number: int, block: Block, contents: BlockContents) -> frozenset[str]:
            stays = live is not None and (number == 0 or block.chunk == live.newest_block)
            if left[0] <= 0 or stays:
                return frozenset()
            left[0] -= block.payload_size
            return frozenset(contents.kept)

        self._grow(-writer.drop(some))

    def _oldest_first(self) -> list[str]:
        newest: dict[str, float] = {}
        for entry in self._files():
            with suppress(FileNotFoundError):
                run_id = run_of_file(entry.name)
                newest[run_id] = max(newest.get(run_id, 0.0), entry.stat().st_mtime)
        with self._lock:
            live = set(self._writers)
        return sorted(newest, key=lambda run_id: (run_id in live, newest[run_id]))

    def _files(self) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self.folder) as entries:
                yield from entries
        except FileNotFoundError:
            return

    def _index(self, run_id: str) -> RunIndex:
        files = files_of_run(self.folder, run_id)
        with self._lock:
            index = self._indexes.get(run_id) or RunIndex(files)
            self._indexes[run_id] = index
            self._indexes.move_to_end(run_id)
            while len(self._indexes) > _INDEXES:
                self._indexes.popitem(last=False)
            return index

    def read(self, query: LogQuery) -> Sequence[LogEntry]:
        """See LogStore."""
        index = self._index(query.run_id)
        return search_page(index, query) if query.search else read_page(index, query)

    def tail(self, query: LogQuery, lines: int, *, most_bytes: int | None = None) -> Sequence[LogEntry]:
        """See LogStore."""
        return tail_page(self._index(query.run_id), query, lines, most_bytes)

    def finish(self, run_id: str) -> None:
        """See LogStore."""
        with self._lock:
            writer = self._writers.get(run_id)
            if writer is None:
                return
            writer.finish()
            if writer.waiting:
                self._finished.add(run_id)
            else:
                del self._writers[run_id]
        if writer.waiting:
            self._set_due(run_id)

    def delete(self, run_ids: Sequence[str]) -> None:
        """See LogStore."""
        wanted = set(run_ids)
        with self._sealing:
            with self._lock:
                for run_id in wanted:
                    self._indexes.pop(run_id, None)
                    self._due.pop(run_id, None)
                    if (writer := self._writers.pop(run_id, None)) is not None:
                        writer.close()
            for entry in [one for one in self._files() if run_of_file(one.name) in wanted]:
                try:
                    size = entry.stat().st_size
                    os.unlink(entry.path)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise StorageError(
                        f"a log cannot be deleted: {error.strerror}", place=entry.path
                    ) from error
                self._grow(-size)

    def sizes(self) -> Mapping[str, int]:
        """See LogStore."""
        sizes: dict[str, int] = {}
        for entry in self._files():
            with suppress(FileNotFoundError):
                run_id = run_of_file(entry.name)
                sizes[run_id] = sizes.get(run_id, 0) + entry.stat().st_size
        return sizes

    def close(self) -> None:
        """See LogStore."""
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._lock:
            for writer in self._writers.values():
                writer.close()
            self._writers.clear()
