"""Downloads checkpoints of running attempts from a farm, in case the farm can never be reached again."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from gridmill.codec import fingerprint
from gridmill.domain.farm_protocol import Manifest
from gridmill.domain.storage_uri import below
from gridmill.errors import GridmillError, NotFoundError, StorageError, UnavailableError
from gridmill.sites.attempt_inputs import KnownFolders
from gridmill.sites.farm.attempt_notes import AttemptLog, AttemptNote
from gridmill.sites.farm.client import FarmClient

_LOG = logging.getLogger(__name__)
_SHARE = 20
"""Downloading checkpoints takes at most a twentieth of the time, the same share as writing checkpoints."""
_CLOSE_SECONDS = 5.0


class FolderDownload(Protocol):
    """Downloads a folder."""

    def __call__(
        self, attempt_id: str, note: AttemptNote, manifest: Manifest | None, stop: threading.Event | None
    ) -> None:
        """Downloads the checkpoints of an attempt. If a manifest is given, the checkpoints must be in the
        state that the manifest lists. Raises as `ResultDownload.fetch`."""


class CheckpointDownloads:
    """Downloads the checkpoints of attempts at one farm. Safe to use from several threads."""

    def __init__(
        self,
        farm: FarmClient,
        root: Path,
        notes: AttemptLog,
        known_folders: KnownFolders,
        fetch: FolderDownload,
        lock_of: Callable[[str], threading.Lock],
        take_logs: Callable[[str, AttemptNote], None],
    ) -> None:
        """`lock_of` returns the lock of an attempt, which is locked while any data of the attempt is
        transferred. `take_logs` takes the request log of an attempt before the farm deletes the attempt."""
        self._farm, self._root, self._notes, self._known = farm, root, notes, known_folders
        self._fetch, self._lock_of, self._take_logs = fetch, lock_of, take_logs
        self._hurry: dict[str, threading.Event] = {}
        self._due: dict[str, float] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, every_seconds: float) -> None:
        """Starts a thread that looks for newer checkpoints at this interval."""
        self._thread = threading.Thread(
            target=self._run, args=(every_seconds,), name="gridmill-checkpoints", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops. May be repeated."""
        self._over.set()
        for stop in tuple(self._hurry.values()):
            stop.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _run(self, every_seconds: float) -> None:
        while not self._over.wait(every_seconds):
            try:
                self.tick(every_seconds)
            except Exception:  # noqa: BLE001  the outermost loop: the next turn may fare better
                _LOG.exception("checkpoints_not_transferred")

    def tick(self, every_seconds: float) -> None:
        """Downloads the checkpoints of each running attempt whose interval has passed, and finishes lost
        attempts when this is possible."""
        running = self._notes.open()
        self._due = {name: due for name, due in self._due.items() if name in running}
        for attempt_id, note in running.items():
            if note.lost:
                self._sweep(attempt_id)
            elif note.checkpoint_uri and time.monotonic() >= self._due.get(attempt_id, 0.0):
                began = time.monotonic()
                self.bring(attempt_id)
                now = time.monotonic()
                self._due[attempt_id] = now + max(every_seconds, _SHARE * (now - began))

    def bring(self, attempt_id: str) -> bool:
        """Downloads newer checkpoints of a running attempt. Returns whether any arrived.

        If checkpoints change during the download, or cannot be transferred now, the download is tried again
        later.
        """
        lock = self._lock_of(attempt_id)
        if not lock.acquire(blocking=False):
            return False
        stop = self._hurry[attempt_id] = threading.Event()
        try:
            note = self._notes.find(attempt_id)
            if note is None or not note.is_open or note.lost:
                return False
            return self._steady(attempt_id, note, stop)
        except StorageError as error:
            _LOG.warning("checkpoints_not_transferred attempt=%s reason=%s", attempt_id, error)
            return False
        except GridmillError as error:
            _LOG.debug("checkpoints_not_transferred attempt=%s reason=%s", attempt_id, error)
            return False
        finally:
            self._hurry.pop(attempt_id, None)
            lock.release()

    def hurry(self, attempt_id: str) -> None:
        """Stops downloading the checkpoints of an ended attempt. The results of the attempt are downloaded
        with its end event."""
        stop = self._hurry.get(attempt_id)
        if stop is not None:
            stop.set()

    def _steady(self, attempt_id: str, note: AttemptNote, stop: threading.Event) -> bool:
        """Downloads the checkpoints if two scans of their folder give the same manifest. A single scan is
        not sufficient, because a folder that is being written shows a mix of old and new files."""
        manifest = self._farm.scan(note.farm_checkpoints)
        if not manifest.files or _mark(manifest) == self._mark_here(note):
            return False
        if self._farm.scan(note.farm_checkpoints) != manifest:
            return False
        self._fetch(attempt_id, note, manifest, stop)
        self.carried(attempt_id)
        return True

    def carried(self, attempt_id: str) -> None:
        """Records that the local checkpoints of the attempt are equal to its checkpoints at the farm."""
        note = self._notes.find(attempt_id)
        if note is not None and note.checkpoint_uri:
            self._notes.write(attempt_id, replace(note, carried=self._mark_here(note)))

    def _mark_here(self, note: AttemptNote) -> str:
        """Returns the fingerprint of the local checkpoints, or an empty text if there are none."""
        try:
            return _mark(self._known.scan(below(self._root, note.checkpoint_uri)))
        except NotFoundError:
            return ""

    def settle(self, pod_id: str) -> None:
        """Downloads the last checkpoints of a pod that has ended and has reported all its events, so that
        the farm may delete its attempts. Raises UnavailableError."""
        for attempt_id, note in self._notes.open().items():
            if note.pod_id == pod_id:
                self._end(attempt_id)

    def lose(self, pod_id: str) -> None:
        """Notes that the attempts of this pod are lost, because the pod was given up while its farm could
        not be reached."""
        for attempt_id, note in self._notes.open().items():
            if note.pod_id == pod_id and not note.lost:
                self._notes.write(attempt_id, replace(note, lost=True))

    def take_over(self, checkpoint_uri: str, attempt_id: str) -> None:
        """Prepares an attempt to resume: downloads the checkpoints that earlier, lost attempts left at the
        farm, unless another attempt of the job has resumed in the meantime. Raises UnavailableError."""
        for before, note in self._notes.open().items():
            if note.lost and note.checkpoint_uri == checkpoint_uri and before != attempt_id:
                self._end(before)

    def _end(self, attempt_id: str) -> None:
        with self._lock_of(attempt_id):
            note = self._notes.find(attempt_id)
            if note is None or not note.is_open:
                return
            wanted = note.checkpoint_uri and not (note.lost and self._went_on(note))
            if wanted and not self._bring_last(attempt_id, note):
                # noted, because the farm keeps the checkpoints for a time, in which they can still be
                # transferred
                self._notes.write(attempt_id, replace(note, ended=True))
            else:
                self._delete_checkpoint(attempt_id, note)

    def _bring_last(self, attempt_id: str, note: AttemptNote) -> bool:
        """Returns whether all checkpoints at the farm have arrived in this home."""
        try:
            if _mark(self._farm.scan(note.farm_checkpoints)) != self._mark_here(note):
                self._fetch(attempt_id, note, None, None)
        except NotFoundError:
            return True  # nothing is missing, because the attempt made no checkpoints
        except StorageError as error:
            _LOG.warning("checkpoints_not_transferred attempt=%s reason=%s", attempt_id, error)
            return False
        except UnavailableError:
            raise
        except GridmillError as error:
            _LOG.warning("checkpoints_not_transferred attempt=%s reason=%s", attempt_id, error)
            return False
        return True

    def _went_on(self, note: AttemptNote) -> bool:
        """Returns whether another attempt has made later checkpoints or has succeeded, so that the
        checkpoints at the farm are old."""
        return self._mark_here(note) != note.carried

    def _sweep(self, attempt_id: str) -> None:
        """Marks a lost attempt whose files are not needed, so that its farm deletes the attempt when the
        farm can be reached again."""
        try:
            with self._lock_of(attempt_id):
                note = self._notes.find(attempt_id)
                if note is not None and note.is_open and (not note.checkpoint_uri or self._went_on(note)):
                    self._delete_checkpoint(attempt_id, note)
        except GridmillError as error:
            _LOG.debug("attempt_not_deleted attempt=%s reason=%s", attempt_id, error)

    def _delete_checkpoint(self, attempt_id: str, note: AttemptNote) -> None:
        """Asks the farm to delete the attempt with its checkpoints, and notes that the attempt has ended.
        Raises UnavailableError."""
        try:
            self._take_logs(attempt_id, note)
        except GridmillError as error:
            # the farm keeps the log for a time; a full disk must not keep a rented machine running
            if isinstance(error, UnavailableError) and not isinstance(error, StorageError):
                raise
            _LOG.warning("request_log_not_transferred attempt=%s reason=%s", attempt_id, error)
            return self._notes.write(attempt_id, replace(note, ended=True))
        with suppress(NotFoundError):
            self._farm.delete_attempt(attempt_id)
        self._notes.write(attempt_id, replace(note, ended=True))


def _mark(manifest: Manifest) -> str:
    return fingerprint(manifest) if manifest.files else ""
