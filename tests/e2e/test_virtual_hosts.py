"""Virtual hosts see what Python needs wherever it lies, and what they write is their own."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridmill.testing.hosts import Host, network, why_no_hosts
from tests.kit.machines import two_hosts

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "there are hosts"),
]


@pytest.fixture
def far_folder() -> Iterator[Path]:
    """Below /tmp, which hosts have one of their own of, with a path that shells and mounts split."""
    made = Path(tempfile.mkdtemp(dir="/tmp", prefix="a path, with: späces "))
    yield made
    shutil.rmtree(made)


def a_host(folder: Path, needed: Path) -> Iterator[Host]:
    prefix = f"10.{180 + os.getpid() % 50}.{os.getpid() // 50 % 200}"
    with network(folder, prefix, needed=[needed]) as net:
        yield net.host("alone", 11)


def test_a_host_sees_a_folder_below_tmp_and_writes_to_a_copy(far_folder: Path) -> None:
    (far_folder / "module.py").write_text("print('seen')\n")
    net = Path(tempfile.mkdtemp(dir="/tmp", prefix="gmh"))
    try:
        for host in a_host(net, far_folder):
            assert host.run(sys.executable, str(far_folder / "module.py")) == "seen\n"
            host.run("sh", "-c", 'echo its own > "$0/written"', str(far_folder))
            assert host.run("cat", f"{far_folder}/written") == "its own\n"
            seen = host.run("ls", "/tmp").splitlines()
            assert far_folder.name in seen
            assert net.name not in seen, "what is below /tmp here is not there"
    finally:
        shutil.rmtree(net)
    assert [path.name for path in far_folder.iterdir()] == ["module.py"]


def test_a_host_sees_a_folder_on_a_disk_of_its_own(far_folder: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", far_folder], check=True)
    net = Path(tempfile.mkdtemp(dir="/tmp", prefix="gmh"))
    try:
        (far_folder / "word").write_text("here")
        for host in a_host(net, far_folder):
            assert host.run("cat", str(far_folder / "word")) == "here"
    finally:
        subprocess.run(["umount", far_folder], check=True)
        shutil.rmtree(net)


def test_hosts_run_gridmill_wherever_it_lies() -> None:
    with two_hosts() as (net, _):
        host = net.host("one", 11)
        assert "gridmill" in host.run(sys.executable, "-P", "-m", "gridmill", "--version").lower()
