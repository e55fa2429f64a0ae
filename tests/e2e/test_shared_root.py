"""A storage root on a file system that is really mounted from elsewhere: sshfs, its server on a socket."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridmill.storage.filesystem import check_root, find_mount

pytestmark = pytest.mark.e2e

SERVER = Path("/usr/lib/openssh/sftp-server")
DEADLINE_SECONDS = 300.0
PIPELINE = """\
pipeline: shops
jobs:
  sales: {sink: {source: "sales.csv"}}
  features:
    dataset: {basis: {table: sales, time: day, entity: [shop]}, lags: [{column: sold, steps: [1]}]}
"""
SALES = "day,shop,sold\n" + "".join(f"2026-01-{day:02},a,{day}\n" for day in range(1, 29))


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A folder on sshfs."""
    if not (shutil.which("sshfs") and SERVER.exists() and os.access("/dev/fuse", os.W_OK)):
        pytest.skip(
            "needs /dev/fuse, and sshfs with an SFTP server: apt-get install sshfs openssh-sftp-server"
        )
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    ours, theirs = socket.socketpair()
    with (
        subprocess.Popen([SERVER], stdin=theirs, stdout=theirs) as server,
        subprocess.Popen(
            ["sshfs", "-f", "-o", "passive", f":{there}", here], stdin=ours, stdout=ours
        ) as mount,
    ):
        until = time.monotonic() + DEADLINE_SECONDS
        while not os.path.ismount(here) and mount.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        try:
            assert os.path.ismount(here)
            yield here
        finally:
            subprocess.run(["fusermount3", "-uz", here], check=False, capture_output=True)
            mount.terminate()
            server.terminate()


def gridmill(folder: Path, *words: str, **environment: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **{name: str(value) for name, value in environment.items()}}
    argv = [sys.executable, "-m", "gridmill", *words]
    return subprocess.run(
        argv, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=DEADLINE_SECONDS
    )


def test_a_shared_root_serves_and_a_shared_home_is_refused(mounted: Path, tmp_path: Path) -> None:
    mount = find_mount(mounted / "root")
    assert mount is not None
    assert (mount.type, mount.shared) == ("fuse.sshfs", True)
    check_root(mounted / "root")
    (tmp_path / "p.yaml").write_text(PIPELINE)
    (tmp_path / "sales.csv").write_text(SALES)
    refused = gridmill(tmp_path, "run", "p.yaml", GRIDMILL_HOME=mounted / "home")
    assert refused.returncode == 8
    assert "shared file system (fuse.sshfs" in refused.stderr
    assert "GRIDMILL_ROOT" in refused.stderr
    assert not (mounted / "home").exists()
    ran = gridmill(tmp_path, "run", "p.yaml", GRIDMILL_HOME=tmp_path / "h", GRIDMILL_ROOT=mounted / "root")
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "there/root/sinks/shops/sales/table/_delta_log").is_dir()


def test_two_homes_do_not_write_over_each_others_results(tmp_path: Path):
    text = (
        "pipeline: p\nparameters: {who: nobody}\njobs: {a: {command: 'echo ${who} > $GRIDMILL_OUTPUT/f'}}\n"
    )
    (tmp_path / "p.yaml").write_text(text)
    run, root = ("run", "p.yaml", "--set"), tmp_path / "root"
    first = gridmill(tmp_path, *run, "who=one", GRIDMILL_HOME=tmp_path / "one", GRIDMILL_ROOT=root)
    assert first.returncode == 0, first.stderr
    other = gridmill(tmp_path, *run, "who=two", GRIDMILL_HOME=tmp_path / "two", GRIDMILL_ROOT=root)
    assert other.returncode == 5
    assert f"pipeline 'p' of another home ({tmp_path / 'one'} on " in other.stderr
    assert [file.read_text() for file in root.glob("files/p/a/*/f")] == ["one\n"]
    moved = (tmp_path / "one").rename(tmp_path / "elsewhere")
    again = gridmill(tmp_path, *run, "who=three", GRIDMILL_HOME=moved, GRIDMILL_ROOT=root)
    assert again.returncode == 0, again.stderr
