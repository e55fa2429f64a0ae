"""After `touch`, `git checkout`, a comment or an edit of another job nothing runs again; others are named."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import Place

pytestmark = pytest.mark.e2e

PIPELINE = """\
pipeline: shop
parameters: {x: 1}
jobs:
  sales: {sink: {source: "data/*.csv"}}
  rows:
    dataset: {sql: "select * from sales", tables: [sales], time: day}
  clean:
    needs: [sales]
    command: {run: "python src/clean.py ${x} > $GRIDMILL_OUTPUT/out.txt", outputs: [out.txt]}
  narrow:
    command: {run: "cat notes.txt", inputs: [notes.txt]}
"""
FILES = {
    "data/1.csv": "day,sold\n2024-01-01,1\n",
    "src/clean.py": "import sys\nfrom helper import A\nprint(A, sys.argv[1])\n",
    "src/helper.py": "A = 1\n",
    "notes.txt": "notes\n",
}


@pytest.fixture
def file(place: Place) -> Path:
    found = place.write(PIPELINE)
    for name, text in FILES.items():
        write(found, name, text)
    git(found, "init", "--quiet", "--initial-branch", "first")
    commit(found)
    return found


def write(file: Path, name: str, text: str) -> None:
    path = file.parent / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def git(file: Path, *words: str) -> None:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *words], cwd=file.parent, check=True, capture_output=True)


def commit(file: Path) -> None:
    git(file, "add", "--all")
    git(file, "commit", "--quiet", "--message", "x")


def planned(place: Place, file: Path) -> dict[str, str]:
    """The jobs that would execute, each with its reason."""
    jobs = place.json("plan", file)["jobs"]
    return {job["job"]: job["reason"] for job in jobs if not job["unchanged"]}


def executed(place: Place, file: Path, *words: str) -> dict[str, str]:
    jobs = place.json("run", file, *words)["jobs"]
    return {
        job["job"]["job"]["name"]: job["job"]["reason"] for job in jobs if job["job"]["state"] != "unchanged"
    }


def test_edits_that_change_nothing_execute_nothing(place: Place, file: Path) -> None:
    assert set(executed(place, file)) == {"sales", "rows", "clean", "narrow"}
    for path in file.parent.rglob("*"):
        if ".git" not in path.parts:
            os.utime(path)
    assert planned(place, file) == {}, "touch"
    git(file, "checkout", "--quiet", "-b", "second")
    write(file, "data/1.csv", "day,sold\n2024-01-01,2\n")
    write(file, "src/clean.py", "print(2)\n")
    commit(file)
    git(file, "checkout", "--quiet", "first")
    assert planned(place, file) == {}, "git checkout"
    file.write_text("# a comment\n\n" + PIPELINE.replace("jobs:\n", "jobs:   # all of them\n"))
    assert planned(place, file) == {}, "a comment"
    file.write_text(PIPELINE + '  other: {command: "echo other"}\n')
    assert set(planned(place, file)) == {"other"}, "another job"
    file.write_text(PIPELINE)
    write(file, ".gitignore", "*.log\n")
    write(file, "a.log", "1")
    write(file, "other.yaml", "pipeline: other\njobs: {}\n")
    assert planned(place, file) == {}, "an ignored file, another pipeline"
    assert executed(place, file) == {}
    shown = place.gridmill("show", "job", "shop", "clean").stdout
    assert "nothing changed since shop/clean@1" in " ".join(shown.split())


def test_edits_that_change_something_are_named_and_going_back_restores(place: Place, file: Path) -> None:
    executed(place, file)
    write(file, "src/helper.py", "A = 2\n")
    said = "file src/helper.py changed (compared with shop/clean@1)"
    assert planned(place, file) == {"clean": said}
    text = place.gridmill("plan", file).stdout
    assert f"clean: runs: {said}" in " ".join(text.split())
    run = place.gridmill("run", file)
    assert f"clean executed: {said}" in " ".join(run.stdout.split())
    assert said in (place.home / "reports" / "shop-2.html").read_text()
    assert executed(place, file, "--set", "x=2") == {
        "clean": "parameter `x` changed from 1 to 2 (compared with shop/clean@2)"
    }
    write(file, "data/2.csv", "day,sold\n2024-01-02,5\n")
    assert executed(place, file, "--set", "x=2") == {
        "sales": "source file data/2.csv is new (compared with shop/sales@1)",
        "rows": "input `sales` has 1 new file (compared with shop/rows@1)",
        "clean": "input `sales` has 1 new file (compared with shop/clean@3)",
    }
    (file.parent / "data/2.csv").unlink()
    assert executed(place, file, "--set", "x=2") == {}, "a load, which changes nothing: rows stay"
    assert place.json("show", "sink", "shop/sales")["id"] == "shop/sales@2"
    write(file, "notes.txt", "other\n")
    assert executed(place, file, "--set", "x=2")["narrow"].startswith("file notes.txt changed")
    write(file, "notes.txt", FILES["notes.txt"])
    assert executed(place, file, "--set", "x=2") == {}
    assert place.json("show", "artifact", "shop/narrow")["id"] == "shop/narrow@1"
