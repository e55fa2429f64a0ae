"""The context that a built-in job receives, and the result that the job returns."""

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
    """The result of a job: its outputs, and the metrics that Gridmill shows. `size` is the measured size of
    the data, and `parallel` is the resource usage of the worker processes of the job."""

    outputs: tuple[Output, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    size: JobSize | None = None
    parallel: ParallelTiming | None = None


CODE = "code"
"""The name of the folder with the code of the project, inside the work folder of a job and inside the folder
of a model."""


class PrunedError(Exception):
    """The exception with which the hyperparameter search stops a training early, because another trial will
    probably be better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """The context of one attempt, which the code of the job receives.

    The text that the job prints to stdout and stderr becomes the log of the attempt. `work` is a private
    folder, which is deleted after the attempt. Progress and metrics are written to the file descriptor
    `events_fd`, one JSON object per line. If `events_fd` is None, progress and metrics are not reported.
    `pythons` are the interpreters of the environments that were built for the job. The keys of `pythons` are
    the names of the inputs that need an environment; the key "" belongs to the job itself.
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
        """The folder of this attempt in the storage root. The folder is created when this property is used
        first.

        If the rank of this process is not 0, the folder is private to this process, because only the output
        of rank 0 is stored.
        """
        path = self.work / "output" if self.rank else self.below_root(self.order.output_uri)
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def rank(self) -> int:
        """The rank of this process in its gang. The rank is 0 if the job has no gang."""
        return self.order.gang.rank if self.order.gang else 0

    @property
    def checkpoints(self) -> Path | None:
        """The folder with the checkpoints of a job. All attempts with the same fingerprint share this folder
        until one of the attempts succeeds.

        The folder with checkpoints may not exist yet. The value is None if the job has no folder for
        checkpoints.
        """
        return self.below_root(self.order.checkpoint_uri) if self.order.checkpoint_uri else None

    def below_root(self, uri: str) -> Path:
        """Return the path of a URI relative to the storage root. Raises UnsafePathError if the URI is empty,
        or if its path is outside the storage root."""
        path = below(self.root, uri).resolve()
        if not path.is_relative_to(self.root.resolve()):
            raise UnsafePathError(f"{uri!r} is outside the storage root {self.root}")
        return path

    def input(self, name: str) -> Artifact:
        """Return the input artifact with the declared name `name`. Raises InputError if the job has no input
        with this name."""
        for entry in self.order.inputs:
            if entry.name == name:
                return entry.artifact
        raise InputError(f"job {self.order.job.name!r} has no input {name!r}")

    def python(self, name: str = "") -> str:
        """Return the path of the Python interpreter for the code of the input `name`, or for the code of the
        job itself. By default this is the interpreter of Gridmill."""
        return self.pythons.get(name, sys.executable)

    @property
    def threads(self) -> int:
        """The number of threads that this attempt should use."""
        return max(1, int(self.order.given.cpus))

    def progress(self, done: float, total: float | None = None, unit: str = "", note: str = "") -> None:
        """Report the job's progress."""
        self._emit({"type": "progress", "done": done, "total": total, "unit": unit, "note": note})

    def metric(self, name: str, value: float, step: float | None = None) -> None:
        """Report the value of a metric while the job runs. If each report has a `step`, the values form a
        curve. The values NaN and infinity are not reported."""
        if not isfinite(value):
            return
        self._emit({"type": "metric", "name": name, "value": float(value), "step": step})

    def _emit(self, event: dict[str, Any]) -> None:
        if self.events_fd is not None:
            os.write(self.events_fd, json.dumps(event).encode() + b"\n")
