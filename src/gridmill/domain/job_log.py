"""The log of a run: what its jobs wrote, as texts in the order in which they arrived, and its limits.

Every byte of text has an offset in its run's log. A stream of texts is put together to lines by `lines_of`.
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
"""Text of one job of a run that is kept by default: the first half of it and the last."""
HOME_LOG_BYTES = 8 * GIB
"""Size on the disk of all logs of a home by default."""


MOST_TEXT_BYTES = 384 * KIB
"""The most bytes of UTF-8 of a text: 128 KiB of a job's output have so many if each is replaced by U+FFFD."""


def unpacked(packed: bytes, size: int) -> bytes:
    """A text that was compressed by zlib, at most `size` bytes of it; nothing if it is damaged."""
    try:
        return zlib.decompressobj().decompress(packed, size) if packed else b""
    except zlib.error:
        return b""


def packed_of(body: Mapping[str, object]) -> tuple[bytes, int]:
    """The compressed text in the body of a LOG event, and its own size; nothing if there is none, or if its
    size cannot be right."""
    coded, size = body.get("packed"), body.get("size")
    if not isinstance(size, int) or not 0 < size <= MOST_TEXT_BYTES:
        return b"", 0
    try:
        packed = coded if isinstance(coded, bytes) else b64decode(str(coded), validate=True)
    except ValueError:
        return b"", 0
    return packed, size if packed else 0


def text_of(body: Mapping[str, object]) -> str:
    """The text in the body of a LOG event."""
    packed, size = packed_of(body)
    return unpacked(packed, size).decode("utf-8", "replace") if packed else str(body.get("text", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """`job_bytes`: text of one job in one run that is kept. `home_bytes`: size of all logs on the disk."""

    job_bytes: int = JOB_LOG_BYTES
    home_bytes: int = HOME_LOG_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """A text as a pod reports it. `number` counts the events of its pod: a text is kept once.

    `packed`: the text is not in `text` but is these bytes, compressed by zlib, and has `packed_size` bytes of
    UTF-8 itself.
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
    """The text of a record as UTF-8."""
    if record.packed:
        return unpacked(record.packed, record.packed_size)
    return record.text.encode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """A text of the log. It ends with a newline unless its last line goes on in the next text of the same
    attempt and stream, or never ended.

    `offset` is where the text begins in the log of the run, in bytes of UTF-8; `id` is where to go on
    behind it. `stream` is `out`, `err`, or `pod` for what Gridmill says. Each line of a gang or of a command
    on every node is shown with `mark` in front. `dropped_bytes`: so much text of the job is missing here
    (`text` is empty then), for the reason `dropped`: `limit` or `damaged`.
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
    """A line without its newline. `note`: the line is from Gridmill, not from a job."""

    job: str
    text: str
    mark: str = ""
    stream: str = ""
    note: bool = False


def offset_of(after: str) -> int:
    """The offset that the `id` of an entry means; 0 for an empty one. Raises InputError."""
    if after and not (after.isascii() and after.isdecimal() and len(after) <= 18):
        raise InputError(
            f"{after!r} is not an offset in a log",
            place="after",
            hint="Use the `id` of an entry from a response or a number of bytes, or leave it out to begin"
            " with the first entry.",
        )
    return int(after) if after else 0


def dropped_note(entry: LogEntry) -> str:
    """A sentence about text that is missing."""
    amount, of = show_bytes(entry.dropped_bytes), f" of {entry.job}" if entry.job else ""
    if entry.dropped == "damaged":
        return f"[{amount} of the log{of} are damaged on the disk and cannot be shown]"
    return f"[{amount} of the log{of} were deleted here: the log was larger than its limit]"


@dataclass(slots=True)
class LineAssembly:
    """Puts texts together to lines. Lines that are not complete yet are kept until they are."""

    longest: int | None = None
    """Characters of a line that are kept at most; None: all. How many are left out is said."""
    partial: dict[tuple[str, str], "_Partial"] = field(default_factory=dict)

    def take(self, entry: LogEntry) -> Iterator[LogLine]:
        """The lines that end with this entry. Only a newline ends a line."""
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
        """Lines that no newline ended."""
        yield from [begun.line() for begun in self.partial.values()]
        self.partial.clear()


@dataclass(slots=True)
class _Partial:
    """A line as far as it has come."""

    entry: LogEntry
    texts: list[str] = field(default_factory=list)
    size: int = 0
    left_out: int = 0

    def add(self, text: str, longest: int | None) -> None:
        """Add the next text."""
        room = len(text) if longest is None else max(0, longest - self.size)
        self.texts.append(text[:room])
        self.size += len(text[:room])
        self.left_out += len(text[room:])

    def line(self) -> LogLine:
        """The line."""
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
    """The last lines, and before them Gridmill's note on missing ones."""
    last, notes = deque[LogLine](maxlen=count), list[LogLine]()
    for line in lines:
        (notes if line.note else last).append(line)
    return [*notes, *last]


def lines_of(entries: Iterable[LogEntry], *, longest: int | None = None) -> Iterator[LogLine]:
    """The lines of a log, each as soon as it is complete; at the end the incomplete ones. A line with
    more than `longest` characters is cut after these."""
    lines = LineAssembly(longest=longest)
    for entry in entries:
        yield from lines.take(entry)
    yield from lines.end()
