"""Tests are laid out like the source, what they share is a kit, one file names the folder of test data."""

import re

from tests.kit.contracts import ROOT

TESTS = ROOT / "tests"
OTHERS = {"bench"}
"""Folders of unit tests that are no package of the program."""
PARTS = {"fuzz", "kit", "oracles"}
"""Folders without tests."""
COMMANDS = {"versions.py"}
_DATA = re.compile("shared[\"' /]+data")


def test_unit_tests_are_in_folders_named_as_packages() -> None:
    folders = {path.parent.relative_to(TESTS / "unit") for path in TESTS.glob("unit/**/test_*.py")}
    packages = {one for one in folders if (ROOT / "src" / "gridmill" / one / "__init__.py").exists()}
    assert {str(one) for one in folders - packages} == OTHERS


def test_what_tests_share_is_in_the_kit() -> None:
    found = {
        path.relative_to(TESTS) for path in TESTS.rglob("*.py") if path.stem not in ("__init__", "conftest")
    }
    assert [
        str(one)
        for one in sorted(found)
        if not one.name.startswith("test_") and one.parts[0] not in PARTS and str(one) not in COMMANDS
    ] == []


def test_one_file_of_the_tests_names_the_folder_of_test_data() -> None:
    named = [path for path in TESTS.rglob("*.py") if _DATA.search(path.read_text("utf-8"))]
    assert [path.relative_to(TESTS).as_posix() for path in named] == ["conftest.py"]
