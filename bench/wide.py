"""A dataset of thousands of columns: 720 hours of labels of 7 columns, scaled, beside numpy and pyarrow.

`python -m bench wide`; GRIDMILL_BENCH_STEPS (default 720) is how many rows ahead the labels reach. It needs
ETTh1.csv, whose place GRIDMILL_BENCH_ETT says.
"""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import measure
from bench.measure import alternate, at_most, row

ETT = Path(
    os.environ.get(
        "GRIDMILL_BENCH_ETT", str(measure.REPOSITORY.parent / "shared" / "data" / "ett" / "ETTh1.csv")
    )
)
STEPS = int(os.environ.get("GRIDMILL_BENCH_STEPS", "720"))
MEMORY_BYTES = 6 * 2**30
FOLDER = "GRIDMILL_BENCH_FOLDER"
RAW = "raw"


@dataclass(kw_only=True)
class Spent:
    """Seconds, bytes above what the process held before, and bytes of the result as Arrow."""

    seconds: float
    above_bytes: int
    result_bytes: int
    whole_seconds: float = 0.0
    whole_above_bytes: int = 0


def by_gridmill(folder: Path) -> Spent:
    """The dataset job; its part that encodes and writes is measured by itself."""
    from gridmill.jobs.arrow import keep_pandas_out

    keep_pandas_out()  # as every attempt begins
    import pyarrow.dataset as ds

    from gridmill.jobs.dataset import run as job
    from gridmill.jobs.dataset import write

    encode, found, peaks = write.write_encoded, [], []
    context = _context(folder, job)

    def measured(*arguments: Any, **others: Any) -> Any:
        peaks.append(_status("VmHWM"))
        _keep_raw(arguments[3] / write.RAW, folder / RAW)
        found.append(_measured(lambda: encode(*arguments, **others)))
        return found[-1][0]

    vars(job)["write_encoded"] = measured  # what the job calls to encode and write
    base = _status("VmRSS")
    output, seconds, above = _measured(lambda: job.run(context).outputs[0])
    _, encode_seconds, encode_above = found[0]
    files = sorted(str(path) for path in (folder / "root" / output.uri).glob("*.parquet"))
    return Spent(
        seconds=encode_seconds,
        above_bytes=encode_above,
        result_bytes=ds.dataset(files, format="parquet").to_table().nbytes,
        whole_seconds=seconds,
        whole_above_bytes=max(peaks[0] - base, above),
    )


def _context(folder: Path, job: Any) -> Any:
    import pyarrow as pa
    import pyarrow.csv as csv
    from deltalake import write_deltalake

    from gridmill.domain.amounts import Amounts
    from gridmill.domain.artifact import Artifact, ArtifactKind, Input, Output
    from gridmill.domain.dataset import Basis, DatasetSpec, Encoder, Label, Method, Split
    from gridmill.domain.job import Job
    from gridmill.domain.pod_protocol import AttemptOrder
    from gridmill.jobs.context import JobContext
    from gridmill.jobs.tables import plain_schema

    table = csv.read_csv(ETT)
    if not (folder / "root/hourly").exists():
        write_deltalake(folder / "root/hourly", table.cast(plain_schema(table.schema)))
    columns = tuple(name for name in table.column_names if pa.types.is_floating(table[name].type))
    spec = DatasetSpec(
        basis=Basis(table="hourly", time="date"),
        label=Label(columns=columns, next_rows=STEPS, name="ahead"),
        split=Split(validation=0.2, test=0.2),
        encoders=(Encoder(columns=columns, method=Method.STANDARD),),
    )
    output = Output(kind=ArtifactKind.SINK, uri="hourly", table_version=0)
    artifact = Artifact(id="b/hourly@1", name="b/hourly", number=1, output=output, fingerprint="")
    order = AttemptOrder(
        attempt_id="wide",
        token="",
        run_id="b-1",
        pipeline="b",
        job=Job(name="d", dataset=spec),
        given=Amounts(cpus=float(_cores()), memory_bytes=MEMORY_BYTES),
        root=str(folder / "root"),
        output_uri="datasets/d",
        inputs=(Input(name="hourly", artifact=artifact),),
    )
    return JobContext(order=order, work=Path(tempfile.mkdtemp(dir=folder)))


def _keep_raw(raw: Path, target: Path) -> None:
    """Leave the rows before they are encoded for the other contestant: links, which cost nothing."""
    target.mkdir(exist_ok=True)
    for path in raw.iterdir():
        with suppress(FileExistsError):
            (target / path.name).hardlink_to(path)


def by_hand(folder: Path) -> Spent:
    """What one would write: the rows are in memory; numpy scales them, pyarrow writes the same Parquet."""
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    from gridmill.jobs.parquet import GROUP_ROWS, forms_of, rows_at_once

    pa.set_cpu_count(_cores())
    raw = ds.dataset(str(folder / RAW), format="ipc").to_table()
    raw = raw.filter(pa.compute.is_null(raw["__dropped"]))
    raw = raw.drop_columns([name for name in raw.column_names if name.startswith("__")]).combine_chunks()

    def act() -> None:
        table = _scaled_by_hand(raw)
        group = rows_at_once(table.num_columns, GROUP_ROWS)
        with pq.ParquetWriter(folder / "hand.parquet", table.schema, **forms_of(table.schema)) as writer:
            for first in range(0, table.num_rows, group):
                writer.write_table(table.slice(first, group), row_group_size=group)
        with (folder / "hand.parquet").open("rb") as file:
            os.fsync(file.fileno())

    _, seconds, above = _measured(act)
    return Spent(seconds=seconds, above_bytes=above, result_bytes=raw.nbytes)


def _scaled_by_hand(raw: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    train = np.asarray(raw["split"].combine_chunks().to_numpy(zero_copy_only=False) == "train")
    columns = {name: raw[name] for name in raw.column_names}
    for name in [name for name in raw.column_names if f"{name}_ahead_1" in columns]:
        values = raw[name].to_numpy()[train]
        mean, deviation = values.mean(), values.std()
        for one in (name, *(f"{name}_ahead_{step}" for step in range(1, STEPS + 1))):
            columns[one] = pa.array((np.asarray(raw[one].to_numpy()) - mean) / deviation)
    return pa.table(columns)


def _measured(act: Any) -> tuple[Any, float, int]:
    """Return the result, the seconds, and the bytes held at most above those before."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, begin = _status("VmRSS"), time.perf_counter()
    result = act()
    return result, time.perf_counter() - begin, _status("VmHWM") - before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


def _cores() -> int:
    return len(os.sched_getaffinity(0))


CONTESTANTS = {"gridmill": by_gridmill, "hand": by_hand}


def spent(name: str, folder: Path) -> Spent:
    """What one contestant needed in a process of its own."""
    done = subprocess.run(
        (sys.executable, "-m", "bench.wide", name),
        env={**os.environ, FOLDER: str(folder)},
        cwd=measure.REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    return Spent(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    if not ETT.exists():
        raise SystemExit(f"there is no {ETT}; GRIDMILL_BENCH_ETT says where ETTh1.csv is")
    took: dict[str, list[Spent]] = {name: [] for name in CONTESTANTS}
    with tempfile.TemporaryDirectory(prefix="bench-wide-") as name:
        folder = Path(name)

        def act(contestant: str) -> float:
            took[contestant].append(spent(contestant, folder))
            return took[contestant][-1].seconds

        acts = {"gridmill": lambda: act("gridmill"), "hand": lambda: act("hand")}
        series = alternate(acts, rounds=int(os.environ.get("GRIDMILL_BENCH_ROUNDS", "3")))
    measure.save("wide", _results(series, took), how=_how())


def _results(series: Mapping[str, Any], took: Mapping[str, Sequence[Spent]]) -> list[measure.Result]:
    area, ours = "datasets", series["gridmill"]
    last = took["gridmill"][-1]
    times = last.result_bytes
    return [
        at_most(
            3.0,
            area,
            "encoding and writing thousands of columns over numpy and pyarrow",
            ours.median / series["hand"].median,
            "x",
        ),
        at_most(
            3.0,
            area,
            "memory for it over the result as Arrow",
            max(one.above_bytes for one in took["gridmill"]) / times,
            "x",
        ),
        row(area, "encoding and writing", ours.median, "s", **ours.spread),
        row(area, "numpy and pyarrow", series["hand"].median, "s", **series["hand"].spread),
        row(area, "the whole dataset job", _median([one.whole_seconds for one in took["gridmill"]]), "s"),
        row(
            area,
            "memory of the whole job over the result as Arrow",
            max(one.whole_above_bytes for one in took["gridmill"]) / times,
            "x",
        ),
        row(area, "the result as Arrow", times / 2**30, "GiB"),
    ]


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _how() -> str:
    return (
        f"ETTh1, 17,420 hours of 7 columns; the next {STEPS} hours of each are labels, "
        f"{7 * STEPS:,} columns, and `standard` scales them all. By hand the rows are in memory "
        "already, and the Parquet has the same "
        "settings and row groups. Memory is what a process holds at most above what it held before."
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(asdict(CONTESTANTS[sys.argv[1]](Path(os.environ[FOLDER])))))
    else:
        main()
