"""A dataset whose times are numbers is the dataset of the same times."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.kit.dataset_case import DatasetCase

from gridmill.domain.artifact import Artifact, Input, Output
from gridmill.domain.dataset import (
    Aggregate,
    AsOfJoin,
    Basis,
    DatasetSpec,
    Join,
    Label,
    LabelRule,
    Lag,
    Split,
    Window,
)
from gridmill.domain.remarks import REMARKS
from gridmill.errors import DataError, InputError
from gridmill.jobs.dataset.numeric_times import shows, shows_sql
from gridmill.jobs.dataset.run import run
from gridmill.jobs.sink.dates import DateReadings
from gridmill.jobs.sink.value_forms import Form

EPOCH = datetime(1970, 1, 1)
UNITS: Mapping[str, Callable[[datetime], int]] = {
    "unix_s": lambda t: (t - EPOCH) // timedelta(seconds=1),
    "unix_ms": lambda t: (t - EPOCH) // timedelta(milliseconds=1),
    "unix_us": lambda t: (t - EPOCH) // timedelta(microseconds=1),
    "unix_ns": lambda t: (t - EPOCH) // timedelta(microseconds=1) * 1000,
    "%Y%m%d": lambda t: int(t.strftime("%Y%m%d")),
    "%Y%m%d%H": lambda t: int(t.strftime("%Y%m%d%H")),
    "%Y%m%d%H%M": lambda t: int(t.strftime("%Y%m%d%H%M")),
    "%Y%m%d%H%M%S": lambda t: int(t.strftime("%Y%m%d%H%M%S")),
}
ROWS = 60


@pytest.fixture
def case(tmp_path: Path) -> DatasetCase:
    return DatasetCase(tmp_path)


def moments(start: datetime, step: timedelta) -> list[datetime | None]:
    """Times of two entities in turn, one of them missing."""
    found: list[datetime | None] = [start + step * (row // 2) for row in range(ROWS)]
    found[7] = None
    return found


def give(case: DatasetCase, times: Mapping[str, list[Any]]) -> None:
    """Observations, later notes about their entities, and events."""
    keys = [("a", "b")[row % 2] for row in range(ROWS)]
    values = [float(row * 7 % 11) for row in range(ROWS)]
    case.give("obs", {"t": times["obs"], "e": keys, "x": values})
    case.give("notes", {"t": times["notes"], "e": keys, "y": values[::-1]})
    case.give("events", {"seen": times["events"][::3], "e": keys[::3]})


def spec(step: timedelta, **fields: Any) -> DatasetSpec:
    return DatasetSpec(
        basis=Basis(table="obs", time="t", entity=("e",)),
        joins=(Join(table="notes", on=("e", "t"), columns=("y",), prefix="same_", exempt=True),),
        asof_joins=(AsOfJoin(table="notes", known_at="t", on=("e",), columns=("y",), prefix="note_"),),
        windows=(
            Window(column="x", aggregates=(Aggregate.MEAN,), span_seconds=3 * step.total_seconds()),
            Window(
                table="notes",
                column="y",
                aggregates=(Aggregate.SUM,),
                known_at="t",
                on=("e",),
                span_seconds=4 * step.total_seconds(),
            ),
        ),
        lags=(Lag(column="x", back_seconds=(2 * step.total_seconds(),)),),
        features={"hour": "hour(t)"},
        label=Label(
            table="events",
            on=("e",),
            known_at="seen",
            horizon_seconds=2 * step.total_seconds(),
            outcome=LabelRule.COUNT,
        ),
        split=Split(validation=0.3, test=0.3),
        **fields,
    )


def numbers(unit: str, times: list[datetime | None]) -> list[int | None]:
    return [None if time is None else UNITS[unit](time) for time in times]


def made(case: DatasetCase, one: DatasetSpec) -> list[dict[str, Any]]:
    return case.table(case.make(one)).to_pylist()


def mostly_long(unit: str, *quick: str) -> Any:
    """One or two units are tried in `make test`, all of them in `make test-long`."""
    return pytest.param(unit, marks=() if unit in quick else pytest.mark.long)


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("unit", [mostly_long(unit, "unix_ms", "%Y%m%d") for unit in UNITS])
def test_numbers_of_each_unit_make_the_dataset_of_their_times(
    case: DatasetCase, unit: str, declared: bool
) -> None:
    if not declared and unit in ("%Y%m%d%H", "%Y%m%d%H%M"):
        pytest.skip("such numbers can be seconds or milliseconds")
    step = timedelta(days=1)
    begins = datetime(2023, 3, 4) if unit.startswith("%") else datetime(2023, 3, 4, 5, 6, 7)
    times = {name: moments(begins, step) for name in ("obs", "notes", "events")}
    give(case, times)
    expected = made(case, spec(step))
    give(case, {name: numbers(unit, of) for name, of in times.items()})
    named = {"timestamp_format": {"t": unit, "seen": unit}} if declared else {}
    output = case.make(spec(step, **named))
    assert case.table(output).to_pylist() == expected
    assert output.details["times"] == {"obs": {"t": unit}, "notes": {"t": unit}, "events": {"seen": unit}}
    shown = [text for text in output.details[REMARKS] if "is read as" in str(text)]
    assert len(shown) == (0 if declared else 3)


def test_tables_of_different_units_are_joined_by_time(case: DatasetCase) -> None:
    step = timedelta(hours=7)
    times = {name: moments(datetime(2023, 3, 4, 5), step) for name in ("obs", "notes", "events")}
    give(case, times)
    expected = made(case, spec(step))
    units = {"obs": "unix_ms", "notes": "unix_s", "events": "unix_ns"}
    give(case, {name: numbers(units[name], of) for name, of in times.items()})
    assert made(case, spec(step)) == expected
    named = {"obs.t": "unix_ms", "notes.t": "unix_s", "seen": "unix_ns"}
    assert made(case, spec(step, timestamp_format=named)) == expected


@pytest.mark.parametrize(
    "unit", [mostly_long(unit, "unix_s") for unit in ("unix_s", "unix_ms", "unix_us", "unix_ns")]
)
def test_numbers_before_1970_and_small_ones_have_the_declared_unit(case: DatasetCase, unit: str) -> None:
    step = timedelta(hours=1)
    times = {name: moments(datetime(1969, 12, 31), step) for name in ("obs", "notes", "events")}
    give(case, times)
    expected = made(case, spec(step))
    give(case, {name: numbers(unit, of) for name, of in times.items()})
    assert made(case, spec(step, timestamp_format={"t": unit, "seen": unit})) == expected
    with pytest.raises(DataError, match="its numbers do not show one unit"):
        case.make(spec(step))


def test_negative_numbers_show_their_unit(case: DatasetCase) -> None:
    step = timedelta(days=1)
    times = {name: moments(datetime(1950, 6, 1), step) for name in ("obs", "notes", "events")}
    give(case, times)
    expected = made(case, spec(step))
    give(case, {name: numbers("unix_s", of) for name, of in times.items()})
    assert made(case, spec(step)) == expected


@pytest.mark.parametrize(("unit", "per"), [("unix_s", 1), ("unix_ms", 1000)])
def test_fractions_are_times_to_the_nearest_microsecond(case: DatasetCase, unit: str, per: int) -> None:
    step = timedelta(hours=1, microseconds=123457)
    times = {name: moments(datetime(2024, 1, 1, 0, 0, 0, 1), step) for name in ("obs", "notes", "events")}
    give(case, times)
    expected = made(case, spec(step))
    fractions = {
        name: [float("nan") if t is None else (t - EPOCH) / timedelta(seconds=1) * per for t in of]
        for name, of in times.items()
    }
    give(case, fractions)
    assert made(case, spec(step)) == expected


def test_the_result_of_sql_has_numbers_as_its_time(case: DatasetCase) -> None:
    step = timedelta(hours=1)
    times = moments(datetime(2024, 1, 1), step)
    one = DatasetSpec(
        sql="select t, e, x * 2 as x from obs",
        tables=("obs",),
        time="t",
        entity=("e",),
        lags=(Lag(column="x", steps=(1,)),),
        asof_joins=(AsOfJoin(table="notes", known_at="t", on=("e",), columns=("y",)),),
    )
    both = {"obs": times, "notes": times, "events": times}
    give(case, both)
    expected = made(case, one)
    give(case, both | {"obs": numbers("unix_s", times), "notes": numbers("unix_us", times)})
    output = case.make(one)
    assert case.table(output).to_pylist() == expected
    assert output.details["times"] == {"__sql": {"t": "unix_s"}, "notes": {"t": "unix_us"}}
    assert any("'t' of the result of `sql` is read as seconds" in str(one) for one in output.details[REMARKS])


def test_a_table_that_only_sql_reads_keeps_its_numbers_unless_it_is_named(case: DatasetCase) -> None:
    case.give("obs", {"t": [1704067200, 1704153600]})
    text = "select typeof(t) as kind from obs"
    assert made(case, DatasetSpec(sql=text, tables=("obs",)))[0] == {"kind": "BIGINT"}
    named = DatasetSpec(sql=text, tables=("obs",), timestamp_format={"obs.t": "unix_s"})
    assert made(case, named)[0] == {"kind": "TIMESTAMP"}


BASIS = DatasetSpec(basis=Basis(table="t", time="t"))
WRONG: list[tuple[list[Any], dict[str, str], str, str]] = [
    (
        [2024010115, 2024010116],
        {},
        "2024010116 is .*2034.* (seconds since 1970) or 1 January 2024 16:00:00 (year, month, day and hour), "
        "but no row shows which",
        "`timestamp_format: {t: unix_s}` or `timestamp_format: {t: '%Y%m%d%H'}`",
    ),
    (
        [1704067200, 1704067200000],
        {},
        "1704067200 is 1 January 2024 (seconds since 1970) (1 row); 1704067200000 is 1 January 2024 "
        "(milliseconds",
        "Under `dataset`, write `timestamp_format: {t: unix_s}`",
    ),
    ([1704067200, 0], {}, "0 is no such time (1 row)", "replace them with missing values"),
    ([20240101, 20241301], {}, "20241301 is no such time", "correct them"),
    ([1704067200.5, float("inf")], {}, "is no such time", "correct them"),
    ([20240101, 1704067200], {"t": "%Y%m%d"}, "in 1 rows it is no time", "another unit"),
    ([2**62], {"t": "unix_ms"}, "in 1 rows it is no time of the years 1 to 9999", "another unit"),
    ([1704067200], {"tt": "unix_s"}, "there is no column 'tt'; did you mean `t.t`", "TABLE.COLUMN"),
    ([datetime(2024, 1, 1)], {"t": "unix_s"}, "'t' of 't' has type TIMESTAMP", "Remove the format here"),
]


@pytest.mark.parametrize(("values", "named", "message", "hint"), WRONG)
def test_other_numbers_are_refused_with_their_readings(
    case: DatasetCase, values: list[Any], named: dict[str, str], message: str, hint: str
) -> None:
    case.give("t", {"t": values})
    with pytest.raises(InputError) as caught:
        case.make(DatasetSpec(basis=BASIS.basis, timestamp_format=named))
    for part in message.split(".*"):
        assert part in caught.value.message
    assert hint in caught.value.hint


def test_a_unit_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="'seconds' is not a format of times that are numbers"):
        DatasetSpec(basis=BASIS.basis, timestamp_format={"t": "seconds"}).check()


def test_a_table_without_numbers_has_times(case: DatasetCase) -> None:
    case.give("t", {"t": [1704067200, 1704067201]})
    case.give("none", pa.table({"t": pa.array([None], pa.int64()), "y": [1]}))
    output = case.make(DatasetSpec(basis=BASIS.basis, asof_joins=(AsOfJoin(table="none", known_at="t"),)))
    assert output.details["times"] == {"t": {"t": "unix_s"}}


def next_version(case: DatasetCase, one: DatasetSpec, earlier: Output) -> Output:
    artifact = Artifact(id="p/d@1", name="p/d", number=1, output=earlier, fingerprint="")
    context = case.context(one)
    order = replace(context.order, earlier=(Input(name="d", artifact=artifact),))
    return run(replace(context, order=order)).outputs[0]


def append(case: DatasetCase, rows: Mapping[str, list[Any]]) -> None:
    """One more load of the table `t`."""
    path = case.folder / "root" / case.tables["t"].uri
    if rows:
        write_deltalake(path, pa.table(rows), mode="append")
    case.tables["t"] = replace(case.tables["t"], table_version=DeltaTable(path).version())


GROWN = DatasetSpec(
    basis=Basis(table="t", time="t", entity=("e",)),
    windows=(Window(column="x", aggregates=(Aggregate.SUM,), span_seconds=3 * 86400.0),),
    label=Label(column="x", horizon_seconds=86400.0),
    split=Split(test_from="2023-02-01"),
    incremental=True,
)


@pytest.mark.parametrize("unit", [mostly_long(unit, "unix_ns", "%Y%m%d") for unit in UNITS])
@pytest.mark.parametrize("declared", [True, False])
def test_appended_numbers_give_what_all_numbers_give(
    case: DatasetCase, unit: str, declared: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if not declared and unit in ("%Y%m%d%H", "%Y%m%d%H%M"):
        pytest.skip("such numbers can be seconds or milliseconds")
    days = [datetime(2023, 1, 1) + timedelta(days=day) for day in range(60)]
    values = [float(day * 5 % 13) for day in range(60)]
    case.give("t", {"t": days, "e": ["a"] * 60, "x": values})
    expected = made(case, replace(GROWN, incremental=False))
    one = replace(GROWN, timestamp_format={"t": unit} if declared else {})
    times = numbers(unit, list(days))
    case.give("t", {"t": times[:40], "e": ["a"] * 40, "x": values[:40]})
    append(case, {})
    first = case.make(one)
    for start in (40, 50):
        append(case, {"t": times[start : start + 10], "e": ["a"] * 10, "x": values[start : start + 10]})
        first = next_version(case, one, first)
        assert "rows are kept" in capsys.readouterr().out
        assert first.details["kept_rows"] > 30
    assert sorted(case.table(first).to_pylist(), key=lambda row: row["t"]) == expected


def test_the_unit_of_the_version_before_is_kept(case: DatasetCase) -> None:
    """Numbers that can have it do; others are refused, and a declared unit overrules it."""
    case.give("t", {"t": [2024010115, 1704067200]})
    first = case.make(BASIS)
    assert first.details["times"] == {"t": {"t": "unix_s"}}
    case.give("t", {"t": [2024010115, 2024010116]})
    assert next_version(case, BASIS, first).details["times"] == {"t": {"t": "unix_s"}}
    case.give("t", {"t": [1704067200000]})
    with pytest.raises(DataError, match="but are now milliseconds since 1970") as caught:
        next_version(case, BASIS, first)
    assert "`timestamp_format: {t: unix_ms}`" in caught.value.hint
    named = replace(BASIS, timestamp_format={"t": "unix_ms"})
    assert next_version(case, named, first).details["times"] == {"t": {"t": "unix_ms"}}


def test_milliseconds_behind_seconds_are_refused_in_a_grown_table(case: DatasetCase) -> None:
    case.give("t", {"t": [1704067200, 1704153600], "e": ["a", "a"], "x": [1.0, 2.0]})
    append(case, {})
    one = replace(GROWN, split=None, label=None)
    first = case.make(one)
    append(case, {"t": [1704240000000], "e": ["a"], "x": [1.0]})
    with pytest.raises(DataError, match="1704240000000 is 3 January 2024"):
        next_version(case, one, first)


def test_numbers_show_the_units_that_texts_of_a_sink_show() -> None:
    """Of every number of digits, and of dates that are none. Dates to the hour are unknown to sinks."""
    draw = random.Random(7)
    drawn = [
        draw.randrange(10 ** (n - 1), 10**n) * draw.choice((1, -1)) for n in range(1, 19) for _ in range(40)
    ]
    drawn += [UNITS[unit](datetime(1990 + n, 1 + n % 12, 28)) + n // 9 for unit in UNITS for n in range(30)]
    found = DateReadings(pa.array([str(number) for number in drawn]), declared=True)
    for unit in ("unix_s", "unix_ms", "unix_us", "unix_ns"):
        assert [shows(unit, number) for number in drawn] == found.forms[Form(unit)].ok.tolist()
    dates = ["%Y%m%d", "%Y%m%d%H%M", "%Y%m%d%H%M%S"]
    of_digits = [any(shows(unit, number) for unit in dates) for number in drawn]
    assert of_digits == found.forms[Form.DIGITS].ok.tolist()
    with duckdb.connect() as engine:
        engine.register("n", pa.table({"v": pa.array(drawn, pa.int64())}))
        for unit in UNITS:
            rows = engine.sql(f"SELECT {shows_sql(unit, 'v')}, v FROM n").fetchall()
            assert [row[0] for row in rows] == [shows(unit, number) for number in drawn]
