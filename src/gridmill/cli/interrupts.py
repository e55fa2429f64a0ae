"""Ctrl-C, SIGTERM and a lost terminal ask for a clean stop; a second Ctrl-C quits at once."""

import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Any, Self

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Within it, `asked` turns true at the first signal; the second raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.asked = False
        self._terminals = [stream.fileno() for stream in (sys.stdout, sys.stderr) if stream.isatty()]
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in _ASKING}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self.lose_terminal()
        elif self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def lose_terminal(self) -> None:
        """The terminal is gone: writing to it fails, and the run must still be stopped in good order."""
        self.asked = True
        nobody = os.open(os.devnull, os.O_WRONLY)
        for terminal in self._terminals:
            os.dup2(nobody, terminal)
        os.close(nobody)
