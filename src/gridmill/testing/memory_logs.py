"""Stores job logs in memory, for simulations and as the reference for log files."""

from collections.abc import Iterator, Mapping, Sequence

from gridmill.domain.job_log import LogEntry, LogRecord, content_of, lines_of
from gridmill.ports.logs import LogQuery


class MemoryLogs:
    """Implements ports.logs.LogStore. Every answer is complete, and no text is ever dropped."""

    def __init__(self) -> None:
        self.records: list[LogRecord] = []
        self._last: dict[str, int] = {}

    def append(self, records: Sequence[LogRecord]) -> None:
        """See LogStore."""
        for record in records:
            if not record.number or record.number > self._last.get(record.attempt_id, 0):
                self.records.append(record)
                self._last[record.attempt_id] = record.number

    def _entries(self, query: LogQuery) -> Iterator[LogEntry]:
        offset = 0
        for record in self.records:
            if record.run_id != query.run_id:
                continue
            data = content_of(record)
            begin, offset = offset, offset + len(data)
            first = max(0, query.after - begin)
            last = len(data) if query.until is None else min(len(data), max(0, query.until - begin))
            mine = query.attempt is None or f"{record.attempt_id}.".startswith(f"{query.attempt}.")
            if first < last and mine and query.job in (None, record.job):
                yield LogEntry(
                    id=str(begin + last),
                    offset=begin + first,
                    time=record.time,
                    job=record.job,
                    attempt_id=record.attempt_id,
                    stream=record.stream,
                    text=data[first:last].decode("utf-8", "replace"),
                    mark=record.mark,
                )

    def read(self, query: LogQuery) -> Sequence[LogEntry]:
        """See LogStore."""
        return [one for one in self._entries(query) if query.search in one.text]

    def tail(self, query: LogQuery, lines: int, *, most_bytes: int | None = None) -> Sequence[LogEntry]:
        """See LogStore."""
        entries = [*self._entries(query)]
        for first in range(len(entries), -1, -1):
            if sum(1 for _ in lines_of(entries[first:])) > lines:
                return entries[first:]
        return entries if lines else []

    def finish(self, run_id: str) -> None:
        """See LogStore."""

    def delete(self, run_ids: Sequence[str]) -> None:
        """See LogStore."""
        self.records = [one for one in self.records if one.run_id not in run_ids]

    def sizes(self) -> Mapping[str, int]:
        """See LogStore."""
        sizes: dict[str, int] = {}
        for record in self.records:
            sizes[record.run_id] = sizes.get(record.run_id, 0) + len(content_of(record))
        return sizes

    def close(self) -> None:
        """See LogStore."""
