"""Random datasets against one that is computed row by row in plain Python."""

from pathlib import Path

import pytest
from tests.oracles.dataset_cases import case


@pytest.mark.parametrize("seed", range(6))
def test_each_way_makes_the_rows_that_the_documentation_says(seed: int, tmp_path: Path) -> None:
    case(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6, 106))
def test_more_datasets(seed: int, tmp_path: Path) -> None:
    case(seed, tmp_path)
