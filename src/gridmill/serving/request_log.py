"""The request log of a replica: JSON lines in files of limited size. Bodies are written only if the order
allows it. The parent process of the replicas completes the files that killed replicas left."""

import json
import random
import time
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from gridmill.domain.service_log import REQUESTS
from gridmill.domain.serving import RequestLog
from gridmill.serving.log_files import MOST_WAITING, LineFiles, complete_left_files
from gridmill.serving.metrics import LOG_LOST, counted
from gridmill.serving.request import Answer, Request, is_stream
from gridmill.serving.row_log import RowLogWriter

COUNT_SECONDS, LEFT_FILES_SECONDS = 2.0, 60.0
"""The intervals at which the parent process counts what its replicas have lost, and looks for left files."""


class RequestLogWriter:
    """Collects lines, and writes them when the replica calls `flush`."""

    def __init__(self, settings: RequestLog, service: str, replica: int) -> None:
        self._settings = settings
        self._service = service
        self._folder = Path(settings.folder)
        self._stem = f"requests-{replica}"
        self._rows = RowLogWriter(settings, service, replica) if settings.rows else None
        # at another site, the lines are in files that become complete, as the rows are
        self._files = LineFiles(settings, replica, REQUESTS) if settings.writer else None
        self._lines: deque[str] = deque()
        self._lost = 0

    @property
    def lost(self) -> int:
        """The number of lines and rows that could not be written."""
        return self._lost + sum(one.lost for one in (self._rows, self._files) if one is not None)

    def add(self, request: Request, answer: Answer, body: bytes, seconds: float) -> None:
        """Add a line for an answered request, if the request is in the sample. `body` is the body of the
        answer before it was compressed."""
        if self._settings.fraction < 1 and random.random() >= self._settings.fraction:
            return
        if len(self._lines) >= MOST_WAITING:
            self._lost += 1
            return
        line: dict[str, object] = {
            "time": time.time(),
            "request_id": request.request_id,
            "traceparent": request.traceparent.decode(),
            "service": self._service,
            "version": request.version,
            "method": request.method,
            "path": request.path[:500],
            "status": answer.status,
            "rows": request.rows,
            "seconds": round(seconds, 6),
        }
        if self._settings.bodies:
            line["request"], line["answer"] = _texts(request, body)
        if self._files is not None:
            self._files.add(json.dumps(line))
        else:
            self._lines.append(json.dumps(line))
        if self._rows is not None and answer.status == 200 and request.path == "/predict":
            self._rows.add(request, body)

    def flush(self, *, ends: bool = False) -> None:
        """Append the waiting lines to the file. If the disk is full, they are counted as lost. `ends` means
        that the replica ends."""
        if self._rows is not None:
            self._rows.flush(ends=ends)
        if self._files is not None:
            self._files.flush(ends=ends)
        if not self._lines:
            return
        number = len(self._lines)
        text = "".join(f"{self._lines.popleft()}\n" for _ in range(number))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"{self._stem}.jsonl"
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
            if path.stat().st_size >= self._settings.file_bytes:
                path.rename(self._folder / f"{self._stem}-{time.time_ns()}.jsonl")
                self._delete_oldest()
        except OSError:
            self._lost += number

    def _delete_oldest(self) -> None:
        full = sorted(self._folder.glob(f"{self._stem}-*.jsonl"))
        for path in full[: max(0, len(full) - self._settings.files)]:
            path.unlink(missing_ok=True)


class RequestLogUpkeep:
    """The work of the parent process of a service for the request log. `lost` is the number of lines and rows
    that its replicas have lost. Times are seconds of the monotonic clock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._complete_at = self._count_at = 0.0
        self.lost = 0

    def look(self, now: float, log: RequestLog | None, running: Collection[int]) -> None:
        """Complete left files and count what was lost, each from time to time."""
        if log is None:
            return
        if now >= self._count_at:
            self._count_at = now + COUNT_SECONDS
            self.lost = int(counted(self._folder, LOG_LOST))
        if now >= self._complete_at:
            self._complete_at = now + LEFT_FILES_SECONDS
            self.complete(log, running)

    def complete(self, log: RequestLog | None, running: Collection[int]) -> None:
        """Complete the files of all replicas that do not run."""
        if log is not None and (log.rows or log.writer):
            with suppress(OSError):  # the next look tries again
                complete_left_files(log, running)


def _texts(request: Request, answer: bytes) -> tuple[str, str]:
    """Return the bodies of a request and its answer. Arrow streams are written as JSON."""
    sent, got = request.body.decode("utf-8", "replace"), answer.decode("utf-8", "replace")
    if request.objects is not None:
        sent = json.dumps({"rows": request.objects()})
    if is_stream(answer):
        from gridmill.serving.arrow_rows import objects_of_answer

        got = json.dumps({"predictions": objects_of_answer(answer)})
    return sent, got
