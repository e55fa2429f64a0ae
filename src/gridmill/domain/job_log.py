"""This module has the log of a run (the output of its jobs, as texts in the order in which they arrived) and
the limits of logs.

Every byte of text has an offset in the log of its run. `lines_of` joins the texts of an output stream to
lines.
"""

import zlib
from base64 import b64decode
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from gridmill.domain.amounts import GIB, KIB, MIB, show_bytes
from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError

JOB_LOG_BYTES = 256 * MIB
"""The default limit of the log text of one job of a run, of which Gridmill stores the first half and the
last half."""
HOME_LOG_BYTES = 8 * GIB
"""The default limit of the disk space of all logs of a home."""


MOST_TEXT_BYTES = 384 * KIB
"""The largest size of a text in bytes of UTF-8: 128 KiB of a job's output have this size if every byte is
replaced by U+FFFD."""
_MOST_OVERHEAD = KIB


def unpacked(packed: bytes, size: int) -> bytes:
    """Decompress a text that was compressed by zlib, and return at most `size` bytes. The result is empty if
    the compressed text is damaged."""
    try:
        return zlib.decompressobj().decompress(packed, size) if packed else b""
    except zlib.error:
        return b""


def packed_of(body: Mapping[str, object]) -> tuple[bytes, int]:
    """Return the compressed text in the body of a LOG event, and its uncompressed size. The returned text is
    empty and its size is 0 if the body has no compressed text, or if the size in it is implausible.

    The limits of logs apply to the uncompressed size, so a size is implausible if the compressed text is
    much larger.
    """
    coded, size = body.get("packed"), body.get("size")
    if not isinstance(size, int) or not 0 < size <= MOST_TEXT_BYTES:
        return b"", 0
    try:
        packed = coded if isinstance(coded, bytes) else b64decode(str(coded), validate=True)
    except ValueError:
        return b"", 0
    if not 0 < len(packed) <= size + size // 4 + _MOST_OVERHEAD:
        return b"", 0
    return packed, size


def text_of(body: Mapping[str, object]) -> str:
    """Return the text in the body of a LOG event."""
    packed, size = packed_of(body)
    return unpacked(packed, size).decode("utf-8", "replace") if packed else str(body.get("text", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """The limits of the log texts that Gridmill stores. `job_bytes` limits the text that is stored for one
    job in one run. `home_bytes` limits the disk space of all logs of the home."""

    job_bytes: int = JOB_LOG_BYTES
    home_bytes: int = HOME_LOG_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """A log text as a pod reports it. `number` is the number of the text among the events of its pod, so
    that each text is stored only once.

    If `packed` is set, `text` is empty. `packed` is the text compressed by zlib, and `packed_size` is the
    size of the uncompressed text in bytes of UTF-8.
    """

    run_id: str
    job: str
    attempt_id: str
    number: int
    time: float
    stream: str
    text: str
    mark: str = ""
    packed: bytes = b""
    packed_size: int = 0


def content_of(record: LogRecord) -> bytes:
    """Return the text of a log record as UTF-8."""
    if record.packed:
        return unpacked(record.packed, record.packed_size)
    return record.text.encode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One text in the log of a run. The text ends with a newline unless its last line continues in the next
    text of the same attempt and stream, or was never completed.

    `offset` is the position of the text in the log of the run, in bytes of UTF-8. `id` is the position from
    which a reader continues after this text. `stream` is `out`, `err`, or `pod` for messages of Gridmill.
    For a gang, or for a command on every node, each line is shown with `mark` as a prefix. If
    `dropped_bytes` is set, this many bytes of the job's text are missing at this position (and `text` is
    empty), for the reason `dropped` (either `limit` or `damaged`).
    """

    id: str
    offset: int
    time: float = 0.0
    job: str = ""
    attempt_id: str = ""
    stream: str = ""
    text: str = ""
    mark: str = ""
    dropped_bytes: int = 0
    dropped: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a log without its newline. `note` is true if the line is from Gridmill, and not from a
    job."""

    job: str
    text: str
    mark: str = ""
    stream: str = ""
    note: bool = False


def offset_of(after: str) -> int:
    """Return the offset in the `id` of a log entry; 0 for an empty id. Raises InputError."""
    if after and not (after.isascii() and after.isdecimal() and len(after) <= 18):
        raise InputError(
            f"{after!r} is not an offset in a log",
            place="after",
            hint="Use the `id` of an entry from a response or a number of bytes, or leave it out to begin"
            " with the first entry.",
        )
    return int(after) if after else 0


def dropped_note(entry: LogEntry) -> str:
    """Return a sentence about log text that is missing."""
    amount, of = show_bytes(entry.dropped_bytes), f" of {entry.job}" if entry.job else ""
    if entry.dropped == "damaged":
        return f"[{amount} of the log{of} are damaged and cannot be shown]"
    return f"[{amount} of the log{of} were deleted here: the log was larger than its limit]"


@dataclass(slots=True)
class LineAssembly:
    """An object that joins the texts of a log to lines. An incomplete line is held until it is complete."""

    longest: int | None = None
    """The largest number of characters that are returned of a line, or None to return all of them; a
    shortened line shows how many characters were omitted."""
    partial: dict[tuple[str, str], "_Partial"] = field(default_factory=dict)

    def take(self, entry: LogEntry) -> Iterator[LogLine]:
        """Return the lines that become complete when this log entry is added. Only a newline character ends
        a line."""
        if entry.dropped_bytes:
            yield LogLine(job=entry.job, text=dropped_note(entry), note=True)
            return
        key = (entry.attempt_id, entry.stream)
        head, newline, rest = entry.text.partition("\n")
        if not newline:
            if head:
                self.partial.setdefault(key, _Partial(entry)).add(head, self.longest)
            return
        begun = self.partial.pop(key, None) or _Partial(entry)
        begun.add(head, self.longest)
        yield begun.line()
        *whole, last = rest.split("\n")
        yield from (_whole(entry, text, self.longest) for text in whole)
        if last:
            self.partial[key] = _Partial(entry)
            self.partial[key].add(last, self.longest)

    def end(self) -> Iterator[LogLine]:
        """Return the remaining lines, which have no newline at their end."""
        yield from [begun.line() for begun in self.partial.values()]
        self.partial.clear()


@dataclass(slots=True)
class _Partial:
    """A line of a log that is not complete yet."""

    entry: LogEntry
    texts: list[str] = field(default_factory=list)
    size: int = 0
    left_out: int = 0

    def add(self, text: str, longest: int | None) -> None:
        """Add the next text to the incomplete line."""
        room = len(text) if longest is None else max(0, longest - self.size)
        self.texts.append(text[:room])
        self.size += len(text[:room])
        self.left_out += len(text[room:])

    def line(self) -> LogLine:
        """Return the line with the text that has arrived so far."""
        more = f" … ({self.left_out:,} more characters)" if self.left_out else ""
        text = "".join(self.texts) + more
        entry = self.entry
        return LogLine(job=entry.job, text=text, mark=entry.mark, stream=entry.stream)


def _whole(entry: LogEntry, text: str, longest: int | None) -> LogLine:
    if longest is not None and len(text) > longest:
        partial = _Partial(entry)
        partial.add(text, longest)
        return partial.line()
    return LogLine(job=entry.job, text=text, mark=entry.mark, stream=entry.stream)


def last_lines(lines: Iterable[LogLine], count: int) -> list[LogLine]:
    """Return the last lines of a log, at most `count` of them, and before these lines the notes of Gridmill
    about missing lines."""
    last, notes = deque[LogLine](maxlen=count), list[LogLine]()
    for line in lines:
        (notes if line.note else last).append(line)
    return [*notes, *last]


def lines_of(entries: Iterable[LogEntry], *, longest: int | None = None) -> Iterator[LogLine]:
    """Return the lines of a log. Each line is returned as soon as it is complete; incomplete lines are
    returned at the end. If a line has more than `longest` characters, it is shortened."""
    lines = LineAssembly(longest=longest)
    for entry in entries:
        yield from lines.take(entry)
    yield from lines.end()
