"""Reads pipeline files in steps: text, YAML, parameters, types, and meaning. Each step reports all the
problems that it finds.

Errors of pydantic become problems with file, line and field, in the terms of the file. The reader checks
that the project files which a pipeline names exist, and that they contain the named functions.
`read_constraint` and `read_outage` read a part of a sink from one line of YAML with the same schema.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from glob import has_magic
from pathlib import Path
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import TypeAlias

from pydantic_core import ErrorDetails, ValidationError

from gridmill.declarations.other_tools import pointer
from gridmill.declarations.parameters import SubstitutedDocument, fill_in, with_values
from gridmill.declarations.problems import (
    FieldPath,
    Problem,
    show_value,
    similar_file,
    to_error,
)
from gridmill.declarations.schema import FLATTENED, KINDS, nouns_in, origin_of, parts, validator
from gridmill.declarations.validate import check
from gridmill.declarations.yaml import YamlDocument, YamlMapping, lines_of, parse_documents
from gridmill.domain.naming import did_you_mean, suggestion, word
from gridmill.domain.pipeline import Pipeline, PipelineSource
from gridmill.domain.resource import Resource
from gridmill.domain.sink import Constraint, Outage, SinkSpec
from gridmill.domain.site import Site
from gridmill.errors import InputError, PipelineError


def check_code(document: YamlDocument, pipeline: Pipeline, folder: FilePath) -> Iterator[Problem]:
    """Yields a problem for each file or function that a job names and that does not exist in the project's
    folder."""
    for job in pipeline.jobs:
        for field in ("script", "predict", "file", "signature", "samples", "environment"):
            function_name = getattr(job.training or job.command, field, None)
            if function_name:
                yield from _check(document, ("jobs", job.name, job.kind.value, field), function_name, folder)
        for number, function_name in enumerate(job.reads_files):
            yield from _check_input(
                document, ("jobs", job.name, job.kind.value, "inputs", number), function_name, folder
            )


def _check_input(
    document: YamlDocument, place: FieldPath, pattern: str, folder: FilePath
) -> Iterator[Problem]:
    try:
        exists = any(folder.glob(pattern)) if has_magic(pattern) else (folder / pattern).exists()
    except (OSError, ValueError) as error:
        yield document.problem(place, f"{pattern!r} is not a valid file name: {error}")
        return
    if not exists:
        what = "matches no file" if has_magic(pattern) else "does not exist"
        yield document.problem(
            place, f"`{pattern}` {what}{did_you_mean(pattern, _similar_file(folder / pattern))}", _WHERE
        )


def _check(document: YamlDocument, place: FieldPath, path_text: str, folder: FilePath) -> Iterator[Problem]:
    name, _, function = (
        path_text.partition(":") if place[-1] in ("script", "predict") else (path_text, "", "")
    )
    file = folder / name
    try:
        inside, exists = file.resolve().is_relative_to(folder.resolve()), file.is_file()
    except (OSError, ValueError) as error:
        yield document.problem(place, f"{name!r} is not a valid file name: {error}")
        return
    if not inside:
        yield document.problem(place, f"`{name}` is outside the pipeline's folder")
    elif not exists:
        meant = did_you_mean(file.name, _similar_file(file), find=similar_file)
        yield document.problem(place, f"there is no file `{name}`{meant}", _WHERE)
    elif function:
        yield from _check_function(document, place, file, function)


_WHERE = "Paths are relative to the pipeline's folder."


def _similar_file(file: FilePath) -> list[str]:
    try:
        return sorted(path.name for path in file.parent.iterdir() if path.is_file())
    except OSError:
        return []


def _check_function(
    document: YamlDocument, place: FieldPath, file: FilePath, function: str
) -> Iterator[Problem]:
    try:
        names = _names(ast.parse(file.read_bytes(), file.name))
    except (SyntaxError, ValueError) as error:
        yield document.problem(place, f"`{file.name}` has a Python syntax error: {error}")
        return
    if names is not None and function not in names:
        message = f"`{file.name}` has no function `{function}`{did_you_mean(function, names)}"
        yield document.problem(place, message)


def _names(module: ast.Module) -> list[str] | None:
    """Returns the names that a module may define, in their order. The result is None if these names are
    known only after the module was executed."""
    names: list[str] = []
    for node in ast.walk(module):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.append(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.append(name)
            case ast.Import(names=some) | ast.ImportFrom(names=some):
                names += [one.asname or one.name for one in some]
    return None if {"*", "__getattr__", "globals"} & {*names, *_called(module)} else names


def _called(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


_EXPECTED = {
    "dict_type": "fields (`name: value`, indented below)",
    "tuple_type": "a list",
}


Root: TypeAlias = str | type
"""The type of a declaration: a key of KINDS, or a record class for declarations in Python."""


def explain(document: YamlDocument, kind: Root, error: ValidationError) -> list[Problem]:
    """Returns the problems of a validation, at most one for each place in the document. If a field accepts
    several types of values, one sentence lists all of these types."""
    problems: list[Problem] = []
    mistyped: dict[FieldPath, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        if detail["type"] in _EXPECTED or detail["type"] == "expected":
            mistyped.setdefault(document.locate(detail["loc"])[1], []).append(detail)
        else:
            problems.extend(_problems(document, kind, detail))
    for path, alike in mistyped.items():
        fields = any(detail["type"] == "dict_type" for detail in alike)
        problems.append(document.problem(path, _mistyped(alike), _fields_at(kind, path) if fields else ""))
    return [
        problem if problem.hint else replace(problem, hint=reference(kind, problem.path))
        for problem in problems
    ]


def _fields_at(kind: Root, path: FieldPath) -> str:
    """Returns a hint with the allowed fields, or an empty text if any field name is allowed."""
    if path and path[-1] == "jobs":
        return "Write one entry per job below `jobs`, for example `greet: {command: echo hello}`."
    try:
        noun = noun_at(kind, path)
    except (KeyError, StopIteration):
        return ""
    return f"The fields here are {', '.join(name for name in parts(noun) if name != 'name')}."


def reference(kind: Root, path: FieldPath) -> str:
    """Returns the section of the reference that describes the fields at a path of a document."""
    while True:
        try:
            section = noun_at(kind, path[:-1]).__name__.removesuffix("Spec")
        except (KeyError, StopIteration):  # the path leads into a value, so that it names no section
            path = path[:-1]
            continue
        return f"Its fields are listed in docs/reference/pipeline.md, section {section}."


def _mistyped(alike: Sequence[ErrorDetails]) -> str:
    contexts = [detail.get("ctx", {}) for detail in alike]
    words = [
        _EXPECTED.get(detail["type"]) or str(context["expected"])
        for detail, context in zip(alike, contexts, strict=True)
    ]
    more = contexts[0].get("more", "") if len(alike) == 1 else ""
    return f"expected {' or '.join(dict.fromkeys(words))}, got {show_value(alike[0]['input'])}{more}"


def _problems(document: YamlDocument, kind: Root, error_details: ErrorDetails) -> Iterator[Problem]:
    path, context = error_details["loc"], error_details.get("ctx", {})
    match error_details["type"]:
        case "missing":
            yield document.problem(path, f"needs `{path[-1]}`")
        case "extra_forbidden":
            yield _unknown(document, kind, path)
        case "flaws":
            for flaw in context["flaws"]:
                yield document.problem((*path, *flaw.path), flaw.message, flaw.hint)
        case _:
            yield document.problem(path, error_details["msg"])


def _unknown(document: YamlDocument, kind: Root, path: FieldPath) -> Problem:
    word = str(path[-1])
    noun = noun_at(kind, path[:-1])
    names = [name for name in parts(noun) if name != "name"]
    if len(path) == 1:
        names = [kind, *names] if isinstance(kind, str) else list(parts(noun))
    cure = pointer(noun, word)
    if FLATTENED.get((noun, word)):
        cure = f"use {' and '.join(f'`{name}`' for name in FLATTENED[noun, word])}"
    message = f"there is no field `{word}`{f'; {cure}' if cure else did_you_mean(word, names)}"
    return document.problem(path, message, f"{_with_unit(noun, word)}The fields here are {', '.join(names)}.")


def _with_unit(noun: type, word: str) -> str:
    """Returns a hint for a field whose name contains a unit (`timeout_seconds`), as in the records of
    Python. The hint shows how to write the value."""
    bare = re.sub("_(seconds|bytes|months)$", "", word)
    part = parts(noun).get(bare) if bare != word else None
    return f"`{bare}` takes {part.leaf.expected}. " if part is not None and part.leaf is not None else ""


def noun_at(kind: Root, path: FieldPath) -> type:
    """Returns the record class that a pipeline document is read into at a path, for example Window at
    `jobs.features.dataset.windows[0]`."""
    noun, steps = KINDS[kind] if isinstance(kind, str) else kind, iter(path)
    for step in steps:
        hint = parts(noun)[str(step)].hint
        noun = next(nouns_in(hint))
        if origin_of(hint) in (tuple, Mapping):
            next(steps)  # skips the name or the index of an item, because the class of all items is the same
    return noun


MAX_BYTES = 1 << 20
Declared: TypeAlias = Pipeline | Resource | Site
_NOTHING: Mapping[str, object] = MappingProxyType({})
_START = "Start with `pipeline: NAME`, then `jobs:`."


def read_pipeline(
    path: Path, *, set_values: Mapping[str, object] = _NOTHING, awaiting: bool = False
) -> Pipeline:
    """Reads the single pipeline of a file. If further documents of the file declare resources, they become
    part of the pipeline.

    `set_values` are the texts from `--set key=value`, or Python values. With `awaiting`, the times that a
    schedule sets may be missing. Raises PipelineError with all problems that were found.
    """
    declared = read_declarations(path, set_values=set_values, awaiting=awaiting)
    pipelines = [noun for noun in declared if isinstance(noun, Pipeline)]
    if len(pipelines) != 1:
        raise _not_one(path, [noun.name for noun in pipelines])
    resources = tuple(noun for noun in declared if isinstance(noun, Resource))
    return replace(pipelines[0], resources=pipelines[0].resources + resources)


def _not_one(path: Path, names: Sequence[str]) -> PipelineError:
    if not names:
        return PipelineError("declares no pipeline", place=str(path), hint=_START)
    return PipelineError(
        f"declares {len(names)} pipelines ({', '.join(names)}) instead of one",
        place=str(path),
        hint=f"Store all with `gridmill apply -f {path}`, then run one with `gridmill run {names[0]}`.",
    )


def read_declarations(
    path: Path, *, set_values: Mapping[str, object] = _NOTHING, awaiting: bool = False
) -> tuple[Declared, ...]:
    """Reads all records that a file declares, in order. Each YAML document in the file declares one record.
    Raises PipelineError."""
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
    """Reads all records that the text of a file declares. `file` is the name of the file in messages.
    `folder` is the folder of the file; it must contain all project files that the text names. Raises
    PipelineError."""
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


def _written(noun: Pipeline, text: str, values: Mapping[str, str], number: int) -> PipelineSource:
    assert noun.written is not None
    return replace(noun.written, text=text, values=values, document=number)


def read_again(
    written: PipelineSource, *, folder: str = "", set_values: Mapping[str, object] = _NOTHING
) -> Pipeline:
    """Reads the pipeline again from its stored text. The values in `set_values` are used in addition to the
    stored values of the parameters.

    Raises PipelineError.
    """
    document = parse_documents(written.text, written.file)[written.document]
    problems: list[Problem] = []
    noun = _noun(document, {**written.values, **set_values}, problems)
    if problems:
        raise to_error(written.file, problems)
    assert isinstance(noun, Pipeline)  # certain, because the text declared a pipeline when it was read first
    values = {**written.values, **{key: word(value) for key, value in set_values.items()}}
    return replace(noun, folder=folder, written=_written(noun, written.text, values, written.document))


def read_text(path: Path) -> str:
    """Returns the text of the file. Raises PipelineError if the file cannot be read, is too large, or is not
    UTF-8."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise PipelineError("the file does not exist", place=str(path), hint=_near(path)) from error
    except IsADirectoryError as error:
        raise PipelineError("this is a folder, not a file", place=str(path), hint=_inside(path)) from error
    except (OSError, ValueError) as error:
        raise PipelineError(
            f"cannot be read: {getattr(error, 'strerror', error)}", place=str(path)
        ) from error
    if len(data) > MAX_BYTES:
        raise PipelineError(
            "the file is larger than 1 MiB", place=str(path), hint="Store data in other files."
        )
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
    otherwise = f"That folder contains {', '.join(names[:5])}." if names else "Check the path."
    return suggestion(path.name, names, otherwise, find=similar_file)


def _inside(path: Path) -> str:
    names = [name for name in _listing(path) if name.endswith((".yaml", ".yml"))]
    return f"Name the file: {path / names[0]}" if names else "Name the pipeline file itself."


def _listing(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def _noun(
    document: YamlDocument,
    set_values: Mapping[str, object],
    problems: list[Problem],
    *,
    awaiting: bool = False,
) -> Declared | None:
    kind = _kind(document, problems)
    if kind is None:
        return None
    filled = SubstitutedDocument(document=document, problems=[])
    if kind == "pipeline":
        filled = fill_in(document, set_values, awaiting=awaiting)
        document = filled.document
        problems.extend(filled.problems)
    try:
        noun: Declared = validator(kind).validate_python(document.value)
    except ValidationError as error:
        reported = {problem.path for problem in problems}
        problems.extend(
            problem_found
            for problem_found in explain(document, kind, error)
            if problem_found.path not in reported
        )
        return None
    if isinstance(noun, Pipeline) and not problems:
        problems.extend(check(document, noun))
        noun, problem_found = with_values(noun, filled)
        problems.extend(problem_found)
    if isinstance(noun, Pipeline):
        noun = replace(noun, written=PipelineSource(text="", file=document.file, lines=lines_of(document)))
    return noun


def _kind(document: YamlDocument, problems: list[Problem]) -> str | None:
    """Returns the kind of record that the document declares. If the kind is unclear, the function records a
    problem and returns None."""
    value = document.value
    if not isinstance(value, YamlMapping):
        message = f"expected fields such as `pipeline: NAME` and `jobs:`, got {show_value(value)}"
        problems.append(document.problem((), message))
        return None
    kinds = [kind for kind in KINDS if kind in value]
    if len(kinds) > 1:
        message = f"declares a {kinds[0]} and a {kinds[1]}"
        problems.append(
            document.problem((kinds[1],), message, "Separate the two documents with a line `---`.")
        )
        return None
    return kinds[0] if kinds else "pipeline"


def read_constraint(text: str) -> Constraint:
    """Parses a constraint such as `{column: price, min: 0}`, written as in the field `constraints` of a
    file. Raises InputError."""
    return _sink("constraints", text).constraints[0]


def read_outage(text: str) -> Outage:
    """Parses an outage window such as `{time: at, begins: ..., ends: ...}`, written as in the field
    `outages` of a file. Raises InputError."""
    return _sink("outages", text).outages[0]


def _sink(field: str, text: str) -> SinkSpec:
    (document,) = parse_documents(text, field) or (None,)
    value = document.value if document is not None else None
    if not isinstance(value, YamlMapping):
        raise InputError(
            f"{text!r} is not a mapping", hint="Write for example '{column: price, min: 0}'.", place=field
        )
    jobs = {"altered": {"sink": {"source": "any", field: [value]}}}
    other = value.get("references")
    if isinstance(other, str) and "/" not in other:
        jobs[other] = {"sink": {"source": "any"}}
    whole = json.dumps({"pipeline": "altered", "jobs": jobs})
    try:
        (pipeline,) = parse_declarations(whole, file=field)
    except PipelineError as error:
        raise InputError(error.message, hint=error.hint, place=field) from error
    assert isinstance(pipeline, Pipeline)
    spec = pipeline.job("altered").sink
    assert spec is not None
    return spec
