"""YAML text to values that know their lines: core schema only, bounded, one problem per broken place."""

import math
import re
from collections.abc import Iterator
from typing import TypeAlias

import yaml
from yaml.nodes import Node, ScalarNode, SequenceNode

from gridmill.declarations.problems import Path, Problem, show_path, to_error
from gridmill.declarations.syntax import CORE, compose, syntax_problem, tag_of
from gridmill.model.noun import dataclass

MAX_NODES = 100_000
_LARGEST = 2**63


class Whole(int):
    """A whole number that remembers how it was written."""

    text: str

    def __new__(cls, number: int, text: str) -> "Whole":
        """The number and its text."""
        whole = super().__new__(cls, number)
        whole.text = text
        return whole


class Real(float):
    """A number with a point or exponent that remembers how it was written."""

    text: str

    def __new__(cls, number: float, text: str) -> "Real":
        """The number and its text."""
        real = super().__new__(cls, number)
        real.text = text
        return real


class Fields(dict[str, "Value"]):
    """A mapping; `lines` has the line of each key."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str | int, int] = {}


class Items(list["Value"]):
    """A list; `lines` has the line of each item."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str | int, int] = {}


Value: TypeAlias = Fields | Items | str | Whole | Real | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One YAML document of a file, from `line` on."""

    file: str
    line: int
    value: Value

    def locate(self, path: Path) -> tuple[int, Path]:
        """The line of the deepest part of `path` that is written there, and the path to it."""
        value, line = self.value, self.line
        known: Path = ()
        for part in path:
            if isinstance(value, Fields | Items) and part in value.lines:
                line, known = value.lines[part], (*known, part)
                value = value[part]  # type: ignore[index]
        return line, known

    def problem(self, path: Path, message: str, hint: str = "") -> Problem:
        """A problem at `path`."""
        line, known = self.locate(path)
        return Problem(message=message, line=line, path=known, hint=hint)


def parse_documents(text: str, file: str) -> tuple[Document, ...]:
    """The documents that are not empty. Raises PipelineError for broken, hostile or ambiguous YAML."""
    if lone := _SURROGATE.search(text):
        line = text.count("\n", 0, lone.start()) + 1
        raise to_error(file, [Problem(message=f"the character {lone[0]!r} is no text", line=line)])
    try:
        nodes = compose(text)
    except yaml.YAMLError as error:
        raise to_error(file, [syntax_problem(text, error)]) from error
    reading = _Reading(file)
    documents = tuple(
        Document(file=file, line=node.start_mark.line + 1, value=reading.value(node, ())) for node in nodes
    )
    if reading.problems:
        raise to_error(file, reading.problems)
    return tuple(document for document in documents if document.value is not None)


def lines_of(document: Document) -> dict[str, int]:
    """The line of each field below `jobs`, by its path, where it is not that of the field around it."""
    jobs = document.value.get("jobs") if isinstance(document.value, Fields) else None
    return dict(_lines(jobs, ("jobs",), document.locate(("jobs",))[0]))


def _lines(value: Value, path: Path, around: int) -> Iterator[tuple[str, int]]:
    if not isinstance(value, Fields | Items):
        return
    inside = value.items() if isinstance(value, Fields) else enumerate(value)
    for part, item in inside:
        line = value.lines.get(part, around)
        if line != around or len(path) == 1:
            yield show_path((*path, part)), line
        yield from _lines(item, (*path, part), line)


def scalar(word: str) -> Value:
    """What an unquoted word means in YAML: a number, true, false, nothing or text. Raises ValueError."""
    return _scalar(tag_of(word), word)


class _Reading:
    """Turns nodes into values, counting them so that aliases cannot multiply without end."""

    def __init__(self, file: str) -> None:
        self.problems: list[Problem] = []
        self._file = file
        self._nodes = 0
        self._open: list[Node] = []

    def value(self, node: Node, path: Path) -> Value:
        """The node's value; what is wrong inside is noted and left out."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self._note(node, path, f"more than {MAX_NODES} values, counting what aliases repeat")
            raise to_error(self._file, self.problems)
        if any(node is one for one in self._open):
            return self._note(node, path, "this alias stands inside of what it repeats")
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        self._open.append(node)
        value = self._items(node, path) if isinstance(node, SequenceNode) else self._fields(node, path)
        self._open.pop()
        return value

    def _note(self, node: Node, path: Path, message: str, hint: str = "") -> Value:
        self.problems.append(Problem(message=message, line=_line(node), path=path, hint=hint))
        return None

    def _scalar(self, node: ScalarNode, path: Path) -> Value:
        try:
            return _scalar(node.tag, node.value)
        except ValueError as error:
            return self._note(node, path, str(error))

    def _items(self, node: SequenceNode, path: Path) -> Value:
        if node.tag != CORE + "seq":
            return self._note(node, path, _bad_tag(node.tag))
        items = Items(_line(node))
        for number, child in enumerate(node.value):
            items.lines[number] = _line(child)
            items.append(self.value(child, (*path, number)))
        return items

    def _fields(self, node: Node, path: Path) -> Value:
        if node.tag != CORE + "map":
            return self._note(node, path, _bad_tag(node.tag))
        fields = Fields(_line(node))
        merged: list[Value] = []
        for key, child in node.value:
            if key.tag == CORE + "merge":
                merged.extend(self._merged(child, path))
            else:
                self._field(fields, key, child, path)
        for other in merged:
            _fill_in(fields, other)
        return fields

    def _field(self, fields: Fields, key: Node, child: Node, path: Path) -> Value:
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

    def _merged(self, node: Node, path: Path) -> Iterator[Value]:
        """The mappings that `<<` merges in, the first wins."""
        value = self.value(node, path)
        for other in value if isinstance(value, Items) else [value]:
            if isinstance(other, Fields):
                yield other
            else:
                self._note(node, path, "`<<` merges mappings only")


def _line(node: Node) -> int:
    line: int = node.start_mark.line + 1
    return line


def _fill_in(fields: Fields, other: Value) -> None:
    if isinstance(other, Fields):
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
    """Why no command, path or record can hold the text; empty when it is fine."""
    match = _UNFIT.search(text)
    return f"the character {match[0]!r} cannot be used in text" if match else ""


_SURROGATE = re.compile("[\ud800-\udfff]")
_UNFIT = re.compile("[\\0\ud800-\udfff]")


def _flag(word: str) -> bool:
    if word.lower() not in ("true", "false"):
        raise ValueError(f"expected true or false, got {word!r}")
    return word.lower() == "true"


def _whole(word: str) -> Whole:
    base = {"0o": 8, "0x": 16}.get(word[:2], 10)
    if len(word) > 30:
        raise ValueError(f"the number {word[:20]}... is too large")
    number = int(word[2:] if base != 10 else word, base)
    if not -_LARGEST <= number < _LARGEST:
        raise ValueError(f"the number {word} is too large")
    return Whole(number, word)


def _real(word: str) -> Real:
    number = float(word.lower().replace(".inf", "inf").replace(".nan", "nan"))
    if not math.isfinite(number):
        raise ValueError(f"{word} is not a finite number")
    return Real(number, word)
