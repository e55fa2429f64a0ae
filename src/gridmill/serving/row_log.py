"""The logged rows of a replica: one object per row with its features and its prediction, in files of JSON
lines that a sink can load."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gridmill.domain.log_counts import LogLoss
from gridmill.domain.serving import RequestLog
from gridmill.serving.log_files import LineFiles
from gridmill.serving.request import LINES, Request, is_stream

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
        counts_folder: Path | None = None,
    ) -> None:
        self._service = service
        self._files = LineFiles(settings, replica, monotonic=monotonic, counts_folder=counts_folder)

    @property
    def lost(self) -> int:
        """The number of rows that could not be written or transferred in time."""
        return self._files.lost

    def add(self, request: Request, answer: bytes) -> None:
        """Add the rows of a request that `POST /predict` has answered with the body `answer`."""
        now = datetime.now(UTC).isoformat()
        try:
            predictions = [one for one in predictions_of(answer) if "error" not in one]
            pairs = tuple(_pairs(request, answer))
        except (ValueError, TypeError, AttributeError):
            # an answered request is never refused because of its log
            predictions, pairs = [{}] * (request.rows or 1), ()
        lines = []
        for number, (row, prediction) in enumerate(pairs):
            own = (self._service, request.version, request.request_id, number, now)
            lines.append(json.dumps(_line(row, prediction, dict(zip(_OWN, own, strict=True)))))
        self._files.add(*lines)
        if unreadable := len(predictions) - len(lines):
            self._files.counts.log(unreadable)
            self._files.counts.lose(LogLoss.UNREADABLE, unreadable)

    def flush(self, *, ends: bool = False) -> None:
        """Write the waiting rows. `ends` means that the replica ends."""
        self._files.flush(ends=ends)


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
