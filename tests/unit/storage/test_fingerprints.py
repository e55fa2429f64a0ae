"""What the fingerprint of a job covers: what it is made from, by content, and nothing else."""

import os
from pathlib import Path
from random import Random

import pytest
from tests.oracles.fingerprint_cases import RELATED, UNRELATED, Project, case

from gridmill.domain.command import CommandSpec
from gridmill.domain.job import Job
from gridmill.domain.provenance import CodeFile
from gridmill.errors import InputError
from gridmill.ports.storage import FileStat
from gridmill.scheduler.why_changed import files_read
from gridmill.storage.bundle import make_bundle
from gridmill.storage.file_hashes import SourceHashes, listing_path, read_listing
from gridmill.transfer.chunk_manifest import SETTLED_NS


@pytest.mark.parametrize("edit", [*UNRELATED, *RELATED], ids=lambda edit: edit.__name__)
def test_an_edit_changes_the_fingerprints_of_the_jobs_that_it_concerns(edit, tmp_path: Path) -> None:
    project = Project(tmp_path, Random(1))
    project.make()
    _, before = project.read()
    expected = edit(project)
    _, after = project.read()
    changed = {
        name for name in after if name not in before or before[name].fingerprint != after[name].fingerprint
    }
    assert changed == expected


@pytest.mark.parametrize("seed", range(3))
def test_random_edits_change_the_fingerprints_that_they_concern(seed: int, tmp_path: Path) -> None:
    case(seed, tmp_path)


def files(*names: str) -> tuple[CodeFile, ...]:
    return tuple(CodeFile(name=name, digest=f"{number:064}") for number, name in enumerate(names))


def command(**settings) -> Job:
    return Job(name="c", command=CommandSpec(run="x", **settings))


@pytest.mark.parametrize(
    ("inputs", "found"),
    [
        (("src",), {"src/a.py", "src/deep/b.py"}),
        (("src/",), {"src/a.py", "src/deep/b.py"}),
        (("src/*.py",), {"src/a.py"}),
        (("**/*.py",), {"src/a.py", "src/deep/b.py", "c.py"}),
        (("./c.py", "da?a.csv"), {"c.py", "data.csv"}),
        (("[cd]*",), {"c.py", "data.csv"}),
        ((".",), {"src/a.py", "src/deep/b.py", "c.py", "data.csv", "pipeline.yaml"}),
    ],
)
def test_inputs_name_files_folders_and_patterns(inputs, found) -> None:
    every = files("src/a.py", "src/deep/b.py", "c.py", "data.csv", "pipeline.yaml")
    read = files_read(command(inputs=inputs), every, file="pipeline.yaml", data=("data.csv",), folder="/p")
    assert set(read) == found


def test_an_input_that_names_no_file_of_the_bundle_is_an_error() -> None:
    with pytest.raises(InputError, match="matches no file of the code bundle"):
        files_read(command(inputs=("gone.py",)), files("a.py"), file="", data=(), folder="/p")


@pytest.mark.parametrize("data", ["/p/data/*.csv", "./data/*.csv", "data/**/*.csv", "data/x.csv"])
def test_files_that_sinks_load_are_no_code_however_they_are_written(data: str) -> None:
    read = files_read(command(), files("data/x.csv", "a.py"), file="", data=(data, "../b"), folder="/p")
    assert set(read) == {"a.py"}


def test_a_list_of_a_bundles_files_is_made_from_the_bundle_where_it_is_missing(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "src" / "a.py").write_text("a")
    (project / "run.sh").write_text("b")
    (project / "run.sh").chmod(0o755)
    (project / "link").symlink_to("run.sh")
    (project / "p.yaml").write_text("# mine\npipeline: p\njobs: {}\n")
    (project / "config.yaml").write_text("jobs: 3\n")
    bundle = make_bundle(project, tmp_path / "bundles")
    listed = read_listing(bundle.path)
    listing_path(bundle.path).unlink()
    assert read_listing(bundle.path) == listed
    assert listing_path(bundle.path).exists()
    assert {one.name for one in listed if one.pipeline} == {"p.yaml"}
    assert [one.name for one in listed] == ["config.yaml", "link", "p.yaml", "run.sh", "src/a.py"]


def stat_of(path: Path) -> FileStat:
    status = path.stat()
    return FileStat(
        path=str(path),
        size_bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        inode=status.st_ino,
    )


def test_a_file_that_looks_the_same_is_not_read_again_and_one_that_was_touched_has_its_hash(tmp_path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("1")
    later = path.stat().st_ctime_ns + 2 * SETTLED_NS
    (first,) = SourceHashes(tmp_path / "cache", now_ns=lambda: later).hash_all([stat_of(path)], "key")
    kept = next((tmp_path / "cache").iterdir())
    kept.write_text(kept.read_text().replace(first.content, "0" * 16))  # what is kept is believed
    contents = SourceHashes(tmp_path / "cache", now_ns=lambda: later)
    for _ in range(2):
        assert contents.hash_all([stat_of(path)], "key")[0].content == "0" * 16
    os.utime(path, (1, 1))
    assert contents.hash_all([stat_of(path)], "key")[0].content == first.content
    kept.write_text("{ not JSON")
    assert SourceHashes(tmp_path / "cache").hash_all([stat_of(path)], "key")[0].content == first.content


def test_a_file_that_changed_a_moment_ago_is_read_again_as_it_may_change_within_the_same_tick(
    tmp_path,
) -> None:
    path, contents = tmp_path / "a.csv", SourceHashes(tmp_path / "cache")
    path.write_text("1")
    look = stat_of(path)
    first = contents.hash_all([look], "key")[0].content
    path.write_text("2")
    assert contents.hash_all([look], "key")[0].content != first


def test_a_source_file_that_cannot_be_read_is_an_error_of_its_job(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        SourceHashes(tmp_path / "cache").hash_all(
            [FileStat(path="/no/file", size_bytes=1, mtime_ns=1)], "key"
        )
