"""Counts the lines of a request log in small files that outlive a killed replica.

A replica writes its counts with one system call after each change, so the counts of a killed replica are
exact. Its lines are then in complete files, in its open file, or lost. `settle` counts the lost ones.
"""

import json
import os
import struct
from contextlib import suppress
from pathlib import Path

from gridmill.domain.log_counts import KINDS, LogCount, LogLoss, LogReport
from gridmill.domain.serving import RequestLog
from gridmill.serving.metrics import LOG_DELETED, LOG_LINES, LOG_LOST
from gridmill.whole_lines import count_lines, cut_last_line

_FIELDS = (
    "logged",
    "complete",
    "open",
    "deleted",
    "queue_full",
    "disk",
    "replica_killed",
    "unreadable",
    "before",
)
_FORMAT = struct.Struct(f"<{len(_FIELDS)}Q")
_REASONS = {LogLoss.QUEUE: 4, LogLoss.DISK: 5, LogLoss.KILLED: 6, LogLoss.UNREADABLE: 7}


class LineCounts:
    """The counts of the lines of one kind that replicas with one number have logged. `logged` lines are in
    complete files (`complete`), in the open file (`open`), in the memory of the replica, or lost. The lines
    of files that were deleted above the limit count as `complete` and as `deleted`. The open file can begin
    with lines of an earlier attempt of the service (`before`)."""

    __slots__ = ("_descriptor", "_path", "_values")

    def __init__(self, path: Path | None, *, only_reads: bool = False) -> None:
        """Continue the counts in a file. Without a file, or while it cannot be written, the counts are only
        in memory."""
        self._path, self._descriptor = (None if only_reads else path), -1
        self._values = [0] * len(_FIELDS)
        if path is not None:
            with suppress(OSError, struct.error):
                self._values = list(_FORMAT.unpack(path.read_bytes()))

    @property
    def lost(self) -> int:
        """The number of lines that are lost, without those of deleted files."""
        return sum(self._values[at] for at in _REASONS.values())

    @property
    def deleted(self) -> int:
        """The number of lines in files that were deleted above the limit."""
        return self._values[3]

    @property
    def opened(self) -> int:
        """The number of lines that the open file has, as far as it was counted."""
        return self._values[2] + self._values[8]

    def begin(self, open_file: Path) -> None:
        """Count the lines of an open file that an earlier attempt has left. Raises OSError."""
        if not self._values[0] and open_file.exists():
            cut_last_line(open_file)
            self._values[8] = count_lines(open_file)

    def log(self, number: int = 1) -> None:
        """Count logged lines."""
        self._values[0] += number
        self.save()

    def lose(self, reason: LogLoss, number: int = 1) -> None:
        """Count logged lines as lost."""
        self._values[_REASONS[reason]] += number
        self.save()

    def append(self, number: int) -> None:
        """Count lines that were written to the open file."""
        self._values[2] += number
        self.save()

    def complete(self) -> None:
        """Count the lines of the open file, which has got its final name, as lines of a complete file."""
        self._values[1] += self._values[2]
        self._values[2] = self._values[8] = 0
        self.save()

    def delete(self, number: int) -> None:
        """Count the lines of a complete file that was deleted."""
        self._values[3] += number
        self.save()

    def settle(self, open_file: Path, *, stays: bool = False) -> None:
        """Count what a replica that was killed has lost, and cut the last line of its open file if it is not
        whole. The lines of the open file then count as lines of a complete file. With `stays`, the next
        replica continues this file. Can be repeated. Raises OSError."""
        with suppress(FileNotFoundError):
            cut_last_line(open_file)
        logged, complete, opened = self._values[:3]
        if logged == complete + self.lost:
            return  # all lines are accounted for, also those of an open file that was settled before
        is_there = open_file.exists()
        if is_there:
            opened = max(0, count_lines(open_file) - self._values[8])
        # without an open file: it got its final name, and its lines were counted before that
        self._values[1], self._values[2] = complete + opened, 0
        self._values[8] = self._values[8] + opened if stays and is_there else 0
        self._values[_REASONS[LogLoss.KILLED]] += max(0, logged - complete - opened - self.lost)
        self.save()

    def count(self, *, counts_deleted_as_lost: bool) -> LogCount:
        """Return the counts for a report."""
        lost = {str(reason): self._values[at] for reason, at in _REASONS.items() if self._values[at]}
        if counts_deleted_as_lost and self.deleted:
            lost[str(LogLoss.DELETED)] = self.deleted
        return LogCount(
            logged=self._values[0],
            written=self._values[1] + self._values[2],
            deleted=0 if counts_deleted_as_lost else self.deleted,
            lost=lost,
        )

    def save(self) -> None:
        """Write the counts. If this fails, the next change tries again."""
        if self._path is None:
            return
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            os.pwrite(self._descriptor, _FORMAT.pack(*self._values), 0)
        except OSError:
            pass

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


def counts_path(folder: Path, kind: str, replica: int | str) -> Path:
    """Return the file of the counts of a replica, in the folder of its service."""
    return folder / f"log-{kind}-{replica}.counts"


def read_counts(folder: Path, log: RequestLog | None, *, is_last: bool = False) -> LogReport | None:
    """Return the counts of all replicas of a service; None if nothing was ever logged."""
    counts: dict[str, LogCount] = {}
    is_transferred = log is not None and log.is_transferred
    for kind in KINDS:
        for path in folder.glob(f"log-{kind}-*.counts"):
            one = LineCounts(path, only_reads=True).count(counts_deleted_as_lost=is_transferred)
            counts[kind] = counts.get(kind, LogCount()) + one
    if not counts:
        return None
    writer = log.writer if log is not None else ""
    return LogReport(counts=counts, writer=writer, is_transferred=is_transferred, is_last=is_last)


def save_metrics(folder: Path, report: LogReport) -> None:
    """Write the counts of the log as metrics, which the replicas add to theirs. If the disk is full, the
    earlier file stays."""
    values = {f'{LOG_LINES}{{kind="{kind}"}}': one.logged for kind, one in report.counts.items()}
    for kind, one in report.counts.items():
        for reason, number in one.lost.items():
            values[f'{LOG_LOST}{{kind="{kind}",reason="{reason}"}}'] = number
        if one.deleted:
            values[f'{LOG_DELETED}{{kind="{kind}"}}'] = one.deleted
    path = folder / "metrics-log.json"
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(OSError):
        draft.write_text(json.dumps(values))
        draft.replace(path)
