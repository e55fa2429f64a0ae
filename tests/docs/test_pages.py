"""Generated pages are current, links lead somewhere, and what is shown can be read by what reads it."""

import ast
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gridmill.cli.app import COMMANDS, as_one, load
from gridmill.declarations import parse_declarations
from tests.kit.markdown import PAGES, ROOT, Block, anchors, blocks, commands, links, name

MADE_ELSEWHERE = {"docs/benchmarks.md"}  # by `make bench`
BLOCKS = list(blocks())


def of_kind(*kinds: str) -> pytest.MarkDecorator:
    chosen = [block for block in BLOCKS if block.kind in kinds]
    return pytest.mark.parametrize("block", chosen, ids=str)


def test_generated_pages_are_what_the_code_says():
    check = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path):
    for link in links(page):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if target.relative_to(ROOT).as_posix() in MADE_ELSEWHERE:
            continue
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_has_one_title_and_closed_blocks(page: Path):
    text = page.read_text("utf-8")
    assert text.startswith("# ")
    assert text.count("\n```") % 2 == 0


@of_kind("yaml")
def test_pipelines_can_be_read(block: Block):
    if re.search(r"^pipeline:", block.text, re.M):
        assert parse_declarations(block.text, awaiting=True)  # the code they name is the reader's


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.mark.startswith("file: ")], ids=str)
def test_a_file_is_shown_as_it_is(block: Block):
    text = (ROOT / block.mark.removeprefix("file: ")).read_text("utf-8")
    assert block.text == re.sub(r"\A(#.*\n)+", "", text)


@of_kind("python")
def test_python_is_python(block: Block):
    ast.parse(block.text)


@of_kind("json")
def test_json_is_json(block: Block):
    json.loads(block.text)


@of_kind("console")
def test_commands_and_their_options_exist(block: Block):
    for line, _ in commands(block):
        shell = subprocess.run(["sh", "-n", "-c", line], capture_output=True, text=True, check=False)
        assert shell.returncode == 0, shell.stderr
        words = shlex.split(line, comments=True)
        start = next((i for i, word in enumerate(words) if Path(word).name == "gridmill"), None)
        if start is None or start + 1 == len(words):
            continue
        arguments = as_one(take_until_pipe(words[start + 1 :]))
        if arguments[0] == "--url":
            arguments = arguments[2:]
        if not arguments[0].startswith("-") and arguments[0] != "COMMAND":
            assert arguments[0] in COMMANDS, line
            # Raises for options and choices that the command does not have.
            load(arguments[0]).make_context(arguments[0], arguments[1:])


def take_until_pipe(words: list[str]) -> list[str]:
    ends = [i for i, word in enumerate(words) if word in ("|", ">", ">>", "&&", "...")]
    return words[: min(ends, default=len(words))]


INSIDE = tuple(
    f"GRIDMILL_{name}"
    for name in ("INPUT", "POD", "EVENTS", "ARRAYS", "TRAINING", "DATASET", "METRICS", "CHECKPOINTS")
)
"""What a job's process finds, and nobody sets."""


def test_pages_speak_of_settings_and_exit_codes_that_exist():
    known = (ROOT / "docs/reference/settings.md").read_text("utf-8")
    for page in PAGES:
        for variable in set(re.findall(r"\bGRIDMILL_[A-Z]+\b", page.read_text("utf-8"))):
            inside = variable.startswith(INSIDE)
            assert inside or variable in known, f"{name(page)}: {variable}"


MODULE = re.compile(r"`((?:src/gridmill/)?[a-z_]+(?:/[a-z_]+)*/[a-z_]+\.py)`")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_modules_that_documents_name_are_there(page: Path):
    """A module is named by its path below the package, or below the repository."""
    places = (ROOT, ROOT / "src" / "gridmill", page.parent)
    named = MODULE.findall(page.read_text())
    assert [one for one in named if not any((place / one).exists() for place in places)] == []


MOST_ENTRIES, LONGEST_ENTRY = 75, 240


def test_the_changelog_of_the_next_release_is_short_lines_by_area():
    """Each entry is one line, added to its area: what a user reads of a release is not its history."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    lines = [
        line for line in text.partition("\n## [Unreleased]\n")[2].partition("\n## ")[0].splitlines() if line
    ]
    entries = [line for line in lines if line.startswith("- ")]
    assert 0 < len(entries) <= MOST_ENTRIES, (
        "after a merge of both sides keep your own line alone, in its area"
    )
    assert len(set(lines)) == len(lines), "a line is there twice"
    assert [line for line in lines if line.startswith(" ")] == [], "an entry is one line"
    assert [line for line in entries if len(line) > LONGEST_ENTRY] == []
