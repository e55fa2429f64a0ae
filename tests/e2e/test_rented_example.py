"""`examples/rented/try_it.sh` rents a machine of the simulated EC2, and leaves nothing."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridmill.testing.cloud.namespace_machines import why_no_machines
from tests.e2e.conftest import eventually, processes_mentioning
from tests.kit.markdown import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.long]
SCRIPT = "examples/rented/try_it.sh"
LONGEST_SECONDS = 240.0


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gm rented ä") as name:
        yield Path(name)


def run_script(folder: Path, *before: str) -> "subprocess.CompletedProcess[str]":
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [*before, "sh", str(ROOT / SCRIPT), str(folder)],
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )


@pytest.mark.skipif(bool(why_no_machines()), reason=why_no_machines() or "there are machines")
def test_the_example_rents_a_machine_pays_for_it_and_returns_it(folder: Path) -> None:
    done = run_script(folder)
    assert done.returncode == 0, done.stdout + (folder / "log").read_text()
    said = done.stdout
    before, after = said.split("\n$ gridmill run ", 1)
    assert "model: t3.small in us-east-1 for 0.0208 USD per hour: 3 min boot" in before
    assert "requests t3.small in us-east-1a for 0.0208 USD per hour" in after, "the machine of the plan"
    assert "4 of 4 jobs done" in after
    assert "model: costs 0.000" in after.split("--set longest=28", 1)[1], "now all of it is known"
    assert "rented/model " not in before
    assert "rented-1/model" in after, "the costs of the job"
    assert "machines rented: 1, alive: 0" in after
    assert said.endswith("0 machines and 0 other resources at aws\n")
    assert "has stopped" in (folder / "down").read_text(), "it did not wait for the lists of the provider"
    assert not (folder / "home/control.log").read_text(), "and it left no machine"
    assert eventually(lambda: not processes_mentioning(folder.name), 10)


def test_the_example_says_that_it_needs_root(folder: Path) -> None:
    if os.geteuid() != 0:
        done = run_script(folder)
    else:
        fake = folder / "id"
        fake.write_text("#!/bin/sh\necho 1000\n")
        fake.chmod(0o755)
        done = run_script(folder / "new", "env", f"PATH={folder}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode == 1
    assert done.stdout == "This script needs root, because it creates network namespaces.\n"
    assert not (folder / "new").exists()
