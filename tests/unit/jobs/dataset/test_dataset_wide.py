"""Datasets of thousands of columns: encoders take time in proportion to them, and progress counts it."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.kit.data import DATA, needs
from tests.kit.dataset_case import DatasetCase

from gridmill.cli.format import progress
from gridmill.domain.dataset import Basis, DatasetSpec, Encoder, Label, Method, Split
from gridmill.domain.job import Job
from gridmill.domain.run import JobRun
from gridmill.domain.states import JobState
from gridmill.domain.views import JobView
from gridmill.errors import DataError, InputError
from gridmill.jobs.context import JobContext
from gridmill.jobs.dataset.encoders import FittedEncoder, apply
from gridmill.jobs.dataset.raw_rows import open_raw, write_raw
from gridmill.jobs.dataset.run import run

ETT = DATA / "ett" / "ETTh1.csv"


def seconds_of(columns: int) -> float:
    table = pa.table({f"x{number}": np.arange(8.0) for number in range(columns)})
    labels = tuple(table.column_names[1:])
    one = FittedEncoder(column="x0", method=Method.STANDARD, center=1.0, scale=2.0, labels=labels)
    took = []
    for _ in range(3):
        begin = time.perf_counter()
        apply(table, [one])
        took.append(time.perf_counter() - begin)
    return min(took)


def test_scaling_labels_takes_time_in_proportion_to_them():
    seconds_of(100)
    assert seconds_of(8000) < 32 * seconds_of(1000), "of the square it is 64 times"


def test_columns_are_scaled_alike_with_and_without_missing_values():
    values = np.array([1.5, -2.25, 1e9, 1 / 3])
    table = pa.table({"x": values, "y": pa.array([*values[:3], None]), "n": [1, 2, 3, 2**53 + 1]})
    made = apply(
        table,
        [
            FittedEncoder(column=name, method=Method.STANDARD, center=1 / 7, scale=3.1)
            for name in ("x", "y", "n")
        ],
    )
    expected = ((values - 1 / 7) / 3.1).tolist()
    assert made["x"].to_pylist() == expected
    assert made["y"].to_pylist() == [*expected[:3], None]
    assert made["n"].to_pylist()[3] == pytest.approx(2**53 / 3.1)


def test_columns_keep_their_order():
    table = pa.table({"a": ["u", "v"], "b": [1.0, 2.0], "c": ["s", "t"]})
    kept = FittedEncoder(
        column="a", method=Method.ORDINAL, categories=("u", "v"), values=(0.0, 1.0), keep=True
    )
    frequency = FittedEncoder(
        column="a", method=Method.FREQUENCY, categories=("u",), values=(0.5,), keep=True
    )
    hot = FittedEncoder(column="c", method=Method.ONEHOT, categories=("s", "t"))
    made = apply(table, [kept, frequency, hot], {"a_ordinal": pa.array([7.0, 8.0])})
    assert made.column_names == ["a", "a_frequency", "a_ordinal", "b", "c_s", "c_t"]
    assert made["a_ordinal"].to_pylist() == [7.0, 8.0]
    assert made["c_t"].to_pylist() == [False, True]


def test_a_column_that_is_missing_is_named():
    with pytest.raises(DataError, match="no column 'x'"):
        apply(pa.table({"y": [1.0]}), [FittedEncoder(column="x", method=Method.STANDARD)])


def wide(folder: Path, columns: int = 400, rows: int = 300) -> tuple[DatasetCase, DatasetSpec]:
    case = DatasetCase(folder)
    hours = pa.array([1_700_000_000_000_000 + 3_600_000_000 * k for k in range(rows)], pa.timestamp("us"))
    random = np.random.default_rng(0)
    values = {f"x{number}": random.normal(number, 1 + number, rows) for number in range(columns)}
    case.give("t", {"time": hours, **values})
    label = Label(columns=("x0", "x1"), next_rows=20, name="ahead")
    encoders = (Encoder(columns=tuple(values), method=Method.STANDARD),)
    split = Split(validation=0.2, test=0.2)
    return case, DatasetSpec(basis=Basis(table="t", time="time"), label=label, split=split, encoders=encoders)


def test_wide_features_and_labels_are_scaled_by_their_training_rows(tmp_path):
    case, spec = wide(tmp_path)
    table = case.table(case.make(spec))
    train = table.filter(pa.compute.equal(table["split"], "train"))
    for name in ("x0", "x399"):
        assert abs(train[name].to_numpy().mean()) < 0.1
        assert train[name].to_numpy().std() == pytest.approx(1, abs=0.1)
    first = train["x1_ahead_1"].to_numpy()[:-1]
    assert first == pytest.approx(train["x1"].to_numpy()[1:])


def events(context: JobContext) -> list[dict[str, object]]:
    path = context.work / "events"
    object.__setattr__(context, "events_fd", os.open(path, os.O_WRONLY | os.O_CREAT))
    run(context)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_progress_counts_every_phase_and_never_goes_back(tmp_path):
    case, spec = wide(tmp_path, columns=20)
    told = [event for event in events(case.context(spec)) if event["type"] == "progress"]
    shares = [event["done"] / event["total"] for event in told]
    assert shares == sorted(shares)
    assert shares[-1] < 1
    notes = [event["note"] for event in told]
    assert list(dict.fromkeys(notes)) == [
        "sorting and joining",
        "computing",
        "encoding",
        "describing",
    ]


def test_a_job_that_runs_is_never_at_100_percent():
    job = JobRun(
        id="r/j",
        run_id="r",
        pipeline="p",
        job=Job(name="j", dataset=DatasetSpec(sql="SELECT 1")),
        order=0,
        state=JobState.RUNNING,
        resource="r",
    )
    view = JobView(job=job, progress={"done": 20.0, "total": 20.0, "note": "encoding"})
    assert "99% encoding" in progress(view)


def test_a_spread_that_is_no_number_is_told(tmp_path):
    case = DatasetCase(tmp_path)
    case.give("t", {"x": [1.7e308, -1.7e308], "y": [0, 1]})
    spec = DatasetSpec(
        sql="SELECT * FROM t",
        tables=("t",),
        encoders=(Encoder(columns=("x",), method=Method.MINMAX),),
    )
    with pytest.raises(InputError, match=r"cannot scale 'x': its values reach from -1.7e\+308 to 1.7e\+308"):
        case.make(spec)


def test_raw_rows_are_read_as_they_were_written(tmp_path):
    table = pa.table({"x": [1.0, None], "s": ["a", None], "l": [[1], None]})
    write_raw([table.slice(0, 0), table, table.slice(1)], table.schema, tmp_path, "part")
    raw = open_raw(tmp_path)
    assert raw is not None
    assert raw.table.count_rows() == 3
    assert pa.Table.from_batches(raw.batches()) == pa.concat_tables([table, table.slice(1)])


def test_no_raw_rows_leave_no_file(tmp_path):
    write_raw([], pa.schema([("x", pa.float64())]), tmp_path, "part")
    assert open_raw(tmp_path) is None


def test_nothing_remains_of_raw_rows_that_could_not_be_made(tmp_path):
    def batches():
        yield pa.table({"x": [1.0]})
        raise DataError("no more")

    with pytest.raises(DataError):
        write_raw(batches(), pa.schema([("x", pa.float64())]), tmp_path, "part")
    assert list(tmp_path.iterdir()) == []


@needs("ett/ETTh1.csv")
def test_hundreds_of_label_hours_of_real_data_take_seconds(tmp_path):
    import pyarrow.csv as csv

    case = DatasetCase(tmp_path)
    table = csv.read_csv(ETT)
    case.give("hourly", table)
    columns = tuple(name for name in table.column_names if name != "date")
    spec = DatasetSpec(
        basis=Basis(table="hourly", time="date"),
        label=Label(columns=columns, next_rows=192, name="ahead"),
        split=Split(validation=0.2, test=0.2),
        encoders=(Encoder(columns=columns, method=Method.STANDARD),),
    )
    begin = time.perf_counter()
    output = case.make(spec)
    assert time.perf_counter() - begin < 40, "with a copy of all columns for each label it is 110 s"
    assert len(output.details["labels"]) == 7 * 192
