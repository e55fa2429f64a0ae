"""Random pipelines, edits, forces, parameters, stops and kills against plain rules."""

from pathlib import Path

import pytest
from tests.oracles.pipeline_cases import case


@pytest.mark.parametrize("seed", range(25))
def test_each_job_reads_what_its_run_settled_and_runs_when_it_must(seed: int, tmp_path: Path) -> None:
    case(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(25, 325))
def test_more_cases(seed: int, tmp_path: Path) -> None:
    case(seed, tmp_path)
