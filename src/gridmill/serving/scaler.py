"""The number of replicas that a parent process wants, with the samples of the load behind it."""

import json
import os
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from gridmill.domain.serving import ReplicaState, ServiceOrder
from gridmill.serving.autoscale import (
    SAMPLE_SECONDS,
    LoadSample,
    Wish,
    decide_scale,
    first_wish,
    history_seconds,
)
from gridmill.serving.metrics import BOUNDS
from gridmill.serving.replica_process import ReplicaLoad, ReplicaProcess

_FILE = "metrics-parent.json"


class Scaler:
    """Counts the requests of all replicas, and changes the number of wanted replicas. Times of arguments are
    monotonic."""

    def __init__(self, order: ServiceOrder, folder: Path, now: float) -> None:
        self._path = folder / _FILE
        self._ended = ReplicaLoad(durations=(0,) * (len(BOUNDS) + 1))
        self._samples: deque[LoadSample] = deque()
        self._counted = (-1, -1)
        self.changes = 0
        self.reason = ""
        self.scaled_at: float | None = None
        self._order = order
        self.wanted = _begin(order, order.replicas)
        self._settled_at = now

    def follow(self, order: ServiceOrder, now: float) -> None:
        """Begin with a new order. The number of replicas stays, if the order permits it."""
        had_scaling, self._order = self._order.scaling is not None, order
        self.wanted = _begin(order, self.wanted if had_scaling else order.replicas)
        self._settled_at = now

    def wake(self, now: float) -> None:
        """Want the first replica, because a connection waits for it."""
        if self.wanted == 0:
            self._change(Wish(replicas=1, reason="a request waited for the first replica"), now)

    def retire(self, replica: ReplicaProcess) -> None:
        """Keep the numbers of a replica that has ended."""
        self._ended = _sum((self._ended, replica.load))

    def decide(self, replicas: Iterable[ReplicaProcess], now: float) -> None:
        """Take a sample if it is time, and change the number of wanted replicas."""
        scaling, replicas = self._order.scaling, tuple(replicas)
        if sum(one.state == ReplicaState.READY for one in replicas) < self.wanted:
            # the load of replicas that still start says nothing yet
            self._settled_at = now
        if scaling is None or (self._samples and now - self._samples[-1].at < SAMPLE_SECONDS):
            return
        total = _sum((self._ended, *(one.load for one in replicas)))
        self._samples.append(
            LoadSample(at=now, answered=total.answered, refused=total.refused, durations=total.durations)
        )
        while now - self._samples[0].at > history_seconds(scaling):
            self._samples.popleft()
        wish = decide_scale(scaling, tuple(self._samples), self.wanted, changed_at=self._settled_at, now=now)
        if wish.replicas != self.wanted:
            self._change(wish, now)

    def _change(self, wish: Wish, now: float) -> None:
        self.reason = f"{wish.replicas} instead of {self.wanted}: {wish.reason}"
        self.wanted, self._settled_at = wish.replicas, now
        self.scaled_at = time.time()
        self.changes += 1

    def save(self, ready: int) -> None:
        """Write the metrics of the parent process, which the replicas add to theirs, if they have changed."""
        counted = (self.wanted, ready)
        if counted == self._counted:
            return
        values = {
            "gridmill_replicas_wanted": self.wanted,
            "gridmill_replicas_ready": ready,
            "gridmill_scale_changes_total": self.changes,
        }
        draft = self._path.with_name(f".{_FILE}.{os.getpid()}")
        with suppress(OSError):
            draft.write_text(json.dumps(values))
            draft.replace(self._path)
            self._counted = counted


def _begin(order: ServiceOrder, replicas: int) -> int:
    return order.replicas if order.scaling is None else first_wish(order.scaling, replicas).replicas


def _sum(loads: Iterable[ReplicaLoad]) -> ReplicaLoad:
    all_loads = tuple(loads)
    return ReplicaLoad(
        answered=sum(one.answered for one in all_loads),
        refused=sum(one.refused for one in all_loads),
        durations=tuple(map(sum, zip(*(one.durations for one in all_loads), strict=True))),
    )
