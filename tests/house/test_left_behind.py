"""What a run of the tests leaves behind is found, and its folder is one in which everything works."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import left_behind


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[left_behind.Run]:
    for name in ("TMPDIR", left_behind.RUN):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # restored at the end
    made = left_behind.begin()
    made.ending_seconds = 0.0
    yield made
    made.end(keep=False)
    monkeypatch.undo()
    tempfile.tempdir = None
    assert not made.folder.exists()


def test_nothing_is_found_where_nothing_is_left(run: left_behind.Run):
    with tempfile.TemporaryDirectory() as folder:
        assert Path(folder).parent == run.folder
    assert run.left() == []


def test_a_process_in_a_session_of_its_own_is_found(run: left_behind.Run):
    words = ["sh", "-c", "echo; read word"]
    process = subprocess.Popen(words, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()  # a process has its environment a moment after `Popen` has returned
        assert run.left() == [f"process {process.pid}: {' '.join(words)}"]
        run.ending_seconds = 60.0
        os.kill(process.pid, signal.SIGKILL)
        assert run.left() == []  # it waits for what is ending
    finally:
        process.kill()
        process.communicate()


def test_files_are_found(run: left_behind.Run):
    made = tempfile.mkdtemp()
    assert run.left() == [f"file {made}"]


def test_files_of_all_runs_are_found_by_a_run_that_is_alone(run: left_behind.Run):
    path = Path(f"/dev/shm/gridmill-{run.folder.name}")
    path.touch()
    try:
        assert f"{path}" not in run.left()  # the run that runs this is in progress
        run.alone, run._others = True, lambda: False  # type: ignore[method-assign]
        assert f"{path}" in run.left()
    finally:
        path.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_mount_is_found(run: left_behind.Run):
    place = run.folder / "pytest"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("this container may not mount")
    try:
        assert run.left() == [f"mount {place}"]
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_folder_that_is_closed_is_removed(run: left_behind.Run):
    (run.folder / "pytest/closed/inside").mkdir(parents=True)
    (run.folder / "pytest/closed").chmod(0o000)
    run.end(keep=False)
    assert not run.folder.exists()


def test_sockets_have_short_paths(run: left_behind.Run):
    assert len(os.fsencode(run.folder)) < 40
    assert run.folder.stat().st_mode & 0o1777 == 0o1777
