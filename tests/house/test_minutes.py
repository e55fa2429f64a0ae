"""A run of the tests with a limited time skips what comes too late, and counts it."""

import subprocess
import sys
from pathlib import Path

import pytest

FILES = ("tests/unit/domain/test_uri.py", "tests/unit/domain/test_amounts.py")
ROOT = Path(__file__).resolve().parents[2]


def run(folder: Path, *words: str) -> str:
    """The output of pytest on two quick files of these tests."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-vv",
            "-p",
            "no:cacheprovider",
            f"--basetemp={folder / 'temporary'}",
            *words,
            *FILES,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_tests_after_the_last_minute_are_skipped_and_counted(tmp_path: Path) -> None:
    text = run(tmp_path, "--minutes", "0")
    assert " passed" not in text
    assert "the 0 minutes of this run are over" in text
    assert "skipped" not in run(tmp_path, "--minutes", "5")


@pytest.mark.parametrize(("first", "name"), [(0, "test_amounts"), (1, "test_uri"), (7, "test_uri")])
def test_a_run_begins_with_another_file(tmp_path: Path, first: int, name: str) -> None:
    text = run(tmp_path, "--first", str(first))
    [begin, *_] = [line for line in text.splitlines() if "::" in line]
    assert name in begin
