"""Tells the farm in the background to forget attempts that have ended."""

import logging
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

from gridmill.errors import GridmillError, NotFoundError
from gridmill.sites.farm.attempt_log import Notes, succeeded
from gridmill.sites.farm.client import Farm

_LOG = logging.getLogger(__name__)
_AGAIN_SECONDS = 30.0
_CLOSE_SECONDS = 5.0


class Forgetting:
    """Of attempts at one farm whose end was told, and whose results are here. Safe to use from several
    threads."""

    def __init__(self, farm: Farm, notes: Notes, lock_of: Callable[[str], threading.Lock]) -> None:
        """`lock_of` an attempt is held while anything of it is carried."""
        self._farm, self._notes, self._lock_of = farm, notes, lock_of
        self._bell, self._over = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Whenever there is something, and what an earlier process left."""
        self._thread = threading.Thread(target=self._run, name="gridmill-forget", daemon=True)
        self._thread.start()

    def soon(self) -> None:
        """There is something. Answers at once."""
        self._bell.set()

    def close(self) -> None:
        """What is left the next one does. May be repeated."""
        self._over.set()
        self._bell.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._over.is_set():
            self._bell.clear()
            try:
                self.tick()
            except Exception:  # noqa: BLE001  the outermost loop: the next turn may fare better
                _LOG.exception("attempts_not_forgotten")
            self._bell.wait(_AGAIN_SECONDS)

    def tick(self) -> None:
        """All; where the farm does not hear it, another time."""
        for attempt_id in self._notes.still_there():
            if self._over.is_set() or not self._forget(attempt_id):
                return

    def first(self, uris: Collection[str]) -> None:
        """Those that made these folders, as these are to be read there: what the farm forgets it keeps for
        whoever reads it next. Where it does not hear one, that and the others have to be carried."""
        for attempt_id, note in self._notes.still_there().items():
            if note.output_uri and note.output_uri in uris and not self._forget(attempt_id):
                return

    def _forget(self, attempt_id: str) -> bool:
        """Whether the farm heard it."""
        with self._lock_of(attempt_id):
            note = self._notes.find(attempt_id)
            if note is None or not note.is_there or note.told is None:
                return True
            try:
                with suppress(NotFoundError):
                    self._farm.forget(attempt_id, keep=succeeded(note.told))
                self._notes.write(attempt_id, replace(note, is_there=False))
            except GridmillError as error:
                _LOG.debug("attempt_not_forgotten attempt=%s reason=%s", attempt_id, error)
                return False
        return True
