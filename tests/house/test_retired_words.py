"""Words that Gridmill no longer uses are in no document, message, docstring or comment."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from tests.kit.markdown import PAGES, ROOT, name

RETIRED = {
    r"lodgers?": "tenant",
    r"couriers?": "the name of the process",
    r"nurser(y|ies)": "zygote",
    r"carriages?(?! return)": "transfer",
    r"carried (to|from|home|over)": "transferred",
    r"travels?": "is transferred, is sent",
    r"(thin|thick) lines?": "slow or fast link",
    r"brought up|br(ing|ings|inging) up": "starts pods",
    r"(give[sn]?|gave|giving) back": "releases, returns",
    r"(takes?|taken|took) away": "deletes, removes",
    r"whoever": "the process, user or caller that",
    r"mended?": "fixed",
    r"hurried": "of higher priority",
    r"worth paying": "recommended",
    r"that none has seen": "held-out data",
}
"""A pattern, and what to write instead. The glossary in docs/concepts.md has the words that Gridmill uses."""
OLDER = ("docs/benchmarks.md",)
"""Written by `make bench`."""


def in_documents() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        if name(page) not in OLDER:
            yield name(page), re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text("utf-8"), flags=re.S)


def in_source() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                yield f"{name(path)}:{node.lineno}", node.value
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield f"{name(path)}:{token.start[0]}", token.string


@pytest.fixture(scope="module")
def texts() -> list[tuple[str, str]]:
    return [*in_documents(), *in_source()]


@pytest.mark.parametrize(("pattern", "instead"), RETIRED.items(), ids=RETIRED.values())
def test_a_retired_word_is_not_used(pattern: str, instead: str, texts: list[tuple[str, str]]):
    """`instead` is what to write."""
    word = re.compile(rf"\b({pattern})\b", re.I)
    found = [f"{place}: {match[0]}" for place, text in texts for match in word.finditer(text)]
    assert not found, f"write {instead}"


def test_the_texts_are_read():
    assert any("control node" in text for _, text in in_documents())
    assert any(place.startswith("src/") for place, _ in in_source())
