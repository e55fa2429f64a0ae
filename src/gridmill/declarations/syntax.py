"""YAML text to nodes: libyaml's parser, the core schema's tags, bounded depth, and hints for broken text."""

import re
from typing import Any, cast

import yaml
from yaml.composer import Composer
from yaml.nodes import Node, ScalarNode
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from gridmill.declarations.problems import Problem

MAX_DEPTH = 50
CORE = "tag:yaml.org,2002:"


class _PythonParser(Reader, Scanner, Parser):
    """The parser in Python, for a PyYAML without libyaml."""

    def __init__(self, stream: str) -> None:
        Reader.__init__(self, stream)
        Scanner.__init__(self)
        Parser.__init__(self)


_Events: Any = getattr(getattr(yaml, "cyaml", None), "CParser", _PythonParser)  # libyaml's: ten times quicker


class _Loader(Composer, _Events, BaseResolver):  # type: ignore[misc]
    """Composes nodes no deeper than MAX_DEPTH; knows the tags of YAML 1.2's core schema and `<<`."""

    def __init__(self, stream: str) -> None:
        _Events.__init__(self, stream)
        Composer.__init__(self)
        BaseResolver.__init__(self)
        self._depth = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        if self._depth > MAX_DEPTH:
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("merge", "<<", ["<"]),
):
    _Loader.add_implicit_resolver(CORE + _tag, re.compile(rf"^(?:{_pattern})$"), _first)


def compose(text: str) -> list[Node]:
    """The root node of each document. Raises yaml.YAMLError."""
    loader = _Loader(text)
    nodes = []
    while loader.check_node():
        nodes.append(cast(Node, loader.get_node()))
    return nodes


def tag_of(word: str) -> str:
    """The core schema's tag of an unquoted word."""
    return cast(str, _Loader("").resolve(ScalarNode, word, (True, False)))  # type: ignore[no-untyped-call]


_TAB = "a tab in the indentation"
_HINTS = {
    _TAB: "Indent with spaces: YAML does not allow tabs there.",
    "mapping values are not allowed": "Put quotes around text that contains `: `, or check the indentation.",
    "could not find expected ':'": "A field needs a colon and a space after its name.",
    "did not find expected key": "Check the indentation and quotes of this line and the one above.",
    "did not find expected '-'": "Check the indentation: items of one list start in the same column.",
    "cannot start any token": "Put quotes around text that starts with a special sign such as @, ` or %.",
    "undefined alias": "An alias `*name` needs an anchor `&name` before it.",
    "control characters": "Remove the control character, or write it as an escape in double quotes.",
}


def syntax_problem(text: str, error: yaml.YAMLError) -> Problem:
    """Where the text stops being YAML, and what usually is the reason."""
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
    if "end of stream" in what:  # what was opened and not closed is where the mistake is
        mark = getattr(error, "context_mark", None) or mark
    line = mark.line + 1 if mark else text.count("\n", 0, getattr(error, "position", 0)) + 1
    lines = text.split("\n")
    here = lines[line - 1] if line <= len(lines) else ""
    indent = here[: len(here) - len(here.lstrip())]
    what = _TAB if "\t" in indent else what
    hint = next((hint for words, hint in _HINTS.items() if words in what), "")
    return Problem(message=f"broken YAML: {what}", line=line, hint=hint)
