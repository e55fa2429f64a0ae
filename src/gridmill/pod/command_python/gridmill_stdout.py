"""Standard output of the Python programs of commands: unbuffered, until a program prints very much.

PYTHONUNBUFFERED makes each `print` two system calls, which take two thirds of the time of a program that
prints millions of lines. Such a program gets a buffer. A thread empties it each _FLUSH_SECONDS, and the
program empties it before it forks, executes another program or ends. If the program is killed, the lines of
the last _FLUSH_SECONDS are lost. All other programs write each line at once and have no such thread.

Imports nothing of Gridmill's, and runs with each Python from 3.8 on.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from _thread import allocate_lock
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn, cast

if TYPE_CHECKING:
    import threading

_MANY_WRITES = 20000
"""A program that writes so often within a second prints very much; `print` writes twice."""
_FEW_BYTES = 256 * 1024
"""A program that writes less in a second does not print very much any more."""
_BUFFER_BYTES = 64 * 1024
_FLUSH_SECONDS = 0.01
_EVENTS = frozenset(("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"))
"""Audit events before which the buffer is emptied: the other program writes behind what was printed."""


class _CountedFile(io.FileIO):
    """Standard output's file; counts the bytes written to it."""

    total = 0

    def write(self, data: Any, /) -> int:  # noqa: ANN401  any buffer
        size = super().write(data) or 0
        self.total += size
        return size


class AdaptiveOutput:
    """Decides for one standard output when its `buffer` is emptied.

    While each write is to be emptied, the buffer has the attribute `write`, which is a method of this class;
    while the thread empties it, the attribute is deleted, so that a write costs no Python code. The lock of
    the buffer orders all writes.
    """

    def __init__(self, descriptor: int) -> None:
        self._file = _CountedFile(descriptor, "w", closefd=False)
        vars(self._file)["name"] = "<stdout>"
        self.buffer = cast(Any, io.BufferedWriter(self._file, _BUFFER_BYTES))
        self._put = self.buffer.write
        self._thread: threading.Thread | None = None
        self._stop: threading.Event | None = None
        self._buffers = allocate_lock()  # held while the thread lives
        self._writes, self._since = 0, monotonic()
        self.buffer.write = self._write_at_once

    def _write_at_once(self, data: Any) -> int:  # noqa: ANN401
        size: int = self._put(data)
        self.buffer.flush()
        self._writes += 1
        if self._writes >= _MANY_WRITES:
            now = monotonic()
            if now - self._since < 1.0:
                self._begin_to_buffer()
            self._writes, self._since = 0, now
        return size

    def _begin_to_buffer(self) -> None:
        import threading

        if not self._buffers.acquire(False):
            return
        if self._stop is None:
            self._watch_for_ends()
        stop = self._stop = threading.Event()
        thread = threading.Thread(
            target=lambda: self._empty_often(thread, stop), name="gridmill-stdout", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # there may be no more threads: each write is emptied as before
            self._buffers.release()

    def _watch_for_ends(self) -> None:
        import atexit

        atexit.register(self.stop_buffering)
        os.register_at_fork(before=self.stop_buffering)
        sys.addaudithook(lambda event, _: self._empty() if event in _EVENTS else None)
        exit_at_once = os._exit

        def empty_and_exit(status: int) -> NoReturn:
            self._empty()
            exit_at_once(status)

        os._exit = empty_and_exit

    def _empty(self) -> None:
        try:
            self.buffer.flush()
        except (OSError, ValueError):  # the program's own next write reports it
            return

    def _empty_often(self, thread: threading.Thread, stop: threading.Event) -> None:
        self._thread = thread
        del self.buffer.write
        before, until = self._file.total, monotonic() + 1.0
        while not stop.wait(_FLUSH_SECONDS):
            self._empty()
            if monotonic() >= until:
                if self._file.total - before < _FEW_BYTES:
                    break
                before, until = self._file.total, monotonic() + 1.0
        self.buffer.write = self._write_at_once
        self._empty()
        self._thread = None
        self._buffers.release()

    def stop_buffering(self) -> None:
        """End the thread: from now on each write is emptied at once. A process forks without the thread."""
        thread, stop = self._thread, self._stop
        if thread is not None and stop is not None:
            stop.set()
            thread.join()


def adapt() -> None:
    """Replace standard output if it is unbuffered and a pipe, as a command's is."""
    old = cast(Any, sys.stdout)
    if not isinstance(getattr(old, "buffer", None), io.FileIO) or not hasattr(os, "register_at_fork"):
        return
    if not stat.S_ISFIFO(os.fstat(old.fileno()).st_mode):
        return
    output = AdaptiveOutput(old.fileno())
    new: Any = io.TextIOWrapper(
        output.buffer, encoding=old.encoding, errors=old.errors, newline="\n", write_through=True
    )
    new.mode = "w"
    for name in ("stdout", "__stdout__"):
        setattr(sys, name, new)
