"""The files of a request log: lines of JSON in files that get their final name when they are complete.

A sink loads each file once, so a file gets its final name only when it is complete: when it is large or old
enough, or when the replica ends.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path

from gridmill.domain.log_counts import KINDS, REQUESTS, ROWS, LogLoss, kind_of
from gridmill.domain.service_log import READY_FOLDER, is_complete_name, writer_in
from gridmill.domain.serving import RequestLog
from gridmill.serving.log_counts import LineCounts, counts_path
from gridmill.whole_lines import count_lines, cut_last_line

MOST_WAITING = 10_000
"""The largest number of lines that wait to be written. Further lines are counted as lost."""
COMPLETE_SECONDS = 60.0
"""After this time, a file is complete although it is small."""
COMPLETE_SOON_SECONDS = 15.0
"""The same for a file that the home takes, because a machine that ends without notice loses the lines that
the home has not taken. While FEW_FILES or more files wait, the home does not take them, and files are
complete after COMPLETE_SECONDS, so that a long separation does not reach the limit of files earlier."""
FEW_FILES = 20
LEFT_SECONDS = 300.0
"""After this time without a new line, the open file of another writer was left by a replica that ended."""
MOST_FILES = 10_000
"""The largest number of complete files that a replica keeps until the home takes them. The home lists all of
them at each look."""


class LineFiles:
    """Collects lines of one kind (`rows` or `requests`), and writes them when the replica calls `flush`.
    Lines that are lost are counted in `counts`."""

    def __init__(
        self,
        settings: RequestLog,
        replica: int,
        kind: str = ROWS,
        monotonic: Callable[[], float] = time.monotonic,
        counts_folder: Path | None = None,
    ) -> None:
        """`counts_folder` is the folder of the service, in which the counts outlive a killed replica."""
        self._most_bytes, self._monotonic = settings.file_bytes, monotonic
        self._kept_bytes = settings.file_bytes * settings.files
        self._folder = Path(settings.folder)
        self._is_transferred = settings.is_transferred
        self._ready = ready_folder(settings)
        self._stem = f"{_prefix(settings, kind)}-{replica}"
        self._open = open_path(settings, kind, replica)
        self._lines: deque[str] = deque()
        self._since: float | None = None
        self._waiting_files = 0
        self.counts = LineCounts(counts_path(counts_folder, kind, replica) if counts_folder else None)
        # an earlier replica with this number was killed before it completed its file
        with suppress(OSError):
            self.counts.settle(self._open)
            self._complete()

    @property
    def lost(self) -> int:
        """The number of lines that could not be written, or that were deleted before the home took them."""
        return self.counts.lost + (self.counts.deleted if self._is_transferred else 0)

    def add(self, *lines: str) -> None:
        """Add lines without their line breaks. If too many lines wait to be written, the further ones are
        lost."""
        self.counts.log(len(lines))
        room = max(0, MOST_WAITING - len(self._lines))
        self._lines.extend(lines[:room])
        if len(lines) > room:
            self.counts.lose(LogLoss.QUEUE, len(lines) - room)

    def flush(self, *, ends: bool = False) -> None:
        """Append the waiting lines to the open file, and complete the file if it is large or old enough or
        if the replica ends. If the disk is full, the lines are counted as lost."""
        try:
            if self._lines:
                self._write()
            is_old = self._since is not None and self._monotonic() - self._since >= self._complete_seconds()
            if ends or is_old or (self._since is not None and self._size() >= self._most_bytes):
                self._complete()
        except OSError:
            pass  # what is lost is counted; the next call completes the file

    def _complete_seconds(self) -> float:
        is_soon = self._is_transferred and self._waiting_files < FEW_FILES
        return COMPLETE_SOON_SECONDS if is_soon else COMPLETE_SECONDS

    def _write(self) -> None:
        number = len(self._lines)
        content = "".join(f"{self._lines.popleft()}\n" for _ in range(number)).encode()
        try:
            self._append(content)
        except OSError:
            written = written_in_part(self._open, self.counts)
            self.counts.append(written)
            self.counts.lose(LogLoss.DISK, number - written)
            raise
        self.counts.append(number)

    def _append(self, content: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._open.open("ab") as file:
            file.write(content)
        if self._since is None:
            self._since = self._monotonic()

    def _size(self) -> int:
        return self._open.stat().st_size

    def _complete(self) -> None:
        """Give the open file its final name, without a last line that is not whole, and delete the oldest
        files above the limit."""
        self._since = None
        if self._open.exists():
            _give_final_name(self._open, self._ready)
            self.counts.complete()
            self._delete_oldest()

    def _delete_oldest(self) -> None:
        most_files = MOST_FILES if self._is_transferred else None
        waiting = tuple(self._ready.glob(f"{self._stem}-*.jsonl"))
        self._waiting_files = len(waiting)
        for path in _above_limit(waiting, self._kept_bytes, most_files):
            with suppress(FileNotFoundError):  # the home may have taken it just now
                lines = count_lines(path)
                path.unlink()
                self.counts.delete(lines)


def written_in_part(open_file: Path, counts: LineCounts) -> int:
    """Return the number of lines that were written before an error of the disk. A part of a line is removed,
    because the next lines would continue it."""
    with suppress(OSError):
        cut_last_line(open_file)
        return max(0, count_lines(open_file) - counts.opened)
    return 0


def open_path(settings: RequestLog, kind: str, replica: int | str) -> Path:
    """Return the file to which a replica appends lines of one kind."""
    ending = "jsonl" if _is_plain(settings, kind) else "part"
    return Path(settings.folder) / f"{_prefix(settings, kind)}-{replica}.{ending}"


def _is_plain(settings: RequestLog, kind: str) -> bool:
    """Return whether replicas append lines of this kind to a file that keeps its name."""
    return kind == REQUESTS and not settings.writer


def ready_folder(settings: RequestLog) -> Path:
    """Return the folder of the complete files."""
    folder = Path(settings.folder)
    return folder / READY_FOLDER if settings.is_transferred else folder


def complete_left_files(
    settings: RequestLog, running: Collection[int], counts_folder: Path | None = None
) -> None:
    """Complete the open files of replicas that do not run. A killed replica leaves one, and perhaps no other
    replica gets its number. `running` are the numbers of the other replicas. What the killed replicas have
    lost is counted in `counts_folder`.

    An open file of another writer is completed if nothing was written to it for LEFT_SECONDS, because a
    replica that runs completes its file earlier. Of the complete files of all other writers, the newest are
    kept, within the limit of one replica. Raises OSError.
    """
    folder = Path(settings.folder)
    if counts_folder is not None:
        for kind in KINDS:
            _settle(settings, kind, counts_folder, running)
    for path in folder.glob("*-*.part"):
        with suppress(FileNotFoundError):  # its writer may complete it just now
            is_running = path.stem.rpartition("-")[2] in map(str, running)
            is_own = writer_in(path.name) == settings.writer
            is_left = time.time() - path.stat().st_mtime >= LEFT_SECONDS
            if not is_running if is_own else is_left:
                _give_final_name(path, ready_folder(settings))
    if settings.writer:
        others = [one for one in folder.glob("*-*.jsonl") if writer_in(one.name) not in ("", settings.writer)]
        for path in _above_limit(filter(_is_complete, others), settings.file_bytes * settings.files):
            _delete_counted(path, counts_folder)


def _settle(settings: RequestLog, kind: str, counts_folder: Path, running: Collection[int]) -> None:
    """Count what the replicas that do not run have lost of one kind of lines."""
    for path in counts_folder.glob(f"log-{kind}-*.counts"):
        number = path.stem.rpartition("-")[2]
        if number not in map(str, running):
            counts = LineCounts(path)
            counts.settle(open_path(settings, kind, number), stays=_is_plain(settings, kind))
            counts.close()


def _delete_counted(path: Path, counts_folder: Path | None) -> None:
    """Delete a file of an earlier writer, whose lines are counted with those of this one."""
    with suppress(FileNotFoundError):
        lines = count_lines(path)
        path.unlink()
        if counts_folder is not None:
            counts = LineCounts(counts_path(counts_folder, kind_of(path.name), "earlier"))
            counts.delete(lines)
            counts.close()


def _is_complete(path: Path) -> bool:
    return is_complete_name(path.name)


def _prefix(settings: RequestLog, kind: str) -> str:
    return f"{kind}-{settings.writer}" if settings.writer else kind


def _above_limit(paths: Iterable[Path], most_bytes: int, most_files: int | None = None) -> list[Path]:
    """Return the oldest files, without which the others have at most `most_bytes` bytes and are at most
    `most_files`."""
    above, kept, number = [], 0, 0
    for path in sorted(paths, key=_completed_at, reverse=True):
        with suppress(FileNotFoundError):
            kept, number = kept + path.stat().st_size, number + 1
            if kept > most_bytes or (most_files is not None and number > most_files):
                above.append(path)
    return above


def _completed_at(path: Path) -> tuple[int, str]:
    """Return the time at which a file was completed, which is the last part of its name."""
    last = path.stem.rpartition("-")[2]
    return (int(last) if last.isdigit() else 0, path.name)


def _give_final_name(path: Path, folder: Path) -> None:
    cut_last_line(path)
    if path.stat().st_size:
        folder.mkdir(exist_ok=True)
        path.rename(folder / f"{path.stem}-{time.time_ns()}.jsonl")
    else:
        path.unlink()
