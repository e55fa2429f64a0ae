"""One attempt under way: its pipes, its logs and reports, its limits, and what is still to happen to it."""

import os
from collections.abc import Callable, Mapping
from dataclasses import field
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from gridmill.model.event import EventType
from gridmill.model.job import JobKind
from gridmill.model.message import Order
from gridmill.model.noun import dataclass
from gridmill.pod.cgroups import AttemptGroup
from gridmill.pod.collector import Collection
from gridmill.pod.limits import Meter
from gridmill.pod.lines import PROGRESS_SECONDS, LineBuffer, LogStream, parse_event
from gridmill.pod.spare import Spare
from gridmill.pod.verdict import was_told_to_end

READ_BYTES = 64 * 1024
_DRAIN_READS = 64
NEWS_SECONDS = 0.3
"""Who ends all processes of a pod reaches its jobs first, or the pod: in any order, and within this."""

Emit: TypeAlias = Callable[[EventType, Mapping[str, Any]], None]
"""Takes an event of the attempt."""


class Stage(Enum):
    """What the pod waits for."""

    QUEUED = "queued"  # its process is to be forked by a zygote that is not ready
    RUNNING = "running"  # its process lives
    ENDING = "ending"  # its process is gone; leftovers and unread output may not be


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How its process ended: wait()'s status (None: cannot be told), and what wait() told of it and of the
    children that it waited for: CPU seconds, those of them in the kernel, bytes from and to disks."""

    status: int | None
    cpu_seconds: float = 0.0
    system_seconds: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    trouble: str = ""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """The pod's ends of the pipes are in `outputs` until they reach their end."""

    order: Order
    folder: Path
    group: AttemptGroup | None
    meter: Meter
    reader: "Reader"
    began: float
    deadline: float | None
    stage: Stage = Stage.QUEUED
    pid: int = 0
    exit: Exit | None = None
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
    spare: Spare | None = None
    environment: Mapping[str, str] | None = None
    collection: Collection | None = None

    def begin(self, now: float) -> None:
        """Its process exists: time and timeout count from here, not from the wait for a warm process."""
        if self.deadline is not None:
            self.deadline += now - self.began
        self.began = now

    @property
    def leaves_files(self) -> bool:
        """Whether it is a command that has ended well: what it left in its output folder is kept."""
        well = self.exit is not None and self.exit.status == 0 and self.meter.shortage is None
        return well and self.order.job.kind == JobKind.COMMAND

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines for its log about the files that it left."""
        found = self.collection.found() if self.collection is not None else None
        if found is None:
            return ()
        if self.order.part is not None and found.files:
            said = "a command that runs once on each node keeps no files"
            return (*found.notes, f"the {found.files} files in GRIDMILL_OUTPUT are not kept: {said}\n")
        return found.notes

    def may_be_cut(self, now: float) -> bool:
        """Whether somebody else told it to end: it waits a moment for news that the pod is to end too."""
        told = self.exit is not None and was_told_to_end(self.exit.status)
        return told and not self.cut and self.kill_at is None and now < self.ended + NEWS_SECONDS

    def due(self) -> float:
        """When it wants attention next (monotonic seconds)."""
        if self.stage == Stage.ENDING:
            return self.look_again
        times = (self.deadline, self.kill_at, self.meter.due if self.pid else None, self.reader.due)
        return min((time for time in times if time is not None), default=float("inf"))


class Reader:
    """The pod's ends of a job's pipes. What comes through becomes events."""

    def __init__(self, descriptors: Mapping[str, int], emit: Emit) -> None:
        self.open = dict(descriptors)
        self._emit = emit
        self._logs = {"out": LogStream(), "err": LogStream()}
        self._reports = LineBuffer()
        self._progress: Mapping[str, Any] | None = None
        self._progress_due: float | None = None
        self._quiet = True
        for descriptor in descriptors.values():
            os.set_blocking(descriptor, False)

    @property
    def due(self) -> float | None:
        """When gathered logs and progress are to be passed on."""
        times = [log.due for log in self._logs.values() if log.due is not None]
        if self._progress is not None and self._progress_due is not None:
            times.append(self._progress_due)
        return min(times, default=None)

    def read(self, name: str, now: float) -> bool:
        """Read once; False when that pipe has nothing now, or has ended and is closed."""
        try:
            data = os.read(self.open[name], READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            os.close(self.open.pop(name))
            return False
        self._take(name, data, now)
        return True

    def drain(self, now: float) -> bool:
        """Read what is there; False when there is so much that others must come first."""
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
        self._logs[name].feed(data, now)
        if self._quiet and self._logs[name].due is not None:
            self._quiet = False  # somebody may wait for the first line
            self._pass_on(name)

    def _report(self, line: str, now: float) -> None:
        event = parse_event(line)
        if event is None:
            return
        if event[0] != EventType.PROGRESS:
            self._emit(*event)
            return
        self._progress = event[1]
        if self._progress_due is None:
            self._progress_due = now

    def tick(self, now: float) -> None:
        """Pass on what is due."""
        for name, log in self._logs.items():
            if log.due is not None and log.due <= now:
                self._pass_on(name)
        if self._progress is not None and self._progress_due is not None and self._progress_due <= now:
            self._pass_progress()
            self._progress_due = now + PROGRESS_SECONDS

    def _pass_on(self, name: str) -> None:
        for text in self._logs[name].take():
            self._emit(EventType.LOG, {"stream": name, "text": text})

    def _pass_progress(self) -> None:
        if self._progress is not None:
            self._emit(EventType.PROGRESS, self._progress)
            self._progress = None

    def end(self, now: float) -> None:
        """Close what is open and pass on everything gathered, unfinished lines included."""
        for descriptor in self.open.values():
            os.close(descriptor)
        self.open.clear()
        for line in self._reports.end():
            self._report(line, now)
        self._pass_progress()
        for name, log in self._logs.items():
            log.end(now)
            self._pass_on(name)
