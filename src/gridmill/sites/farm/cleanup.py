"""Asks a farm, in a background thread, to delete attempts that have ended and whose results have arrived in
the home."""

import logging
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

from gridmill.errors import GridmillError, NotFoundError
from gridmill.sites.farm.attempt_notes import AttemptLog, succeeded
from gridmill.sites.farm.client import FarmClient

_LOG = logging.getLogger(__name__)
_AGAIN_SECONDS = 30.0
_CLOSE_SECONDS = 5.0


class FarmCleanup:
    """Deletes attempts at one farm that have ended and whose results have arrived in the home. This class is
    safe to use from several threads."""

    def __init__(self, farm: FarmClient, notes: AttemptLog, lock_of: Callable[[str], threading.Lock]) -> None:
        """`lock_of` returns the lock of an attempt, which is locked while any data of the attempt is
        transferred."""
        self._farm, self._notes, self._lock_of = farm, notes, lock_of
        self._wakeup, self._stopped = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts a thread that deletes attempts at the farm, also attempts of an earlier process."""
        self._thread = threading.Thread(target=self._run, name="gridmill-forget", daemon=True)
        self._thread.start()

    def soon(self) -> None:
        """Wakes the thread. Returns at once."""
        self._wakeup.set()

    def close(self) -> None:
        """Stops. The next process continues. May be repeated."""
        self._stopped.set()
        self._wakeup.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wakeup.clear()
            try:
                self.tick()
            except Exception:  # noqa: BLE001  the outermost loop: the next turn may fare better
                _LOG.exception("attempts_not_deleted")
            self._wakeup.wait(_AGAIN_SECONDS)

    def tick(self) -> None:
        """Asks the farm to delete all attempts that wait for deletion. If the farm does not answer, the
        deletion is repeated later."""
        for attempt_id in self._notes.to_delete_at_farm():
            if self._stopped.is_set() or not self._delete_attempt(attempt_id):
                return

    def first(self, uris: Collection[str]) -> None:
        """Asks the farm to delete the attempts that made these folders before other jobs read the folders at
        the farm, because the farm keeps the chunks of deleted attempts for later readers. If the deletion of
        an attempt fails, the data of this attempt must be transferred to the farm again."""
        for attempt_id, note in self._notes.to_delete_at_farm().items():
            if note.output_uri and note.output_uri in uris and not self._delete_attempt(attempt_id):
                return

    def _delete_attempt(self, attempt_id: str) -> bool:
        """Asks the farm to delete the attempt, and returns whether the farm has answered."""
        with self._lock_of(attempt_id):
            note = self._notes.find(attempt_id)
            if note is None or not note.is_there or note.end_event is None:
                return True
            try:
                with suppress(NotFoundError):
                    self._farm.delete_attempt(attempt_id, keep=succeeded(note.end_event))
                self._notes.write(attempt_id, replace(note, is_there=False))
            except GridmillError as error:
                _LOG.debug("attempt_not_deleted attempt=%s reason=%s", attempt_id, error)
                return False
        return True
