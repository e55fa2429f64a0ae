"""Features at request time: reads of 5 windows, and the time until new rows are visible.

`python -m bench.online` measures 1 M entities and 20 M events, which are the sizes of the targets, and keeps
the results for the table. With other sizes (`--entities 100000 --events 2000000`), it only prints them.
"""

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from bench.measure import Result, at_most, row, save
from gridmill.domain.artifact import ArtifactKind, Output
from gridmill.domain.dataset import Aggregate, Basis, DatasetSpec, Window
from gridmill.online.build import build_view
from gridmill.online.features import OnlineFeatures
from gridmill.online.plan import OnlinePlan, plan_online
from gridmill.online.refresh import refresh_view
from gridmill.online.source_rows import SourceTable, open_sources, table_types

BEGIN = 1_704_067_200
"""1 January 2024, in Unix seconds; the events lie in the 30 days after it."""
DAYS = 30
NEW_ROWS = 10_000
ENTITIES, EVENTS = 1_000_000, 20_000_000
"""The sizes of the targets."""
READ_MS, FRESH_SECONDS = 5.0, 1.0
AREA = "features at request time"
HOW = """
One request for one random key with 5 windows of up to 30 days, and the time from the commit of 10,000 new
rows until requests see them. The processor time leaves out what other programs of the machine need.
"""
SPANS = (
    (Aggregate.COUNT, 1),
    (Aggregate.SUM, 1),
    (Aggregate.MEAN, 7),
    (Aggregate.MAX, 7),
    (Aggregate.STD, 30),
)
SPEC = DatasetSpec(
    basis=Basis(table="requests", time="at", entity=("user",)),
    windows=tuple(
        Window(
            column="amount",
            aggregates=(aggregate,),
            span_seconds=days * 86_400.0,
            table="events",
            known_at="time",
        )
        for aggregate, days in SPANS
    ),
)


def events(random: np.random.Generator, entities: int, rows: int, first: int, last: int) -> pa.Table:
    """Random events from `first` to `last` (Unix seconds)."""
    return pa.table(
        {
            "user": random.integers(0, entities, rows),
            "time": pa.array(random.integers(first * 1_000_000, last * 1_000_000, rows)).cast(
                pa.timestamp("us", "UTC")
            ),
            "amount": random.normal(100.0, 20.0, rows),
        }
    )


class Place:
    """The tables of the benchmark below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        time_type = pa.timestamp("us", "UTC")
        empty = pa.table({"user": pa.array([], pa.int64()), "at": pa.array([], time_type)})
        write_deltalake(folder / "root" / "requests", empty)

    def add(self, rows: pa.Table) -> None:
        write_deltalake(self.folder / "root" / "events", rows, mode="append")

    def tables(self) -> dict[str, SourceTable]:
        return {name: self.table(name) for name in ("requests", "events")}

    def table(self, name: str) -> SourceTable:
        path = self.folder / "root" / name
        output = Output(kind=ArtifactKind.SINK, uri=name, table_version=DeltaTable(path).version())
        return SourceTable(name=name, root=self.folder / "root", output=output, units={})

    def plan(self) -> OnlinePlan:
        with open_sources(self.folder) as engine:
            return plan_online(SPEC, table_types(engine, self.tables()))


def measure(folder: Path, entities: int, count: int, reads: int) -> dict[str, Any]:
    random, place = np.random.default_rng(0), Place(folder)
    now = BEGIN + DAYS * 86_400
    for rows in _parts(count, 2_000_000):
        place.add(events(random, entities, rows, BEGIN, now))
    plan, view = place.plan(), folder / "view"
    build = _timed(lambda: build_view(view, plan, place.tables(), now=now))
    features = OnlineFeatures(view, plan, clock=lambda: now)
    read = _read(features, random, entities, reads)
    fresh: list[Spent] = []
    for _ in range(5):
        place.add(events(random, entities, NEW_ROWS, now - 60, now))
        fresh.append(_timed(lambda: refresh_view(view, plan, place.tables(), now=now)))
    wall, cpu = ([one[at] for one in read] for at in (0, 1))
    size = sum(path.stat().st_size for path in view.glob("view-*"))
    return {
        "entities": entities,
        "events": count,
        "build_seconds": round(build[0], 1),
        "build_cpu_seconds": round(build[1], 1),
        "read_p50_ms": _quantile_ms(wall, 0.5),
        "read_p99_ms": _quantile_ms(wall, 0.99),
        "read_cpu_p50_ms": _quantile_ms(cpu, 0.5),
        "read_cpu_p99_ms": _quantile_ms(cpu, 0.99),
        "fresh_seconds": [round(seconds, 3) for seconds, _ in fresh],
        "fresh_cpu_seconds": [round(seconds, 3) for _, seconds in fresh],
        "size_mib": round(size / 2**20, 1),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "load": os.getloadavg()[0],
    }


def _parts(count: int, most: int) -> Iterator[int]:
    while count > 0:
        yield min(count, most)
        count -= most


Spent = tuple[float, float]
"""Seconds, and seconds of processor time of all threads."""


def _timed(call: Any) -> Spent:
    begin, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - begin, time.process_time() - cpu


def _quantile_ms(seconds: list[float], share: float) -> float:
    return round(float(np.quantile(seconds, share)) * 1e3, 3)


def _read(features: OnlineFeatures, random: np.random.Generator, entities: int, reads: int) -> list[Spent]:
    """The time of each request for one random entity."""
    users = random.integers(0, entities, reads + 100).tolist()
    spent = [_timed(lambda user=user: features.features_for([{"user": user}])) for user in users]
    return spent[100:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entities", type=int, default=ENTITIES)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--reads", type=int, default=5_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), given.entities, given.events, given.reads)
    print(json.dumps(result, indent=1))
    if (given.entities, given.events) == (ENTITIES, EVENTS):
        save("online", list(_rows(result)), how=HOW)


def _rows(result: dict[str, Any]) -> Iterator[Result]:
    yield at_most(READ_MS, AREA, "a request with 5 windows, 99 %", result["read_p99_ms"], "ms")
    yield row(AREA, "a request with 5 windows, median", result["read_p50_ms"], "ms")
    yield row(AREA, "its processor time, 99 %", result["read_cpu_p99_ms"], "ms")
    for what, name in (("10,000 new rows are visible", "fresh"), ("its processor time", "fresh_cpu")):
        times: list[float] = result[f"{name}_seconds"]
        spread = {"low": min(times), "high": max(times), "runs": len(times)}
        value = statistics.median(times)
        if name == "fresh":
            yield at_most(FRESH_SECONDS, AREA, what, value, "s", **spread)
        else:
            yield row(AREA, what, value, "s", **spread)
    yield row(AREA, "building the view", result["build_seconds"], "s")
    yield row(AREA, "size of the view", result["size_mib"], "MiB")


if __name__ == "__main__":
    main()
