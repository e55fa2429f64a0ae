"""The interface of job logs: append each text once, read and search the log of a run or its end, and delete
logs."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from gridmill.domain.frozen import dataclass
from gridmill.domain.job_log import LogEntry, LogRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """A selection of the log texts of a run between the offsets `after` and `until` (None: the end of the
    log).

    `job` selects the log texts of one job. `attempt` selects the log texts of one attempt and, if the
    attempt belongs to a gang, of the other ranks of the gang. `search` selects the log lines that contain
    this text.
    """

    run_id: str
    job: str | None = None
    attempt: str | None = None
    after: int = 0
    until: int | None = None
    search: str = ""


class LogStore(Protocol):
    """A store of job logs. All methods of the log store can be called from several threads at the same time.
    One process appends log texts, and other processes may read at the same time."""

    def append(self, records: Sequence[LogRecord]) -> None:
        """Store log texts so that they survive the end of the process. A text is left out if a text of the
        same attempt with the same or a higher number is already stored. Therefore texts that a pod sends
        again after a crash are stored only once. Raises StorageError."""

    def read(self, query: LogQuery) -> Sequence[LogEntry]:
        """The next entries. The method returns at least one entry, and at most about 1 MiB of text. At the
        end of the log, it returns no entry. One call with `search` reads about 64 MiB of the log. If these
        64 MiB contain no match, the result is an entry with an empty text."""

    def tail(self, query: LogQuery, lines: int, *, most_bytes: int | None = None) -> Sequence[LogEntry]:
        """Return the last entries of the log: at least `lines` lines, unless the log has fewer lines or
        these lines have more than about `most_bytes` bytes. If a text before the returned entries was
        dropped, the first entry contains the number of dropped bytes."""

    def finish(self, run_id: str) -> None:
        """Close and compress the log files of a run. After the files of a run are closed, no more text of
        the run is expected."""

    def delete(self, run_ids: Sequence[str]) -> None:
        """Delete the logs of these runs; the call may be repeated. Raises StorageError."""

    def sizes(self) -> Mapping[str, int]:
        """Return the size of each run's log on the disk, in bytes."""

    def close(self) -> None:
        """Release the files and threads of the log store; the call may be repeated."""
