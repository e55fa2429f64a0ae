"""Reads YAML text into values with line numbers, and reports one problem for each syntax error.

The reader uses the parser of libyaml, and supports only the tags of the core schema of YAML. The depth and
the size of a document are limited, and the errors for common mistakes have hints.
"""

import math
import re
from collections.abc import Iterator
from typing import Any, TypeAlias, cast

import yaml
from yaml.composer import Composer
from yaml.nodes import Node, ScalarNode, SequenceNode
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from gridmill.declarations.problems import FieldPath, Problem, show_path, to_error
from gridmill.domain.frozen import dataclass

MAX_DEPTH = 50
CORE = "tag:yaml.org,2002:"


class _PythonParser(Reader, Scanner, Parser):
    """The YAML parser that is written in Python, which is used if PyYAML was installed without libyaml."""

    def __init__(self, stream: str) -> None:
        Reader.__init__(self, stream)
        Scanner.__init__(self)
        Parser.__init__(self)


# used if it exists, because the parser of libyaml is ten times faster
_Events: Any = getattr(getattr(yaml, "cyaml", None), "CParser", _PythonParser)


class _Loader(Composer, _Events, BaseResolver):  # type: ignore[misc]
    """Builds YAML nodes up to a depth of MAX_DEPTH. The loader supports the tags of the core schema of YAML
    1.2, and `<<`."""

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
    """Returns the root node of each document in the text. Raises yaml.YAMLError."""
    loader = _Loader(text)
    nodes = []
    while loader.check_node():
        nodes.append(cast(Node, loader.get_node()))
    return nodes


def tag_of(word: str) -> str:
    """Returns the YAML tag that the core schema gives to an unquoted word."""
    return cast(str, _Loader("").resolve(ScalarNode, word, (True, False)))  # type: ignore[no-untyped-call]


_TAB = "a tab in the indentation"
_HINTS = {
    _TAB: "Indent with spaces: YAML does not allow tabs there.",
    "mapping values are not allowed": "Put quotes around text that contains `: `, or check the indentation.",
    "could not find expected ':'": "A field needs a colon and a space after its name.",
    "did not find expected key": "Check the indentation and quotes of this line and the one above.",
    "did not find expected '-'": "Check the indentation: items of one list start in the same column.",
    "cannot start any token": (
        "Put quotes around text that starts with a special character such as @, ` or %."
    ),
    "undefined alias": "An alias `*name` needs an anchor `&name` before it.",
    "control characters": "Remove the control character, or write it as an escape in double quotes.",
}


def syntax_problem(text: str, error: yaml.YAMLError) -> Problem:
    """Returns the problem for a syntax error, with its place and its most common cause."""
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable text"
    # points at the bracket or quote that is not closed, because that is the cause
    if "end of stream" in what:
        mark = getattr(error, "context_mark", None) or mark
    line = mark.line + 1 if mark else text.count("\n", 0, getattr(error, "position", 0)) + 1
    lines = text.split("\n")
    here = lines[line - 1] if line <= len(lines) else ""
    indent = here[: len(here) - len(here.lstrip())]
    what = _TAB if "\t" in indent else what
    hint = next((hint for words, hint in _HINTS.items() if words in what), "")
    return Problem(message=f"broken YAML: {what}", line=line, hint=hint)


MAX_NODES = 100_000
_LARGEST = 2**63


class YamlInteger(int):
    """A whole number together with its text in the file."""

    text: str

    def __new__(cls, number: int, text: str) -> "YamlInteger":
        """Makes the number from its value and its text."""
        whole = super().__new__(cls, number)
        whole.text = text
        return whole


class YamlFloat(float):
    """A number with a point or an exponent, together with its text in the file."""

    text: str

    def __new__(cls, number: float, text: str) -> "YamlFloat":
        """Makes the number from its value and its text."""
        real = super().__new__(cls, number)
        real.text = text
        return real


class YamlMapping(dict[str, "Value"]):
    """A YAML mapping. `lines` contains the line of each key."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str | int, int] = {}


class YamlList(list["Value"]):
    """A YAML list. `lines` contains the line of each item."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str | int, int] = {}


Value: TypeAlias = YamlMapping | YamlList | str | YamlInteger | YamlFloat | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlDocument:
    """A YAML document, which starts at the line `line` of its file."""

    file: str
    line: int
    value: Value

    def locate(self, path: FieldPath) -> tuple[int, FieldPath]:
        """Returns the line of the deepest part of `path` that exists in the document, and the path of this
        part."""
        value, line = self.value, self.line
        field_path: FieldPath = ()
        for part in path:
            if isinstance(value, YamlMapping | YamlList) and part in value.lines:
                line, field_path = value.lines[part], (*field_path, part)
                value = value[part]  # type: ignore[index]
        return line, field_path

    def problem(self, path: FieldPath, message: str, hint: str = "") -> Problem:
        """A problem at `path`."""
        line, known_path = self.locate(path)
        return Problem(message=message, line=line, path=known_path, hint=hint)


def parse_documents(text: str, file: str) -> tuple[YamlDocument, ...]:
    """Reads the documents in the text that are not empty. Raises PipelineError if the YAML text is invalid,
    ambiguous or unsafe to read."""
    if lone := _SURROGATE.search(text):
        line = text.count("\n", 0, lone.start()) + 1
        raise to_error(file, [Problem(message=f"the character {lone[0]!r} is not valid text", line=line)])
    try:
        nodes = compose(text)
    except yaml.YAMLError as error:
        raise to_error(file, [syntax_problem(text, error)]) from error
    reading = _NodeReader(file)
    documents = tuple(
        YamlDocument(file=file, line=node.start_mark.line + 1, value=reading.value(node, ()))
        for node in nodes
    )
    if reading.problems:
        raise to_error(file, reading.problems)
    return tuple(document for document in documents if document.value is not None)


def lines_of(document: YamlDocument) -> dict[str, int]:
    """Returns the line numbers of the fields below `jobs`, by their paths. A field that is on the same line
    as its parent is left out."""
    jobs = document.value.get("jobs") if isinstance(document.value, YamlMapping) else None
    return dict(_lines(jobs, ("jobs",), document.locate(("jobs",))[0]))


def _lines(value: Value, path: FieldPath, around: int) -> Iterator[tuple[str, int]]:
    if not isinstance(value, YamlMapping | YamlList):
        return
    inside = value.items() if isinstance(value, YamlMapping) else enumerate(value)
    for part, item in inside:
        line = value.lines.get(part, around)
        if line != around or len(path) == 1:
            yield show_path((*path, part)), line
        yield from _lines(item, (*path, part), line)


def scalar(word: str) -> Value:
    """Returns the value of an unquoted word in YAML: a number, true, false, null or text. Raises
    ValueError."""
    return _scalar(tag_of(word), word)


class _NodeReader:
    """Converts YAML nodes into values. The reader counts the nodes, so that repeated aliases cannot use up
    the memory."""

    def __init__(self, file: str) -> None:
        self.problems: list[Problem] = []
        self._file = file
        self._nodes = 0
        self._open: list[Node] = []

    def value(self, node: Node, path: FieldPath) -> Value:
        """Returns the value of a node. Invalid parts of the node are recorded as problems and left out."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self._note(node, path, f"more than {MAX_NODES} values, including the values that aliases repeat")
            raise to_error(self._file, self.problems)
        if any(node is one for one in self._open):
            return self._note(node, path, "this alias is inside the value that it repeats")
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        self._open.append(node)
        value = self._items(node, path) if isinstance(node, SequenceNode) else self._fields(node, path)
        self._open.pop()
        return value

    def _note(self, node: Node, path: FieldPath, message: str, hint: str = "") -> Value:
        self.problems.append(Problem(message=message, line=_line(node), path=path, hint=hint))
        return None

    def _scalar(self, node: ScalarNode, path: FieldPath) -> Value:
        try:
            return _scalar(node.tag, node.value)
        except ValueError as error:
            return self._note(node, path, str(error))

    def _items(self, node: SequenceNode, path: FieldPath) -> Value:
        if node.tag != CORE + "seq":
            return self._note(node, path, _bad_tag(node.tag))
        items = YamlList(_line(node))
        for number, child in enumerate(node.value):
            items.lines[number] = _line(child)
            items.append(self.value(child, (*path, number)))
        return items

    def _fields(self, node: Node, path: FieldPath) -> Value:
        if node.tag != CORE + "map":
            return self._note(node, path, _bad_tag(node.tag))
        fields = YamlMapping(_line(node))
        merged: list[Value] = []
        for key, child in node.value:
            if key.tag == CORE + "merge":
                merged.extend(self._merged(child, path))
            else:
                self._field(fields, key, child, path)
        for other in merged:
            _fill_in(fields, other)
        return fields

    def _field(self, fields: YamlMapping, key: Node, child: Node, path: FieldPath) -> Value:
        if not isinstance(key, ScalarNode):
            return self._note(key, path, "a field's name must be text, not a list or mapping")
        name = key.value
        if name in fields:
            message = f"`{name}` is given twice, first in line {fields.lines[name]}"
            return self._note(key, (*path, name), message, "Remove or rename one of the two.")
        if problem := _unfit(name):
            return self._note(key, path, problem)
        fields.lines[name] = _line(key)
        fields[name] = self.value(child, (*path, name))
        return None

    def _merged(self, node: Node, path: FieldPath) -> Iterator[Value]:
        """Yields the mappings that `<<` merges. If several of these mappings have the same field, the field
        of the first mapping is used."""
        value = self.value(node, path)
        for other in value if isinstance(value, YamlList) else [value]:
            if isinstance(other, YamlMapping):
                yield other
            else:
                self._note(node, path, "`<<` can merge only mappings")


def _line(node: Node) -> int:
    line: int = node.start_mark.line + 1
    return line


def _fill_in(fields: YamlMapping, other: Value) -> None:
    if isinstance(other, YamlMapping):
        for name, value in other.items():
            if name not in fields:
                fields[name] = value
                fields.lines[name] = other.lines[name]


def _scalar(tag: str, word: str) -> Value:
    if problem := _unfit(word):
        raise ValueError(problem)
    match tag.removeprefix(CORE):
        case "null":
            return None
        case "bool":
            return _flag(word)
        case "int":
            return _whole(word)
        case "float":
            return _real(word)
        case "str" | "merge":
            return word
    raise ValueError(_bad_tag(tag))


def _bad_tag(tag: str) -> str:
    shown = "!!" + tag.removeprefix(CORE) if tag.startswith(CORE) else tag
    return f"the tag `{shown}` is not supported"


def _unfit(text: str) -> str:
    """Returns the reason why the text is not allowed in commands, paths and records, or an empty text if it
    is allowed."""
    match = _UNFIT.search(text)
    return f"the character {match[0]!r} cannot be used in text" if match else ""


_SURROGATE = re.compile("[\ud800-\udfff]")
_UNFIT = re.compile("[\\0\ud800-\udfff]")


def _flag(word: str) -> bool:
    if word.lower() not in ("true", "false"):
        raise ValueError(f"expected true or false, got {word!r}")
    return word.lower() == "true"


def _whole(word: str) -> YamlInteger:
    base = {"0o": 8, "0x": 16}.get(word[:2], 10)
    if len(word) > 30:
        raise ValueError(f"the number {word[:20]}... is too large")
    number = int(word[2:] if base != 10 else word, base)
    if not -_LARGEST <= number < _LARGEST:
        raise ValueError(f"the number {word} is too large")
    return YamlInteger(number, word)


def _real(word: str) -> YamlFloat:
    number = float(word.lower().replace(".inf", "inf").replace(".nan", "nan"))
    if not math.isfinite(number):
        raise ValueError(f"{word} is not a finite number")
    return YamlFloat(number, word)
