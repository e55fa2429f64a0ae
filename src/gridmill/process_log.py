"""The log of a server process on standard error, with a limit for repeated lines.

Lines with the same logger, level and unformatted text are of one kind. A few lines of each kind are written
per minute. The remaining lines of the kind are counted, and their number is written at the end of the
minute.
"""

import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO

LINES, SECONDS = 10, 60.0
"""The largest number of lines of one kind that are written in an interval, and the length of the interval in
seconds."""
KINDS = 200
"""The largest number of kinds of lines that are distinguished. If there are more kinds of lines, all of the
additional kinds are treated as one kind."""
_OTHERS = "others"


class BoundedHandler(logging.StreamHandler[TextIO]):
    """Writes log records to a stream, but at most `LINES` records of each kind in `SECONDS` seconds."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream or sys.stderr)
        self._clock = clock
        self._kinds: dict[str, _Kind] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the log record, or counts it."""
        now = self._clock()
        self._report_counts(now)
        name = f"{record.name} {record.levelno} {str(record.msg)[:100]}"
        if name not in self._kinds and len(self._kinds) >= KINDS:
            name = _OTHERS
        kind = self._kinds.setdefault(name, _Kind(now))
        kind.written += 1
        if kind.written <= LINES:
            return super().emit(record)
        kind.last = record
        return None

    def _report_counts(self, now: float) -> None:
        """Writes the counts of the kinds of lines whose interval has ended, and stops counting these
        kinds."""
        over = [name for name, kind in self._kinds.items() if now - kind.began >= SECONDS]
        for name in over:
            kind = self._kinds.pop(name)
            if kind.last is not None:
                text = (
                    f"{kind.written - LINES} more lines like this were not written: {kind.last.getMessage()}"
                )
                super().emit(
                    logging.makeLogRecord({**vars(kind.last), "msg": text, "args": (), "exc_info": None})
                )


class _Kind:
    """The number of lines of one kind that were logged since the time `began`. `last` is the last line that
    was not written."""

    def __init__(self, began: float) -> None:
        self.began, self.written = began, 0
        self.last: logging.LogRecord | None = None


def log_to_standard_error(level: int = logging.WARNING, format: str = "%(asctime)s %(message)s") -> None:
    """Sends the log of this process to standard error. This function must be called once, when the process
    starts."""
    logging.basicConfig(format=format, level=level, handlers=[BoundedHandler()])
