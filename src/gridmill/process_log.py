"""The log of a server process on standard error, with a limit on repeated lines.

A line of one kind (logger, level and text before its values are filled in) is written a few times a minute;
further ones are counted, and the count is written when the minute is over.
"""

import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO

LINES, SECONDS = 10, 60.0
"""The largest number of lines of one kind in an interval, and the interval in seconds."""
KINDS = 200
"""The largest number of kinds that are distinguished; all further kinds count as one."""
_OTHERS = "others"


class BoundedHandler(logging.StreamHandler[TextIO]):
    """Writes log records to a stream, `LINES` of each kind in `SECONDS`."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream or sys.stderr)
        self._clock = clock
        self._kinds: dict[str, _Kind] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or count it."""
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
        """Write the counts of kinds whose interval is over, and delete these kinds."""
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
    """The lines of one kind since `began`; `last` is the last one that was not written."""

    def __init__(self, began: float) -> None:
        self.began, self.written = began, 0
        self.last: logging.LogRecord | None = None


def log_to_standard_error(level: int = logging.WARNING, format: str = "%(asctime)s %(message)s") -> None:
    """Send the log of this process to standard error. Call it once, at the start of a process."""
    logging.basicConfig(format=format, level=level, handlers=[BoundedHandler()])
