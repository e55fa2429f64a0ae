"""Drift: how far the rows and the predictions of a service are from those of the training.

The training stores for each feature and for the prediction how many rows are in each of a few bins. A replica
counts the rows of requests in the same bins. The distance between the two is the population stability index.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum

from gridmill.domain.frozen import dataclass, replace

STATISTICS_FILE = "statistics.json"
"""The file in the folder of a model with its `TrainingStatistics`."""
PREDICTION = "(prediction)"
"""The name of the prediction among the features."""
DRIFT_BEGINS = 0.25
"""A feature drifts from this index on. By the usual rule of thumb, an index from 0.1 is a moderate change,
and an index from 0.25 is a large change (N. Siddiqi, Credit Risk Scorecards, Wiley 2006)."""
DRIFT_ENDS = 0.2
"""A feature that drifts no longer drifts below this index, so that an index near the limit makes few
events."""
LEAST_ROWS = 500
"""The least number of rows in the window. With B bins, n rows without drift have an index of about (B - 1) /
n, which is 0.02 for 11 bins and 500 rows."""
WINDOW_SECONDS = 3600.0
"""The length of the window whose rows are compared with the training rows."""
CHUNKS = 12
"""The window moves in this number of steps."""
_SMOOTHING = 0.5
SHOWN = 10
"""The number of features in a report, those with the largest index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """The bins of a feature with the numbers of training rows in them.

    A number has a bin below the first of `edges`, a bin from each edge to the next, and a bin for missing
    values. A text has a bin for each of `categories`, and a bin for all other and missing texts.
    """

    name: str
    counts: tuple[int, ...]
    edges: tuple[float, ...] = ()
    categories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStatistics:
    """The bins of the features that the model reads, in the order of the features, and of its prediction."""

    features: tuple[Bins, ...]
    prediction: Bins

    @property
    def bins(self) -> tuple[Bins, ...]:
        """All bins, those of the prediction last."""
        return (*self.features, self.prediction)


Counts = tuple[tuple[int, ...], ...]
"""For each `Bins`, the number of rows in each bin."""


MOST_REPORTED_BINS = 4_000
"""A report has the counts behind the drift if they have at most this number of bins, which are about 330
features. Each bin takes up to 20 bytes, and a report has at most 256 KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftCounts:
    """The counts behind the drift of a version in one pod: for each of `names`, the rows of the training
    (`expected`) and the rows of the window (`counted`) in each bin. The prediction is the last name."""

    label: str
    names: tuple[str, ...]
    expected: Counts
    counted: Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureDrift:
    """The population stability index of a feature or of the prediction."""

    name: str
    psi: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionDrift:
    """The drift of the requests to one version in the last `WINDOW_SECONDS`. `rows` is the number of rows
    that were counted, and `features` are the ones with the largest index, which is empty for too few rows.
    `drifting` are the names of all features that drift; the name of the prediction is `PREDICTION`.

    The rows are those of all `pods` of the service together. If the counts of the pods are not known, the
    drift is that of one pod, the one with the largest index of `worst_of` pods (0: the drift of all pods)."""

    label: str
    rows: int = 0
    features: tuple[FeatureDrift, ...] = ()
    drifting: tuple[str, ...] = ()
    pods: int = 1
    worst_of: int = 0

    @property
    def text(self) -> str:
        """The drift in one line."""
        if not self.features:
            return f"unknown: {self.rows} of at least {LEAST_ROWS} rows"
        names = [one for one in self.features if one.name in self.drifting] or self.features[:1]
        shown = ", ".join(f"{one.name} {one.psi:.2f}" for one in names[:5])
        state = "yes" if self.drifting else "no"
        return f"{state}: {shown} (PSI of {self.rows} rows{self._where}; limit {DRIFT_BEGINS:g})"

    @property
    def _where(self) -> str:
        if self.worst_of:
            return f" in one pod, the worst of {self.worst_of}"
        return f" in {self.pods} pods" if self.pods > 1 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftPeriod:
    """The time since which the requests to a version drift, in Unix seconds."""

    version: str
    since: float


def drift_periods(
    before: Sequence[DriftPeriod], reported: Sequence[VersionDrift], now: float
) -> tuple[DriftPeriod, ...]:
    """Return the versions that drift, with the times at which their drift began. A version keeps its time
    while its report has too few rows, for example after a restart of the service. A version that is not
    reported any more is left out. Without any report, nothing changes."""
    if not reported:
        return tuple(before)
    since = {one.version: one.since for one in before}
    periods: list[DriftPeriod] = []
    for one in reported:
        is_drifting = bool(one.drifting) if one.features else one.label in since
        if is_drifting:
            periods.append(DriftPeriod(version=one.label, since=since.get(one.label, now)))
    return tuple(periods)


class DriftChange(StrEnum):
    """A change that is an event."""

    BEGINS = "begins"
    ENDS = "ends"


def psi(expected: Sequence[int], actual: Sequence[int]) -> float:
    """Return the population stability index of two lists of counts of the same bins.

    The index is the sum of (a - e) · ln(a / e) over the bins, where e and a are the shares of the rows of
    the two lists in a bin. It is 0 for equal shares, is otherwise positive, and does not depend on which
    list is first. Half a row is added to each bin, so that an empty bin has no infinite logarithm. Source:
    N. Siddiqi, Credit Risk Scorecards, Wiley 2006; it is the symmetric divergence of H. Jeffreys (1946).
    """
    if len(expected) != len(actual):
        raise ValueError(f"{len(expected)} bins are compared with {len(actual)}")
    every_e, every_a = (sum(one) + _SMOOTHING * len(one) for one in (expected, actual))
    total = 0.0
    for e_count, a_count in zip(expected, actual, strict=True):
        e, a = (e_count + _SMOOTHING) / every_e, (a_count + _SMOOTHING) / every_a
        total += (a - e) * math.log(a / e)
    return max(0.0, total)


def no_counts(statistics: TrainingStatistics) -> Counts:
    """Return counts without rows."""
    return tuple((0,) * len(one.counts) for one in statistics.bins)


def merged(parts: Sequence[Counts]) -> Counts:
    """Return the sum of counts of the same bins. `parts` is not empty."""
    return tuple(tuple(map(sum, zip(*same, strict=True))) for same in zip(*parts, strict=True))


def fits(statistics: TrainingStatistics, counts: Counts) -> bool:
    """Return whether counts have the bins of the statistics."""
    return [len(one) for one in counts] == [len(one.counts) for one in statistics.bins]


def drift_of(
    label: str, statistics: TrainingStatistics, counts: Counts, before: VersionDrift | None
) -> VersionDrift:
    """Return the drift of the counted rows. `before` is the drift at the last decision. With fewer than
    `LEAST_ROWS` rows, the index is unknown, and features that drifted still count as drifting."""
    rows = sum(counts[-1]) if counts else 0
    drifted = before.drifting if before is not None else ()
    if rows < LEAST_ROWS:
        return VersionDrift(label=label, rows=rows, drifting=drifted)
    found = [
        FeatureDrift(name=one.name, psi=psi(one.counts, counted))
        for one, counted in zip(statistics.bins, counts, strict=True)
    ]
    limits = {True: DRIFT_ENDS, False: DRIFT_BEGINS}
    drifting = tuple(one.name for one in found if one.psi >= limits[one.name in drifted])
    found.sort(key=lambda one: -one.psi)
    return VersionDrift(label=label, rows=rows, features=tuple(found[:SHOWN]), drifting=drifting)


def reported_counts(label: str, statistics: TrainingStatistics, counted: Counts) -> DriftCounts:
    """Return the counts of a window as a pod reports them."""
    return DriftCounts(
        label=label,
        names=tuple(one.name for one in statistics.bins),
        expected=tuple(one.counts for one in statistics.bins),
        counted=counted,
    )


def drift_of_pods(
    drifts: Sequence[Sequence[VersionDrift]],
    counts: Sequence[Sequence[DriftCounts]],
    before: Sequence[VersionDrift],
) -> tuple[VersionDrift, ...]:
    """Return the drift of a service from the reports of its pods: `drifts` has the drift and `counts` the
    counts of each pod. `before` is the drift of the service at the last decision.

    The counts of all pods are added, so that the result is that of one pod with all rows. If a pod with the
    drift of a version has reported no counts for it, or other bins, the drift of the worst pod is returned.
    """
    earlier = {one.label: one for one in before}
    by_label: dict[str, list[VersionDrift]] = {}
    for one in (one for pod in drifts for one in pod):
        by_label.setdefault(one.label, []).append(one)
    counted: dict[str, list[DriftCounts]] = {}
    for part in (part for pod in counts for part in pod):
        counted.setdefault(part.label, []).append(part)
    return tuple(
        _drift_of_pods(found, counted.get(label, []), earlier.get(label)) for label, found in by_label.items()
    )


def _drift_of_pods(
    found: Sequence[VersionDrift], parts: Sequence[DriftCounts], before: VersionDrift | None
) -> VersionDrift:
    label = found[0].label
    if len(parts) == len(found) and len({(one.names, one.expected) for one in parts}) == 1:
        *features, prediction = (
            Bins(name=name, counts=expected)
            for name, expected in zip(parts[0].names, parts[0].expected, strict=True)
        )
        statistics = TrainingStatistics(features=tuple(features), prediction=prediction)
        if all(fits(statistics, one.counted) for one in parts):
            total = merged([one.counted for one in parts])
            return replace(drift_of(label, statistics, total, before), pods=len(parts))
    worst = max(found, key=lambda one: (bool(one.drifting), one.features[0].psi if one.features else -1.0))
    return worst if len(found) == 1 else replace(worst, worst_of=len(found))


def changes(
    before: Sequence[VersionDrift], after: Sequence[VersionDrift]
) -> tuple[tuple[DriftChange, VersionDrift], ...]:
    """Return the versions that begin or cease to drift. A version that is not served any more makes no
    change, nor does a version with too few rows."""
    drifted: Mapping[str, bool] = {one.label: bool(one.drifting) for one in before}
    return tuple(
        (DriftChange.BEGINS if one.drifting else DriftChange.ENDS, one)
        for one in after
        if one.features and bool(one.drifting) != drifted.get(one.label, False)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Counts of a part of the window, which began at `start_seconds` of any clock."""

    start_seconds: float
    counts: Counts


def added(window: Sequence[Chunk], now: float, counts: Counts) -> tuple[Chunk, ...]:
    """Return a window with further counts. Chunks that are older than the window are left out."""
    kept = [one for one in window if one.start_seconds > now - WINDOW_SECONDS]
    if kept and kept[-1].start_seconds > now - WINDOW_SECONDS / CHUNKS:
        last = Chunk(start_seconds=kept[-1].start_seconds, counts=merged([kept[-1].counts, counts]))
        return (*kept[:-1], last)
    return (*kept, Chunk(start_seconds=now, counts=counts))


def difference(total: Counts, earlier: Counts) -> Counts:
    """Return the counts that were added to `earlier` since then. If the counts are not later ones of the same
    process, they are all new."""
    if [len(one) for one in total] != [len(one) for one in earlier]:
        return total
    less = tuple(
        tuple(new - old for new, old in zip(one, other, strict=True))
        for one, other in zip(total, earlier, strict=True)
    )
    return total if any(value < 0 for one in less for value in one) else less
