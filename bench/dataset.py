"""A dataset of many events: windows of 7 and 30 days and an as-of join, beside DuckDB and Polars by hand.

`python -m bench dataset`; GRIDMILL_BENCH_EVENTS (default 20000000) is the number of events.
"""

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench import measure
from bench.environments import programs
from bench.measure import alternate, at_most, row

EVENTS = int(os.environ.get("GRIDMILL_BENCH_EVENTS", "20_000_000"))
DAYS = 730
LATEST = 0.01
MEMORY_BYTES = 2 * 2**30
FOLDER = "GRIDMILL_BENCH_FOLDER"
WINDOW = "RANGE BETWEEN INTERVAL {0} DAY PRECEDING AND INTERVAL 1 MICROSECOND PRECEDING"


def make_data(folder: Path) -> None:
    """Events of many users, by time, and the prices they saw; the latest 1 % in a load of its own."""
    import numpy as np
    import pyarrow as pa
    from deltalake import write_deltalake

    rng = np.random.default_rng(0)
    users, span = max(1, EVENTS // 500), DAYS * 86_400_000_000
    times = np.sort(rng.integers(0, span, EVENTS))
    events = pa.table(
        {
            "user": rng.integers(0, users, EVENTS),
            "time": pa.array(times, pa.timestamp("us", "UTC")),
            "amount": rng.gamma(2.0, 10.0, EVENTS),
        }
    )
    count = EVENTS // 10
    prices = pa.table(
        {
            "user": rng.integers(0, users, count),
            "known_at": pa.array(np.sort(rng.integers(0, span, count)), pa.timestamp("us", "UTC")),
            "price": rng.normal(100.0, 15.0, count),
        }
    )
    before = int(EVENTS * (1 - LATEST))
    write_deltalake(folder / "root/events", events.slice(0, before))
    write_deltalake(folder / "root/events", events.slice(before), mode="append")
    earlier = pa.compute.less(prices["known_at"], events["time"][before])
    write_deltalake(folder / "root/prices", prices.filter(earlier))
    write_deltalake(folder / "root/prices", prices.filter(pa.compute.invert(earlier)), mode="append")


def by_duckdb(folder: Path) -> None:
    """What one would write: Parquet in, one query, Parquet out."""
    import duckdb

    connection = duckdb.connect(
        config={"threads": _cores(), "memory_limit": "1400MB", "temp_directory": str(folder / "spill")}
    )
    spans = ", ".join(
        f"sum(amount) OVER w{days}, count(amount) OVER w{days}, avg(amount) OVER w{days}" for days in (7, 30)
    )
    frames = ", ".join(
        f'w{days} AS (PARTITION BY "user" ORDER BY time {WINDOW.format(days)})' for days in (7, 30)
    )
    target = folder / "duckdb.parquet"
    connection.execute(
        f"""COPY (SELECT w.*, p.price FROM (
              SELECT *, {spans} FROM read_parquet('{folder}/root/events/*.parquet') WINDOW {frames}) AS w
            ASOF LEFT JOIN read_parquet('{folder}/root/prices/*.parquet') AS p
              ON w."user" = p."user" AND w.time > p.known_at)
            TO '{target}' (FORMAT parquet, COMPRESSION zstd)"""
    )


def by_polars(folder: Path) -> None:
    """The same in Polars."""
    import polars as pl

    events = pl.scan_parquet(f"{folder}/root/events/*.parquet").sort("user", "time").collect()
    for days in (7, 30):
        amount = pl.col("amount")
        found = events.rolling("time", period=f"{days}d", closed="left", group_by="user").agg(
            amount.sum().alias(f"sum{days}"),
            amount.count().alias(f"count{days}"),
            amount.mean().alias(f"mean{days}"),
        )
        events = events.with_columns(found[f"{name}{days}"] for name in ("sum", "count", "mean"))
    prices = pl.scan_parquet(f"{folder}/root/prices/*.parquet").sort("user", "known_at").collect()
    joined = events.join_asof(
        prices,
        left_on="time",
        right_on="known_at",
        by="user",
        allow_exact_matches=False,
        check_sortedness=False,
    )
    joined.write_parquet(folder / "polars.parquet")


def by_gridmill(folder: Path) -> None:
    """The dataset job as it is run in an attempt; `after` the version before where there is one."""
    from deltalake import DeltaTable

    from gridmill.jobs.arrow import keep_pandas_out

    keep_pandas_out()  # as every attempt begins
    from gridmill.codec import decode, encode
    from gridmill.domain.amounts import Amounts
    from gridmill.domain.artifact import Artifact, ArtifactKind, Input, Output
    from gridmill.domain.dataset import Aggregate, AsOfJoin, Basis, DatasetSpec, Split, Window
    from gridmill.domain.job import Job
    from gridmill.domain.pod_protocol import AttemptOrder
    from gridmill.jobs.context import JobContext
    from gridmill.jobs.dataset.run import run

    load = os.environ["GRIDMILL_BENCH_LOAD"]
    some = (Aggregate.SUM, Aggregate.COUNT, Aggregate.MEAN)
    spec = DatasetSpec(
        basis=Basis(table="events", time="time", entity=("user",)),
        asof_joins=(AsOfJoin(table="prices", on=("user",), known_at="known_at", columns=("price",)),),
        windows=tuple(Window(column="amount", aggregates=some, span_seconds=d * 86_400.0) for d in (7, 30)),
        split=Split(validation_from="1971-03-01", test_from="1971-06-01"),
        incremental=True,
    )

    def sink(name: str) -> Input:
        version = 0 if load == "before" else DeltaTable(folder / "root" / name).version()
        output = Output(kind=ArtifactKind.SINK, uri=name, table_version=version)
        artifact = Artifact(id=f"b/{name}@1", name=f"b/{name}", number=1, output=output, fingerprint="")
        return Input(name=name, artifact=artifact)

    kept = folder / "before.json"
    earlier = (Input(name="d", artifact=decode(kept.read_bytes(), Artifact)),) if load == "rest" else ()
    uri = f"datasets/{load}"
    shutil.rmtree(folder / "root" / uri, ignore_errors=True)
    order = AttemptOrder(
        attempt_id=load,
        token="",
        run_id="b-1",
        pipeline="b",
        job=Job(name="d", dataset=spec),
        given=Amounts(cpus=float(_cores()), memory_bytes=MEMORY_BYTES),
        root=str(folder / "root"),
        output_uri=uri,
        inputs=(sink("events"), sink("prices")),
        earlier=earlier,
    )
    work = Path(tempfile.mkdtemp(dir=folder))
    output = run(JobContext(order=order, work=work)).outputs[0]
    shutil.rmtree(work)
    if load == "before":
        kept.write_bytes(
            encode(replace(earlier[0].artifact if earlier else sink("events").artifact, output=output))
        )


CONTESTANTS = {"duckdb": by_duckdb, "polars": by_polars, "gridmill": by_gridmill, "data": make_data}


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _python(name: str) -> Path:
    """Polars has an environment of its own; the others are what Gridmill itself is made with."""
    return programs("polars") / "python" if name == "polars" else Path(sys.executable)


def spent(name: str, folder: Path, load: str = "all") -> tuple[float, float, int]:
    """Wall and CPU seconds and peak bytes of one contestant in a process of its own."""
    begin = time.perf_counter()
    env = {**os.environ, FOLDER: str(folder), "GRIDMILL_BENCH_LOAD": load}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed is compiled already
    done = subprocess.run(
        (str(_python(name)), "-m", "bench.dataset", name),
        env=env,
        cwd=measure.REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    cpu, peak = done.stdout.split()[-2:]
    return time.perf_counter() - begin, float(cpu), int(peak)


def main() -> None:
    peaks: dict[str, int] = {}
    cpus: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-dataset-") as name:
        folder = Path(name)
        spent("data", folder)

        def act(contestant: str, load: str = "all") -> float:
            seconds, cpu, peak = spent(contestant, folder, load)
            cpus.setdefault(f"{contestant} {load}", []).append(cpu)
            peaks[f"{contestant} {load}"] = max(peak, peaks.get(f"{contestant} {load}", 0))
            return seconds

        spent("gridmill", folder, "before")
        acts = {name: partial(act, name) for name in ("duckdb", "polars", "gridmill")}
        acts["rest"] = partial(act, "gridmill", "rest")
        series = alternate(acts, rounds=int(os.environ.get("GRIDMILL_BENCH_ROUNDS", "3")))
    area = "datasets"
    hands = {key: series[key].median for key in ("duckdb", "polars")}
    best = min(hands, key=lambda key: hands[key])
    ours = series["gridmill"]
    results = [
        at_most(1.15, area, f"the dataset job over {best} by hand", ours.median / hands[best], "x"),
        row(area, "the dataset job", ours.median, "s", **ours.spread),
        *(row(area, f"{key} by hand", series[key].median, "s", **series[key].spread) for key in hands),
        at_most(2.0, area, "peak memory of the job", peaks["gridmill all"] / 2**30, "GiB"),
        *(row(area, f"CPU seconds, {key}", statistics.median(cpu), "s") for key, cpu in cpus.items()),
        *(row(area, f"peak memory of {key}", peaks[f"{key} all"] / 2**30, "GiB") for key in hands),
        at_most(
            0.10,
            area,
            "rebuilding after the latest 1 % over building all",
            series["rest"].median / ours.median,
            "x",
            **{"note": f"{series['rest'].median:.1f} s"},
        ),
    ]
    measure.save(
        "dataset",
        results,
        how=f"{EVENTS:,} generated events of {max(1, EVENTS // 500):,} users over two years, "
        "in Delta tables; sum, count and mean of 7 and 30 days, and a price as of each event, each "
        "in a process of its own, start-up included, with all cores; the job within 2 GiB.",
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        CONTESTANTS[sys.argv[1]](Path(os.environ[FOLDER]))
        print(time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    else:
        main()
