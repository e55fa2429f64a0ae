"""The request log of a replica: JSON lines in files of limited size. Bodies are written only if the order
allows it. The parent process of the replicas completes the files that killed replicas left."""

import json
import random
import time
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from gridmill.domain.log_counts import REQUESTS, LogLoss, LogReport
from gridmill.domain.serving import RequestLog
from gridmill.serving.log_counts import LineCounts, counts_path, read_counts, save_metrics
from gridmill.serving.log_files import (
    MOST_WAITING,
    LineFiles,
    complete_left_files,
    open_path,
    written_in_part,
)
from gridmill.serving.request import Answer, Request, is_stream
from gridmill.serving.row_log import RowLogWriter
from gridmill.whole_lines import count_lines

COUNT_SECONDS, REPORT_SECONDS, LEFT_FILES_SECONDS = 2.0, 5.0, 60.0
"""The intervals at which the parent process counts what its replicas have logged and lost, reports the number
of logged lines, and looks for left files."""


class RequestLogWriter:
    """Collects lines, and writes them when the replica calls `flush`."""

    def __init__(
        self, settings: RequestLog, service: str, replica: int, counts_folder: Path | None = None
    ) -> None:
        """`counts_folder` is the folder of the service, in which the counts outlive a killed replica."""
        self._settings = settings
        self._service = service
        self._folder = Path(settings.folder)
        self._stem = f"requests-{replica}"
        self._rows = None
        if settings.rows:
            self._rows = RowLogWriter(settings, service, replica, counts_folder=counts_folder)
        # at another site, the lines are in files that become complete, as the rows are
        self._files = None
        if settings.writer:
            self._files = LineFiles(settings, replica, REQUESTS, counts_folder=counts_folder)
        else:
            counts = counts_path(counts_folder, REQUESTS, replica) if counts_folder is not None else None
            self._counts, self._open = LineCounts(counts), open_path(settings, REQUESTS, replica)
            with suppress(OSError):
                self._counts.begin(self._open)
                self._counts.settle(self._open, stays=True)
        self._lines: deque[str] = deque()

    @property
    def lost(self) -> int:
        """The number of lines and rows that could not be written."""
        plain = self._counts.lost if self._files is None else 0
        return plain + sum(one.lost for one in (self._rows, self._files) if one is not None)

    def add(self, request: Request, answer: Answer, body: bytes, seconds: float) -> None:
        """Add a line for an answered request, if the request is in the sample. `body` is the body of the
        answer before it was compressed."""
        if self._settings.fraction < 1 and random.random() >= self._settings.fraction:
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
            self._add(json.dumps(line))
        if self._rows is not None and answer.status == 200 and request.path == "/predict":
            self._rows.add(request, body)

    def flush(self, *, ends: bool = False) -> None:
        """Append the waiting lines to the file. If the disk is full, they are counted as lost. `ends` means
        that the replica ends."""
        if self._rows is not None:
            self._rows.flush(ends=ends)
        if self._files is not None:
            self._files.flush(ends=ends)
        if self._lines:
            self._append()

    def _add(self, line: str) -> None:
        self._counts.log()
        if len(self._lines) < MOST_WAITING:
            self._lines.append(line)
        else:
            self._counts.lose(LogLoss.QUEUE)

    def _append(self) -> None:
        number = len(self._lines)
        text = "".join(f"{self._lines.popleft()}\n" for _ in range(number))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._open.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError:
            written = written_in_part(self._open, self._counts)
            self._counts.append(written)
            self._counts.lose(LogLoss.DISK, number - written)
            return
        self._counts.append(number)
        with suppress(OSError):  # the next call tries again
            if self._open.stat().st_size >= self._settings.file_bytes:
                self._open.rename(self._folder / f"{self._stem}-{time.time_ns()}.jsonl")
                self._counts.complete()
                self._delete_oldest()

    def _delete_oldest(self) -> None:
        full = sorted(self._folder.glob(f"{self._stem}-*.jsonl"))
        for path in full[: max(0, len(full) - self._settings.files)]:
            lines = count_lines(path)
            path.unlink()
            self._counts.delete(lines)


class RequestLogUpkeep:
    """The work of the parent process of a service for the request log. `report` has the lines that its
    replicas have logged and lost; None if they logged nothing. Times are seconds of the monotonic clock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._complete_at = self._count_at = self._report_at = 0.0
        self._log: RequestLog | None = None
        self.report: LogReport | None = None

    @property
    def lost(self) -> int:
        """The number of lines and rows that the replicas have lost."""
        counts = self.report.counts.values() if self.report is not None else ()
        return sum(sum(one.lost.values()) for one in counts)

    def look(self, now: float, log: RequestLog | None, running: Collection[int]) -> None:
        """Complete left files and count what was logged and lost, each from time to time."""
        self._log = log or self._log
        if self._log is None:
            return
        if now >= self._count_at:
            self._count_at = now + COUNT_SECONDS
            self._count(now)
        if log is not None and now >= self._complete_at:
            self._complete_at = now + LEFT_FILES_SECONDS
            self.complete(log, running)

    def complete(self, log: RequestLog | None, running: Collection[int]) -> None:
        """Complete the files of all replicas that do not run."""
        log = log or self._log  # replicas of an order before may have logged
        if log is not None:
            with suppress(OSError):  # the next look tries again
                complete_left_files(log, running, self._folder)

    def end(self) -> None:
        """Count the lines for the last time, when all replicas have ended."""
        if self._log is not None:
            self.complete(self._log, ())
            self.report = read_counts(self._folder, self._log, is_last=True)
            if self.report is not None:
                save_metrics(self._folder, self.report)

    def _count(self, now: float) -> None:
        report = read_counts(self._folder, self._log)
        if report is None:
            return
        save_metrics(self._folder, report)
        # each new report is sent to the control node, so only lost lines are reported at once
        if self.report is None or report.lost != self.report.lost or now >= self._report_at:
            self._report_at = now + REPORT_SECONDS
            self.report = report


def _texts(request: Request, answer: bytes) -> tuple[str, str]:
    """Return the bodies of a request and its answer. Arrow streams are written as JSON."""
    sent, got = request.body.decode("utf-8", "replace"), answer.decode("utf-8", "replace")
    if request.objects is not None:
        sent = json.dumps({"rows": request.objects()})
    if is_stream(answer):
        from gridmill.serving.arrow_rows import objects_of_answer

        got = json.dumps({"predictions": objects_of_answer(answer)})
    return sent, got
