"""Reads the log of a run: pages of entries that start at an offset, the offset of the last lines, and lines
that contain a text.

Parts of the log that contain no text of the requested job are not read.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import field
from operator import attrgetter

from gridmill.domain.amounts import KIB, MIB
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.job_log import LogEntry
from gridmill.ports.logs import LogQuery
from gridmill.storage.log_format import Frame
from gridmill.storage.log_index import LogPart, PartData, RunIndex

PAGE_BYTES = MIB
"""The largest size of the text in a page, in bytes."""
ENOUGH_BYTES = 256 * KIB
"""If a page has at least this much text, it ends at the end of a part of the log, so that the next page
starts with a new part."""
SEARCH_BYTES = 64 * MIB
"""The number of bytes of text that one request searches."""
_ENTRY_COST = 200
"""The approximate size of an entry without its text, in bytes."""


def read_page(index: RunIndex, query: LogQuery) -> list[LogEntry]:
    """Returns the next entries of the log, or an empty list at its end."""
    page = _Page(query=query, position=query.after)
    for part, data in _parts_from(index, query.after, query):
        if part.start >= page.until or page.full:
            break
        if data is None:
            page.add_gap(part, _kept(part, query), "damaged")
            continue
        for frame in data.frames:
            if frame.end > query.after and not page.add(frame, data):
                return page.entries
        page.add_gap(part, _dropped(part, query), "limit")
        if page.size >= ENOUGH_BYTES:
            break
    return page.entries


def _parts_from(index: RunIndex, after: int, query: LogQuery) -> Iterator[tuple[LogPart, PartData | None]]:
    """Yields the parts after an offset that may contain requested text, with their frames. If a part was
    moved in the meantime, the function finds its new position. A damaged part has no frames."""
    failed = -1
    while True:
        parts = index.parts()
        for part in parts[bisect_right(parts, after, key=attrgetter("end")) :]:
            if not _may_have(part, query):
                continue
            data = index.read(part)
            if data is None and failed != part.start:
                failed = part.start
                break
            yield part, data
            after = part.end
        else:
            return


def _may_have(part: LogPart, query: LogQuery) -> bool:
    if part.block is None or (query.job is None and query.attempt is None):
        return True
    contents = part.block.contents()
    if query.job is not None and query.job not in contents.kept and query.job not in contents.dropped:
        return False
    return query.attempt is None or any(_is_of(one, query.attempt) for one in contents.last)


def _is_of(attempt: str, wanted: str) -> bool:
    """Returns whether the attempt is the wanted attempt or another rank of its gang."""
    return attempt == wanted or attempt.startswith(f"{wanted}.")


def _wants(frame: Frame, query: LogQuery) -> bool:
    return (query.job is None or frame.job == query.job) and (
        query.attempt is None or _is_of(frame.attempt, query.attempt)
    )


def _kept(part: LogPart, query: LogQuery) -> dict[str, int]:
    """Returns the number of bytes of each job in a part that cannot be read."""
    if part.block is None:
        return {"": part.end - part.start}
    kept = part.block.contents().kept
    return {job: size for job, size in kept.items() if query.job in (None, job)}


def _dropped(part: LogPart, query: LogQuery) -> dict[str, int]:
    """Returns the number of bytes of each job that were dropped from a part."""
    if part.block is None or not part.block.dropped:
        return {}
    dropped = part.block.contents().dropped
    return {job: size for job, size in dropped.items() if query.job in (None, job)}


class _Page:
    """Collects the entries of a page, up to the limits for a page."""

    def __init__(self, query: LogQuery, position: int) -> None:
        self.query = query
        self.entries: list[LogEntry] = []
        self.size = 0
        self.until = query.until if query.until is not None else 1 << 62

    @property
    def full(self) -> bool:
        """Returns whether the page has reached a limit."""
        return self.size >= PAGE_BYTES

    def add(self, frame: Frame, data: PartData) -> bool:
        """Adds the text of a frame to the page if the text is requested. Returns False if the page is
        full."""
        if frame.offset >= self.until or self.full:
            return False
        if _wants(frame, self.query):
            stored = data.text(frame)
            text, offset = _cut(stored, frame.offset, self.query.after, self.until)
            if text:
                self.entries.append(_entry(frame, text, offset))
                self.size += len(text) + _ENTRY_COST
            self.add_damage(frame, len(stored))
        return True

    def add_damage(self, frame: Frame, readable: int) -> None:
        """Adds an entry that shows how much of a compressed text cannot be read."""
        if missing := frame.size - readable:
            self.entries.append(
                LogEntry(
                    id=str(frame.end),
                    offset=frame.offset + readable,
                    job=frame.job,
                    dropped_bytes=missing,
                    dropped="damaged",
                )
            )
            self.size += _ENTRY_COST

    def add_gap(self, part: LogPart, sizes: dict[str, int], why: str) -> None:
        """Adds an entry after the available text. The entry shows how much of a part is missing, and why."""
        for job, size in sizes.items():
            self.entries.append(
                LogEntry(id=str(part.end), offset=part.start, job=job, dropped_bytes=size, dropped=why)
            )
            self.size += _ENTRY_COST


def _cut(text: bytes, offset: int, after: int, until: int) -> tuple[bytes, int]:
    """Returns the text between two offsets. The result starts at the start of a character and ends at the
    end of a character."""
    first, last = max(0, after - offset), min(len(text), until - offset)
    while first < len(text) and text[first] & 0xC0 == 0x80:
        first += 1
    while last < len(text) and text[last] & 0xC0 == 0x80:
        last += 1
    return text[first:last], offset + first


def _entry(frame: Frame, text: bytes, offset: int) -> LogEntry:
    return LogEntry(
        id=str(offset + len(text)),
        offset=offset,
        time=frame.time,
        job=frame.job,
        attempt_id=frame.attempt,
        stream=frame.stream,
        text=text.decode("utf-8", "replace"),
        mark=frame.mark,
    )


def search_page(index: RunIndex, query: LogQuery) -> list[LogEntry]:
    """Returns the next lines that contain the searched text. If the searched part of the log has no such
    line, an empty entry shows where the next request must continue.

    A line of more than 128 KiB is stored as several texts. Of a long line, only the stored texts that
    contain the searched text are returned.
    """
    search, end = _Search(needle=query.search.encode(), query=query), query.after
    for part, data in _parts_from(index, max(-1, query.after - 1), query):
        if part.start >= search.page.until:
            break
        if data is None:
            if part.end > query.after:
                search.page.add_gap(part, _kept(part, query), "damaged")
            continue
        for frame in data.frames:
            if frame.end <= query.after:
                search.remember(frame, data)
            elif not search.look(frame, data):
                return search.page.entries
        if part.end <= query.after:
            continue
        search.page.add_gap(part, _dropped(part, query), "limit")
        search.searched += part.end - max(part.start, query.after)
        end = min(part.end, search.page.until)
        if search.page.full or search.searched >= SEARCH_BYTES:
            break
    return search.page.entries + (search.place(end) if search.searched >= ENOUGH_BYTES else [])


class _Search:
    """Searches for a text in a log, also if it is split between two stored texts of one line."""

    def __init__(self, needle: bytes, query: LogQuery) -> None:
        self.needle = needle
        self.page = _Page(query, query.after)
        self.searched = 0
        self._ends: dict[tuple[str, str], bytes] = {}

    def look(self, frame: Frame, data: PartData) -> bool:
        """Adds the lines of a frame that contain the searched text. Returns False if the page is full."""
        if frame.offset >= self.page.until or self.page.full:
            return False
        if not _wants(frame, self.page.query):
            return True
        stored = data.text(frame)
        text, offset = _cut(stored, frame.offset, self.page.query.after, self.page.until)
        before = self._ends.get((frame.attempt, frame.stream), b"")
        joined = before + text if before else text
        at = joined.find(self.needle)
        while at >= 0:
            begin = max(joined.rfind(b"\n", 0, at) + 1, len(before))
            end = joined.find(b"\n", max(begin, at)) + 1 or len(joined)
            line = joined[begin:end]
            self.page.entries.append(_entry(frame, line, offset + begin - len(before)))
            self.page.size += len(line) + _ENTRY_COST
            at = joined.find(self.needle, end) if end < len(joined) else -1
        self._keep_end(frame, joined)
        self.page.add_damage(frame, len(stored))
        return True

    def remember(self, frame: Frame, data: PartData) -> None:
        """Reads a text that an earlier page has already searched, because the first line of this page may
        have started in it."""
        if _wants(frame, self.page.query):
            before = self._ends.get((frame.attempt, frame.stream), b"")
            self._keep_end(frame, before + data.text(frame))

    def _keep_end(self, frame: Frame, text: bytes) -> None:
        """Stores the end of an incomplete line, because a match may start there. At most the length of the
        searched text is needed."""
        begin = max(text.rfind(b"\n") + 1, len(text) - len(self.needle) + 1)
        self._ends[(frame.attempt, frame.stream)] = text[begin:]

    def place(self, end: int) -> list[LogEntry]:
        """Returns an entry with the place at which the next search must continue, unless the last entry
        already shows it."""
        known = int(self.page.entries[-1].id) if self.page.entries else -1
        return [LogEntry(id=str(end), offset=end)] if known < end else []


@dataclass(slots=True)
class _TailSearch:
    """Reads the texts of a log backwards until the starts of the last `wanted` lines are found."""

    wanted: int
    start: int = 0
    most_bytes: int | None = None
    newest: int = -1
    found: int = 0
    _open: set[tuple[str, str]] = field(default_factory=set)
    _seen: set[tuple[str, str]] = field(default_factory=set)

    def back(self, frame: Frame, text: bytes) -> bool:
        """Processes the text that comes before the texts processed so far. Returns False when the starts of
        all wanted lines are found."""
        key = (frame.attempt, frame.stream)
        end = len(text)
        if self.newest < 0:
            self.newest = frame.end
        if self.most_bytes is not None and frame.end < self.newest - self.most_bytes:
            self.start = max(self.start, self.newest - self.most_bytes)
            return False
        if key not in self._seen:
            self._seen.add(key)
            # the text ends with an incomplete line, or the log ends without a line break
            if not text.endswith(b"\n") and self.found < self.wanted:
                self._begin(key, frame, end)
        while end > 0:
            newline = text.rfind(b"\n", 0, end)
            if key in self._open:
                self.start = frame.offset + newline + 1
                if newline < 0:
                    return True  # the text is read further back, because the line starts before this text
                self._open.discard(key)
            if newline < 0 or self.found >= self.wanted:
                break
            self._begin(key, frame, newline)
            end = newline
            if end == 0 and key in self._open:
                return True
        return bool(self._open) or self.found < self.wanted

    def _begin(self, key: tuple[str, str], frame: Frame, end: int) -> None:
        """Starts the search for the start of a line that ends at this position."""
        self.found += 1
        self._open.add(key)
        self.start = frame.offset + end


def tail_offset(
    index: RunIndex, query: LogQuery, lines: int, most_bytes: int | None
) -> tuple[int, dict[str, int]]:
    """Returns an offset that is followed by at least the last `lines` lines, and how many bytes of each job
    were dropped before this offset."""
    while True:
        parts = index.parts()
        search = _TailSearch(wanted=lines, start=parts[-1].end if parts else 0, most_bytes=most_bytes)
        if lines == 0 or _go_back(index, parts, query, search):
            break
    dropped: dict[str, int] = {}
    for part in parts:
        if part.end <= search.start:
            for job, size in _dropped(part, query).items():
                dropped[job] = dropped.get(job, 0) + size
    return search.start, dropped


def _go_back(index: RunIndex, parts: Sequence[LogPart], query: LogQuery, search: _TailSearch) -> bool:
    """Reads the log backwards as far as needed. Returns False if a part was moved in the meantime."""
    for part in reversed(parts):
        if not _may_have(part, query):
            continue
        data = index.read(part)
        if data is None:
            if any(one == part for one in index.parts()):
                continue  # the part exists, but is damaged: it is left out
            return False
        for frame in reversed(data.frames):
            if _wants(frame, query) and not search.back(frame, data.text(frame)):
                return True
    return True


def tail_page(index: RunIndex, query: LogQuery, lines: int, most_bytes: int | None) -> list[LogEntry]:
    """See LogStore.tail."""
    start, dropped = tail_offset(index, query, lines, most_bytes)
    gaps = [
        LogEntry(id=str(start), offset=0, job=job, dropped_bytes=size, dropped="limit")
        for job, size in dropped.items()
    ]
    return [*gaps, *read_page(index, replace(query, after=start))]
