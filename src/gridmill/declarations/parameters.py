"""Parameters of a pipeline: `${name}` anywhere in its text, defaults in the file, overrides by `--set`."""

import re
from collections.abc import Mapping

from gridmill.declarations.nodes import Document, Fields, Items, Real, Value, Whole, scalar
from gridmill.declarations.problems import Path, Problem, did_you_mean, show_value

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_LITERAL = "Write $${ for a ${ that is meant for the shell."
_READ_BY_JOB = (("sink", "source"), ("training", "track"))
"""Fields of a job in which `${env:NAME}` may stand."""
Word = str | Whole | Real | bool


def fill_in(document: Document, given: Mapping[str, object]) -> tuple[Document, list[Problem]]:
    """The document with every reference replaced and its `parameters` as given, and what is wrong.

    Text that is nothing but one reference takes the parameter's value with its type.
    """
    filling = _Filling(document)
    words = filling.parameters(given)
    value = document.value
    if isinstance(value, Fields):
        value = _copy(value, {key: filling.fill(item, (key,), words) for key, item in value.items()})
        if words:
            value["parameters"] = _words(value, words)
    return Document(file=document.file, line=document.line, value=value), filling.problems


class _Filling:
    """Collects problems on the way."""

    def __init__(self, document: Document) -> None:
        self.problems: list[Problem] = []
        self._document = document

    def _note(self, path: Path, message: str, hint: str = "") -> None:
        self.problems.append(self._document.problem(path, message, hint))

    def parameters(self, given: Mapping[str, object]) -> dict[str, Word]:
        """The declared parameters with `given` in place of their defaults."""
        value = self._document.value
        declared = value.get("parameters") if isinstance(value, Fields) else None
        words: dict[str, Word] = {}
        for name, default in declared.items() if isinstance(declared, Fields) else ():
            if not _NAME.fullmatch(name):
                self._note(("parameters", name), "a parameter's name is made of letters, digits, _ and -")
            elif isinstance(default, Word):
                words[name] = default
        for name, text in given.items():
            self._set(words, name, word(text))
        return words

    def _set(self, words: dict[str, Word], name: str, text: str) -> None:
        if name not in words:
            known = ", ".join(words) or "none"
            message = f"--set {name}: there is no parameter `{name}`{did_you_mean(name, words)}"
            return self._note(("parameters",), message, f"The parameters are {known}.")
        try:
            words[name] = _like(words[name], text)
        except ValueError as error:
            self._note(("parameters", name), f"--set {name}: {error}")
        return None

    def fill(self, value: Value, path: Path, words: Mapping[str, Word]) -> Value:
        """The value with references replaced; those within `parameters` are refused."""
        match value:
            case Fields():
                return _copy(
                    value, {key: self.fill(item, (*path, key), words) for key, item in value.items()}
                )
            case Items():
                items = Items(value.line)
                items.lines = value.lines
                items.extend(self.fill(item, (*path, number), words) for number, item in enumerate(value))
                return items
            case str() if "${" in value:
                return self._text(value, path, words)
        return value

    def _text(self, text: str, path: Path, words: Mapping[str, Word]) -> Value:
        if path[0] == "parameters":
            self._note(path, "a parameter's default cannot refer to another parameter")
            return text
        whole = _REFERENCE.fullmatch(text)
        if whole and whole[1] in words:
            return words[whole[1]]
        return _REFERENCE.sub(lambda match: self._replaced(match, path, words), text)

    def _replaced(self, match: re.Match[str], path: Path, words: Mapping[str, Word]) -> str:
        name = match[1]
        if name is None:
            return "${"
        if name in words:
            return _show(words[name])
        if name.startswith("env:") and path[2:4] in _READ_BY_JOB:
            return match[0]  # read where the job runs, and kept nowhere
        if name.startswith("env:"):
            said = f"`{match[0]}`: the environment is not read; declare a parameter and pass it with --set"
        elif not match[0].endswith("}"):
            said = "`${` without its `}`"
        else:
            said = f"there is no parameter `{name}`{did_you_mean(name, words)}"
        self._note(path, said, _LITERAL)
        return match[0]


def word(value: object) -> str:
    """A parameter's value as `--set` writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _like(default: Word, text: str) -> Word:
    """What `text` says, of the default's type. Raises ValueError."""
    value = scalar(text)
    if isinstance(default, str):
        return text
    same = isinstance(value, bool) if isinstance(default, bool) else isinstance(value, Whole | Real)
    if same and isinstance(value, Word):
        return value
    expected = "true or false" if isinstance(default, bool) else "a number"
    raise ValueError(f"expected {expected} like its default {_show(default)}, got {show_value(text)}")


def _show(word: Word) -> str:
    if isinstance(word, bool):
        return str(word).lower()
    return word if isinstance(word, str) else word.text


def _copy(fields: Fields, items: Mapping[str, Value]) -> Fields:
    copy = Fields(fields.line)
    copy.lines = dict(fields.lines)
    copy.update(items)
    return copy


def _words(value: Fields, words: Mapping[str, Word]) -> Fields:
    declared = value["parameters"]
    assert isinstance(declared, Fields)
    return _copy(declared, {**declared, **words})
