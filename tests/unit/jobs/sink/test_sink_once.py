"""Each source file exactly once, whatever is done to it."""

import os
import threading
from pathlib import Path

import pytest
from tests.kit.sink_case import TABLE, SinkCase

from gridmill.domain.sink import ColumnType, Constraint, SinkSpec
from gridmill.domain.source import Source
from gridmill.errors import ConflictError
from gridmill.jobs.sink.files import find_files
from gridmill.jobs.sink.run import load_onto
from gridmill.jobs.sink.table import ConcurrentCommitError, open_sink_table

CSV = "a,b\n1,x\n2,y\n"
ROWS = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    return SinkCase(tmp_path)


def types(case: SinkCase) -> dict[str, str]:
    return {item.name: str(item.type) for item in case.table().schema}


def data_files(case: SinkCase) -> list[Path]:
    return sorted((case.folder / "root" / TABLE).glob("*.parquet"))


def test_nothing_is_loaded_twice(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    first = case.load(attempt="p-1.s.1")
    again = [
        case.load(attempt="p-1.s.1"),
        case.load(attempt="p-1.s.2"),
    ]  # a crash before the outcome; a retry
    assert [output.table_version for output in again] == [first.table_version] * 2
    assert [output.details for output in again] == [first.details] * 2
    assert case.rows() == ROWS
    assert not list((case.folder / "root/sinks/p/s").glob("p-1*"))


def test_new_files_are_added(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    case.load()
    case.write("b.csv", "b,a\nz,3\n")
    output = case.load()
    assert output.details["loaded"] == ["b.csv"]
    assert case.rows() == [*ROWS, {"a": 3, "b": "z"}]


def test_a_changed_file_replaces_its_rows(case: SinkCase) -> None:
    for name in ("a.csv", "b.csv"):
        case.write(name, CSV)
    before = case.load().table_version
    case.write("a.csv", "a,b\n9,z\n")
    output = case.load()
    assert case.rows() == [*ROWS, {"a": 9, "b": "z"}]
    assert output.details["loaded"] == ["a.csv"]
    assert len(case.rows(before)) == 4  # earlier versions stay as they were


def test_the_only_file_may_change_its_columns(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    case.load()
    case.write("a.csv", "a,c\n1.5,x\n")
    case.load()
    assert case.rows() == [{"a": 1.5, "c": "x"}]


def test_the_rows_of_a_vanished_file_stay(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    case.write("b.csv", "a,b\n3,z\n")
    case.load()
    (case.folder / "a.csv").unlink()
    assert case.load().details["vanished"] == 1
    assert len(case.rows()) == 3


def test_a_renamed_file_is_not_loaded_twice(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    case.write("b.csv", "a,b\n3,z\n")
    case.load()
    (case.folder / "a.csv").rename(case.folder / "c.csv")
    case.load()
    assert len(case.rows()) == 3


def place(case: SinkCase, name: str, text: str, day: int) -> Path:
    """A file last modified on that day of a year."""
    path = case.write(name, text)
    os.utime(path, (1_700_000_000 + 86_400 * day,) * 2)
    return path


def test_files_moved_away_once_they_are_loaded_stay_though_later_ones_hold_the_same(case: SinkCase) -> None:
    values = [1, 2, 2, 3, 2, 2, 1, 4, 4]
    for day, value in enumerate(values):
        path = place(case, f"day-{day}.csv", f"a\n{value}\n", day)
        output = case.load()
        path.unlink()
    assert [row["a"] for row in case.rows()] == sorted(values)
    assert output.details["copies"] == ["day-8.csv"]


def test_of_two_files_with_the_same_content_one_new_one_is_the_rename_of_one(case: SinkCase) -> None:
    first, second = place(case, "a.csv", "a\n1\n", 0), place(case, "b.csv", "a\n1\n", 0)
    place(case, "z.csv", "a\n9\n", 0)
    case.load()
    first.rename(case.folder / "c.csv")
    second.unlink()
    assert case.load().details["vanished"] == 1
    assert [row["a"] for row in case.rows()] == [1, 1, 9]


def test_a_renamed_file_is_known_once_it_is_in_a_file_with_others(case: SinkCase) -> None:
    for number in range(40):
        place(case, f"{number:02d}.csv", f"a\n{number}\n", number)
    case.load()
    (case.folder / "07.csv").rename(case.folder / "seven.csv")
    case.load()
    assert sorted(row["a"] for row in case.rows()) == list(range(40))


def test_two_files_that_changed_their_names_with_each_other_are_loaded_once(case: SinkCase) -> None:
    first, second = place(case, "a.csv", "a\n1\n", 0), place(case, "b.csv", "a\n2\n", 1)
    place(case, "z.csv", "a\n9\n", 0)
    case.load()
    first.rename(case.folder / "x")
    second.rename(case.folder / "a.csv")
    (case.folder / "x").rename(case.folder / "b.csv")
    case.load()
    assert [row["a"] for row in case.rows()] == [1, 2, 9]


@pytest.mark.parametrize("is_gone_before", [False, True])
def test_a_renamed_file_takes_the_place_of_one_that_was_loaded_before(
    case: SinkCase, is_gone_before: bool
) -> None:
    first, second = place(case, "a.csv", "a\n1\n", 0), place(case, "b.csv", "a\n2\n", 1)
    place(case, "z.csv", "a\n9\n", 0)
    case.load()
    if is_gone_before:
        second.unlink()
        case.load()
    first.rename(second)
    output = case.load()
    assert [row["a"] for row in case.rows()] == [1, 9]
    assert (output.details["copies"], output.details["vanished"]) == ([], 0)


def test_a_file_that_moved_for_another_to_take_its_name_is_not_taken_for_one_that_is_gone(
    case: SinkCase,
) -> None:
    first, second = place(case, "a.csv", "a\n1\n", 0), place(case, "b.csv", "a\n1\n", 0)
    place(case, "z.csv", "a\n9\n", 0)
    case.load()
    second.unlink()
    case.load()
    first.rename(case.folder / "c.csv")
    place(case, "a.csv", "a\n3\n", 1)
    case.load()
    assert [row["a"] for row in case.rows()] == [1, 1, 3, 9]


def test_two_files_may_hold_the_same(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    case.write("b.csv", CSV)
    assert case.load().rows == 4
    assert case.load().rows == 4


def test_another_declaration_loads_anew(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    case.load()
    case.load(columns={"a": ColumnType.STRING})
    assert case.rows() == [{"a": "1", "b": "x"}, {"a": "2", "b": "y"}]


def test_values_that_do_not_fit_widen_the_column(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    case.load()
    case.write("b.csv", "a,b\n2.5,z\n")
    case.load()
    assert types(case)["a"] == "double"
    assert len(case.rows()) == 3


def test_loading_anew_never_loses_rows(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    case.write("b.csv", CSV.replace("1", "7"))
    case.load()
    (case.folder / "a.csv").unlink()
    with pytest.raises(
        ConflictError, match="2 of its rows came from source files that do not exist any more"
    ):
        case.load(columns={"a": ColumnType.STRING})
    assert len(case.rows()) == 4


def test_rejected_rows_that_would_be_lost_are_counted_on_their_own(case: SinkCase) -> None:
    limit = {"constraints": (Constraint(column="a", min=2),)}
    case.write("a.csv", CSV)
    case.write("b.csv", CSV)
    case.load(**limit)
    (case.folder / "a.csv").unlink()
    with pytest.raises(
        ConflictError,
        match="again from the beginning, but 1 of its rows and 1 rejected rows came from source",
    ):
        case.load(**limit, columns={"a": ColumnType.STRING})


def test_a_project_may_move(case: SinkCase, tmp_path: Path) -> None:
    project = tmp_path / "one"
    project.mkdir()
    (project / "a.csv").write_text(CSV)
    source = Source(path="*.csv")
    first = find_files(source, str(project))
    second = find_files(source, str(project.rename(tmp_path / "two")))
    assert [file.key for file in first] == [file.key for file in second]


def test_an_attempt_that_lost_the_race_adds_nothing(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    case.load()
    case.write("b.csv", "a,b\n3,z\n")
    context = case.context(SinkSpec(source=Source(path="*.csv")))
    spec = context.order.job.sink
    assert spec is not None
    seen_by_zombie = open_sink_table(context.below_root(TABLE))
    case.load()
    files = len(data_files(case))
    with pytest.raises(ConcurrentCommitError):
        load_onto(context, spec, seen_by_zombie)
    assert len(case.rows()) == 3
    assert len(data_files(case)) == files


def test_two_first_loads_race(case: SinkCase) -> None:
    for name in ("a.csv", "b.csv", "c.csv"):
        case.write(name, CSV)
    threads = [threading.Thread(target=case.load, kwargs={"attempt": f"p-1.s.{n}"}) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(case.rows()) == 6
