import os
from pathlib import Path

import pytest
from tests.kit.sink_case import TABLE, SinkCase

from gridmill.domain.source import Format
from gridmill.errors import ConflictError
from gridmill.jobs.sink.files_as_rows import POSITION, read_position
from gridmill.jobs.sink.table import open_sink_table


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    made = SinkCase(tmp_path)
    for folder in ("cat", "dog"):
        (tmp_path / "images" / folder).mkdir(parents=True)
    made.write("images/cat/a.png", b"\x89PNG\0a")
    made.write("images/dog/b.txt", "bä")
    return made


def load(case: SinkCase):
    return case.load("images/*/*", format=Format.FILES)


def test_each_file_is_a_row_with_its_bytes(case: SinkCase) -> None:
    assert load(case).rows == 2
    rows = sorted(case.rows(), key=lambda row: str(row["path"]))
    assert [(row["path"], row["folder"], row["type"], row["size"], row["text"]) for row in rows] == [
        ("images/cat/a.png", "cat", "image/png", 6, None),
        ("images/dog/b.txt", "dog", "text/plain", 3, "bä"),
    ]
    assert rows[0]["bytes"] == b"\x89PNG\0a"


def test_only_new_and_changed_files_make_rows(case: SinkCase) -> None:
    load(case)
    assert load(case).table_version == 1
    os.utime(case.folder / "images/cat/a.png", (1, 1))  # touched, not changed
    assert load(case).table_version == 1
    case.write("images/cat/c.png", b"c")
    case.write("images/dog/b.txt", "other")
    (case.folder / "images/cat/a.png").unlink()
    assert (load(case).rows, load(case).table_version) == (4, 2)


def test_many_files_are_few_files_of_the_table(case: SinkCase) -> None:
    for number in range(200):
        case.write(f"images/dog/{number}", f"{number}")
    load(case)
    table = open_sink_table(case.folder / "root" / TABLE)
    assert len(table.loaded) == 1
    assert len(read_position(table.positions[POSITION])) == 202


def test_loading_anew_without_files_that_were_loaded_is_refused(case: SinkCase) -> None:
    load(case)
    (case.folder / "images/cat/a.png").unlink()
    with pytest.raises(ConflictError, match="1 of its rows"):
        case.load("images/*/*", format=Format.FILES, select=("path",))
