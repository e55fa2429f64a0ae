"""The folder of published data sets that some tests read: it is not part of the repository."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ["GRIDMILL_TEST_DATA"])
"""Named by `tests/conftest.py`, unless who runs the tests names another."""


def needs(*names: str) -> pytest.MarkDecorator:
    """Skips the test where one of these files is not there."""
    there = all((DATA / name).exists() for name in names)
    missing = f"put {', '.join(names)} below {DATA}, or set GRIDMILL_TEST_DATA"
    return pytest.mark.skipif(not there, reason=missing)
