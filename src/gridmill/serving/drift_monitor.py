"""Adds up the counts of all replicas of a service, and decides which versions drift."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gridmill.codec import decode
from gridmill.domain.drift import (
    MOST_REPORTED_BINS,
    STATISTICS_FILE,
    Chunk,
    Counts,
    DriftCounts,
    TrainingStatistics,
    VersionDrift,
    added,
    difference,
    drift_of,
    fits,
    merged,
    no_counts,
    reported_counts,
)
from gridmill.domain.serving import ServiceOrder
from gridmill.errors import InputError
from gridmill.serving.metrics import escaped

LOOK_SECONDS = 2.0
"""The interval at which the files of the replicas are read."""
PUBLISH_SECONDS = 30.0
"""The interval at which numbers that have changed are reported. A version that begins or ceases to drift is
reported at once."""
_METRICS = "metrics-drift.json"


def drift_path(folder: Path, number: int) -> Path:
    """Return the path of the file with the counts of a replica."""
    return folder / f"drift-{number}.json"


def read_statistics(folder: Path) -> TrainingStatistics | None:
    """Return the training statistics of the model in `folder`, or None if it has none that can be read."""
    with suppress(OSError, InputError):
        return decode((folder / STATISTICS_FILE).read_bytes(), TrainingStatistics)
    return None


class DriftMonitor:
    """The windows of the versions of one service. Times are seconds of the monotonic clock."""

    def __init__(self, folder: Path, earlier: tuple[VersionDrift, ...] = ()) -> None:
        """Begin with the drift that an earlier parent process has reported, so that a restart is no
        change."""
        self._folder = folder
        self._due = self._published_at = 0.0
        self._statistics: dict[str, TrainingStatistics | None] = {}
        self._seen: dict[tuple[str, str], Counts] = {}
        self._windows: dict[str, tuple[Chunk, ...]] = {}
        self._latest = self.drift = earlier
        self._counted: tuple[DriftCounts, ...] = ()
        self.counts: tuple[DriftCounts, ...] = ()
        """The counts behind `drift`, if the order asks for them and they are not too many."""

    def look(self, now: float, order: ServiceOrder) -> None:
        """Read the counts of the replicas, and decide the drift of the versions of the order, at most once in
        LOOK_SECONDS."""
        if now < self._due:
            return
        self._due = now + LOOK_SECONDS
        # the inputs of a stage can drift although those of the last model do not
        parts = {part.label: part for one in order.versions for part in one.all_versions()}.values()
        for version in parts:
            if version.label not in self._statistics:
                self._statistics[version.label] = read_statistics(Path(version.folder))
        for label, counts in self._new_counts():
            self._windows[label] = added(self._windows.get(label, ()), now, counts)
        before = {one.label: one for one in self._latest}
        known = {one.label: found for one in parts if (found := self._statistics[one.label]) is not None}
        self._counted = tuple(
            reported_counts(label, found, self._window(label, found, now)) for label, found in known.items()
        )
        self._latest = tuple(
            drift_of(one.label, known[one.label], one.counted, before.get(one.label)) for one in self._counted
        )
        if not order.counts_drift or sum(map(_bins, self._counted)) > MOST_REPORTED_BINS:
            self._counted = ()
        is_news = _shape(self._latest) != _shape(self.drift)
        if is_news or now - self._published_at >= PUBLISH_SECONDS:
            self._publish(now)

    def _publish(self, now: float) -> None:
        self.drift, self.counts, self._published_at = self._latest, self._counted, now
        values: dict[str, float] = {}
        for version in self.drift:
            label = f'version="{escaped(version.label)}"'
            values[f"gridmill_drift_rows{{{label}}}"] = version.rows
            for one in version.features:
                values[f'gridmill_drift_psi{{{label},feature="{escaped(one.name)}"}}'] = one.psi
        path = self._folder / _METRICS
        draft = path.with_name(f".{_METRICS}.{os.getpid()}")
        with suppress(OSError):
            draft.write_text(json.dumps(values))
            draft.replace(path)

    def _window(self, label: str, statistics: TrainingStatistics, now: float) -> Counts:
        """Return the counts of the window of a version."""
        # counts of no rows move the window although no request arrives
        window = added(self._windows.get(label, ()), now, no_counts(statistics))
        self._windows[label] = window
        return merged([one.counts for one in window])

    def _new_counts(self) -> Iterator[tuple[str, Counts]]:
        """Yield the counts that each replica has added since the last call."""
        seen, self._seen = self._seen, {}  # the processes that have ended are not kept
        for path in sorted(self._folder.glob("drift-*.json")):
            content = _read(path)
            for label, values in dict(content.get("counts") or {}).items():
                statistics = self._statistics.get(label)
                total: Counts = tuple(tuple(map(int, one)) for one in values)
                if statistics is None or not fits(statistics, total):
                    continue
                key = (str(content.get("process")), label)
                new = difference(total, seen.get(key, no_counts(statistics)))
                self._seen[key] = total
                if any(new[-1]):
                    yield label, new


def _bins(counts: DriftCounts) -> int:
    return sum(map(len, counts.expected))


def _shape(drift: tuple[VersionDrift, ...]) -> object:
    return [(one.label, one.drifting, bool(one.features)) for one in drift]


def _read(path: Path) -> Mapping[str, Any]:
    with suppress(OSError, ValueError):
        content = json.loads(path.read_bytes())
        if isinstance(content, dict):
            return content
    return {}
