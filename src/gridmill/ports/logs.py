"""The port of job logs: append texts, each once; read, search and find the end of a run's log; delete."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from gridmill.domain.frozen import dataclass
from gridmill.domain.job_log import LogEntry, LogRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """Texts of a run from offset `after` up to `until` (None: its end).

    Only those of one `job`; only those of one `attempt` and, of a gang, of its other ranks; only lines that
    contain `search`.
    """

    run_id: str
    job: str | None = None
    attempt: str | None = None
    after: int = 0
    until: int | None = None
    search: str = ""


class LogStore(Protocol):
    """All methods are safe to call from several threads. One process appends; others may read."""

    def append(self, records: Sequence[LogRecord]) -> None:
        """Store texts. A text is left out if its attempt already has one with the same or a higher
        number: so texts that are sent again after a crash are stored once. Survives the end of the
        process. Raises StorageError."""

    def read(self, query: LogQuery) -> Sequence[LogEntry]:
        """The next entries: none at the end, else at least one, and about 1 MiB of text at most. A search
        reads about 64 MiB at a time, and answers with an empty entry where it found nothing in them."""

    def tail(self, query: LogQuery, lines: int, *, most_bytes: int | None = None) -> Sequence[LogEntry]:
        """The next entries from a place behind which at least that many lines follow, if there are so many
        (and if they have at most about `most_bytes`); before them, if text before that place was dropped, an
        entry that says how much."""

    def finish(self, run_id: str) -> None:
        """Close and compress the files of a run: no more text is expected."""

    def delete(self, run_ids: Sequence[str]) -> None:
        """Delete the logs of runs; may be repeated. Raises StorageError."""

    def sizes(self) -> Mapping[str, int]:
        """Bytes on the disk of each run's log."""

    def close(self) -> None:
        """Release files and threads; may be repeated."""
