"""Every version has a manifest outside its data, and every move of an alias is on the disk."""

import hashlib
import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from gridmill.cli.session import written
from tests.e2e.conftest import Place, a_place

pytestmark = pytest.mark.e2e

PIPELINE = """
pipeline: kept
jobs:
  rows: {sink: {source: "*.csv"}}
  features:
    dataset:
      basis: {table: rows, time: time, entity: [station]}
  files: {needs: rows, command: "mkdir $GRIDMILL_OUTPUT/a; echo hi > $GRIDMILL_OUTPUT/a/b; seq 300 | xargs -I{} touch $GRIDMILL_OUTPUT/{}"}
  nothing: {command: "true"}
"""  # noqa: E501


def manifest(place: Place, name: str, number: int):
    return json.loads((place.home / f"storage/manifests/{name}/{number}.json").read_text())


def check_files(folder: Path, found) -> set[str]:
    for one in found["contents"]["files"]:
        content = (folder / one["path"]).read_bytes()
        assert (one["size_bytes"], one["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    return {one["path"] for one in found["contents"]["files"]}


def test_every_version_has_a_manifest_that_goes_with_it(place: Place):
    pipeline = place.write(PIPELINE)
    rows = "".join(f"2024-01-{day:02}T00:00:00,a,{day}\n" for day in range(1, 29))
    place.write(f"time,station,value\n{rows}", "one.csv")
    done = place.gridmill("run", pipeline)
    assert done.returncode == 0, done.stderr + done.stdout
    storage = place.home / "storage"
    records = {one["id"]: one for one in place.json("list", "artifact")}
    for name in ("rows", "features", "files", "nothing"):
        found = manifest(place, f"kept/{name}", 1)
        record = records[f"kept/{name}@1"]
        version = found["version"]
        assert version | {"created": written(version["created"])} == record
        assert record["fingerprint"]
        folder = storage / record["output"]["uri"]
        paths = check_files(folder, found) if record["output"]["uri"] else set()
        there = {str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file()}
        if name in ("features", "files"):
            assert paths == there
    assert manifest(place, "kept/features", 1)["version"]["made_from"] == ["kept/rows@1"]
    dataset = storage / manifest(place, "kept/features", 1)["version"]["output"]["uri"]
    assert pq.read_table(dataset).num_rows == 28, "nothing but data lies in its folder"

    place.write("time,station,value\n2024-02-01T00:00:00,a,1\n", "two.csv")
    assert place.gridmill("run", pipeline).returncode == 0
    table = storage / "sinks/kept/rows/table"
    for number in (1, 2):
        found = manifest(place, "kept/rows", number)
        paths = check_files(table, found)
        delta = DeltaTable(table, version=found["version"]["output"]["table_version"])
        assert {one for one in paths if not one.startswith("_delta_log/")} == {
            str(Path(one).relative_to(table)) for one in delta.file_uris()
        }
        assert any(one.startswith("_delta_log/") for one in paths)
    assert not list((storage / "manifests").rglob("*.draft"))

    assert place.gridmill("remove", "dataset", "kept/features@1").returncode == 0
    assert not (storage / "manifests/kept/features/1.json").exists()
    assert (storage / "manifests/kept/features/2.json").exists()


def test_every_move_of_an_alias_is_a_line(place: Place):
    pipeline = place.write('pipeline: moved\njobs: {j: {cache: false, command: "date > $GRIDMILL_OUTPUT/x"}}')
    for _ in range(2):
        assert place.gridmill("run", pipeline).returncode == 0
    for number in (1, 2):
        assert place.gridmill("configure", "model", "moved/j", "--alias", f"prod={number}").returncode == 0
    assert place.gridmill("remove", "alias", "moved/j@prod").returncode == 0
    lines = (place.home / "storage/manifests/moved/j/aliases.jsonl").read_text().splitlines()
    moves = [json.loads(line) for line in lines]
    assert [(one["alias"], one["before"], one["after"]) for one in moves] == [
        ("latest", "", "moved/j@1"),
        ("latest", "moved/j@1", "moved/j@2"),
        ("prod", "", "moved/j@1"),
        ("prod", "moved/j@1", "moved/j@2"),
        ("prod", "moved/j@2", ""),
    ]
    assert [one["by"] for one in moves[:2]] == ["moved-1", "moved-2"]
    assert all(one["by"] and one["time"] > 1e9 for one in moves)


CHANGED = """
pipeline: changed
jobs:
  make: {command: "echo 12345 > $GRIDMILL_OUTPUT/x; mkdir $GRIDMILL_OUTPUT/d; touch $GRIDMILL_OUTPUT/d/y"}
  big: {command: "head -c 70000000 /dev/zero > $GRIDMILL_OUTPUT/x"}
  harm:
    needs: [make, big]
    retries: 1
    command: |
      cd $GRIDMILL_INPUT_MAKE
      cat x; ls d
      chmod -R u+w .; echo 54321 > x; rm -r d; touch more; rm -rf ../*
      test -e $GRIDMILL_INPUT_BIG && exit 3
      exit 1
  read: {needs: [make, big], command: "cd $GRIDMILL_INPUT_MAKE; cat x; ls d; wc -c $GRIDMILL_INPUT_BIG/x"}
"""


def test_what_a_job_does_to_its_inputs_happens_to_nobody_else(place: Place):
    pipeline = place.write(CHANGED)
    assert place.gridmill("run", pipeline, "--only", "harm").returncode == 1
    attempts = place.json("show", "job", "changed-1", "harm")["attempts"]
    assert [(one["cause"], one["exit_code"]) for one in attempts] == [("exit", 1)] * 2
    assert place.gridmill("logs", "changed-1", "harm").stdout.count("12345\ny\n") == 2
    assert place.gridmill("verify").returncode == 0
    done = place.gridmill("run", pipeline, "--only", "read")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12345\ny\n70000000" in place.gridmill("logs", "changed-2", "read").stdout


def test_a_job_never_reads_a_version_that_was_changed(place: Place):
    pipeline = place.write(CHANGED)
    assert place.gridmill("run", pipeline, "--only", "make", "--only", "big").returncode == 0
    made = next((place.home / "storage/files/changed/make").glob("*/x"))
    assert made.stat().st_mode & 0o777 == 0o444
    keeping_times(made, b"54321\n")
    job = "{needs: [changed/make@1], command: cat $GRIDMILL_INPUT_CHANGED_MAKE_1/x}"
    other = place.write(f"pipeline: other\njobs: {{read: {job}}}", "other.yaml")
    done = place.gridmill("run", other)
    assert done.returncode == 1
    [attempt] = place.json("show", "job", "other-1", "read")["attempts"]
    assert attempt["cause"] == "input"
    assert "changed/make@1 was changed after it was made: x was changed" in attempt["message"]
    assert "gridmill verify changed/make@1" in attempt["hint"]


def test_files_that_were_lost_are_made_again_before_anybody_reads_them(place: Place):
    pipeline = place.write(
        "pipeline: lost\njobs:\n"
        "  make: {command: 'date > $GRIDMILL_OUTPUT/x; touch $GRIDMILL_OUTPUT/y'}\n"
        "  read: {needs: make, command: 'cat $GRIDMILL_INPUT_MAKE/x > $GRIDMILL_OUTPUT/z'}\n"
    )
    assert place.gridmill("run", pipeline).returncode == 0
    next((place.home / "storage/files/lost/make").glob("*/y")).unlink()
    planned = place.gridmill("plan", pipeline).stdout
    assert "unchanged" not in planned, planned
    done = place.gridmill("run", pipeline)
    assert done.returncode == 0, done.stderr
    assert "runs again: the files of lost/make@1 changed: y is missing" in done.stderr + done.stdout
    assert len(place.json("list", "artifact")) == 4


@pytest.mark.long
def test_a_table_that_has_lost_files_is_not_added_to(place: Place):
    pipeline = place.write("pipeline: lost\njobs: {rows: {sink: {source: '*.csv'}}}")
    place.write("a\n1\n", "one.csv")
    assert place.gridmill("run", pipeline).returncode == 0
    next((place.home / "storage/sinks/lost/rows/table").glob("*.parquet")).unlink()
    for _ in range(2):
        done = place.gridmill("run", pipeline)
        assert done.returncode == 1
        assert "lost/rows@1 was changed after it was made" in done.stderr + done.stdout
        place.write("a\n2\n", "two.csv")
    assert place.gridmill("remove", "sink", "lost/rows", "--force").returncode == 0
    assert place.gridmill("run", pipeline).returncode == 0
    assert place.json("preview", "lost/rows")["rows"] == [[1], [2]]


def keeping_times(path: Path, content: bytes) -> None:
    looked = path.stat()
    path.chmod(0o644)
    path.write_bytes(content)
    os.utime(path, ns=(looked.st_atime_ns, looked.st_mtime_ns))


@pytest.mark.long
def test_verify_reads_everything_and_names_what_is_wrong(place: Place):
    pipeline = place.write(PIPELINE)
    for name, rows in (("one.csv", "2024-01-01,a,1\n"), ("two.csv", "2024-01-02,a,2\n")):
        place.write(f"time,station,value\n{rows}", name)
        assert place.gridmill("run", pipeline).returncode == 0
    done = place.gridmill("verify")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 versions verified" in done.stdout
    assert "all unchanged" in done.stdout
    folder = next((place.home / "storage/files/kept/files").glob("*/a/b")).parent.parent
    keeping_times(folder / "a/b", b"ho\n")
    (folder / "1").unlink()
    (folder / "new").write_text("")
    data = next((place.home / "storage/sinks/kept/rows/table").glob("*.parquet"))
    keeping_times(data, bytes(data.stat().st_size))
    done = place.gridmill("verify", "kept")
    assert done.returncode == 1
    assert "1 missing, 1 changed, 1 extra" in done.stdout
    number = folder.name.split("-")[1].split(".")[0]
    for line in ("a/b was changed", "1 is missing", "new was added"):
        assert f"kept/files@{number}: {line}" in done.stdout
    wrong = {one["version"] for one in place.json("verify") if one["file_problems"]}
    assert wrong - {"kept/rows@1", "kept/rows@2"} == {f"kept/files@{number}"}
    assert wrong & {"kept/rows@1", "kept/rows@2"}
    assert place.gridmill("verify", "kept/features").returncode == 0
    assert place.gridmill("verify", "kept/features@latest").returncode == 0
    assert place.gridmill("verify", f"kept/files@{number}").returncode == 1
    assert "there is no 'kept/nobody'" in place.gridmill("verify", "kept/nobody").stderr


@pytest.mark.long
def test_a_changed_version_is_not_backed_up_and_what_is_restored_can_be_verified(
    place: Place, tmp_path: Path
):
    pipeline = place.write(PIPELINE)
    place.write("time,station,value\n2024-01-01,a,1\n", "one.csv")
    assert place.gridmill("run", pipeline).returncode == 0
    assert place.gridmill("backup", "kept", "-o", tmp_path / "kept.zip").returncode == 0
    with a_place(tmp_path / "other") as other:
        done = other.gridmill("restore", tmp_path / "kept.zip")
        assert done.returncode == 0, done.stderr
        assert all(one["files"] for one in other.json("verify") if one["version"] != "kept/nothing@1")
        assert not any(one["file_problems"] or one["problem"] for one in other.json("verify"))
        found = next((other.home / "storage/files/kept/files").glob("*/a/b"))
        assert found.stat().st_mode & 0o777 == 0o444
        listed = manifest(other, "kept/files", 1)["contents"]["files"]
        assert found.stat().st_mtime_ns in {one["mtime_ns"] for one in listed}
    keeping_times(next((place.home / "storage/files/kept/files").glob("*/a/b")), b"ho\n")
    done = place.gridmill("backup", "kept", "-o", tmp_path / "changed.zip")
    assert done.returncode != 0
    assert "kept/files@1 was changed after it was made: a/b was changed" in done.stderr
    assert not (tmp_path / "changed.zip").exists()


REJECTING = """
pipeline: odd
jobs:
  rows: {sink: {source: "*.csv", columns: {a: integer}, constraints: [{column: a, min: 0}]}}
"""


@pytest.mark.long
def test_rejected_rows_are_verified_and_no_reader_fails_for_them(place: Place, tmp_path: Path):
    pipeline = place.write(REJECTING)
    for number in range(3):
        place.write(f"a\n{number}\n-{number + 1}\n", f"{number}.csv")
        done = place.gridmill("run", pipeline)
        assert done.returncode == 0, done.stderr
    assert place.gridmill("verify").returncode == 0
    assert place.gridmill("backup", "odd", "-o", tmp_path / "odd.zip").returncode == 0
    with a_place(tmp_path / "other") as other:
        assert other.gridmill("restore", tmp_path / "odd.zip").returncode == 0
        assert other.gridmill("verify").returncode == 0
    for file in (place.home / "storage/sinks/odd/rows/rejects").glob("*.parquet"):
        assert file.stat().st_mode & 0o222 == 0
        keeping_times(file, bytes(file.stat().st_size))
    done = place.gridmill("verify", "odd/rows@3")
    assert done.returncode == 1
    assert "odd/rows@3: rejects/" in done.stdout
    assert place.gridmill("run", pipeline).returncode == 0


SINKS = """
pipeline: shop
jobs:
  rows: {{sink: {{source: "*.csv"}}}}
  count:
    needs: rows
    command:
      run: |
        python -c "
        import os, pyarrow.parquet as pq
        print('ROWS', sorted(map(tuple, map(dict.values, pq.read_table(os.environ['GRIDMILL_INPUT_ROWS']).to_pylist()))))"
        test -e {go}
"""  # noqa: E501


@pytest.mark.long
def test_a_command_reads_exactly_its_version_of_a_sink(place: Place):
    go = place.folder / "go"
    pipeline = place.write(SINKS.format(go=go))
    for edit in range(3):
        place.write(f"a,b\n1,{edit}\n2,{edit}\n", "one.csv")
        assert place.gridmill("run", pipeline).returncode == 1
        assert (
            f"ROWS [(1, {edit}), (2, {edit})]" in place.gridmill("logs", f"shop-{edit + 1}", "count").stdout
        )
    go.touch()
    assert place.gridmill("resume", "shop-1").returncode == 0
    said = place.gridmill("logs", "shop-1", "count").stdout
    assert said.count("ROWS [(1, 0), (2, 0)]") == 2, said
    assert not list((place.home / "attempts").glob("*/work/inputs"))


@pytest.mark.long
def test_an_incremental_dataset_does_not_build_on_a_version_that_was_changed(place: Place):
    pipeline = place.write(
        "pipeline: grown\njobs:\n  load: {sink: {source: '*.csv', columns: {t: timestamp}}}\n"
        "  rows: {dataset: {basis: {table: load, time: t, entity: [s]}, incremental: true}}\n"
    )
    for day in (1, 2):
        place.write(f"t,s,v\n2024-01-0{day}T00:00:00,a,{day}\n", f"{day}.csv")
        assert place.gridmill("run", pipeline).returncode == 0
    folder = place.home / "storage" / records(place)["grown/rows@2"]["output"]["uri"]
    next(folder.rglob("*.parquet")).unlink()
    place.write("t,s,v\n2024-01-03T00:00:00,a,3\n", "3.csv")
    done = place.gridmill("run", pipeline)
    assert done.returncode == 0, done.stderr
    assert "is missing; the job executes again" in place.gridmill("logs", "grown-3", "rows").stdout
    assert len(place.json("preview", "grown/rows")["rows"]) == 3


def records(place: Place) -> dict:
    return {one["id"]: one for one in place.json("list", "artifact")}
