"""Counts of a replica, and their text for Prometheus.

All replicas accept connections on one address, so any replica may answer a request for the metrics. Each
replica therefore writes its counts to a file, and the replica that answers adds the files of the others. A
new replica with the same number continues the counts of its file, so counters never decrease.
"""

import json
import os
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds in seconds of the durations that are counted."""
_LABELS = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
SHADOW = "shadow"
"""The name of the process of the shadow in its file, in place of the number of a replica."""
SHADOW_PREFIX = "gridmill_shadow_"
SHADOW_DROPPED = "gridmill_shadow_dropped_total"
SHADOW_LATENCY = "gridmill_shadow_latency_seconds"
LOG_LINES = "gridmill_log_lines_total"
LOG_LOST = "gridmill_log_lines_lost_total"
LOG_DELETED = "gridmill_log_lines_deleted_total"
HELP = {
    "gridmill_requests_total": ("counter", "Requests by version, kind of request and status."),
    "gridmill_request_seconds": ("histogram", "Seconds from the end of a request to its answer."),
    "gridmill_batches_total": ("counter", "Batches that the model computed."),
    "gridmill_batch_rows_total": ("counter", "Rows of the batches that the model computed."),
    "gridmill_batch_seconds_total": ("counter", "Seconds in which the model computed batches."),
    LOG_LINES: ("counter", "Lines of the request log: logged rows and requests."),
    LOG_LOST: ("counter", "Lines of the request log that were lost in this place, by reason."),
    LOG_DELETED: ("counter", "Lines of the request log in files that were deleted above the limit."),
    "gridmill_requests_waiting": ("gauge", "Requests that wait for the model or are computed."),
    "gridmill_connections": ("gauge", "Open connections."),
    "gridmill_memory_bytes": ("gauge", "Resident memory of a replica."),
    "gridmill_gpu_memory_bytes": ("gauge", "GPU memory of the code of a model in a replica."),
    "gridmill_replicas_wanted": ("gauge", "Replicas that the service wants to be ready."),
    "gridmill_replicas_ready": ("gauge", "Replicas that are ready."),
    "gridmill_drift_psi": ("gauge", "Population stability index of a feature or of the prediction."),
    "gridmill_drift_rows": ("gauge", "Rows from which the population stability indexes are computed."),
    "gridmill_view_age_seconds": ("gauge", "Seconds since the view had the newest versions of its tables."),
    "gridmill_view_table_version": ("gauge", "Version number of a table that the view holds."),
    "gridmill_shadow_requests_total": ("counter", "Copies that the shadow has predicted."),
    "gridmill_shadow_rows_total": ("counter", "Rows that the shadow has predicted, by result."),
    "gridmill_shadow_failed_total": ("counter", "Copies that the shadow could not predict."),
    SHADOW_DROPPED: ("counter", "Copies that were not sent, because the shadow was slow or did not run."),
    "gridmill_shadow_seconds_total": ("counter", "Seconds that the answers of the shadow took."),
    "gridmill_shadow_difference_total": ("counter", "Sum of the differences of the different rows."),
    "gridmill_shadow_difference_rows_total": ("counter", "Different rows with a difference in numbers."),
    "gridmill_shadow_difference_max": ("gauge", "Largest difference of a row."),
    SHADOW_LATENCY: ("gauge", "Quantiles of the time of the answers, of the shadow and as served."),
    "gridmill_scale_changes_total": ("counter", "Changes of the number of replicas by rate and latency."),
}
"""The type and the help text of each metric, by its name."""
COMPUTED = ("infer", "predict")
"""The kinds of requests for which the model computes."""
_REFUSED = (429, 504)
_GAUGES = {name for name, (kind, _) in HELP.items() if kind == "gauge"}


class Metrics:
    """The counts of one replica. A key is the name of a metric with its labels, as in the text for
    Prometheus."""

    def __init__(self, folder: Path, replica: int | str, shadow: str = "") -> None:
        """`shadow` is the label of the present shadow of the service. The text has no metrics of another."""
        self._shadow = shadow
        self._path = folder / f"metrics-{replica}.json"
        self._replica = replica
        self.counts: dict[str, float] = {}
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._durations: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, float] = {}
        self._gauges: dict[str, float] = {}
        self._base = {key: value for key, value in _read(self._path).items() if _name(key) not in _GAUGES}

    def count(self, version: str, kind: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests[version, kind, status] += 1
        if kind in COMPUTED:
            self._durations[version, bisect_left(BOUNDS, seconds)] += 1
            self._seconds[version] = self._seconds.get(version, 0.0) + seconds

    def load(self) -> dict[str, Any]:
        """Return the numbers of requests of this process from which the number of replicas is decided: the
        answered ones, the ones that were refused because too many waited, and the answers by duration."""
        durations = [0] * (len(BOUNDS) + 1)
        for (_, place), number in self._durations.items():
            durations[place] += number
        asked = [(status, n) for (_, kind, status), n in self._requests.items() if kind in COMPUTED]
        refused = sum(number for status, number in asked if status in _REFUSED)
        return {
            "answered": sum(number for _, number in asked) - refused,
            "refused": refused,
            "durations": durations,
        }

    def set_gauge(self, name: str, value: float, **labels: str) -> None:
        """Set the present value of a gauge. `labels` are labels beside the number of the replica."""
        others = "".join(f',{label}="{escaped(text)}"' for label, text in labels.items())
        self._gauges[f'{name}{{replica="{self._replica}"{others}}}'] = value

    def values(self) -> dict[str, float]:
        """Return all counts of this replica, by key."""
        total = defaultdict(float, self._base)
        for key, value in self.counts.items():
            total[key] += value
        for (version, kind, status), number in self._requests.items():
            labels = f'version="{escaped(version)}",kind="{kind}",status="{status}"'
            total[f"gridmill_requests_total{{{labels}}}"] += number
        for (version, place), number in self._durations.items():
            # buckets without requests too: Prometheus misses the first request of a bucket that appears later
            for at, label in enumerate(_LABELS):
                labels = f'version="{escaped(version)}",le="{label}"'
                total[f"gridmill_request_seconds_bucket{{{labels}}}"] += number if at >= place else 0
            total[f'gridmill_request_seconds_count{{version="{escaped(version)}"}}'] += number
        for version, seconds in self._seconds.items():
            total[f'gridmill_request_seconds_sum{{version="{escaped(version)}"}}'] += seconds
        return {**total, **self._gauges}

    def save(self) -> None:
        """Write the counts for the other replicas. If the disk is full, the earlier file stays."""
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with suppress(OSError):
            draft.write_text(json.dumps(self.values()))
            draft.replace(self._path)

    def text(self) -> str:
        """Return the counts of all replicas in the text format of Prometheus."""
        total = defaultdict(float, self.values())
        for key, value in totals(self._path.parent, without=self._path).items():
            total[key] += value
        mark = f'version="{escaped(self._shadow)}"'
        shown = {
            key: value for key, value in total.items() if not key.startswith(SHADOW_PREFIX) or mark in key
        }
        return "".join(f"{line}\n" for line in _lines(shown))


def totals(folder: Path, *, without: Path | None = None) -> dict[str, float]:
    """Return all counts, added up over the files in the folder. The file `without` is left out."""
    total: dict[str, float] = defaultdict(float)
    for path in sorted(folder.glob("metrics-*.json")):
        if path != without:
            for key, value in _read(path).items():
                total[key] += value
    return total


def _read(path: Path) -> dict[str, float]:
    with suppress(OSError, ValueError):
        content = json.loads(path.read_bytes())
        if isinstance(content, dict):
            return content
    return {}


def _lines(total: Mapping[str, float]) -> Iterator[str]:
    for name, (kind, text) in HELP.items():
        keys = [key for key in total if _name(key) == name]
        if keys:
            yield f"# HELP {name} {text}"
            yield f"# TYPE {name} {kind}"
            yield from (f"{key} {total[key]:.17g}" for key in sorted(keys, key=_by_bound))


def _name(key: str) -> str:
    name = key.partition("{")[0]
    return name if name in HELP else name.rpartition("_")[0]


def _by_bound(key: str) -> tuple[str, float]:
    before, found, rest = key.partition(',le="')
    return (before, float(rest.partition('"')[0])) if found else (key, 0.0)


def escaped(value: str) -> str:
    """Return a text as the value of a label in the text format of Prometheus."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
