"""Collects what commands leave: at once where there is little, else in a process beside the pod's loop."""

import os
import signal
from pathlib import Path

from gridmill.codec import decode, encode
from gridmill.errors import InputError
from gridmill.pod import processes
from gridmill.pod.collect import Collected, Left, collect, look
from gridmill.pod.launch import fork, settle

_AT_ONCE = 2_000
"""So many files are counted in the loop itself: it takes some milliseconds."""
_FILE = "collected.json"
_FIRST_FREE = 3


class Collection:
    """Of one attempt, whose folder is `folder`. `pid` is the process that works on it (0: none)."""

    def __init__(self, left: Left, folder: Path) -> None:
        self.pid = 0
        self._file = folder / _FILE
        self._found = look(left, _AT_ONCE)
        if self._found is None:
            self._begin(left)

    def _begin(self, left: Left) -> None:
        try:
            self.pid = fork(lambda parent: _work(left, self._file, parent))
        except OSError as error:
            self._found = Collected(problem=f"no process could be made to keep its output: {error.strerror}")

    def cancel(self) -> None:
        """End the process that works on it: nothing is kept then."""
        if self.pid:
            processes.send([self.pid], signal.SIGKILL)

    def found(self) -> Collected | None:
        """What is kept; None while it is being seen to."""
        if self._found is None:
            ended = processes.stat(self.pid) is None
            self._found = _read(self._file)
            if self._found is None and ended:
                self._found = Collected(problem="its output cannot be kept: the process for that died")
        return self._found


def _work(left: Left, file: Path, parent: int) -> None:
    """The process: it has nothing of the pod's, and ends with it."""
    os.setsid()
    os.closerange(_FIRST_FREE, os.sysconf("SC_OPEN_MAX"))
    settle((), parent)
    draft = file.with_suffix(".new")
    draft.write_bytes(encode(collect(left)))
    draft.rename(file)
    raise SystemExit(0)


def _read(file: Path) -> Collected | None:
    try:
        return decode(file.read_bytes(), Collected)
    except (OSError, InputError):
        return None
