"""Pipeline files to nouns: text, YAML, parameters, types, meaning; each step reports all it finds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from pydantic_core import ValidationError

from gridmill.declarations.code import check_code
from gridmill.declarations.explain import explain
from gridmill.declarations.nodes import Document, Fields, lines_of, parse_documents
from gridmill.declarations.parameters import Filled, fill_in, with_values, word
from gridmill.declarations.problems import Problem, show_value, similar_file, to_error
from gridmill.declarations.semantics import check
from gridmill.declarations.shapes import KINDS, validator
from gridmill.errors import PipelineError
from gridmill.model.pipeline import Pipeline, Written
from gridmill.model.resource import Resource
from gridmill.model.site import Site

MAX_BYTES = 1 << 20
Declared: TypeAlias = Pipeline | Resource | Site
_NOTHING: Mapping[str, object] = MappingProxyType({})
_START = "Start with `pipeline: NAME`, then `jobs:`."


def read_pipeline(
    path: Path, *, set_values: Mapping[str, object] = _NOTHING, awaiting: bool = False
) -> Pipeline:
    """The one pipeline a file declares; resources in documents of their own beside it become part of it.

    `set_values` are the words given with `--set key=value`, or Python values. With `awaiting` the times that
    a schedule gives may be missing. Raises PipelineError with all problems found.
    """
    declared = read_declarations(path, set_values=set_values, awaiting=awaiting)
    pipelines = [noun for noun in declared if isinstance(noun, Pipeline)]
    if len(pipelines) != 1:
        raise _not_one(path, [noun.name for noun in pipelines])
    beside = tuple(noun for noun in declared if isinstance(noun, Resource))
    return replace(pipelines[0], resources=pipelines[0].resources + beside)


def _not_one(path: Path, names: Sequence[str]) -> PipelineError:
    if not names:
        return PipelineError("declares no pipeline", place=str(path), hint=_START)
    return PipelineError(
        f"declares {len(names)} pipelines ({', '.join(names)}), one is expected",
        place=str(path),
        hint=f"`gridmill apply -f {path}` keeps all of them; then `gridmill run {names[0]}` runs one.",
    )


def read_declarations(
    path: Path, *, set_values: Mapping[str, object] = _NOTHING, awaiting: bool = False
) -> tuple[Declared, ...]:
    """Everything a file declares, one noun per YAML document, in order. Raises PipelineError."""
    text = read_text(path)
    folder = str(path.resolve().parent)
    return parse_declarations(text, file=str(path), folder=folder, set_values=set_values, awaiting=awaiting)


def parse_declarations(
    text: str,
    *,
    file: str = "-",
    folder: str = "",
    set_values: Mapping[str, object] = _NOTHING,
    awaiting: bool = False,
) -> tuple[Declared, ...]:
    """What the text of a file declares; `file` is how messages call it, `folder` where it lies: what it
    names of the project's code must be there. Raises PipelineError."""
    documents = parse_documents(text, file)
    if not documents:
        raise PipelineError("the file is empty", place=file, hint=_START)
    problems: list[Problem] = []
    nouns = [_noun(document, set_values, problems, awaiting=awaiting) for document in documents]
    for document, noun in zip(documents, nouns, strict=True):
        if folder and isinstance(noun, Pipeline):
            problems += check_code(document, noun, Path(folder))
    if problems:
        raise to_error(file, problems)
    values = {key: word(value) for key, value in set_values.items()}
    return tuple(
        replace(noun, folder=folder, written=_written(noun, text, values, number))
        if isinstance(noun, Pipeline)
        else noun
        for number, noun in enumerate(nouns)
        if noun is not None
    )


def _written(noun: Pipeline, text: str, values: Mapping[str, str], number: int) -> Written:
    assert noun.written is not None
    return replace(noun.written, text=text, values=values, document=number)


def read_again(
    written: Written, *, folder: str = "", set_values: Mapping[str, object] = _NOTHING
) -> Pipeline:
    """The pipeline that was read from that text, with `set_values` over those that were given then.

    Raises PipelineError.
    """
    document = parse_documents(written.text, written.file)[written.document]
    problems: list[Problem] = []
    noun = _noun(document, {**written.values, **set_values}, problems)
    if problems:
        raise to_error(written.file, problems)
    assert isinstance(noun, Pipeline)  # it was one when it was read first
    values = {**written.values, **{key: word(value) for key, value in set_values.items()}}
    return replace(noun, folder=folder, written=_written(noun, written.text, values, written.document))


def read_text(path: Path) -> str:
    """The file's text. Raises PipelineError when it cannot be one."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise PipelineError("there is no such file", place=str(path), hint=_near(path)) from error
    except IsADirectoryError as error:
        raise PipelineError("this is a folder", place=str(path), hint=_inside(path)) from error
    except (OSError, ValueError) as error:
        raise PipelineError(
            f"cannot be read: {getattr(error, 'strerror', error)}", place=str(path)
        ) from error
    if len(data) > MAX_BYTES:
        raise PipelineError("larger than 1 MiB", place=str(path), hint="Keep data in files of its own.")
    return _decode(data, path)


def _decode(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PipelineError(
            f"byte 0x{data[error.start]:02x} is not UTF-8",
            place=f"{path}:{line}",
            hint="Save the file as UTF-8.",
        ) from error


def _near(path: Path) -> str:
    names = [name for name in _listing(path.parent) if name.endswith((".yaml", ".yml"))]
    guess = similar_file(path.name, names).removeprefix("; ")
    if guess:
        return guess[0].upper() + guess[1:]
    return f"In that folder there are {', '.join(names[:5])}." if names else "Check the path."


def _inside(path: Path) -> str:
    names = [name for name in _listing(path) if name.endswith((".yaml", ".yml"))]
    return f"Name the file: {path / names[0]}" if names else "Name the pipeline file itself."


def _listing(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def _noun(
    document: Document, set_values: Mapping[str, object], problems: list[Problem], *, awaiting: bool = False
) -> Declared | None:
    kind = _kind(document, problems)
    if kind is None:
        return None
    filled = Filled(document=document, problems=[])
    if kind == "pipeline":
        filled = fill_in(document, set_values, awaiting=awaiting)
        document = filled.document
        problems.extend(filled.problems)
    try:
        noun: Declared = validator(kind).validate_python(document.value)
    except ValidationError as error:
        known = {problem.path for problem in problems}
        problems.extend(found for found in explain(document, kind, error) if found.path not in known)
        return None
    if isinstance(noun, Pipeline) and not problems:
        problems.extend(check(document, noun))
        noun, found = with_values(noun, filled)
        problems.extend(found)
    if isinstance(noun, Pipeline):
        noun = replace(noun, written=Written(text="", file=document.file, lines=lines_of(document)))
    return noun


def _kind(document: Document, problems: list[Problem]) -> str | None:
    """Which noun the document declares; None, with a problem noted, when it cannot be told."""
    value = document.value
    if not isinstance(value, Fields):
        said = f"expected fields such as `pipeline: NAME` and `jobs:`, got {show_value(value)}"
        problems.append(document.problem((), said))
        return None
    kinds = [kind for kind in KINDS if kind in value]
    if len(kinds) > 1:
        said = f"declares a {kinds[0]} and a {kinds[1]}"
        problems.append(document.problem((kinds[1],), said, "Separate documents with a line `---`."))
        return None
    return kinds[0] if kinds else "pipeline"
