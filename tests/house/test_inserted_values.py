"""A message with `{name}` is an f-string: the reader sees the value, not the name of a variable."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from tests.kit.markdown import ROOT

_INSERTED = re.compile(r"(?<![\\${])\{([A-Za-z_]\w*)(\.\w+|\[[^\]]*\]|\([^)]*\))*(![rsa])?(:[^ {}][^{}]*)?\}")
_TEMPLATES = ("format", "replace", "PydanticCustomError")
"""Calls that insert values into a text later."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def forgotten(source: str) -> Iterator[tuple[int, str]]:
    """Lines of functions with a text that contains a variable in braces, but is not an f-string. Paths of
    routes, such as `/runs/{run}`, are not messages. Texts outside functions are templates."""
    nodes = list(ast.walk(ast.parse(source)))
    names = {one.id for one in nodes if isinstance(one, ast.Name)}
    names |= {one.arg for one in nodes if isinstance(one, ast.arg)}
    inside = {line for node in nodes if isinstance(node, _FUNCTIONS) for line in _lines(node)}
    skipped = {line for node in nodes for one in _skipped(node) for line in _lines(one)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line, is_f_string = token.start[0], "f" in re.split("[\"']", token.string)[0].lower()
        if token.type != tokenize.STRING or is_f_string or line not in inside - skipped:
            continue
        text = token.string.lstrip("rRbB").strip("\"'")
        if not text.startswith("/") and {one[1] for one in _INSERTED.finditer(text)} & names:
            yield line, text


def _skipped(node: ast.AST) -> Iterator[ast.AST]:
    """Docstrings, and texts into which a call inserts values."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        yield node.value
    elif isinstance(node, ast.Call):
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr in _TEMPLATES:
            yield called
        elif isinstance(called, ast.Name) and called.id in _TEMPLATES:
            yield node


def _lines(node: ast.AST) -> Iterator[int]:
    yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('return "of {site.name}"', ["of {site.name}"]),
        ('return f"{site}" "of {site!r}"', ["of {site!r}"]),
        ('return f"{{site}} of {site}", "{site: 1}", "/runs/{site}", "{other}", "${site}"', []),
        ('return "{site}".format(site=site)', []),
        ('"""{site}"""', []),
    ],
)
def test_a_forgotten_f_is_found(source: str, found: list[str]):
    assert [text for _, text in forgotten(f"def f(site):\n    {source}\n")] == found


def test_every_message_shows_values():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text[:80]}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line, text in forgotten(path.read_text("utf-8"))
    ]
    assert found == [], "put an f before these texts"
