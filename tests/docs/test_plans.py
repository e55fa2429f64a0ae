"""No plan has an error for a pipeline that runs: the runs of e2e tests and documents are planned first.

`GRIDMILL_TEST_PLAN=FILE pytest tests/e2e/test_when.py` does it for one file (`tests/planned.py`). Runs that
tests start in another way than by the kits, and those of the Python SDK, are not planned.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT
from tests.planned import VARIABLE, read

MOST_SECONDS = 3600
LEAST_PLANS = 100


@pytest.mark.soak
def test_no_plan_has_an_error_for_a_run_that_succeeds(tmp_path: Path) -> None:
    """The tests themselves may fail: a plan before a run is not what they expect."""
    log = tmp_path / "plans"
    words = [sys.executable, "-m", "pytest", "tests/e2e", "tests/docs/test_runs.py", "-m", "not soak"]
    spread = ["-n", "4", "--dist", "loadfile", "--no-loadscope-reorder"]
    subprocess.run(
        [*words, *spread], cwd=ROOT, env={**os.environ, VARIABLE: str(log)}, check=False, timeout=MOST_SECONDS
    )
    plans = read(log)
    assert [one for one in plans if one.is_false] == []
    assert len(plans) >= LEAST_PLANS
