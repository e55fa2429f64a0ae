"""Many small files, by several threads: one after the other, unless they wait for the disk."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

ALONE = threading.RLock()
"""For who does many small things to files: several threads at that pass the interpreter on with each of them,
which costs more than these do (twice the time, for files of 10 kB that are in memory)."""
_WAITING_SECONDS = 3e-4


class Turns:
    """For threads that read small files of one tree. Each is alone at it, until a file is waited for so long
    (a disk, a network) that others had better read meanwhile."""

    def __init__(self) -> None:
        self._wait = False

    @contextmanager
    def turn(self, files: int) -> Iterator[None]:
        """For reading so many."""
        if self._wait:
            yield
            return
        with ALONE:
            began, used = time.monotonic(), time.thread_time()
            yield
            waited_seconds = (time.monotonic() - began) - (time.thread_time() - used)
            self._wait = waited_seconds > _WAITING_SECONDS * files
