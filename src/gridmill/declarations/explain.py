"""What pydantic found, as problems with file, line and field in the words of the file."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from pydantic_core import ErrorDetails, ValidationError

from gridmill.declarations.nodes import Document
from gridmill.declarations.other_tools import pointer
from gridmill.declarations.problems import Path, Problem, did_you_mean, show_value
from gridmill.declarations.shapes import FLATTENED, KINDS, nouns_in, origin_of, parts

_EXPECTED = {
    "dict_type": "fields (`name: value`, indented below)",
    "tuple_type": "a list",
}


Root: TypeAlias = str | type
"""What a document declares: a key of KINDS, or a noun that is made in Python."""


def explain(document: Document, kind: Root, error: ValidationError) -> list[Problem]:
    """One problem per place; what the alternatives of one field expect is said in one sentence."""
    problems: list[Problem] = []
    mistyped: dict[Path, list[ErrorDetails]] = {}
    for found in error.errors(include_url=False):
        if found["type"] in _EXPECTED or found["type"] == "expected":
            mistyped.setdefault(document.locate(found["loc"])[1], []).append(found)
        else:
            problems.extend(_problems(document, kind, found))
    for path, alike in mistyped.items():
        fields = any(found["type"] == "dict_type" for found in alike)
        problems.append(document.problem(path, _mistyped(alike), _fields_at(kind, path) if fields else ""))
    return [one if one.hint else replace(one, hint=reference(kind, one.path)) for one in problems]


def _fields_at(kind: Root, path: Path) -> str:
    """The fields that could be written there; nothing where names are free."""
    if path and path[-1] == "jobs":
        return "Write one entry per job below `jobs`, for example `greet: {command: echo hello}`."
    try:
        noun = noun_at(kind, path)
    except (KeyError, StopIteration):
        return ""
    return f"The fields here are {', '.join(name for name in parts(noun) if name != 'name')}."


def reference(kind: Root, path: Path) -> str:
    """The section of the reference that has the fields at that path of a document."""
    while True:
        try:
            section = noun_at(kind, path[:-1]).__name__.removesuffix("Spec")
        except (KeyError, StopIteration):  # the path leads into values
            path = path[:-1]
            continue
        return f"{section} in docs/reference/pipeline.md has its fields."


def _mistyped(alike: Sequence[ErrorDetails]) -> str:
    contexts = [found.get("ctx", {}) for found in alike]
    words = [
        _EXPECTED.get(found["type"]) or str(context["expected"])
        for found, context in zip(alike, contexts, strict=True)
    ]
    more = contexts[0].get("more", "") if len(alike) == 1 else ""
    return f"expected {' or '.join(dict.fromkeys(words))}, got {show_value(alike[0]['input'])}{more}"


def _problems(document: Document, kind: Root, found: ErrorDetails) -> Iterator[Problem]:
    path, context = found["loc"], found.get("ctx", {})
    match found["type"]:
        case "missing":
            yield document.problem(path, f"needs `{path[-1]}`")
        case "extra_forbidden":
            yield _unknown(document, kind, path)
        case "flaws":
            for flaw in context["flaws"]:
                yield document.problem((*path, *flaw.path), flaw.message, flaw.hint)
        case _:
            yield document.problem(path, found["msg"])


def _unknown(document: Document, kind: Root, path: Path) -> Problem:
    word = str(path[-1])
    noun = noun_at(kind, path[:-1])
    known = [name for name in parts(noun) if name != "name"]
    if len(path) == 1:
        known = [kind, *known] if isinstance(kind, str) else list(parts(noun))
    cure = pointer(noun, word)
    if (noun, word) in FLATTENED:
        cure = f"use {' and '.join(f'`{name}`' for name in FLATTENED[noun, word])}"
    message = f"there is no field `{word}`{f'; {cure}' if cure else did_you_mean(word, known)}"
    return document.problem(path, message, f"{_with_unit(noun, word)}The fields here are {', '.join(known)}.")


def _with_unit(noun: type, word: str) -> str:
    """How the value is written of a field whose unit is in the word, as in the records: `timeout_seconds`."""
    bare = re.sub("_(seconds|bytes|months)$", "", word)
    part = parts(noun).get(bare) if bare != word else None
    return f"`{bare}` takes {part.leaf.expected}. " if part is not None and part.leaf is not None else ""


def noun_at(kind: Root, path: Path) -> type:
    """The noun whose fields are written at that path of a document."""
    noun, steps = KINDS[kind] if isinstance(kind, str) else kind, iter(path)
    for step in steps:
        hint = parts(noun)[str(step)].hint
        noun = next(nouns_in(hint))
        if origin_of(hint) in (tuple, Mapping):
            next(steps)  # the name or number of one of several
    return noun
