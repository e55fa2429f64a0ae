"""The files of a request log: lines of JSON in files that get their final name when they are complete.

A sink loads each file once, so a file gets its final name only when it is complete: when it is large or old
enough, or when the replica ends.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path

from gridmill.domain.service_log import READY_FOLDER, ROWS, is_complete_name, writer_in
from gridmill.domain.serving import RequestLog

MOST_WAITING = 10_000
"""The largest number of lines that wait to be written. Further lines are counted as lost."""
COMPLETE_SECONDS = 60.0
"""After this time, a file is complete although it is small."""
LEFT_SECONDS = 300.0
"""After this time without a new line, the open file of another writer was left by a replica that ended."""
MOST_FILES = 10_000
"""The largest number of complete files that a replica keeps until the home takes them. The home lists all of
them at each look."""


class LineFiles:
    """Collects lines of one kind (`rows` or `requests`), and writes them when the replica calls `flush`.
    `lost` is the number of lines that could not be written, or that were deleted before the home took
    them."""

    def __init__(
        self,
        settings: RequestLog,
        replica: int,
        kind: str = ROWS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_bytes, self._monotonic = settings.file_bytes, monotonic
        self._kept_bytes = settings.file_bytes * settings.files
        self._folder = Path(settings.folder)
        self._counts_deleted = settings.is_transferred
        self._ready = ready_folder(settings)
        self._stem = f"{_prefix(settings, kind)}-{replica}"
        self._open = self._folder / f"{self._stem}.part"
        self._lines: deque[str] = deque()
        self._since: float | None = None
        self.lost = 0
        # an earlier replica with this number was killed before it completed its file
        with suppress(OSError):
            self._complete()

    @property
    def is_full(self) -> bool:
        """Whether so many lines wait that the next one is lost."""
        return len(self._lines) >= MOST_WAITING

    def add(self, line: str) -> None:
        """Add a line without its line break."""
        if self.is_full:
            self.lost += 1
        else:
            self._lines.append(line)

    def flush(self, *, ends: bool = False) -> None:
        """Append the waiting lines to the open file, and complete the file if it is large or old enough or
        if the replica ends. If the disk is full, the lines are counted as lost."""
        number = len(self._lines)
        try:
            if number:
                self._append("".join(f"{self._lines.popleft()}\n" for _ in range(number)).encode())
                number = 0
            is_old = self._since is not None and self._monotonic() - self._since >= COMPLETE_SECONDS
            if ends or is_old or (self._since is not None and self._size() >= self._most_bytes):
                self._complete()
        except OSError:
            self.lost += number
            # a part of a line may be written, and the next lines would continue it
            with suppress(OSError):
                _cut_last_line(self._open)

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
            self._delete_oldest()

    def _delete_oldest(self) -> None:
        most_files = MOST_FILES if self._counts_deleted else None
        for path in _above_limit(self._ready.glob(f"{self._stem}-*.jsonl"), self._kept_bytes, most_files):
            with suppress(FileNotFoundError):  # the home may have taken it just now
                lost = path.read_bytes().count(b"\n") if self._counts_deleted else 0
                path.unlink()
                self.lost += lost


def ready_folder(settings: RequestLog) -> Path:
    """Return the folder of the complete files."""
    folder = Path(settings.folder)
    return folder / READY_FOLDER if settings.is_transferred else folder


def complete_left_files(settings: RequestLog, running: Collection[int]) -> None:
    """Complete the open files of replicas that do not run. A killed replica leaves one, and perhaps no other
    replica gets its number. `running` are the numbers of the other replicas.

    An open file of another writer is completed if nothing was written to it for LEFT_SECONDS, because a
    replica that runs completes its file earlier. Of the complete files of all other writers, the newest are
    kept, within the limit of one replica. Raises OSError.
    """
    folder = Path(settings.folder)
    for path in folder.glob("*-*.part"):
        with suppress(FileNotFoundError):  # its writer may complete it just now
            is_running = path.stem.rpartition("-")[2] in map(str, running)
            is_own = writer_in(path.name) == settings.writer
            is_left = time.time() - path.stat().st_mtime >= LEFT_SECONDS
            if not is_running if is_own else is_left:
                _give_final_name(path, ready_folder(settings))
    if settings.writer:
        others = (one for one in folder.glob("*-*.jsonl") if writer_in(one.name) not in ("", settings.writer))
        for path in _above_limit(filter(_is_complete, others), settings.file_bytes * settings.files):
            path.unlink(missing_ok=True)


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
    _cut_last_line(path)
    if path.stat().st_size:
        folder.mkdir(exist_ok=True)
        path.rename(folder / f"{path.stem}-{time.time_ns()}.jsonl")
    else:
        path.unlink()


def _cut_last_line(path: Path) -> None:
    """Remove what follows the last line break. A replica that is killed may leave a part of a line."""
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        while size:
            start = max(0, size - (1 << 16))
            file.seek(start)
            found = file.read(size - start).rfind(b"\n")
            if found >= 0:
                file.truncate(start + found + 1)
                return
            size = start
        file.truncate(0)
