"""Many small files, by several threads: one after the other, unless they wait for a disk."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_ALONE = threading.RLock()
_WAITING_SECONDS = 3e-4
PATIENCE_SECONDS = 0.25


class Turns:
    """For threads that do many small things to the files of one tree. Several at that pass the interpreter on
    with each of them, which costs more than these do (twice the time, for files of 10 kB that are in memory).
    So each is alone at it in this process, but where files are waited for (a disk, a network): then others
    had better go on meanwhile. Nobody waits for a turn longer than `patience_seconds`."""

    def __init__(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._patience_seconds, self._wait = patience_seconds, False

    @contextmanager
    def turn(self, files: int) -> Iterator[None]:
        """For so many."""
        if self._wait or not _ALONE.acquire(timeout=self._patience_seconds):
            yield
            return
        try:
            began, used = time.monotonic(), time.thread_time()
            yield
            waited_seconds = (time.monotonic() - began) - (time.thread_time() - used)
            self._wait = waited_seconds > _WAITING_SECONDS * files
        finally:
            _ALONE.release()
