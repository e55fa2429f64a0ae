"""A farm whose jobs run on a Ray cluster: what goes there, runs there, and comes home from there."""

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

from tests.kit.ports import free_port
from tests.kit.ray import ENVIRONMENT, needs_ray, ray_cluster, remove_homes_on_nodes

pytestmark = [pytest.mark.e2e, needs_ray]
PROGRAM = (sys.executable, "-P", "-m", "gridmill")
PIPELINE = """
pipeline: there
resources:
  at-far: {type: command, site: far, cpus: 1, memory: 256MiB}
jobs:
  made:
    resource: at-far
    command: "sh tool.sh > $GRIDMILL_OUTPUT/it"
  read:
    resource: at-far
    needs: [made]
    command: "cat $GRIDMILL_INPUT_MADE/it; exit 3"
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short path, for sockets."""
    made = Path(tempfile.mkdtemp(prefix="gmr"))
    yield made
    remove_homes_on_nodes(made / "farm")
    shutil.rmtree(made, ignore_errors=True)


@contextmanager
def farm_on(address: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Its controller, and its join line."""
    env = {**os.environ, **ENVIRONMENT, "GRIDMILL_HOME": str(folder / "farm")}
    env["GRIDMILL_ROOT"] = str(folder / "seen-by-all")
    listen = f"127.0.0.1:{free_port()}"
    words = (*PROGRAM, "up", "--light", "--site", f"ray:{address}", "--listen", listen, "--json")
    with (
        (folder / "farm.log").open("wb") as log,
        subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (folder / "farm.log").read_text()
            yield listen, json.loads(line)["join"].partition("--join ")[2]
        finally:
            process.kill()


def test_jobs_at_a_farm_on_ray_run_there_and_what_they_make_comes_home(folder: Path) -> None:
    env = {**os.environ, "GRIDMILL_HOME": str(folder / "home")}

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run((*PROGRAM, *words), env=env, capture_output=True, text=True, check=False)

    def gridmill(*words: str, code: int = 0) -> str:
        done = call(*words)
        log = (folder / "farm.log").read_text()
        assert done.returncode == code, f"{done.stdout}{done.stderr}{log}"
        return done.stdout + done.stderr

    project = folder / "project"
    project.mkdir()
    (project / "pipeline.yaml").write_text(PIPELINE)
    (project / "tool.sh").write_text("echo made in $PWD\n")
    with ray_cluster(folder / "ray", cpus=2) as address, farm_on(address, folder) as (listen, line):
        add = ("add", "cluster", "far", "--controller", listen)
        added = call(*add, "--join", line)
        while "no answer within the timeout" in added.stderr:  # the farm waits for Ray's first answer
            added = call(*add)
        assert "64 GiB" in added.stdout, added.stderr  # what Ray was told that this machine has
        gridmill("run", str(project / "pipeline.yaml"), code=1)
        told = gridmill("logs", "there-1")
        assert "read failed: exit code 3" in told
        assert "made in" in told
        assert str(folder / "home") not in told
        assert "it" in gridmill("preview", "there/made")
