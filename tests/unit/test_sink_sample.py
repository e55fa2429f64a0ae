"""The first rows of a sink's local files: columns, types and the problems that a run would have."""

import time
from pathlib import Path

import pytest

from gridmill.domain.sink import ColumnType, SinkSpec
from gridmill.domain.source import Source
from gridmill.jobs.sink.sample import read_sample


def _spec(path: str | tuple[str, ...] = "*.csv", **more: object) -> SinkSpec:
    return SinkSpec(source=Source(path=path), **more)


def test_columns_and_types_of_a_sample(tmp_path: Path):
    (tmp_path / "a.csv").write_text("at,zip,price\n2024-01-01,01234,1.5\n2024-01-02,01235,2\n")
    sample = read_sample(_spec(), str(tmp_path))
    assert dict(sample.columns) == {"at": "date", "zip": "string", "price": "float"}
    assert (sample.problems, sample.files, sample.rows, sample.whole) == ((), ("a.csv",), 2, True)


def test_only_the_first_rows_are_read(tmp_path: Path):
    (tmp_path / "a.csv").write_text("n\n" + "1\n" * 50 + "x\n")
    sample = read_sample(_spec(), str(tmp_path), rows=10)
    assert dict(sample.columns) == {"n": "integer"}
    assert (sample.rows, sample.whole) == (10, False)
    assert read_sample(_spec(), str(tmp_path)).columns == {"n": "string"}


def test_a_value_that_does_not_fit_is_a_problem_with_its_place(tmp_path: Path):
    (tmp_path / "a.csv").write_text("n\n1\nx\n")
    sample = read_sample(_spec(columns={"n": ColumnType.INTEGER}), str(tmp_path))
    assert [one.place for one in sample.problems] == ["a.csv:3"]
    assert "'x' is not of type integer" in sample.problems[0].message
    assert not sample.whole


def test_what_the_declaration_names_and_no_file_has_is_a_problem(tmp_path: Path):
    (tmp_path / "a.csv").write_text("price\n1\n")
    sample = read_sample(_spec(columns={"prise": ColumnType.FLOAT}), str(tmp_path))
    assert "Did you mean 'price'?" in sample.problems[0].hint
    missing = read_sample(_spec("b.csv"), str(tmp_path))
    assert missing.problems


def test_what_is_elsewhere_or_late_is_not_read(tmp_path: Path):
    (tmp_path / "a.csv").write_text("n\n1\n")
    sample = read_sample(_spec(("a.csv", "https://example.org/b.csv")), str(tmp_path))
    assert sample.unread == ("https://example.org/b.csv",)
    assert (sample.columns, sample.whole) == ({"n": "integer"}, False)
    late = read_sample(_spec(), str(tmp_path), deadline=time.monotonic() - 1)
    assert (late.unread, late.columns) == (("a.csv",), {})


@pytest.mark.parametrize("columns", [{}, {"d": ColumnType.DATE}])
def test_what_later_rows_may_decide_is_no_problem(tmp_path: Path, columns: dict[str, ColumnType]):
    (tmp_path / "a.csv").write_text("d\n" + "01/02/2024\n" * 50 + "13/02/2024\n")
    sample = read_sample(_spec(columns=columns), str(tmp_path), rows=10)
    assert (sample.problems, sample.unread) == ((), ("a.csv",))
    sample = read_sample(_spec(columns=columns), str(tmp_path))
    assert (sample.problems, dict(sample.columns), sample.rows) == ((), {"d": "date"}, 51)
    (tmp_path / "a.csv").write_text("d\n01/02/2024\n")
    sample = read_sample(_spec(columns=columns), str(tmp_path))
    assert "no row shows which" in sample.problems[0].message
