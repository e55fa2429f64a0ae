"""The logged rows of a replica: one object per row with its features and its prediction, in files of JSON
lines that a sink can load.

A sink loads each file once, so a file gets its final name only when it is complete: when it is large or old
enough, or when the replica ends.
"""

import json
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gridmill.domain.service_log import READY_FOLDER
from gridmill.domain.serving import RequestLog
from gridmill.serving.request import LINES, Request, is_stream

MOST_WAITING = 10_000
"""The largest number of rows that wait to be written. Further rows are counted as lost."""
COMPLETE_SECONDS = 60.0
"""After this time, a file is complete although it is small."""
LEFT_SECONDS = 300.0
"""After this time without a new row, the open file of another writer was left by a replica that ended."""
MOST_FILES = 10_000
"""The largest number of complete files that a replica keeps until the home takes them. The home lists all of
them at each look."""
_OWN = ("service", "version", "request_id", "request_row", "served_at")
"""The columns that the log adds to the features and the predictions."""


class RowLogWriter:
    """Collects the rows of answered requests, and writes them when the replica calls `flush`."""

    def __init__(
        self,
        settings: RequestLog,
        service: str,
        replica: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service, self._most_bytes = service, settings.file_bytes
        self._monotonic = monotonic
        self._kept_bytes = settings.file_bytes * settings.files
        self._folder = Path(settings.folder)
        self._counts_deleted = settings.is_transferred
        self._ready = ready_folder(settings)
        self._stem = f"{_prefix(settings)}-{replica}"
        self._open = self._folder / f"{self._stem}.part"
        self._rows: deque[str] = deque()
        self._since: float | None = None
        self.lost = 0
        # an earlier replica with this number was killed before it completed its file
        with suppress(OSError):
            self._complete()

    def add(self, request: Request, answer: bytes) -> None:
        """Add the rows of a request that `POST /predict` has answered with the body `answer`."""
        now = datetime.now(UTC).isoformat()
        for number, (row, prediction) in enumerate(_pairs(request, answer)):
            if len(self._rows) >= MOST_WAITING:
                self.lost += 1
                continue
            own = (self._service, request.version, request.request_id, number, now)
            self._rows.append(json.dumps(_line(row, prediction, dict(zip(_OWN, own, strict=True)))))

    def flush(self, *, ends: bool = False) -> None:
        """Append the waiting rows to the open file, and complete the file if it is large or old enough or if
        the replica ends. If the disk is full, the rows are counted as lost."""
        number = len(self._rows)
        try:
            if number:
                self._append("".join(f"{self._rows.popleft()}\n" for _ in range(number)).encode())
                number = 0
            is_old = self._since is not None and self._monotonic() - self._since >= COMPLETE_SECONDS
            if ends or is_old or (self._since is not None and self._size() >= self._most_bytes):
                self._complete()
        except OSError:
            self.lost += number
            # a part of a line may be written, and the next rows would continue it
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
    folder, prefix = Path(settings.folder), _prefix(settings)
    own = {f"{prefix}-{number}" for number in running}
    for path in folder.glob("rows-*.part"):
        with suppress(FileNotFoundError):  # its writer may complete it just now
            is_own = path.stem.rpartition("-")[0] == prefix
            if path.stem not in own and (is_own or time.time() - path.stat().st_mtime >= LEFT_SECONDS):
                _give_final_name(path, ready_folder(settings))
    if settings.writer:
        others = (one for one in folder.glob("rows-*.jsonl") if not one.name.startswith(f"{prefix}-"))
        for path in _above_limit(others, settings.file_bytes * settings.files):
            path.unlink(missing_ok=True)


def _prefix(settings: RequestLog) -> str:
    return f"rows-{settings.writer}" if settings.writer else "rows"


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


def _pairs(request: Request, answer: bytes) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield each row of a request with its prediction. Rows of JSON lines that had an error are left out."""
    for row, prediction in zip(_rows(request), predictions_of(answer), strict=False):
        # for a model that reads sequences, the last object is the row, and those before are its history
        last = row[-1] if isinstance(row, list) and row else row
        if isinstance(last, dict) and "error" not in prediction:
            yield last, prediction


def _rows(request: Request) -> Sequence[Any]:
    if request.objects is not None:
        return request.objects()
    body = request.body
    # one line with a sequence is a list too, but not a list of rows
    if request.content_type() not in LINES:
        content = json.loads(body) if _is_json(body) else []
        if isinstance(content, dict) and "rows" in content:
            content = content["rows"]
        return content if isinstance(content, list) else [content]
    return [json.loads(line) if _is_json(line) else None for line in body.splitlines() if line.strip()]


def _is_json(line: bytes) -> bool:
    with suppress(ValueError):
        json.loads(line)
        return True
    return False


def predictions_of(answer: bytes) -> Sequence[Mapping[str, Any]]:
    """Return the predictions in the body of an answer of `POST /predict`, as objects."""
    if is_stream(answer):
        from gridmill.serving.arrow_rows import objects_of_answer

        return objects_of_answer(answer)
    with suppress(ValueError):
        content = json.loads(answer)
        predictions: Sequence[Mapping[str, Any]] = content.get("predictions", [content])
        return predictions
    return [json.loads(line) for line in answer.splitlines()]


def _line(row: Mapping[str, Any], prediction: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row of the log. A feature with the name of another column gets the prefix `feature_`."""
    given = {name: value for name, value in prediction.items() if name not in ("not_finite", "features")}
    taken = {*own, *given}
    return {
        **{f"feature_{name}" if name in taken else name: one for name, one in row.items()},
        **given,
        **own,
    }
