"""No plan has an error for a pipeline that runs: the runs of e2e tests and documents are planned first.

`GRIDMILL_TEST_PLAN=FILE pytest tests/e2e/test_when.py` does it for one file (`tests/kit/planned.py`). Runs
that tests start in another way than by the kits, and those of the Python SDK, are not planned.
"""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gridmill.declarations import parse_declarations
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.preflight import preflight_question
from gridmill.jobs.preflight.run import check
from tests.kit.markdown import ROOT, Block, blocks
from tests.kit.planned import VARIABLE, read

MOST_SECONDS = 3600
LEAST_PLANS = 100
SHOWN = [one for one in blocks() if one.kind == "yaml" and re.search(r"^pipeline:", one.text, re.M)]


@pytest.mark.parametrize("block", SHOWN, ids=str)
def test_a_plan_of_what_the_documents_show_has_no_error(block: Block, tmp_path: Path) -> None:
    """Their data is not there: as if a command wrote the files of each sink, the other jobs are checked."""
    for noun in parse_declarations(block.text, awaiting=True):
        if not isinstance(noun, Pipeline) or (question := preflight_question(noun)) is None:
            continue
        late = {job.name: "a command" for job in question.jobs if job.sink is not None}
        found = check(replace(question, late=late), tmp_path)
        assert found.findings == ()
        assert not any("the check itself failed" in one.why for one in found.unchecked)


def test_the_documents_show_some() -> None:
    assert len(SHOWN) > 30


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
