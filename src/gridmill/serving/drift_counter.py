"""Counts the rows of requests and their predictions in the bins of the training statistics.

A request only appends its rows to a list. They are counted between requests, and at most MOST_ROWS of each
interval, so that counting takes a bounded time whatever the rate is.
"""

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from gridmill.domain.drift import TrainingStatistics, merged, no_counts
from gridmill.jobs.features import Floats
from gridmill.jobs.training_statistics import count
from gridmill.serving.drift_monitor import drift_path, read_statistics
from gridmill.serving.served_model import ServedModel

MOST_ROWS = 500
"""The largest number of rows that are counted in one interval; the others are not counted."""
SECONDS = 1.0
"""The length of an interval."""


class DriftCounter:
    """The counts of one version in one replica."""

    def __init__(self, model: ServedModel, statistics: TrainingStatistics) -> None:
        self._model, self._statistics = model, statistics
        self._waiting: list[tuple[Floats, Floats]] = []
        self._room = MOST_ROWS
        self.counts = no_counts(statistics)

    def add(self, inputs: Floats, predicted: Floats) -> None:
        """Take the rows of a request, as long as the interval has room."""
        if self._room > 0:
            self._waiting.append((inputs[: self._room], predicted[: self._room]))
            self._room -= len(inputs)

    def count(self) -> None:
        """Count the rows of the interval, and begin the next one."""
        waiting, self._waiting, self._room = self._waiting, [], MOST_ROWS
        if not waiting:
            return
        inputs = np.concatenate([one for one, _ in waiting])
        predicted = np.concatenate([one for _, one in waiting])
        # of a sequence, only the newest row is counted, because the others were counted before
        newest = inputs if inputs.ndim == 2 else inputs[:, -1]
        self.counts = merged([self.counts, count(self._model.card, self._statistics, newest, predicted)])


def drift_counter(model: ServedModel) -> DriftCounter | None:
    """Return the counter of a version, or None if the version has no training statistics."""
    statistics = read_statistics(model.folder)
    return None if statistics is None else DriftCounter(model, statistics)


class DriftFile:
    """The file with the counts of one replica, which the parent process reads."""

    def __init__(self, folder: Path, number: int) -> None:
        self._path = drift_path(folder, number)
        self._process = f"{os.getpid()}-{time.time_ns()}"
        self._due = 0.0

    def save(self, counters: Mapping[str, DriftCounter]) -> None:
        """Count the rows of all versions, by label, and write the counts, at most once in each interval. If
        the disk is full, the earlier file stays."""
        now = time.monotonic()
        if now < self._due or not counters:
            return
        self._due = now + SECONDS
        for counter in counters.values():
            counter.count()
        content = {"process": self._process, "counts": {name: one.counts for name, one in counters.items()}}
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with suppress(OSError):
            draft.write_text(json.dumps(content))
            draft.replace(self._path)
