"""Loading CSV and Parquet files onto a sink, against DuckDB's bare copy of the same files."""

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

import duckdb

from bench.measure import Result, Series, alternate, at_least, cpu_seconds, row, save
from gridmill.domain.amounts import GIB, MIB, Amounts
from gridmill.domain.job import Job
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.sink import SinkSpec
from gridmill.domain.source import Source
from gridmill.jobs.context import JobContext
from gridmill.jobs.sink.run import run

AREA = "Sinks"
SHARE, ROWS = 0.8, 3_000_000
_ROOT, _COPY = "root", "o.parquet"
HOW = """
Three million rows of eight columns (numbers, times, text, truth values, some missing), as CSV and as
Parquet. Ours: the sink's job in one process: files hashed, types found, rows written and measured (missing,
distinct, min, max, mean, deviation, a sample), and one commit. Against it: `COPY (FROM file) TO 'o.parquet'`
by DuckDB with as many threads, with its own defaults. Both compress by snappy; ours takes zstd for text.
Both take turns, after one round that does not count. Wall seconds are what is held against the target; CPU
seconds tell how much of it is the machine's other work.
"""
_MAKE = """
COPY (SELECT i AS id, TIMESTAMP '2024-01-01' + to_seconds(i) AS at,
    'c' || (hash(i) % 5000)::VARCHAR AS customer, (hash(i * 7) % 100)::INT AS pieces,
    round((hash(i * 13) % 100000) / 100.0, 2) AS price,
    CASE WHEN hash(i * 3) % 50 = 0 THEN NULL ELSE round((hash(i * 11) % 10000000) / 1e4, 4) END AS weight,
    hash(i) % 2 = 0 AS late, ['red', 'green', 'blue', 'grey'][1 + (hash(i * 5) % 4)::INT] AS colour
  FROM range({rows}) t(i)) TO '{path}'
"""


def main() -> None:
    cores = len(os.sched_getaffinity(0))
    results: list[Result] = []
    with TemporaryDirectory() as folder:
        for form in ("csv", "parquet"):
            path = Path(folder) / f"a.{form}"
            duckdb.sql(_MAKE.format(rows=ROWS, path=path))
            results += _compare(form, path, cores)
    save("sink", results, how=HOW)


def _compare(form: str, path: Path, cores: int) -> list[Result]:
    cpu: dict[str, Series] = {"ours": Series(), "DuckDB": Series()}
    sizes: dict[str, int] = {}
    acts = {
        "ours": _timed(lambda: sizes.update(ours=_ours(path, cores)), cpu["ours"], path.parent),
        "DuckDB": _timed(lambda: sizes.update(DuckDB=_copy(path, cores)), cpu["DuckDB"], path.parent),
    }
    wall = alternate(acts)
    pairs = zip(wall["DuckDB"].values, wall["ours"].values, strict=True)
    speed = Series([copy / ours for copy, ours in pairs])
    return [
        at_least(SHARE, AREA, f"{form}: rows/s, of DuckDB's copy's", speed.median, "", **speed.spread),
        row(AREA, f"{form}: ours", wall["ours"].median, "s", **wall["ours"].spread),
        row(AREA, f"{form}: DuckDB's copy", wall["DuckDB"].median, "s", **wall["DuckDB"].spread),
        row(AREA, f"{form}: ours", cpu["ours"].median, "CPU s", **cpu["ours"].spread),
        row(AREA, f"{form}: DuckDB's copy", cpu["DuckDB"].median, "CPU s", **cpu["DuckDB"].spread),
        row(AREA, f"{form}: ours, written", sizes["ours"] / MIB, "MiB"),
        row(AREA, f"{form}: DuckDB's copy, written", sizes["DuckDB"] / MIB, "MiB"),
    ]


def _timed(act: Callable[[], object], cpu: Series, folder: Path) -> Callable[[], float]:
    """Its seconds, onto nothing: what the round before wrote is gone."""

    def measured() -> float:
        rmtree(folder / _ROOT, ignore_errors=True)
        (folder / _COPY).unlink(missing_ok=True)
        began, used = time.perf_counter(), cpu_seconds(resource.RUSAGE_SELF)
        act()
        cpu.values.append(cpu_seconds(resource.RUSAGE_SELF) - used)
        return time.perf_counter() - began

    return measured


def _copy(path: Path, cores: int) -> int:
    """The size of what it wrote, in bytes."""
    written = path.parent / _COPY
    with duckdb.connect(config={"threads": cores}) as engine:
        engine.execute(f"COPY (FROM '{path}') TO '{written}' (FORMAT parquet)")
    return written.stat().st_size


def _ours(path: Path, cores: int) -> int:
    """The size of the table's files, in bytes."""
    root = path.parent / _ROOT
    order = AttemptOrder(
        attempt_id="p-1.s.1",
        token="t",
        run_id="p-1",
        pipeline="p",
        job=Job(name="s", sink=SinkSpec(source=Source(path=str(path)))),
        given=Amounts(cpus=cores, memory_bytes=4 * GIB),
        root=str(root),
        output_uri="sinks/p/s/p-1.s.1",
        table_uri="sinks/p/s/table",
        folder=str(path.parent),
    )
    work = path.parent / "work"
    work.mkdir(exist_ok=True)
    (output,) = run(JobContext(order=order, work=work)).outputs
    return output.size_bytes


if __name__ == "__main__":
    main()
