from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest
from tests.kit.sink_case import TABLE, SinkCase

from gridmill.domain.sink import Outage, Retain
from gridmill.errors import InputError
from gridmill.jobs.tables import open_table

CSV = "t,a\n2024-01-01T00:00:00Z,1\n2024-01-02T00:00:00Z,2\n2024-01-02T23:59:59Z,3\n2024-01-03T00:00:00Z,4\n,5\n"  # noqa: E501  a file, line by line
OUTAGE = Outage(time="t", begins="2024-01-02", ends="2024-01-03", reason="the sensor was off")


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    return SinkCase(tmp_path)


@pytest.mark.parametrize("zoned", [True, False])
@pytest.mark.parametrize("text", [CSV, CSV.replace("T00:00:00Z", "").replace("T23:59:59Z", "")])
def test_rows_in_an_outage_are_kept_and_not_read(case: SinkCase, zoned: bool, text: str) -> None:
    case.write("a.csv", text)
    output = case.load(outages=(OUTAGE,))
    assert (output.rows, case.table().num_rows) == (5, 5)
    table = open_table(case.context(case.context_spec("a.csv")), output, zoned=zoned)
    assert table.to_table(columns=["a"])["a"].to_pylist() == [1, 4, 5]
    with duckdb.connect() as engine:
        engine.register("rows", table)
        assert engine.execute("SELECT sum(a) FROM rows WHERE a > 1").fetchall() == [(9,)]


def test_an_outage_declared_later_changes_no_row(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    before = case.load()
    after = case.load(outages=(OUTAGE,))
    assert before.table_version == after.table_version
    assert after.details["outages"][0]["reason"] == "the sensor was off"


def test_an_outage_needs_a_column_of_times(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    with pytest.raises(InputError, match="column 'a' holds no times") as caught:
        case.load(outages=(Outage(time="a", begins="2024-01-02", ends="2024-01-03"),))
    assert caught.value.place == "sink.outages[0].time"
    assert not (case.folder / TABLE).exists()
    with pytest.raises(InputError, match="column 'a' holds no times"):
        case.load(retain=Retain(time="a", keep_seconds=60.0))
    assert not (case.folder / TABLE).exists()


def test_what_it_covers() -> None:
    def day(number: int) -> datetime:
        return datetime(2024, 1, number, tzinfo=UTC)

    assert OUTAGE.covers(day(2), day(3))
    assert not OUTAGE.covers(day(1), day(3))
    with pytest.raises(InputError, match="`ends` of an outage"):
        Outage(time="t", begins="2024-01-03", ends="2024-01-03").check()
    with pytest.raises(InputError, match="'noon' is not a time"):
        Outage(time="t", begins="noon", ends="2024-01-03").check()
