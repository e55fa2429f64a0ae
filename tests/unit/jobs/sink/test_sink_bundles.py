"""Small CSV files parsed as one give the rows, types and errors that each alone gives."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kit.sink_case import TABLE, SinkCase

from gridmill.domain.source import Source
from gridmill.errors import GridmillError
from gridmill.jobs.sink import csv_batches, write
from gridmill.jobs.sink.csv_batches import FileGroupReader, bundled
from gridmill.jobs.sink.files import find_files

VALUES: tuple[Callable[[random.Random], str], ...] = (
    lambda r: str(r.randrange(100)),
    lambda r: str(r.randrange(100)),
    lambda r: str(r.randrange(100)),
    lambda r: f"{r.random():.3f}",
    lambda r: "",
    lambda r: "2024-01-0" + str(r.randrange(1, 9)),
    lambda r: "true",
    lambda r: '"a, ""b"""',
    lambda r: "'x",
    lambda r: f"0{r.randrange(10)}",
    lambda r: str(2**53 + 1),
    lambda r: "é",
)


def a_file(random_: random.Random, kinds: int) -> bytes:
    end = random_.choice(("\n", "\n", "\n", "\r\n"))
    lines = [random_.choice(("a,b", "a,b", "a,b", "b,a"))]
    for _ in range(random_.randrange(4)):
        row = [random_.choice(VALUES[:kinds])(random_) for _ in range(2)]
        lines.append(",".join(row) if random_.random() < 0.97 else random_.choice(("", "1,2,3", " ")))
    text = end.join(lines) + random_.choice((end, end, ""))
    return text.encode("utf-8-sig" if random_.random() < 0.03 else "utf-8")


def loaded(folder: Path, files: list[bytes], later: list[bytes]) -> list[object]:
    """What each of two loads gives: the table's types and rows, or the error."""
    case = SinkCase(folder)
    folder.mkdir()
    found: list[object] = []
    for prefix, batch in (("1", files), ("2", later)):
        for number, data in enumerate(batch):
            case.write(f"{prefix}-{number:02}.csv", data)
        try:
            case.load()
            found += [[(item.name, str(item.type)) for item in case.table().schema], case.rows()]
        except GridmillError as error:
            found.append((str(error), error.hint))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_together_they_are_as_alone(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random_ = random.Random(seed)
    kinds = random_.choice((3, 4, 5, 7, len(VALUES)))
    files = [a_file(random_, kinds) for _ in range(12)]
    later = [a_file(random_, kinds) for _ in range(9)]
    together = loaded(tmp_path / "together", files, later)
    monkeypatch.setattr(csv_batches, "is_small", lambda _: False)
    assert loaded(tmp_path / "alone", files, later) == together


def test_files_of_one_header_are_parsed_as_one(tmp_path: Path) -> None:
    case = SinkCase(tmp_path)
    case.write("1.csv", "a,b\n1,2\n3,4")
    case.write("2.csv", "a,b\r\n5,6\r\n")
    case.write("3.csv", "a,b\n")
    case.write("4.csv", 'a,b\n"x",1\n')
    case.write("5.csv", "b,a\n1,2\n")
    files = find_files(Source(path="*.csv"), str(tmp_path))
    pieces = list(bundled(files, Source(path="*.csv")))
    assert [piece.counts if isinstance(piece, FileGroupReader) else piece.name for piece in pieces] == [
        (2, 1, 0),
        "4.csv",
        "5.csv",
    ]


def test_a_file_that_changed_since_it_was_hashed_is_not_parsed(tmp_path: Path) -> None:
    case = SinkCase(tmp_path)
    for number in range(3):
        case.write(f"{number}.csv", "a\n1\n")
    files = find_files(Source(path="*.csv"), str(tmp_path))
    case.write("1.csv", "a\n2\n")
    assert [type(piece).__name__ for piece in bundled(files, Source(path="*.csv"))] == ["SourceFile"] * 3


@pytest.mark.parametrize("most", [2**26, 0])
def test_compressed_files_share_data_files(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "HELD_BYTES", most)
    case = SinkCase(tmp_path)
    for number in range(12):
        case.write(f"{number:02}.csv.gz", f"a,b\n{number},x\n")
    case.write("99.csv.gz", "a,b\n" + "7,y\n" * 100_000)  # much in little
    output = case.load("*.csv.gz")
    assert output.rows == 100_012
    assert len(list((tmp_path / "root" / TABLE).glob("*.parquet"))) == (1 if most else 2)
    case.write("05.csv.gz", "a,b\n50,z\n")
    case.load("*.csv.gz")
    assert {row["a"] for row in case.rows()} == {*range(12), 50} - {5}


def test_texts_of_other_encodings(tmp_path: Path) -> None:
    case = SinkCase(tmp_path)
    for number in range(9):
        case.write(f"{number}.csv", f"a,b\né{number},1\n".encode("latin-1"))
    case.load(encoding="latin-1")
    assert {row["a"] for row in case.rows()} == {f"é{number}" for number in range(9)}
