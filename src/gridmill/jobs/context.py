"""The context that a built-in job receives, and the result that it returns."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import field
from math import isfinite
from pathlib import Path
from typing import Any

from gridmill.domain.artifact import Artifact, Output
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import JobSize
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.storage_uri import below
from gridmill.domain.usage import ParallelTiming
from gridmill.errors import InputError, UnsafePathError


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """Outputs and the metrics to show; `size` is what the job found its size to be, `parallel` what its
    workers did."""

    outputs: tuple[Output, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    size: JobSize | None = None
    parallel: ParallelTiming | None = None


CODE = "code"
"""Folder of the project's code in a job's work folder, and in a model's folder."""


class PrunedError(Exception):
    """Whoever asked for this training wants it no further: another one will be better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """One attempt, from the inside. Text printed to stdout and stderr becomes its log.

    `work` is a private folder that is removed after the attempt. `events_fd` is where progress and metrics
    go, one JSON object a line (None: nowhere). `pythons` are the interpreters of environments that were built
    for the job, by the name of the input whose code needs it ("" is the job's own).
    """

    order: AttemptOrder
    work: Path
    events_fd: int | None = None
    pythons: Mapping[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The storage root."""
        return Path(self.order.root)

    @property
    def output(self) -> Path:
        """This attempt's own folder in the storage root; made on first use. Of a gang's rank but the first, a
        private one: what is kept is rank 0's."""
        path = self.work / "output" if self.rank else self.below_root(self.order.output_uri)
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def rank(self) -> int:
        """Which rank of a gang this is; 0 also where it is none."""
        return self.order.gang.rank if self.order.gang else 0

    @property
    def checkpoints(self) -> Path | None:
        """The folder that attempts of the same work hand on to each other, until one succeeds; it may not be
        there yet. None where there is none."""
        return self.below_root(self.order.checkpoint_uri) if self.order.checkpoint_uri else None

    def below_root(self, uri: str) -> Path:
        """The path of a relative URI. Raises UnsafePathError for an empty one or one that leaves the root."""
        path = below(self.root, uri).resolve()
        if not path.is_relative_to(self.root.resolve()):
            raise UnsafePathError(f"{uri!r} leaves the storage root {self.root}")
        return path

    def input(self, name: str) -> Artifact:
        """The artifact that the declaration calls `name`. Raises InputError."""
        for entry in self.order.inputs:
            if entry.name == name:
                return entry.artifact
        raise InputError(f"job {self.order.job.name!r} has no input {name!r}")

    def python(self, name: str = "") -> str:
        """The interpreter for that input's code, or the job's own; Gridmill's where none was asked for."""
        return self.pythons.get(name, sys.executable)

    @property
    def threads(self) -> int:
        """How many threads this attempt should compute with."""
        return max(1, int(self.order.given.cpus))

    def progress(self, done: float, total: float | None = None, unit: str = "", note: str = "") -> None:
        """Say how far the job is."""
        self._emit({"type": "progress", "done": done, "total": total, "unit": unit, "note": note})

    def metric(self, name: str, value: float, step: float | None = None) -> None:
        """Say a metric's value, live; with `step` it becomes a curve. NaN and infinity are no values."""
        if not isfinite(value):
            return
        self._emit({"type": "metric", "name": name, "value": float(value), "step": step})

    def _emit(self, event: dict[str, Any]) -> None:
        if self.events_fd is not None:
            os.write(self.events_fd, json.dumps(event).encode() + b"\n")
