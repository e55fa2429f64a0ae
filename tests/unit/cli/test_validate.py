"""`validate` and `init`: a file is checked without a grid; a new pipeline works and overwrites nothing."""

import csv
import json
from pathlib import Path

import pytest

from gridmill.__main__ import main
from gridmill.bootstrap.host import ProgramHost
from gridmill.cli.init import DATA, PIPELINE, name_of, rows, write_example
from gridmill.cli.validate import validated_file
from gridmill.errors import ConflictError
from gridmill.settings import read_settings

HOST = ProgramHost()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_example(tmp_path / "new")
    return tmp_path / "new" / PIPELINE


def test_a_new_pipeline_is_right(file: Path) -> None:
    found = validated_file(file, {}, HOST)
    assert (found.valid, found.pipelines, found.jobs, found.problems, found.unchecked) == (
        True,
        ("new",),
        6,
        (),
        (),
    )
    assert validated_file(file, {"trees": "200"}, HOST).valid


def test_the_same_data_is_written_each_time(file: Path) -> None:
    with (file.parent / DATA).open() as written:
        lines = list(csv.DictReader(written))
    assert len(lines) == 480
    assert set(lines[0]) == {"day", "station", "temperature", "rain", "rentals"}
    assert list(rows()) == list(rows())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    mine = tmp_path / DATA
    mine.parent.mkdir()
    mine.write_text("mine\n")
    with pytest.raises(ConflictError, match=r"data/rentals.csv exists already"):
        write_example(tmp_path)
    assert (mine.read_text(), (tmp_path / PIPELINE).exists()) == ("mine\n", False)


@pytest.mark.parametrize(
    ("folder", "name"), {"My Data": "my-data", "_x": "x", "ü": "rentals", "a_b-1": "a_b-1"}.items()
)
def test_a_pipeline_is_named_after_its_folder(folder: str, name: str, tmp_path: Path) -> None:
    assert name_of(tmp_path / folder) == name


def test_what_is_wrong_has_file_line_and_cure(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRIDMILL_HOME", str(tmp_path / "home"))
    file.write_text(file.read_text().replace("column: rentals, steps: 1}  ", "column: rental, steps: 1}  "))
    with pytest.raises(SystemExit) as ended:
        main(["validate", str(file)])
    assert ended.value.code == 2
    said = capsys.readouterr().out
    line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if "column: rental," in text)
    assert f"error: {file}:{line}: jobs.features.dataset.label.column: " in said
    assert "did you mean `rentals`?" in said
    assert said.endswith(f"{file}: 6 jobs, 1 problem\n")
    assert not read_settings().home.exists()


def test_json_lists_the_problems_of_a_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = file.read_text().replace("basis:", "bases:").replace("model: gbdt", "model: xgboost")
    file.write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["validate", str(file), "--json"])
    assert ended.value.code == 2
    found = json.loads(capsys.readouterr().out)
    lines = [int(one["place"].removeprefix(f"{file}:").partition(":")[0]) for one in found["problems"]]
    assert not found["valid"]
    assert [text.splitlines()[line - 1].strip()[:5] for line in lines] == ["bases", "train"]
    assert ["did you mean `basis`?" in one["message"] for one in found["problems"]] == [True, False]
    assert "use `gbdt`" in found["problems"][1]["message"]


def test_a_file_that_is_not_there_is_one_problem(tmp_path: Path) -> None:
    found = validated_file(tmp_path / "none.yaml", {}, HOST)
    assert [one.message for one in found.problems] == ["the file does not exist"]
    assert not found.valid


def test_each_problem_of_a_file_has_its_own_hint(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("pipeline: p\njobs:\n  a: {command: {run: x, timeot: 1}}\n  b: {sink: {sorce: d.csv}}\n")
    found = validated_file(file, {}, HOST)
    assert [one.place.rpartition(": ")[2] for one in found.problems] == [
        "jobs.a.command.timeot",
        "jobs.b.sink",
        "jobs.b.sink.sorce",
    ]
    listed = [one.hint.partition("The fields here are ")[2].partition(",")[0] for one in found.problems]
    assert listed == ["run", "", "source"]
