"""One running attempt: its pipes, its logs, its reported events, its limits, and the steps that are still to
do.

The bytes from a job's pipes are split into log texts of complete lines and into reported events.
"""

import fcntl
import json
import math
import os
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from gridmill.domain.amounts import KIB, MIB
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import JobKind
from gridmill.domain.masking import Masking
from gridmill.domain.pod_protocol import AttemptOrder, EventType
from gridmill.pod.cgroups import AttemptGroup
from gridmill.pod.disk_guard import AttemptDisk
from gridmill.pod.limits import AttemptMeter
from gridmill.pod.outcome import was_terminated
from gridmill.pod.outputs import OutputCollection
from gridmill.pod.prefork import PreforkedProcess
from gridmill.pod.service_files import ServiceFiles
from gridmill.pod.small_spares import SmallSpare

FLUSH_SECONDS = 0.02
FLUSH_BYTES = 32 * KIB
TEXT_BYTES = 128 * KIB
"""The largest size of a log text in bytes."""
PACK_BYTES = 8 * KIB
"""Log texts with at least this many bytes are compressed once, in this module. The journal, the link and the
log files use the compressed texts as they are."""
_LEVEL = 1
PROGRESS_SECONDS = 0.1


class LineBuffer:
    """Collects bytes until lines are complete. A line longer than FLUSH_BYTES is cut. Bytes that are not
    UTF-8 are replaced."""

    def __init__(self) -> None:
        self._partial = bytearray()

    def feed(self, data: bytes) -> list[str]:
        """Returns the lines that `data` completes. Each line ends with a newline, unless the line was
        cut."""
        self._partial += data
        if b"\n" not in data and len(self._partial) <= FLUSH_BYTES:
            return []
        *whole, rest = self._partial.split(b"\n")
        lines = [piece for line in whole for piece in _pieces(bytes(line) + b"\n")]
        *cut, last = _pieces(bytes(rest)) or [b""]
        self._partial = bytearray(last)
        return [line.decode("utf-8", "replace") for line in (*lines, *cut)]

    def end(self) -> list[str]:
        """Returns the unfinished line at the end of the stream."""
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
    """Returns the position of the cut, moved back to the start of a UTF-8 character."""
    for back in range(4):
        if line[cut - back] & 0xC0 != 0x80:
            return cut - back
    return cut


class LogStream:
    """Collects the lines of a job's output into log texts. A text is sent FLUSH_SECONDS after its first
    line, or earlier if the text is large.

    The class does not process single lines, because jobs may write millions of lines in a second. A line
    longer than TEXT_BYTES is split into several texts. Each sequence of bytes that is not UTF-8 is replaced
    with U+FFFD.
    """

    def __init__(self) -> None:
        self.due: float | None = None
        self._data = bytearray()
        self._whole = 0
        """The number of bytes at the beginning of the data that are whole lines."""

    def feed(self, data: bytes, now: float) -> None:
        """Adds bytes to the text. `due` is the time at which the text must be sent."""
        newline = data.rfind(b"\n")
        if newline >= 0:
            self._whole = len(self._data) + newline + 1
        self._data += data
        if self._whole and self.due is None:
            self.due = now + FLUSH_SECONDS
        if self._whole >= FLUSH_BYTES or len(self._data) > TEXT_BYTES:
            self.due = now

    def end(self, now: float) -> None:
        """Marks the end of the stream, so that the last, unfinished line counts as a line."""
        self._whole = len(self._data)
        if self._data:
            self.due = now

    def take(self) -> list[str]:
        """Returns the collected texts, each of at most TEXT_BYTES bytes. A text contains complete lines, or
        a part of a line that is longer."""
        texts: list[str] = []
        data, begin = bytes(self._data), 0
        while begin < self._whole or len(data) - begin > TEXT_BYTES:
            end = self._cut(data, begin)
            texts.append(data[begin:end].decode("utf-8", "replace"))
            begin = end
        del self._data[:begin]
        self._whole, self.due = 0, None
        return texts

    def _cut(self, data: bytes, begin: int) -> int:
        """Returns the end position of the text that starts at `begin`."""
        if begin < self._whole <= begin + TEXT_BYTES:
            return self._whole
        newline = data.rfind(b"\n", begin, begin + TEXT_BYTES)
        return newline + 1 if newline >= 0 else _boundary(data, begin + TEXT_BYTES)


ReportedEvent: TypeAlias = tuple[EventType, dict[str, Any]]


def parse_event(line: str) -> ReportedEvent | None:
    """Converts a report line of a job (`{"type": "progress"|"metric"|"log", ...}`) into an event. Returns
    None for a blank line.

    A line that is not a report becomes a log text of the stream `pod`. A metric that is not a finite number
    becomes such a log text too.
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
        raise TypeError("the value is not a number")
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


READ_BYTES = MIB
_PIPE_BYTES = MIB
"""The size of the pipe of a job that writes much, so that the job does not wait for the pod after each 64
KiB."""
LOUD_BYTES = 8 * KIB
"""A job writes much if one read of its pipe returns at least this many bytes."""
_DRAIN_READS = 64
NEWS_SECONDS = 0.3
"""If another program kills all processes of a pod, its jobs and the pod end in any order within this number
of seconds."""

Emit: TypeAlias = Callable[[EventType, Mapping[str, Any]], None]
"""A function that receives an event of the attempt."""


class AttemptStage(Enum):
    """The step of an attempt that the pod is waiting for."""

    QUEUED = "queued"
    """A zygote that is not ready yet has to fork the process of the attempt."""
    RUNNING = "running"
    """The process of the attempt lives."""
    ENDING = "ending"
    """The process of the attempt has ended, but its other processes or its output may not be finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExit:
    """The end of the attempt's process: the status from wait() (None if the status is unknown), and the
    resource use that wait() reports for the process and its reaped children. The resource use consists of
    the CPU seconds, the CPU seconds spent in the kernel, and the bytes read from and written to disks."""

    status: int | None
    cpu_seconds: float = 0.0
    system_seconds: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    trouble: str = ""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """An attempt that is running. `outputs` contains the pod's ends of the attempt's pipes until the pipes
    have ended."""

    order: AttemptOrder
    folder: Path
    group: AttemptGroup | None
    meter: AttemptMeter
    reader: "OutputReader"
    disk: AttemptDisk
    began: float
    deadline: float | None
    stage: AttemptStage = AttemptStage.QUEUED
    pid: int = 0
    exit: ProcessExit | None = None
    stop_reason: str | None = None
    grace_seconds: float = 0.0
    timed_out: bool = False
    ignored_term: bool = False
    kill_at: float | None = None
    look_again: float = 0.0
    give_up: float = 0.0
    signalled: bool = field(default=False)
    ended: float = 0.0
    cut: bool = False
    released: bool = False
    is_container_removed: bool = False
    preforked: PreforkedProcess | SmallSpare | None = None
    environment: Mapping[str, str] | None = None
    secrets: Mapping[str, str] = field(default_factory=dict)
    masking: Masking | None = None
    collection: OutputCollection | None = None
    service: ServiceFiles | None = None

    def begin(self, now: float) -> None:
        """Records that the process of the attempt has started. The run time and the timeout of the attempt
        are measured from this call, so the time spent waiting for a prepared process does not count."""
        if self.deadline is not None:
            self.deadline += now - self.began
        self.began = now

    def masked(self, text: str) -> str:
        """Returns a text with the values of the attempt's secrets masked."""
        return text if self.masking is None else self.masking.text(text)

    @property
    def leaves_files(self) -> bool:
        """Returns whether the attempt is a command that succeeded, so that its output folder is stored."""
        well = self.exit is not None and self.exit.status == 0 and self.meter.shortage is None
        return well and self.order.job.kind == JobKind.COMMAND

    @property
    def notes(self) -> tuple[str, ...]:
        """Returns lines about the files in the output folder, for the attempt's log."""
        collected = self.collection.collected() if self.collection is not None else None
        if collected is None:
            return ()
        if self.order.part is not None and collected.files:
            message = "files of a command that runs once on each node are not stored"
            return (
                *collected.notes,
                f"{collected.files} files in GRIDMILL_OUTPUT are dropped: {message}\n",
            )
        return collected.notes

    def may_be_cut(self, now: float) -> bool:
        """Returns whether another program may have ended the attempt. The pod then waits a short time,
        because a signal may ask the pod to end too."""
        terminated = self.exit is not None and was_terminated(self.exit.status)
        return terminated and not self.cut and self.kill_at is None and now < self.ended + NEWS_SECONDS

    def due(self) -> float:
        """Returns the monotonic time in seconds at which the attempt must be handled next."""
        if self.stage == AttemptStage.ENDING:
            return self.look_again
        report_due = self.service.due if self.service is not None else None
        times = (
            self.deadline,
            self.kill_at,
            self.meter.due if self.pid else None,
            self.reader.due,
            report_due,
        )
        return min((time for time in times if time is not None), default=float("inf"))


class OutputReader:
    """Reads the pod's ends of a job's pipes. The reader converts the content of the pipes into events."""

    def __init__(self, descriptors: Mapping[str, int], emit: Emit, masking: Masking | None = None) -> None:
        self.open = dict(descriptors)
        self._emit = emit
        self._masking = masking
        self._maskers = {} if masking is None else {name: masking.stream() for name in ("out", "err", "pod")}
        self._logs = {"out": LogStream(), "err": LogStream()}
        self._reports = LineBuffer()
        self._progress: Mapping[str, Any] | None = None
        self._progress_due: float | None = None
        self._quiet = True
        self._widened: set[str] = set()
        self.loud = False
        for descriptor in descriptors.values():
            os.set_blocking(descriptor, False)

    @property
    def due(self) -> float | None:
        """Returns the time at which collected log texts and progress are sent next."""
        times = [log.due for log in self._logs.values() if log.due is not None]
        if self._progress is not None and self._progress_due is not None:
            times.append(self._progress_due)
        return min(times, default=None)

    def read(self, name: str, now: float) -> bool:
        """Reads the pipe `name` once. Returns False if the pipe is empty at the moment, or if it has ended
        and is closed."""
        try:
            data = os.read(self.open[name], READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            os.close(self.open.pop(name))
            return False
        if len(data) >= LOUD_BYTES:
            self._widen(name)
            # no pause after a full read, because more is probably waiting
            self.loud = len(data) < READ_BYTES
        self._take(name, data, now)
        return True

    def _widen(self, name: str) -> None:
        """Enlarges the pipe, once. The kernel refuses a larger pipe if the pipes of the user already use too
        much memory."""
        if name not in self._widened:
            self._widened.add(name)
            with suppress(OSError):
                fcntl.fcntl(self.open[name], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def drain(self, now: float) -> bool:
        """Reads all pipes of the job. Returns False if the method stops early so that the pipes of other
        jobs can be read first."""
        for name in tuple(self.open):
            for _ in range(_DRAIN_READS):
                if not self.read(name, now):
                    break
            else:
                return False
        return True

    def _take(self, name: str, data: bytes, now: float) -> None:
        if name == "events":
            for line in self._reports.feed(data):
                self._report(line, now)
            return
        if self._maskers:
            data = self._maskers[name].feed(data)
        self._logs[name].feed(data, now)
        if self._quiet and self._logs[name].due is not None:
            self._quiet = False  # passed on at once, because a user may wait for the first line
            self._pass_on(name)

    def _report(self, line: str, now: float) -> None:
        event = parse_event(line)
        if self._masking is not None:
            event = self._masked_event(event, self._masking)
        if event is None:
            return
        if event[0] != EventType.PROGRESS:
            self._emit(*event)
            return
        self._progress = event[1]
        if self._progress_due is None:
            self._progress_due = now

    def _masked_event(self, event: ReportedEvent | None, masking: Masking) -> ReportedEvent | None:
        """Returns the event with the values of secrets masked, or None if nothing of it can be sent yet.

        A line that is longer than the buffer arrives in pieces, and a value may be split between two pieces.
        Therefore the text of lines that are no reports passes through one masker.
        """
        if event is not None and event[1].get("stream") == "pod":
            text = self._maskers["pod"].feed(event[1]["text"].encode("utf-8", "replace"))
            return _log(text.decode("utf-8", "replace")) if text else None
        self._pass_held_text()
        return event and (event[0], masking.body(event[1]))

    def _pass_held_text(self) -> None:
        if self._maskers and (text := self._maskers["pod"].end()):
            self._emit(*_log(text.decode("utf-8", "replace")))

    def tick(self, now: float) -> None:
        """Sends the collected log texts and the latest progress if their waiting time is over."""
        for name, log in self._logs.items():
            if log.due is not None and log.due <= now:
                self._pass_on(name)
        if self._progress is not None and self._progress_due is not None and self._progress_due <= now:
            self._pass_progress()
            self._progress_due = now + PROGRESS_SECONDS

    def _pass_on(self, name: str) -> None:
        for text in self._logs[name].take():
            data = text.encode() if len(text) >= PACK_BYTES else b""
            packed = {"packed": zlib.compress(data, _LEVEL), "size": len(data)} if data else None
            self._emit(EventType.LOG, {"stream": name, **(packed or {"text": text})})

    def _pass_progress(self) -> None:
        if self._progress is not None:
            self._emit(EventType.PROGRESS, self._progress)
            self._progress = None

    def end(self, now: float) -> None:
        """Closes the open pipes and sends everything that was collected, including unfinished lines."""
        for descriptor in self.open.values():
            os.close(descriptor)
        self.open.clear()
        for line in self._reports.end():
            self._report(line, now)
        self._pass_held_text()
        self._pass_progress()
        for name, log in self._logs.items():
            if self._maskers:
                log.feed(self._maskers[name].end(), now)
            log.end(now)
            self._pass_on(name)
