"""Takes the request logs of services from a farm to the home, and counts their lines.

A file at the farm that is complete never changes. It gets the same name at home, so that a sink loads it
once, and then the farm deletes it. If a process ends between these steps, the next look finds the file at
home, does not transfer it again, and asks the farm again to delete it.

The lines of each writer that arrived, and the lines of files that were deleted above the limit, are counted
in small files in the folder `.arrived` of the log. A count is stored with the name of its file before the
file gets its name or is deleted, so that it is counted once.
"""

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from gridmill.codec import decode, encode
from gridmill.domain.amounts import GIB
from gridmill.domain.farm_protocol import FileEntry, Manifest
from gridmill.domain.log_counts import ARRIVED_FOLDER, DELETED_FILE, ArrivedFiles
from gridmill.domain.route import Staging
from gridmill.domain.service_log import (
    LOG_FOLDER,
    READY_FOLDER,
    is_complete_name,
    is_open_name,
    name_after_end,
    writer_in,
)
from gridmill.domain.serving import ServiceOrder
from gridmill.domain.storage_uri import below
from gridmill.errors import (
    AwayError,
    GridmillError,
    InputError,
    InterruptedRunError,
    NotFoundError,
    StorageError,
    UnavailableError,
    explained,
)
from gridmill.private_files import write_private
from gridmill.sites.attempt_inputs import folder_uri
from gridmill.sites.farm.attempt_notes import AttemptLog, AttemptNote
from gridmill.sites.farm.client import FarmClient
from gridmill.sites.farm.service_orders import check_serves
from gridmill.transfer.durable import not_kept, sync
from gridmill.whole_lines import count_lines, cut_last_line

_LOG = logging.getLogger(__name__)
EVERY_SECONDS = 5.0
"""The interval at which the home looks for complete files. A replica completes a file about every 15 s."""
KEPT_BYTES = GIB
"""At home, the newest files of one service from other sites are kept, up to this number of bytes."""
_COMING = ".coming-"
_MOST_RECORDS = 1_000
"""The largest number of records of writers that are kept for one service."""
_DELETING = threading.Lock()
"""Locked while files of any log are deleted, because several sites can have files of one service."""
_CLOSE_SECONDS = 5.0


class FetchFolder(Protocol):
    """Downloads the files of a manifest from a folder at the farm to a folder of this home."""

    def __call__(self, there: str, uri: str, staging: Staging, manifest: Manifest) -> None:
        """Downloads the files. Raises as `ResultDownload.fetch`."""


class LoggedRows:
    """Takes the files of the request logs from one farm. This class is safe to use from several threads."""

    def __init__(
        self,
        farm: FarmClient,
        root: Path,
        notes: AttemptLog,
        fetch: FetchFolder,
        lock_of: Callable[[str], threading.Lock],
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        """`lock_of` returns the lock of an attempt, which is locked while any data of the attempt is
        transferred."""
        self._farm, self._root, self._notes, self._fetch = farm, root, notes, fetch
        self._lock_of, self._kept_bytes = lock_of, kept_bytes
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._problems: dict[str, str] = {}
        self._last_problem_since: dict[str, float] = {}

    def start(self, every_seconds: float = EVERY_SECONDS) -> None:
        """Starts a thread that looks for complete files at this interval."""
        self._thread = threading.Thread(
            target=self._run, args=(every_seconds,), name="gridmill-logged-rows", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops. The next process continues. May be repeated."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def problems(self) -> dict[str, str]:
        """Returns the reasons why logs of services cannot be taken to the home now, by attempt."""
        return dict(self._problems)

    def _run(self, every_seconds: float) -> None:
        while not self._stopped.wait(every_seconds):
            try:
                self.tick()
            except Exception:  # noqa: BLE001  the outermost loop: the next turn may fare better
                _LOG.exception("request_logs_not_transferred")

    def tick(self) -> None:
        """Takes the complete files of all services that run at the farm."""
        running = {name: note for name, note in self._notes.open().items() if note.log_uri and not note.lost}
        for gone in self._problems.keys() - running.keys():
            self._problems.pop(gone, None)
        for attempt_id in running:
            lock = self._lock_of(attempt_id)
            if self._stopped.is_set() or not lock.acquire(blocking=False):
                continue
            try:
                note = self._notes.find(attempt_id)
                if note is not None and note.is_open:
                    self._take(attempt_id, note, READY_FOLDER)
                self._problems.pop(attempt_id, None)
            except AwayError:
                return
            except GridmillError as error:
                _LOG.debug("request_log_not_transferred attempt=%s reason=%s", attempt_id, error)
                self._problems[attempt_id] = f"the request log is not transferred: {explained(error)}"
            finally:
                lock.release()

    def begin(self, attempt_id: str, order: ServiceOrder) -> AttemptNote:
        """Notes that a service logs its requests, before it does, and returns the note of its attempt. Raises
        InputError if the farm is too old."""
        note = self._notes.find(attempt_id)
        if note is None:
            raise InterruptedRunError(f"{attempt_id} was never started here")
        changed = with_log(note, order, self._root)
        if changed != note:
            check_serves(self._farm.status(), order)
            self._notes.write(attempt_id, changed)
        return changed

    def take_last(self, attempt_id: str, note: AttemptNote) -> None:
        """Takes all files of an attempt whose processes have ended, also the files that its replicas could
        not complete. The caller has the lock of the attempt. Raises UnavailableError, StorageError, and the
        other errors of a transfer."""
        if note.log_uri:
            self._take(attempt_id, note, "")

    def is_to_repeat(self, attempt_id: str, error: GridmillError, most_seconds: float) -> bool:
        """Returns whether `take_last` is called again after this error. After an error of a disk, it is
        called again until `most_seconds` have passed since the first error."""
        since = self._last_problem_since.setdefault(attempt_id, time.monotonic())
        is_over = time.monotonic() - since >= most_seconds
        return isinstance(error, UnavailableError) and not (isinstance(error, StorageError) and is_over)

    def end(self, attempt_id: str) -> None:
        """Notes that `take_last` is not called again for an attempt."""
        self._last_problem_since.pop(attempt_id, None)

    def _take(self, attempt_id: str, note: AttemptNote, below_log: str) -> None:
        there = "/".join(filter(None, (note.output_uri, LOG_FOLDER, below_log)))
        try:
            manifest = self._farm.scan(there)
        except NotFoundError:
            return  # nothing was logged yet
        found = [one for one in manifest.files if _is_of(one, note.log_writer)]
        if not found:
            return
        here = below(self._root, note.log_uri)
        new = tuple(one for one in found if not (here / _name_here(one)).exists())
        if new:
            draft = f"{note.log_uri}/{_COMING}{attempt_id}"
            self._fetch(there, draft, note.staging, replace(manifest, files=new))
            _give_names(below(self._root, draft), here, new, found)
        self._farm.delete_log_files(attempt_id, [_name(one) for one in found])
        _delete_oldest(here, self._kept_bytes)


def with_log(note: AttemptNote, order: ServiceOrder, home_root: Path) -> AttemptNote:
    """Returns the note of an attempt with the place of the request log of its service, if the service has
    one. Raises InputError if the place is not in the storage root."""
    log = order.request_log
    if log is None:
        return note
    return replace(note, log_uri=folder_uri(home_root, log.folder, "the request log"), log_writer=log.writer)


def _name(file: FileEntry) -> str:
    return file.path.rpartition("/")[2]


def _is_of(file: FileEntry, writer: str) -> bool:
    """Returns whether the file is of this writer. A farm must not replace other files of the home."""
    folder, _, name = file.path.rpartition("/")
    is_log = is_complete_name(name) or (folder == "" and is_open_name(name))
    return folder in ("", READY_FOLDER) and is_log and writer_in(name) == writer


def _name_here(file: FileEntry) -> str:
    return name_after_end(_name(file))


def _give_names(draft: Path, folder: Path, files: Iterable[FileEntry], at_farm: Iterable[FileEntry]) -> None:
    """Moves downloaded files to the folder of the log, and counts their lines. `at_farm` are all files of the
    writer that the farm still has. Raises StorageError."""
    try:
        lines: dict[str, int] = {}
        for one in files:
            path = draft / one.path
            os.utime(path)
            if is_open_name(_name(one)):
                cut_last_line(path)
            lines[_name_here(one)] = count_lines(path)
            sync([path])
        present = [_name_here(one) for one in at_farm]
        record = folder / ARRIVED_FOLDER / f"{writer_in(present[0])}.json"
        _write(record, _arrived(record, folder).after(present, lines))
        for one in files:
            (draft / one.path).replace(folder / _name_here(one))
        sync([folder])
        shutil.rmtree(draft)
    except OSError as error:
        raise not_kept(error, folder) from error


def _arrived(record: Path, folder: Path) -> ArrivedFiles:
    """Returns the record of a writer. If there is none, or if it is damaged, the files at home are counted.
    Raises OSError."""
    try:
        return decode(record.read_bytes(), ArrivedFiles)
    except (FileNotFoundError, InputError):
        paths = (one for one in folder.glob(f"*-{record.stem}-*.jsonl") if writer_in(one.name))
        return ArrivedFiles(named={one.name: count_lines(one) for one in paths})


def _write(record: Path, content: ArrivedFiles) -> None:
    record.parent.mkdir(exist_ok=True)
    is_new = not record.exists()
    write_private(record, encode(content))
    if is_new:
        records = (one for one in record.parent.glob("*.json") if one.name != DELETED_FILE)
        for one in sorted(records, key=lambda one: one.stat().st_mtime_ns)[:-_MOST_RECORDS]:
            one.unlink(missing_ok=True)


def _delete_oldest(folder: Path, most_bytes: int) -> None:
    """Deletes the oldest files that came from other sites, if they have more bytes together, and counts their
    lines. Raises StorageError."""
    try:
        with _DELETING:
            above = _above_limit(folder, most_bytes)
            if not above:
                return
            record = folder / ARRIVED_FOLDER / DELETED_FILE
            before = ArrivedFiles()
            with suppress(FileNotFoundError, InputError):
                before = decode(record.read_bytes(), ArrivedFiles)
            present = [one for one in before.named if (folder / one).exists()]
            _write(record, before.after(present, {one.name: count_lines(one) for one in above}))
            for path in above:
                path.unlink()
    except OSError as error:
        raise not_kept(error, folder) from error


def _above_limit(folder: Path, most_bytes: int) -> list[Path]:
    kept, above = 0, []
    paths = [one for one in folder.glob("*-*.jsonl") if writer_in(one.name)]
    for path in sorted(paths, key=lambda one: (one.stat().st_mtime_ns, one.name), reverse=True):
        kept += path.stat().st_size
        if kept > most_bytes:
            above.append(path)
    return above
