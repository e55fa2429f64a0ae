"""The image's steps fit the release, and the script that does them without an engine knows them all."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "packaging/Containerfile").read_text()
_SPEC = importlib.util.spec_from_file_location("build_root", ROOT / "packaging/build_root.py")
build_root = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(build_root)
STEPS = list(build_root.steps(TEXT))


def test_the_image_has_the_version_of_the_release():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (said,) = re.findall(r'image\.version="(.*?)"', TEXT)
    assert said == project["version"]
    (usual,) = (words.partition("=")[2] for name, words in STEPS if name == "ARG")
    assert set(usual.split(",")) <= set(project["optional-dependencies"])


def test_what_is_copied_is_there_and_the_base_is_one_that_debootstrap_knows():
    copied = [source for name, words in STEPS if name == "COPY" for source in words.split()[:-1]]
    assert copied
    assert all((ROOT / source).exists() for source in copied)
    assert STEPS[0][0] == "FROM"
    assert re.fullmatch(r"debian:[a-z]+-slim", STEPS[0][1])


def test_steps_are_logical_lines_and_an_unknown_one_is_refused():
    text = "# why\nRUN one && \\\n    two\n\nENV A=b\n"
    assert list(build_root.steps(text)) == [("RUN", "one &&      two"), ("ENV", "A=b")]
    with pytest.raises(ValueError, match="ADD"):
        list(build_root.steps("ADD a b"))
