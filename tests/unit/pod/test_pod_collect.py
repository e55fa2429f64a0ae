"""What a command leaves becomes files and folders alone, or says why it cannot be kept."""

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fuzz.left_outputs import case

from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.pod.outputs import OutputFolders, collect, look
from gridmill.storage.manifests import new_manifest, write_manifest
from gridmill.transfer.contents import list_contents


@pytest.fixture
def left(tmp_path: Path) -> OutputFolders:
    for name in ("output", "work", "input", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "output/model.bin").write_text("weights")
    (tmp_path / "work/scratch").write_text("mine")
    (tmp_path / "input/rows").write_text("theirs")
    (tmp_path / "elsewhere/rows").write_text("of others")
    return OutputFolders(
        output=tmp_path / "output", excluded=(tmp_path / "work",), inputs=(tmp_path / "input",)
    )


def link(left: OutputFolders, name: str, target: str | Path) -> Path:
    path = left.output / name
    path.symlink_to(target)
    return path


def test_a_shared_input_that_was_changed_meanwhile_is_named(left: OutputFolders, tmp_path: Path):
    output = Output(kind=ArtifactKind.FILES, uri="input")
    version = Artifact(id="p/big@1", name="p/big", number=1, output=output, fingerprint="f")
    write_manifest(tmp_path, new_manifest(version, list_contents(tmp_path / "input")))
    left = replace(left, shared=(version,), root=str(tmp_path))
    (tmp_path / "input/rows").chmod(0o666)
    assert look(left, most=9) is None, "it is compared beside the loop"
    assert (collect(left).files, collect(left).problem) == (1, "")
    assert (tmp_path / "input/rows").stat().st_mode & 0o222 == 0, "it is read-only again"
    (tmp_path / "input/rows").chmod(0o666)
    (tmp_path / "input/rows").write_text("changed")
    found = collect(left)
    assert found.problem == "its input p/big@1 was changed while it ran: rows was changed"
    assert "must not write to its inputs" in found.hint
    assert not found.files


def test_files_alone_are_seen_at_once(left: OutputFolders):
    found = look(left, most=2)
    assert found is not None
    assert (found.files, found.size_bytes, found.problem) == (1, 7, "")
    for number in range(2):
        (left.output / f"{number}").write_text("")
    assert look(left, most=2) is None, "more are counted beside the loop"
    assert collect(left).files == 3


def test_links_to_what_is_the_jobs_own_become_files(left: OutputFolders, tmp_path: Path):
    made = [
        link(left, "latest", "model.bin"),
        link(left, "absolute", left.output / "model.bin"),
        link(left, "scratch", tmp_path / "work/scratch"),
        link(left, "rows", tmp_path / "input/rows"),
        link(left, "by-another", "latest"),
    ]
    assert look(left, most=100) is None
    found = collect(left)
    assert (found.problem, found.files) == ("", 6)
    assert found.notes == ("5 links in the output were replaced with the files that they point to\n",)
    assert [path.is_symlink() for path in made] == [False] * 5
    assert [path.read_text() for path in made] == ["weights", "weights", "mine", "theirs", "weights"]
    assert os.stat(left.output / "latest").st_ino == os.stat(left.output / "model.bin").st_ino
    assert os.stat(left.output / "rows").st_ino != os.stat(tmp_path / "input/rows").st_ino
    assert (tmp_path / "input/rows").read_text() == "theirs"


def test_a_linked_folder_becomes_a_folder_with_its_own_links_followed(left: OutputFolders, tmp_path: Path):
    (tmp_path / "input/deep").mkdir()
    (tmp_path / "input/deep/one").write_text("1")
    (tmp_path / "input/again").symlink_to("rows")
    data = link(left, "data", tmp_path / "input")
    assert collect(left).problem == ""
    assert not data.is_symlink()
    assert (data / "deep/one").read_text() == "1"
    assert ((data / "again").is_symlink(), (data / "again").read_text()) == (False, "theirs")


@pytest.mark.parametrize(
    ("name", "target", "said"),
    [
        ("gone", "/nowhere/at-all", "the output has a link gone to /nowhere/at-all, which does not exist"),
        ("rows", "../elsewhere/rows", "a link rows to ../elsewhere/rows, which does not belong to the job"),
        ("self", "self", "Too many levels of symbolic links"),
        ("up", ".", "a folder that contains the link"),
    ],
)
def test_a_link_that_cannot_be_kept_is_named(left: OutputFolders, name: str, target: str, said: str):
    link(left, name, target)
    found = collect(left)
    assert said in found.problem
    assert "cp -L" in found.hint


def test_links_in_a_circle_are_refused(left: OutputFolders):
    for name, other in (("a", "b"), ("b", "a")):
        (left.output / name).mkdir()
        (left.output / name / "other").symlink_to(f"../{other}")
    assert "leads back" in collect(left).problem


def test_the_output_folder_itself_must_stay(left: OutputFolders, tmp_path: Path):
    (left.output / "model.bin").unlink()
    left.output.rmdir()
    assert collect(left).problem == "the command removed its output folder"
    left.output.symlink_to(tmp_path / "elsewhere")
    assert "with a link to" in collect(left).problem
    assert not left.output.is_symlink()
    left.output.write_text("")
    assert collect(left).problem == "the command replaced its output folder with a file"


def test_sockets_and_pipes_are_removed_and_told(left: OutputFolders, monkeypatch: pytest.MonkeyPatch):
    os.mkfifo(left.output / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(left.output)  # a socket's path is short
        server.bind("socket")
    found = collect(left)
    assert (found.files, len(found.notes), found.problem) == (1, 2, "")
    link(left, "to-pipe", "pipe")
    os.mkfifo(left.output / "pipe")
    assert collect(left).problem != ""


def wanting(left: OutputFolders, *wanted: str) -> OutputFolders:
    return OutputFolders(output=left.output, excluded=left.excluded, wanted=wanted)


def test_a_declared_output_that_is_missing_is_named(left: OutputFolders):
    (left.output / "parts").mkdir()
    (left.output / "empty").mkdir()
    (left.output / "parts/0.csv").write_text("")
    assert collect(wanting(left, "model.bin", "./parts", "parts/*.csv", "*.bin")).problem == ""
    found = collect(wanting(left, "model.bin", "metrics.json", "parts/*.json", "empty", "*.csv"))
    missing = "'metrics.json', 'parts/*.json', 'empty', '*.csv'"
    assert found.problem == f"the command did not write its output {missing}"
    assert found.hint == "Write it to the folder GRIDMILL_OUTPUT, which contains model.bin, parts/0.csv."


def test_a_rank_leaves_the_links_of_others_alone(left: OutputFolders, tmp_path: Path):
    mine, shared = link(left, "mine", tmp_path / "work/scratch"), link(left, "latest", "model.bin")
    rank = OutputFolders(output=left.output, excluded=left.excluded, inputs=left.inputs, others=True)
    assert collect(rank).problem == ""
    assert (mine.is_symlink(), shared.is_symlink()) == (False, True)


@pytest.mark.parametrize("seed", range(60))
def test_through_random_links_the_same_bytes_are_read_as_before(seed: int, tmp_path: Path):
    case(seed, tmp_path)
