"""Histories of files, loaded step by step, against what the documentation promises."""

from pathlib import Path

import pytest
from tests.oracles.file_cases import case


@pytest.mark.parametrize("seed", range(10, 15))
def test_a_table_holds_what_its_files_held(seed: int, tmp_path: Path) -> None:
    case(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(15, 115))
def test_more_histories(seed: int, tmp_path: Path) -> None:
    case(seed, tmp_path)
