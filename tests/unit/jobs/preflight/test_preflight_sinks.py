"""A plan of a sink has no error where a load has none: forms, earlier columns, rows that were not read."""

from pathlib import Path

import pytest
from tests.kit.sink_case import SinkCase

from gridmill.domain.artifact import Artifact, Output
from gridmill.domain.job import Job
from gridmill.domain.preflight import PreflightRequest, PreflightResult
from gridmill.domain.sink import ColumnType, OnMisfit, SinkSpec
from gridmill.domain.source import Source
from gridmill.jobs.preflight import sinks
from gridmill.jobs.preflight.run import check


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    return SinkCase(tmp_path)


def planned(case: SinkCase, spec: SinkSpec, earlier: Output | None = None) -> PreflightResult:
    """What a preflight of the sink finds; `earlier` is the newest version of its table."""
    work = case.folder / "preflight"
    work.mkdir()
    known = (
        {"s": Artifact(id="p/s@1", name="p/s", number=1, output=earlier, fingerprint="")} if earlier else {}
    )
    job, root = Job(name="s", sink=spec), str(case.folder / "root")
    return check(PreflightRequest(folder=str(case.folder), jobs=(job,), root=root, earlier=known), work)


DATES = {"x": ColumnType.DATE}


@pytest.mark.parametrize("on_misfit", OnMisfit)
def test_rows_of_another_file_show_the_order_of_day_and_month(case: SinkCase, on_misfit: OnMisfit) -> None:
    case.write("0.csv", "n,x\n0,Jan 04 2084\n")
    case.write("1.csv", "n,x\n1,03/02/2033\n2,16/12/2033\n")
    spec = SinkSpec(source=Source(path="*.csv"), columns=DATES, on_misfit=on_misfit)
    assert planned(case, spec) == PreflightResult()
    assert case.load("*.csv", columns=DATES, on_misfit=on_misfit).rows == 3


@pytest.mark.parametrize("columns", [{}, DATES])
def test_rows_that_were_not_read_may_show_it(
    case: SinkCase, columns: dict[str, ColumnType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "WHOLE_BYTES", 0)
    monkeypatch.setattr(sinks, "SAMPLE_ROWS", 1)
    case.write("0.csv", "n,x\n0,03/02/2033\n1,16/12/2033\n")
    found = planned(case, SinkSpec(source=Source(path="*.csv"), columns=columns))
    assert found.findings == ()
    [unchecked] = found.unchecked
    assert "'03/02/2033' is 3 February 2033 or 2 March 2033" in unchecked.why
    assert case.load("*.csv", columns=columns).rows == 2


def test_no_row_shows_it(case: SinkCase) -> None:
    case.write("0.csv", "n,x\n0,03/02/2033\n")
    [found] = planned(case, SinkSpec(source=Source(path="*.csv"), columns=DATES)).findings
    assert (found.certain, "no row shows which" in found.message) == (True, True)


def test_a_table_keeps_the_columns_and_forms_that_it_has(case: SinkCase) -> None:
    """A column that came with a later file may be missing in others; the order of day and month was shown."""
    case.write("b.csv", "n,x\n0,16/12/2033\n")
    case.load("*.csv")
    case.write("c.csv", "n,x,more\n1,03/02/2033,5\n")
    output = case.load("*.csv")
    case.write("a.csv", "n,x,more\n2,04/02/2033,6\n")
    case.write("d.csv", "n,x\n3,05/02/2033\n")
    assert planned(case, SinkSpec(source=Source(path="*.csv")), output) == PreflightResult()
    assert case.load("*.csv").rows == 4
