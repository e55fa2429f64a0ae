"""This module counts the lines of the request logs of services: how many were logged, how many arrived at
home, and how many were lost for which reason.

A line is a logged row or the line of a request. Of each kind (`rows` and `requests`), all logged lines are in
files, wait in the memory of a replica, or are lost. Lines that are not in the sample are not logged, so they
are not lost.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum

from gridmill.domain.frozen import dataclass, replace

ROWS, REQUESTS = "rows", "requests"
KINDS = (ROWS, REQUESTS)
"""The kinds of log files: those with logged rows, and those with a line for each request."""
MOST_ENDED = 20
"""The number of ended attempts whose lost lines are compared again with the files at home, because files can
arrive after a long separation. The lines that earlier attempts lost are only added up."""


class LogLoss(StrEnum):
    """The reasons for which logged lines are lost."""

    QUEUE = "queue_full"
    DISK = "disk"
    KILLED = "replica_killed"
    UNREADABLE = "unreadable"
    DELETED = "deleted"
    POD_ENDED = "pod_ended"


LOSS_TEXTS = {
    LogLoss.QUEUE: "too many lines waited to be written",
    LogLoss.DISK: "the disk was full or failed",
    LogLoss.KILLED: "a replica was killed before it wrote them",
    LogLoss.UNREADABLE: "the request or its answer could not be read as rows",
    LogLoss.DELETED: "they were deleted at the site, before this machine could take them",
    LogLoss.POD_ENDED: "their pod ended before this machine had taken them",
}
"""The texts for people of each reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCount:
    """The lines of one kind that the replicas of one attempt have logged. `written` of them were written to
    files, and `lost` were lost, by reason. `deleted` were written to files that were deleted above the limit
    of the log, which may be after a sink has loaded them."""

    logged: int = 0
    written: int = 0
    deleted: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: "LogCount") -> "LogCount":
        return LogCount(
            logged=self.logged + other.logged,
            written=self.written + other.written,
            deleted=self.deleted + other.deleted,
            lost=added(self.lost, other.lost),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReport:
    """The lines that the replicas of one attempt have logged, by kind. `writer` is the part of the names of
    their files. With `is_transferred`, the home takes the files. `is_last` is true if all replicas have
    ended, so that the counts do not change any more."""

    counts: Mapping[str, LogCount] = field(default_factory=dict)
    writer: str = ""
    is_transferred: bool = False
    is_last: bool = False

    @property
    def lost(self) -> Mapping[str, Mapping[str, int]]:
        """The lost lines by kind and reason."""
        return {kind: dict(one.lost) for kind, one in self.counts.items() if any(one.lost.values())}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivedFiles:
    """The number of lines by kind in the files of one writer that have arrived at home. `named` has the files
    that may arrive again, because the site has not deleted them yet, and `total` has all others. The same
    record counts the lines in files that were deleted at home: then `named` has the files that may still
    exist."""

    total: Mapping[str, int] = field(default_factory=dict)
    named: Mapping[str, int] = field(default_factory=dict)

    def of_kind(self, kind: str) -> int:
        """Return the number of lines of one kind."""
        return self.total.get(kind, 0) + sum(n for name, n in self.named.items() if kind_of(name) == kind)

    def after(self, present: Iterable[str], new: Mapping[str, int]) -> "ArrivedFiles":
        """Return the record after a look at the files that are still there (`present`). `new` are files with
        their numbers of lines. A file that is no longer there cannot arrive again, so its name is not
        needed."""
        kept = set(present) | set(new)
        gone = {name: n for name, n in self.named.items() if name not in kept}
        total = dict(self.total)
        for name, number in gone.items():
            total[kind_of(name)] = total.get(kind_of(name), 0) + number
        named = {name: n for name, n in self.named.items() if name in kept}
        return ArrivedFiles(total=total, named={**named, **new})


NO_FILES = ArrivedFiles()
ARRIVED_FOLDER, DELETED_FILE = ".arrived", "deleted.json"
"""The names of the folder with these records in the folder of a request log at home, and of the record of the
deleted files. The record of a writer has its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogArrivals:
    """The files of the request log of one service at home: those that arrived, by writer, and those that were
    deleted because the files had more bytes than the limit."""

    arrived: Mapping[str, ArrivedFiles] = field(default_factory=dict)
    deleted: ArrivedFiles = NO_FILES


NO_ARRIVALS = LogArrivals()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLog:
    """The last counts of an attempt of a service. `is_ended` is true if the attempt has ended."""

    attempt_id: str
    report: LogReport
    is_ended: bool = False

    def missing(self, arrivals: LogArrivals) -> Mapping[str, int]:
        """Return the number of lines by kind that were logged and neither arrived nor were counted as lost by
        the replicas. They are lost if the attempt has ended. After an end without the last counts, the
        numbers are lower bounds."""
        return {kind: n for kind in KINDS if (n := self._missing(kind, arrivals)) > 0}

    def _missing(self, kind: str, arrivals: LogArrivals) -> int:
        count = self.report.counts.get(kind, LogCount())
        lost = sum(count.lost.values())
        if not self.report.is_transferred:
            return count.logged - lost - count.written
        return count.logged - lost - arrivals.arrived.get(self.report.writer, NO_FILES).of_kind(kind)

    def lost(self, arrivals: LogArrivals) -> Mapping[str, Mapping[str, int]]:
        """Return all lost lines of the attempt by kind and reason."""
        lost = {kind: dict(one) for kind, one in self.report.lost.items()}
        if self.is_ended:
            for kind in KINDS:
                missing = self._missing(kind, arrivals)
                reasons = lost.setdefault(kind, {})
                if missing > 0:
                    reasons[LogLoss.POD_ENDED] = missing
                elif missing < 0 and reasons.get(LogLoss.DELETED):
                    # files that the replicas have deleted had arrived before; or lines arrived that were
                    # logged after the last report, and then the number is a lower bound
                    reasons[LogLoss.DELETED] = max(0, reasons[LogLoss.DELETED] + missing)
        return lost


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLog:
    """The counts of the request log of a service. `attempts` are those that run, and the last that have
    ended. `lost` and `deleted` are the lines of earlier attempts. `unknown_ends` is the number of attempts
    that ended without their last counts, so that they may have lost further lines."""

    attempts: tuple[AttemptLog, ...] = ()
    lost: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    deleted: Mapping[str, int] = field(default_factory=dict)
    unknown_ends: int = 0

    def reported(self, attempt_id: str, report: LogReport) -> "ServiceLog":
        """Return the counts after a report of an attempt. A report that is older than the last one, or that
        arrives after the end, changes nothing."""
        known = self.of(attempt_id)
        if known is not None and (known.is_ended or _logged(report) < _logged(known.report)):
            return self
        others = tuple(one for one in self.attempts if one is not known)
        return replace(self, attempts=(*others, AttemptLog(attempt_id=attempt_id, report=report)))

    def ended(self, attempt_id: str, arrivals: LogArrivals) -> "ServiceLog":
        """Return the counts after the end of an attempt. The
        attempts that miss no line, and the oldest ones, are added up."""
        known = self.of(attempt_id)
        if known is None or known.is_ended:
            return self
        now = tuple(replace(one, is_ended=True) if one is known else one for one in self.attempts)
        settled = [one for one in now if one.is_ended and one.report.is_last and not one.missing(arrivals)]
        others = [one for one in now if one.is_ended and one not in settled]
        settled += others[: max(0, len(others) - MOST_ENDED)]
        return ServiceLog(
            attempts=tuple(one for one in now if one not in settled),
            lost=_sum((self.lost, *(one.lost(arrivals) for one in settled))),
            deleted=_deleted(self.deleted, settled),
            unknown_ends=self.unknown_ends + (not known.report.is_last),
        )

    def of(self, attempt_id: str) -> AttemptLog | None:
        """Return the counts of an attempt, or None if it has not reported any."""
        return next((one for one in self.attempts if one.attempt_id == attempt_id), None)

    @property
    def writers(self) -> tuple[str, ...]:
        """The writers whose files arrive at home."""
        return tuple(one.report.writer for one in self.attempts if one.report.is_transferred)

    def losses(self, arrivals: LogArrivals) -> "LogLosses":
        """Return the lost lines of all attempts."""
        at_home = {kind: arrivals.deleted.of_kind(kind) for kind in KINDS}
        return LogLosses(
            lost=_sum((self.lost, *(one.lost(arrivals) for one in self.attempts))),
            deleted=added(_deleted(self.deleted, self.attempts), at_home),
            unknown_ends=self.unknown_ends,
        )


NO_LOG = ServiceLog()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLosses:
    """The lines of the request log of a service that were lost, by kind and reason. `deleted` are the lines
    by kind in files that were deleted above the limit of the log, which may be after a sink has loaded them.
    If `unknown_ends` pods ended without their last counts, further lines may be lost."""

    lost: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    deleted: Mapping[str, int] = field(default_factory=dict)
    unknown_ends: int = 0

    @property
    def text(self) -> str:
        """The losses as a sentence; empty if there are none."""
        parts = [
            f"{'at least ' if self.unknown_ends else ''}{_number(number, kind)} lost: "
            f"{LOSS_TEXTS.get(LogLoss(reason), reason) if reason in set(LogLoss) else reason}"
            for kind, reasons in self.lost.items()
            for reason, number in reasons.items()
            if number
        ]
        parts += [
            f"{_number(number, kind)} deleted above the limit of the log (a sink may have loaded them before)"
            for kind, number in self.deleted.items()
            if number
        ]
        if self.unknown_ends:
            pods = f"{self.unknown_ends} pods" if self.unknown_ends > 1 else "1 pod"
            parts.append(f"{pods} ended without notice: lines of the last seconds may be lost too")
        return "; ".join(parts)


NO_LOSSES = LogLosses()


def end_message(before: AttemptLog, arrivals: LogArrivals) -> str:
    """Return the message about the lines that are lost with an attempt that ends; empty if none are."""
    missing = before.missing(arrivals)
    numbers = " and ".join(_number(number, kind) for kind, number in missing.items())
    if before.report.is_last:
        return f"the request log lost {numbers} with attempt {before.attempt_id}" if missing else ""
    lost = f"at least {numbers}" if missing else "perhaps lines of its last seconds"
    return (
        f"the request log lost {lost} with attempt {before.attempt_id}, which ended without its last counts"
    )


def added(one: Mapping[str, int], other: Mapping[str, int]) -> Mapping[str, int]:
    """Return the sums of two mappings of numbers."""
    return {key: one.get(key, 0) + other.get(key, 0) for key in dict.fromkeys((*one, *other))}


def kind_of(name: str) -> str:
    """Return the kind of the lines in a log file with this name."""
    return name.partition("-")[0]


def _logged(report: LogReport) -> int:
    return sum(one.logged for one in report.counts.values()) + report.is_last


def _sum(all_lost: Iterable[Mapping[str, Mapping[str, int]]]) -> Mapping[str, Mapping[str, int]]:
    total: dict[str, Mapping[str, int]] = {}
    for one in all_lost:
        for kind, reasons in one.items():
            total[kind] = added(total.get(kind, {}), reasons)
    return total


def _deleted(before: Mapping[str, int], attempts: Iterable[AttemptLog]) -> Mapping[str, int]:
    for one in attempts:
        before = added(before, {kind: count.deleted for kind, count in one.report.counts.items()})
    return before


def _number(number: int, kind: str) -> str:
    noun = "row" if kind == ROWS else "request line"
    return f"{number} {noun}{'' if number == 1 else 's'}"
