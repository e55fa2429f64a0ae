"""A command is handed exactly the rows of a sink's version, whatever the table's folder holds besides."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from tests.kit.sink_case import SinkCase

from gridmill.domain.artifact import Artifact, ArtifactKind, Input, Output
from gridmill.domain.command import CommandSpec
from gridmill.domain.job import Job
from gridmill.domain.sink import ColumnType, Outage
from gridmill.domain.version_manifest import version_uri
from gridmill.jobs.context import JobContext
from gridmill.jobs.inspect_versions import files_of
from gridmill.jobs.sink.run import run
from gridmill.jobs.tables import open_version
from gridmill.pod.inputs import MOST_FILES, hand_over, input_folders, take_back
from gridmill.storage.manifests import new_manifest, write_manifest
from gridmill.transfer import tree_writer as handed_module
from gridmill.transfer.contents import list_contents
from gridmill.transfer.tree_writer import hand_tree


@pytest.fixture
def sink(tmp_path: Path) -> SinkCase:
    return SinkCase(tmp_path)


def version(output: Output, number: int = 1) -> Artifact:
    return Artifact(id=f"p/s@{number}", name="p/s", number=number, output=output, fingerprint="f")


def list_files(sink: SinkCase, output: Output) -> None:
    root = sink.folder / "root"
    contents = list_contents(root / output.uri, names=files_of(root, output))
    write_manifest(root, new_manifest(version(output), contents))


def handed(sink: SinkCase, output: Output, name: str = "s", *, listed: bool = True) -> Path:
    """The folder that a command would find."""
    if listed:
        list_files(sink, output)
    order = replace(
        sink.context(sink.context_spec("*.csv")).order,
        job=Job(name="c", command=CommandSpec(run="true"), needs=(name,)),
        inputs=(Input(name=name, artifact=version(output)),),
    )
    work = sink.folder / "handed" / str(sink.attempts)
    work.mkdir(parents=True)
    hand_over(order, work)
    return input_folders(order, work)[name]


def rows(table: pa.Table) -> list[str]:
    return sorted(map(str, table.to_pylist()))


def check(sink: SinkCase, output: Output, *, listed: bool = True) -> Path:
    folder = handed(sink, output, listed=listed)
    wanted = open_version(sink.folder / "root" / output.uri, output)
    found = ds.dataset(folder, format="parquet")
    assert found.schema.names == wanted.schema.names
    assert rows(found.to_table()) == rows(wanted.to_table())
    assert all(path.suffix == ".parquet" for path in folder.iterdir())
    return folder


def test_a_version_after_edits_is_its_own_rows(sink: SinkCase):
    outputs = []
    for edit in range(4):
        sink.write("one.csv", f"a,b\n1,{edit}\n2,{edit}\n")
        outputs.append(sink.load())
    for edit, output in enumerate(outputs):
        assert output.details["plain"]
        folder = check(sink, output)
        assert rows(ds.dataset(folder).to_table()) == [f"{{'a': {a}, 'b': {edit}}}" for a in (1, 2)]


def test_without_a_manifest_the_rows_are_written(sink: SinkCase):
    sink.write("one.csv", "a\n1\n")
    output = sink.load()
    (sink.folder / "root/sinks/p/s/table/of-another-version.parquet").write_text("")
    assert [path.name for path in check(sink, output, listed=False).iterdir()] == ["rows.parquet"]


def test_at_a_farm_a_version_lies_alone(sink: SinkCase):
    sink.write("one.csv", "a\n1\n")
    output = sink.load()
    there = replace(output, uri=version_uri(output))
    for name in files_of(sink.folder / "root", output):
        target = sink.folder / "root" / there.uri / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((sink.folder / "root" / output.uri / name).read_bytes())
    folder = check(sink, there, listed=False)
    assert [path.name for path in folder.iterdir()] != ["rows.parquet"]


def test_columns_that_came_later_are_in_all_files(sink: SinkCase):
    sink.write("one.csv", "a\n1\n")
    first = sink.load()
    sink.write("two.csv", "a,b\n2,x\n")
    second = sink.load()
    assert (first.details["plain"], second.details["plain"]) == (True, False)
    for output in (first, second):
        check(sink, output)


def test_rows_in_an_outage_are_left_out_as_in_datasets(sink: SinkCase):
    sink.write("one.csv", "t,a\n2024-01-01T00:00:00Z,1\n2024-01-02T00:00:00Z,2\n")
    output = sink.load(outages=(Outage(time="t", begins="2024-01-02", ends="2024-01-03"),))
    assert ds.dataset(check(sink, output)).count_rows() == 1


@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 8))]
)
def test_every_version_of_a_random_history_stays_what_it_was(sink: SinkCase, seed: int):
    random, outputs = Random(seed), list[Output]()
    columns = ["a"]
    for step in range(6):
        if random.random() < 0.3:
            columns.append(f"c{step}")
        name = f"{random.randrange(3)}.csv"
        cell = random.choice(["1", "2", "3"] if step < 4 else ["1.5", "2.5"])
        lines = [",".join(columns), *[",".join([cell] * len(columns))] * random.randrange(1, 4)]
        sink.write(name, "\n".join(lines) + "\n")
        context = sink.context(sink.context_spec("*.csv"))
        earlier = tuple(Input(name="s", artifact=version(one)) for one in outputs[-1:])
        outputs.append(
            run(JobContext(order=replace(context.order, earlier=earlier), work=context.work)).outputs[0]
        )
    for output in outputs:
        check(sink, output)


def test_a_table_without_rows_is_one_file_without_rows(sink: SinkCase):
    sink.write("one.csv", "a\n")
    output = sink.load(columns={"a": ColumnType.INTEGER})
    assert ds.dataset(check(sink, output), format="parquet").count_rows() == 0


def test_an_input_of_another_pipeline_has_a_folder_of_its_own(sink: SinkCase):
    sink.write("one.csv", "a\n1\n")
    folder = handed(sink, sink.load(), "weather/rows@prod")
    assert folder.name == "weather.rows@prod"


def test_small_trees_are_copied_and_large_ones_have_second_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = tmp_path / "version"
    (source / "a/__pycache__").mkdir(parents=True)
    (source / "a/x").write_text("1")
    (source / "a/link").symlink_to("x")
    (source / "empty").mkdir()
    (source / "a/x").chmod(0o444)
    hand_tree(source, tmp_path / "copied")
    monkeypatch.setattr(handed_module, "COPIED_BYTES", 0)
    hand_tree(source, tmp_path / "linked")
    for name, links in (("copied", 1), ("linked", 2)):
        there = sorted(str(one.relative_to(tmp_path / name)) for one in (tmp_path / name).rglob("*"))
        assert there == ["a", "a/link", "a/x", "empty"]
        looked = (tmp_path / name / "a/x").stat()
        assert (looked.st_nlink, looked.st_mode & 0o777) == (1 if links == 1 else 2, 0o444)
        assert os.readlink(tmp_path / name / "a/link") == "x"


def test_of_a_large_tree_the_small_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(handed_module, "COPIED_BYTES", 10)
    source = tmp_path / "version"
    source.mkdir()
    for name, size in (("a", 11), ("b", 3), ("c", 6), ("d", 2)):
        (source / name).write_bytes(bytes(size))
    hand_tree(source, tmp_path / "handed")
    links = {one.name: one.stat().st_nlink for one in (tmp_path / "handed").iterdir()}
    assert {name for name, count in links.items() if count == 1} == {"b", "d"}
    monkeypatch.setattr(handed_module, "COPIED_FILES", 1)
    hand_tree(source, tmp_path / "again")
    assert [one.name for one in (tmp_path / "again").iterdir() if one.stat().st_nlink == 1] == ["d"]


@pytest.fixture
def cloning(tmp_path: Path) -> Iterator[Path]:
    """A file system that can copy without writing."""
    image, mounted = tmp_path / "image", tmp_path / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(320 << 20)
    made = shutil.which("mkfs.xfs") and not subprocess.run(["mkfs.xfs", "-q", image], check=False).returncode
    if not made or subprocess.run(["mount", "-o", "loop", image, mounted], check=False).returncode:
        pytest.skip("needs mkfs.xfs and the right to mount")
    yield mounted
    subprocess.run(["umount", "--lazy", mounted], check=True)


def test_large_files_are_copies_where_that_takes_no_writing(cloning: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(handed_module, "COPIED_BYTES", 0)
    source, target = cloning / "version", cloning / "handed"
    source.mkdir()
    (source / "x").write_bytes(bytes(20 << 20))
    (source / "x").chmod(0o444)
    free = os.statvfs(cloning).f_bavail
    hand_tree(source, target)
    os.sync()
    assert (target / "x").stat().st_nlink == 1
    assert (target / "x").stat().st_mode & 0o777 == 0o444
    assert (free - os.statvfs(cloning).f_bavail) * 4096 < 5 << 20
    (target / "x").chmod(0o644)
    (target / "x").write_bytes(b"mine")
    assert (source / "x").read_bytes() == bytes(20 << 20)


def test_where_a_file_system_cannot_clone_nothing_is_left(tmp_path: Path):
    (tmp_path / "x").write_text("1")
    if not handed_module.clone(str(tmp_path / "x"), str(tmp_path / "y")):
        assert not (tmp_path / "y").exists()
    else:
        assert (tmp_path / "y").read_text() == "1"


def test_what_can_have_no_second_name_is_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(handed_module, "COPIED_BYTES", 0)
    monkeypatch.setattr(os, "link", refused)
    (tmp_path / "version").mkdir()
    (tmp_path / "version/x").write_text("1")
    hand_tree(tmp_path / "version", tmp_path / "handed")
    assert os.readlink(tmp_path / "handed/x") == str(tmp_path / "version/x")


def test_very_many_files_are_handed_over_where_they_lie(sink: SinkCase):
    output = Output(kind=ArtifactKind.FILES, uri="files/p/j/1", details={"files": MOST_FILES + 1})
    order = replace(
        sink.context(sink.context_spec("*.csv")).order, inputs=(Input(name="j", artifact=version(output)),)
    )
    assert input_folders(order, sink.folder)["j"] == sink.folder / "root/files/p/j/1"


def test_where_the_work_folder_is_on_another_disk_it_is_handed_beside_the_versions(sink: SinkCase):
    if not Path("/dev/shm").is_dir() or os.stat("/dev/shm").st_dev == os.stat(sink.folder).st_dev:
        pytest.skip("needs another file system at /dev/shm")
    sink.write("one.csv", "a\n1\n")
    output = sink.load()
    list_files(sink, output)
    order = replace(
        sink.context(sink.context_spec("*.csv")).order,
        inputs=(Input(name="s", artifact=version(output)),),
    )
    folder = input_folders(order, Path("/dev/shm"))["s"]
    assert folder == sink.folder / "root/inputs" / order.attempt_id / "s"
    hand_over(order, Path("/dev/shm"))
    assert len(list(folder.iterdir())) == 1
    for _ in range(2):
        take_back(order)
        assert not folder.exists()
