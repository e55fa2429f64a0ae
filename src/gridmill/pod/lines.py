"""From the bytes of a job's pipes to log texts of whole lines and to reported events."""

import json
import math
from typing import Any

from gridmill.model.amounts import KIB
from gridmill.model.event import EventType

FLUSH_SECONDS = 0.02
FLUSH_BYTES = 32 * KIB
PROGRESS_SECONDS = 0.1


class LineBuffer:
    """Gathers whole lines. A line longer than FLUSH_BYTES is cut; bytes that are no UTF-8 are replaced."""

    def __init__(self) -> None:
        self._partial = bytearray()

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes, each ending in a newline unless cut."""
        self._partial += data
        if b"\n" not in data and len(self._partial) <= FLUSH_BYTES:
            return []
        *whole, rest = self._partial.split(b"\n")
        lines = [piece for line in whole for piece in _pieces(bytes(line) + b"\n")]
        *cut, last = _pieces(bytes(rest)) or [b""]
        self._partial = bytearray(last)
        return [line.decode("utf-8", "replace") for line in (*lines, *cut)]

    def end(self) -> list[str]:
        """What is left at the end of the stream."""
        rest, self._partial = bytes(self._partial), bytearray()
        return [rest.decode("utf-8", "replace")] if rest else []


def _pieces(line: bytes) -> list[bytes]:
    pieces = []
    while len(line) > FLUSH_BYTES:
        cut = _boundary(line, FLUSH_BYTES)
        pieces.append(line[:cut])
        line = line[cut:]
    return [*pieces, line] if line else pieces


def _boundary(line: bytes, cut: int) -> int:
    """The cut moved back to the start of a UTF-8 character."""
    for back in range(4):
        if line[cut - back] & 0xC0 != 0x80:
            return cut - back
    return cut


class LogStream:
    """Gathers lines into texts: a text is due FLUSH_SECONDS after its first line, or when it is large."""

    def __init__(self) -> None:
        self.due: float | None = None
        self._lines = LineBuffer()
        self._texts: list[str] = []
        self._size = 0

    def feed(self, data: bytes, now: float) -> None:
        """Take bytes; `due` says when a text is to be taken."""
        self._add(self._lines.feed(data), now)

    def end(self, now: float) -> None:
        """The stream has ended: its last, unfinished line is a line."""
        self._add(self._lines.end(), now)

    def _add(self, lines: list[str], now: float) -> None:
        self._texts += lines
        self._size += sum(map(len, lines))
        if lines and self.due is None:
            self.due = now + FLUSH_SECONDS
        if self._size >= FLUSH_BYTES:
            self.due = now

    def take(self) -> list[str]:
        """The gathered texts, each at most about FLUSH_BYTES."""
        texts: list[str] = []
        for line in self._texts:
            if texts and len(texts[-1]) + len(line) <= FLUSH_BYTES and texts[-1].endswith("\n"):
                texts[-1] += line
            else:
                texts.append(line)
        self._texts, self._size, self.due = [], 0, None
        return texts


def parse_event(line: str) -> tuple[EventType, dict[str, Any]] | None:
    """A job's report (`{"type": "progress"|"metric"|"log", ...}`); None for a blank line.

    What is no report becomes a log text of stream `pod`, and so does a metric that is not finite.
    """
    if not line.strip():
        return None
    try:
        report = json.loads(line)
        return _REPORTS[report["type"]](report)
    except (ValueError, TypeError, KeyError, RecursionError):
        return _log(line)


def _log(text: str) -> tuple[EventType, dict[str, Any]]:
    return EventType.LOG, {"stream": "pod", "text": text}


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("not a number")
    return float(value)


def _progress(report: dict[str, Any]) -> tuple[EventType, dict[str, Any]]:
    total = report.get("total")
    body = {
        "done": _number(report["done"]),
        "total": None if total is None else _number(total),
        "unit": str(report.get("unit") or ""),
        "note": str(report.get("note") or ""),
    }
    if phase := report.get("phase"):
        body["phase"] = str(phase)
    return EventType.PROGRESS, body


def _metric(report: dict[str, Any]) -> tuple[EventType, dict[str, Any]]:
    step = report.get("step")
    value, name = _number(report["value"]), str(report["name"])
    if not math.isfinite(value):
        return _log(f"metric {name} is {value}" + ("\n" if step is None else f" at step {step}\n"))
    return EventType.METRIC, {"name": name, "value": value, "step": None if step is None else _number(step)}


def _text(report: dict[str, Any]) -> tuple[EventType, dict[str, Any]]:
    return _log(str(report["text"]))


_REPORTS = {"progress": _progress, "metric": _metric, "log": _text}
