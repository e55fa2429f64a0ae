"""Starts, observes and replaces the process of a shadow, beside the replicas of a service."""

import logging
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gridmill.domain.serving import ReplicaState, ServiceOrder, ShadowOrder, ShadowReport
from gridmill.serving.metrics import SHADOW, SHADOW_DROPPED, SHADOW_LATENCY, SHADOW_PREFIX, escaped, totals
from gridmill.serving.replica_plan import broken
from gridmill.serving.replica_process import ReplicaProcess
from gridmill.serving.shadow_copies import WAITING_FILE, copies_pair, discard

_LOG = logging.getLogger(__name__)
COUNT_SECONDS = 1.0
"""The interval at which the counts are read."""
_LONGEST_PAUSE_SECONDS = 60.0
_PATIENCE = 5.0
"""The process may give no sign of life for this many times the time of a replica, because it has a low
priority, and no request waits for it."""
MODULE = "gridmill.serving.shadow"
_RESULT = re.compile(r'(?:result|by|quantile)="([^"]*)"')


class ShadowKeeper:
    """The shadow of one service. Times are seconds of the monotonic clock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shadow: ShadowOrder | None = None
        self._served = ""
        self._pair: tuple[socket.socket, socket.socket] | None = None
        self._process: ReplicaProcess | None = None
        self._failures, self._start_at, self._count_at = 0, 0.0, 0.0
        self._problem = ""
        self._discarded = 0
        self._before: Mapping[str, float] = {}
        self._began = 0.0
        self.report: ShadowReport | None = None

    def descriptor(self, order: ServiceOrder) -> int | None:
        """Return the file descriptor to which replicas of an order write copies; None if they write none."""
        if order.shadow is None:
            return None
        self._follow(order.shadow, _served(order))
        return self._pair[0].fileno() if self._pair is not None else None

    def tick(self, order: ServiceOrder, now: float, *, is_wanted: bool, waits_for: str = "") -> None:
        """Start the process if it is missing and `is_wanted`, and replace it if it does not work. `waits_for`
        is the reason why it cannot start yet; empty if it can."""
        self._follow(order.shadow, _served(order))
        self._reap(now)
        if self._shadow is None:
            return
        if self._process is not None:
            self._process.read()
            why = broken(self._process.order, self._process.observed(now), now)
            if why:
                self._process.kill(why.replace("the replica", "the shadow"))
        elif waits_for:
            self._discard()
        elif is_wanted and now >= self._start_at:
            self._start(order, self._shadow)
        if now >= self._count_at:
            self._count_at = now + COUNT_SECONDS
            self._count(self._shadow, waits_for)

    def close(self) -> None:
        """End the process."""
        self._follow(None, "")

    def _follow(self, shadow: ShadowOrder | None, served: str) -> None:
        """Take another shadow, or compare it with another version. Its copies have a socket of their own, and
        its counts begin at 0."""
        if shadow == self._shadow and (served == self._served or shadow is None):
            return
        self._end()
        is_other = shadow is None or self._shadow is None or shadow.version != self._shadow.version
        is_other |= served != self._served
        self._served, self._shadow = served, shadow
        self._failures, self._start_at, self._problem = 0, 0.0, ""
        if is_other:
            self._discarded = 0
            for name in (f"metrics-{SHADOW}.json", WAITING_FILE):
                (self._folder / name).unlink(missing_ok=True)
            self._before = _counts(self._folder, shadow.version.label) if shadow is not None else {}
            self._began = time.time()
            self.report = self._labelled(ShadowReport(label=shadow.version.label)) if shadow else None
            for one in self._pair or ():
                one.close()
            self._pair = copies_pair() if shadow is not None else None

    def _start(self, order: ServiceOrder, shadow: ShadowOrder) -> None:
        assert self._pair is not None
        own = replace(
            order,
            versions=(shadow.version,),
            shadow=None,
            request_log=None,
            upstream=None,
            memory_bytes=shadow.memory_bytes,
            hang_seconds=_PATIENCE * order.hang_seconds,
        )
        self._process = ReplicaProcess(0, own, self._folder, self._pair[1], module=MODULE)

    def _discard(self) -> None:
        """Drop the copies that wait. Later, the view would have other values than when they were served."""
        assert self._pair is not None
        self._discarded += discard(self._pair[1])

    def _reap(self, now: float) -> None:
        process = self._process
        code = process.exit_code() if process is not None else None
        if process is None or code is None:
            return
        process.read()
        process.close()
        self._process = None
        self._failures += 1
        self._start_at = now + min(2.0**self._failures, _LONGEST_PAUSE_SECONDS)
        self._problem = process.failure or f"the shadow ended with exit code {code}"
        _LOG.error("the shadow failed: %s", self._problem)

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def _count(self, shadow: ShadowOrder, waits_for: str) -> None:
        now = _counts(self._folder, shadow.version.label)
        counts = {name: value - self._before.get(name, 0.0) for name, value in now.items()}
        is_ready = self._process is not None and self._process.state == ReplicaState.READY
        found = report_of(shadow.version.label, counts, now.get(_LARGEST, 0.0), now)
        # another process begins with a largest difference of 0, and the file may have that of another shadow
        before = self.report.largest_difference if self.report is not None else 0.0
        self.report = replace(
            self._labelled(found),
            largest_difference=max(before, found.largest_difference) if found.different else 0.0,
            dropped=found.dropped + self._discarded,
            is_ready=is_ready,
            restarts=self._failures,
            problem="" if is_ready else waits_for or self._problem,
        )

    def _labelled(self, report: ShadowReport) -> ShadowReport:
        return replace(report, served=self._served, began=self._began)


def _served(order: ServiceOrder) -> str:
    """Return the label of the version with which a shadow is compared."""
    return order.versions[0].label if order.versions else ""


_LARGEST = "gridmill_shadow_difference_max"
_DIFFERENCE_ROWS = "gridmill_shadow_difference_rows_total"


def _counts(folder: Path, label: str) -> dict[str, float]:
    """Return the counts of all replicas and of the shadow about a shadow, by name and result. The
    quantiles of latencies are by name, version and quantile."""
    mark = f'version="{escaped(label)}"'
    found: dict[str, float] = {}
    for key, value in totals(folder).items():
        if key.startswith(SHADOW_PREFIX) and mark in key:
            found["/".join((key.partition("{")[0], *_RESULT.findall(key)))] = value
    return found


def report_of(
    label: str, counts: Mapping[str, float], largest: float, latencies: Mapping[str, float]
) -> ShadowReport:
    """Return the report with these counts."""

    def mean(total: str, number: str) -> float:
        return counts.get(total, 0.0) / max(1.0, counts.get(number, 0.0))

    requests = "gridmill_shadow_requests_total"
    return ShadowReport(
        label=label,
        requests=int(counts.get(requests, 0)),
        equal=int(counts.get("gridmill_shadow_rows_total/equal", 0)),
        different=int(counts.get("gridmill_shadow_rows_total/different", 0)),
        mean_difference=mean("gridmill_shadow_difference_total", _DIFFERENCE_ROWS),
        difference_rows=int(counts.get(_DIFFERENCE_ROWS, 0)),
        largest_difference=largest,
        failed=int(counts.get("gridmill_shadow_failed_total", 0)),
        dropped=int(counts.get(SHADOW_DROPPED, 0)),
        mean_seconds=mean("gridmill_shadow_seconds_total", requests),
        p50_seconds=latencies.get(f"{SHADOW_LATENCY}/shadow/0.5", 0.0),
        p99_seconds=latencies.get(f"{SHADOW_LATENCY}/shadow/0.99", 0.0),
        served_p50_seconds=latencies.get(f"{SHADOW_LATENCY}/served/0.5", 0.0),
        served_p99_seconds=latencies.get(f"{SHADOW_LATENCY}/served/0.99", 0.0),
    )
