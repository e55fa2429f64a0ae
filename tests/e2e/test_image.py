"""A farm in a root made of the image's steps, on a host of its own: a job of another host runs in it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gridmill.testing.hosts import Host, network, why_no_hosts

pytestmark = pytest.mark.e2e
ROOT = os.environ.get("GRIDMILL_IMAGE_ROOT", "")
"""Making one takes minutes, a mirror of Debian and one of Python's packages."""
PROGRAM = ("env", "GRIDMILL_HOME=/root/grid", sys.executable, "-P", "-m", "gridmill")
INSIDE = """
cd {root}
mount -t proc proc proc
mount -t tmpfs -o mode=711 home var/lib/gridmill
mount -t tmpfs -o mode=755 dev dev
for node in null:3 zero:5 urandom:9 random:8; do mknod -m 666 dev/${{node%:*}} c 1 ${{node#*:}}; done
mkdir -m 1777 dev/shm
exec chroot . env -i GRIDMILL_HOME=/var/lib/gridmill PATH=/opt/gridmill/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  gridmill up --light --listen {address}:8700 --json
"""
PIPELINE = """
pipeline: there
resources:
  at-far: {type: command, site: far, cpus: 1, memory: 256MiB}
jobs:
  where:
    resource: at-far
    command: "echo by $(command -v gridmill)"
"""


def why_not() -> str:
    if not ROOT:
        return (
            "set GRIDMILL_IMAGE_ROOT to a root: python3 packaging/build_root.py ROOT makes one (debootstrap)"
        )
    return why_no_hosts()


@contextmanager
def farm_in(root: str, host: Host, log: Path) -> Iterator[str]:
    """Its join line."""
    words = host.command("bash", "-ec", INSIDE.format(root=root, address=host.address))
    with log.open("wb") as said, subprocess.Popen(words, stdout=subprocess.PIPE, stderr=said) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, log.read_text()
            yield json.loads(line)["join"].partition("--join ")[2]
        finally:
            process.kill()


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_job_of_another_host_runs_in_the_image() -> None:
    folder = Path(tempfile.mkdtemp(prefix="gmi"))
    project = folder / "project"
    project.mkdir()
    (project / "pipeline.yaml").write_text(PIPELINE)
    prefix = f"10.{80 + os.getpid() % 100}.{os.getpid() // 100 % 200}"
    try:
        with network(folder / "net", prefix, shared=[project, ROOT]) as net:
            home, far = net.host("home", 11), net.host("far", 12)
            with farm_in(ROOT, far, folder / "farm.log") as line:
                way = ("--controller", f"{far.address}:8700", "--join", line)
                home.run(*PROGRAM, "add", "cluster", "far", *way)
                home.run(*PROGRAM, "run", str(project / "pipeline.yaml"), seconds=300.0)
                assert "by /opt/gridmill/bin/gridmill" in home.run(*PROGRAM, "logs", "there-1")
                assert "ok  farm far" in home.run(*PROGRAM, "doctor", check=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
