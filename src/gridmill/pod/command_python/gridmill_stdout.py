"""Standard output of the Python programs of commands: unbuffered, until a program prints very much.

PYTHONUNBUFFERED makes each `print` two system calls, which take two thirds of the time of a program that
prints millions of lines. Such a program gets a buffer. A thread empties it each _FLUSH_SECONDS, and the
program empties it before it forks, executes another program or ends. If the program is killed, the lines of
the last _FLUSH_SECONDS are lost. All other programs write each line at once and have no such thread.

Imports nothing of Gridmill's, and runs with each Python from 3.8 on.
"""

from __future__ import annotations

import _thread
import io
import os
import stat
import sys
from contextlib import suppress
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
_STARTS_THREAD = ("_thread.start_new_thread", "_thread.start_joinable_thread")


class _CountedFile(io.FileIO):
    """Standard output's file; counts the bytes written to it."""

    total = 0

    def write(self, data: Any, /) -> int:  # noqa: ANN401  any buffer
        size = super().write(data) or 0
        self.total += size
        return size


class AdaptiveOutput(io.TextIOWrapper):
    """A standard output that decides when its buffer is emptied.

    While each write is to be emptied, the buffer has the attribute `write`, which is a method of this class;
    while the thread empties it, the attribute is deleted, so that a write costs no Python code. The lock of
    the buffer orders all writes. Text is gathered in front of the buffer, which is quicker by a quarter, only
    if the program has one thread and never used `sys.stdout.buffer`: else it could overtake other writes.
    """

    def __init__(self, descriptor: int, encoding: str, errors: str | None) -> None:
        self._file = _CountedFile(descriptor, "w", closefd=False)
        vars(self._file)["name"] = "<stdout>"
        self._buffer = cast(Any, io.BufferedWriter(self._file, _BUFFER_BYTES))
        self._put = self._buffer.write
        self._may_gather = True
        self._starts = False  # the thread, just now
        self._thread: threading.Thread | None = None
        self._stop: threading.Event | None = None
        self._buffers = _thread.allocate_lock()  # held while the thread lives
        self._writes, self._since = 0, monotonic()
        self._buffer.write = self._write_at_once
        super().__init__(self._buffer, encoding, errors, newline="\n", write_through=True)
        vars(self)["mode"] = "w"

    @property
    def buffer(self) -> Any:  # noqa: ANN401
        """Whoever has it may write to it, at any time."""
        self._gather_no_more()
        return self._buffer

    def _gather_no_more(self) -> None:
        if self._may_gather:
            self._may_gather = False
            self._gather(False)

    def _gather(self, gather: bool) -> None:
        with suppress(OSError, ValueError):
            self.reconfigure(write_through=not gather)

    def _write_at_once(self, data: Any) -> int:  # noqa: ANN401
        size: int = self._put(data)
        self._buffer.flush()
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
        if _thread._count():
            self._gather_no_more()
        if self._stop is None:
            self._watch()
        stop = self._stop = threading.Event()
        thread = threading.Thread(
            target=lambda: self._empty_often(thread, stop), name="gridmill-stdout", daemon=True
        )
        self._starts = True
        try:
            thread.start()
        except RuntimeError:  # there may be no more threads: each write is emptied as before
            self._buffers.release()
        self._starts = False

    def _watch(self) -> None:
        """Watch for what must find the buffer empty, and for threads of the program."""
        import atexit
        import threading

        atexit.register(self.stop_buffering)
        os.register_at_fork(before=self.stop_buffering)
        sys.addaudithook(self._on_event)
        exit_at_once, start_thread = os._exit, _thread.start_new_thread

        def empty_and_exit(status: int) -> NoReturn:
            self._empty()
            exit_at_once(status)

        def gather_no_more_and_start(*arguments: Any, **named: Any) -> int:  # noqa: ANN401
            self._on_event(_STARTS_THREAD[0], ())
            return start_thread(*arguments, **named)

        os._exit = empty_and_exit
        if sys.version_info < (3, 12):  # without an event for it
            for module, name in ((_thread, "start_new_thread"), (threading, "_start_new_thread")):
                setattr(module, name, gather_no_more_and_start)

    def _on_event(self, event: str, _arguments: object) -> None:
        if event in _EVENTS:
            self._empty()
        elif event in _STARTS_THREAD and not self._starts:
            self._gather_no_more()

    def _empty(self) -> None:
        for flush in (self.flush, self._buffer.flush):  # the program may have detached the buffer
            with suppress(OSError, ValueError):  # the program's own next write reports it
                flush()

    def _empty_often(self, thread: threading.Thread, stop: threading.Event) -> None:
        self._thread = thread
        if self._may_gather:
            self._gather(True)
        del self._buffer.write
        before, until = self._file.total, monotonic() + 1.0
        while not stop.wait(_FLUSH_SECONDS):
            self._empty()
            if monotonic() >= until:
                if self._file.total - before < _FEW_BYTES:
                    break
                before, until = self._file.total, monotonic() + 1.0
        self._buffer.write = self._write_at_once
        if self._may_gather:
            self._gather(False)
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
    if not getattr(sys, "_is_gil_enabled", lambda: True)():  # it orders text and buffer
        return
    if not stat.S_ISFIFO(os.fstat(old.fileno()).st_mode):
        return
    new = AdaptiveOutput(old.fileno(), old.encoding, old.errors)
    for name in ("stdout", "__stdout__"):
        setattr(sys, name, new)
