"""The port of job logs: append each text once, read and search a run's log or its end, and delete logs."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from gridmill.domain.frozen import dataclass
from gridmill.domain.job_log import LogEntry, LogRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """A selection of the texts of a run, from offset `after` up to offset `until` (None: the end of the log).

    `job` selects the texts of one job. `attempt` selects the texts of one attempt and, if it belongs to a
    gang, of the gang's other ranks. `search` selects lines that contain this text.
    """

    run_id: str
    job: str | None = None
    attempt: str | None = None
    after: int = 0
    until: int | None = None
    search: str = ""


class LogStore(Protocol):
    """A store of job logs. All methods are safe to call from several threads. One process appends, and other
    processes may read."""

    def append(self, records: Sequence[LogRecord]) -> None:
        """Store texts, so that they survive the end of the process. A text is left out if its attempt already
        has a text with the same or a higher number: texts that are sent again after a crash are stored once.
        Raises StorageError."""

    def read(self, query: LogQuery) -> Sequence[LogEntry]:
        """The next entries. At the end of the log there are none; otherwise there is at least one entry, and
        at most about 1 MiB of text. A search reads about 64 MiB at a time. If these contain no match, the
        result is an entry with an empty text."""

    def tail(self, query: LogQuery, lines: int, *, most_bytes: int | None = None) -> Sequence[LogEntry]:
        """The entries from a place that at least `lines` lines follow, if the log has so many lines and they
        have at most about `most_bytes`. If text before this place was dropped, an entry with the number of
        dropped bytes comes first."""

    def finish(self, run_id: str) -> None:
        """Close and compress the files of a run. No more text of the run is expected."""

    def delete(self, run_ids: Sequence[str]) -> None:
        """Delete the logs of runs; may be repeated. Raises StorageError."""

    def sizes(self) -> Mapping[str, int]:
        """The size of each run's log on the disk, in bytes."""

    def close(self) -> None:
        """Release files and threads; may be repeated."""
