"""Validates records that are built in Python, with the same field names, units and messages as in pipeline
files.

The arguments are converted to the values that a pipeline file would contain. The converted values are
validated by the schema that also validates files, so the errors have the same wording. An argument that is a
record is converted too, and is validated together with the other arguments.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache
from math import isfinite
from numbers import Integral
from numbers import Real as AnyReal
from os import PathLike, fspath
from pathlib import Path as FilePath
from typing import Any, TypeVar, cast, get_args

from pydantic_core import SchemaValidator, ValidationError

from gridmill.declarations import scalars
from gridmill.declarations.problems import FieldPath, Problem, show_path, show_value
from gridmill.declarations.read import check_code, explain
from gridmill.declarations.schema import FieldSchema, is_named, noun_schema, parts, shorthand
from gridmill.declarations.validate import check
from gridmill.declarations.yaml import YamlDocument, YamlFloat, YamlInteger, YamlList, YamlMapping
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.errors import PipelineError, raise_all

T = TypeVar("T")
_DEEPEST, _LARGEST = 50, 2**63
_UNFIT = re.compile("[\\0\ud800-\udfff]")


def construct(noun: type[T], given: Sequence[object], named: Mapping[str, object]) -> T:
    """Returns the record for these arguments: fields by name, or a single value if the record has a short
    form.

    Raises PipelineError with all problems that were found, as for a file.
    """
    folder = named.get("folder") if noun is Pipeline else None
    value = _arguments(noun, given, {k: v for k, v in named.items() if folder is None or k != "folder"})
    document = YamlDocument(file=_called(noun, value), line=0, value=value)
    made: Any = _validated(noun, document, list(_unfit(document, value, ())))
    if isinstance(made, Pipeline):
        made = _checked(replace(made, folder=_folder(folder, document.file) if folder is not None else ""))
    if isinstance(made, Job):
        _raise(document.file, _open_matrix(made, ()))
    return made  # type: ignore[no-any-return]


def validated(noun: T) -> T:
    """Validates a record that may have been changed by `dataclasses.replace`. Raises PipelineError."""
    value = written(noun)
    document = YamlDocument(file=_called(type(noun), value), line=0, value=value)
    made = _validated(type(noun), document, [])
    if isinstance(made, Pipeline):
        _checked(made)
    return made


def _validated(noun: type[T], document: YamlDocument, problems: Sequence[Problem]) -> T:
    _raise(document.file, problems)
    try:
        made: T = _validator(cast(type, noun)).validate_python(document.value)
    except ValidationError as error:
        _raise(document.file, explain(document, noun, error))
        raise AssertionError("the error has no problem") from error
    return made


def _checked(pipeline: Pipeline) -> Pipeline:
    """Raises PipelineError for errors that concern several jobs, and for files that are missing in the
    pipeline's folder."""
    value = written(pipeline)
    document = YamlDocument(file=_called(Pipeline, value), line=0, value=value)
    open_fields = [one for job in pipeline.jobs for one in _open_matrix(job, ("jobs", job.name))]
    open_fields += check(document, pipeline)
    if pipeline.folder and not open_fields:
        open_fields += check_code(document, pipeline, FilePath(pipeline.folder))
    _raise(document.file, open_fields)
    return pipeline


@cache
def _validator(noun: type) -> SchemaValidator:
    return SchemaValidator(noun_schema(noun))


def _raise(place: str, problems: Sequence[Problem]) -> None:
    """Raises one error for all problems. The error names the record and the field, because there is no file
    and no line."""
    errors = [
        PipelineError(problem.message, place=_at(place, problem), hint=problem.hint) for problem in problems
    ]
    raise_all(errors, place)


def _at(place: str, problem: Problem) -> str:
    return f"{place}: {show_path(problem.path)}" if problem.path else place


def _called(noun: type, value: object) -> str:
    """The record in messages: `Job 'train'`."""
    name = value.get("name") if isinstance(value, YamlMapping) and is_named(noun) else None
    return f"{noun.__name__} {str(name)!r}" if isinstance(name, str) else noun.__name__


def _arguments(noun: type, given: Sequence[object], named: Mapping[str, object]) -> YamlMapping:
    short = shorthand(noun)
    if given and (short is None or len(given) > 1 or short.written in named):
        first = short.written if short else next(iter(parts(noun)))
        raise PipelineError(
            "the fields must be passed by name",
            place=noun.__name__,
            hint=f"Write {noun.__name__}({first}=..., ...).",
        )
    if given and short is not None:
        named = {short.written: given[0], **named}
    made, fields_of_noun = _ConstructedMapping(), parts(noun)
    for name, value in named.items():
        if (
            value is None
            and name in fields_of_noun
            and not fields_of_noun[name].required
            and fields_of_noun[name].default is None
        ):
            continue  # left out, because None means the same as an argument that is not passed
        made.put(name, to_value(value, names=name in fields_of_noun and _are_named(fields_of_noun[name])))
    return made


class _ConstructedMapping(YamlMapping):
    """A mapping that has no line numbers, because it does not come from a file. The attribute `noun` is the
    record from which the mapping was made."""

    def __init__(self, noun: object = None) -> None:
        super().__init__(0)
        self.noun = noun

    def put(self, name: str, value: Any) -> None:  # noqa: ANN401  a Value, or what cannot be one
        """Sets a field of the mapping."""
        self[name] = value
        self.lines[name] = 0


def _are_named(part: FieldSchema) -> bool:
    """Returns True if this part of the schema is a mapping of records by name."""
    first = next(iter(get_args(part.hint)), None)
    return is_dataclass(first) and is_named(first)


# --- from Python to the values of a file


def to_value(value: object, *, names: bool = False, depth: int = 0) -> Any:  # noqa: ANN401  see _Given.put
    """Converts a Python value to the form that it has in a file. A value that no file can contain is not
    converted, and the reader later refuses it.

    With `names`, a record or a list of records becomes a mapping by name.
    """
    if depth > _DEEPEST:
        return "..."  # the text is never used, because `_unfit` has refused such a value
    if names:
        several = value if isinstance(value, list | tuple) else [value]
        if all(_has_name(one) for one in several):
            return _by_name(several)
    if is_dataclass(value) and not isinstance(value, type):
        return written(value)
    if isinstance(value, Mapping):
        made = _ConstructedMapping()
        for key, one in value.items():
            inner = to_value(one, depth=depth + 1)
            if names and isinstance(inner, YamlMapping) and inner.get("name") == _key(key):
                inner.pop("name")
            made.put(_key(key), inner)
        return made
    if isinstance(value, list | tuple):
        items = YamlList(0)
        for number, one in enumerate(value):
            items.append(to_value(one, depth=depth + 1))
            items.lines[number] = 0
        return items
    return _scalar(value)


def _has_name(value: object) -> bool:
    return is_dataclass(value) and not isinstance(value, type) and is_named(type(value))


def _by_name(nouns: Sequence[Any]) -> YamlMapping:
    made = _ConstructedMapping()
    for noun in nouns:
        value, name = written(noun), str(noun.name)
        value.pop("name")
        if name in made:
            raise PipelineError(
                f"two records have the name `{name}`",
                place=type(noun).__name__,
                hint="Rename one of the two.",
            )
        made.put(name, value)
    return made


def _key(key: object) -> str:
    value = key.value if isinstance(key, Enum) else key
    return str(value).lower() if isinstance(value, bool) else str(value)


def _scalar(value: object) -> Any:  # noqa: ANN401  see _Given.put
    match value:
        case Enum():
            return _scalar(value.value)
        case None | bool() | YamlInteger() | YamlFloat() | str():
            return value
        case Integral():
            return YamlInteger(int(value), str(int(value)))
        case Decimal():
            return YamlFloat(float(value), str(value))
        case AnyReal():
            return YamlFloat(float(value), repr(float(value)))
        case timedelta():
            return _scalar(value.total_seconds())
        case datetime() | date():
            return value.isoformat()
        case PathLike():
            return fspath(value)
    item = getattr(value, "item", None)  # a boolean of NumPy is no `bool`, but its `item` method returns one
    scalar = item() if callable(item) and getattr(value, "shape", None) == () else value
    return bool(scalar) if isinstance(scalar, bool) else scalar


def _unfit(document: YamlDocument, value: object, path: FieldPath) -> Iterator[Problem]:
    """Yields a problem for each value that no file can contain: infinite numbers, characters that no record
    can store, and endless nesting."""
    if len(path) > _DEEPEST:
        yield document.problem(path[:1], f"nested deeper than {_DEEPEST} levels")
    elif isinstance(value, YamlMapping):
        for key, one in value.items():
            yield from _unfit(document, key, path)
            yield from _unfit(document, one, (*path, key))
    elif isinstance(value, YamlList):
        for number, one in enumerate(value):
            yield from _unfit(document, one, (*path, number))
    elif isinstance(value, str) and (match := _UNFIT.search(value)):
        yield document.problem(path, f"the character {match[0]!r} cannot be used in text")
    elif isinstance(value, YamlFloat) and not isfinite(value):
        yield document.problem(path, f"{value.text} is not a finite number")
    elif isinstance(value, YamlInteger) and not -_LARGEST <= value < _LARGEST:
        yield document.problem(path, f"the number {show_value(value)} is too large")


def _open_matrix(job: Job, path: FieldPath) -> list[Problem]:
    """Returns a problem if a job that was declared in Python has a matrix, because only jobs in a file can
    have a matrix."""
    if not any(isinstance(value, tuple) for value in job.matrix.values()):
        return []
    message = "a matrix works only in pipeline files"
    return [Problem(message=message, path=(*path, "matrix"), hint="In Python, create the jobs in a loop.")]


def _folder(folder: object, place: str) -> str:
    """Returns the folder of the project. Relative paths start at this folder, and commands run in a copy of
    this folder."""
    if isinstance(folder, str | PathLike):
        path = FilePath(fspath(folder)).expanduser()
        if path.is_dir():
            return str(path.absolute())
    raise PipelineError(f"there is no folder {show_value(folder)}", place=f"{place}: folder")


# --- from records to the values of a file


def written(noun: Any) -> YamlMapping:  # noqa: ANN401  a dataclass of gridmill.model
    """Returns a record in the form that it has in a file, without the fields that have their default
    values."""
    made, fields_by_name = _ConstructedMapping(noun), {field.name: field for field in fields(noun)}
    for name, part in parts(cast(type, type(noun))).items():
        value = getattr(noun, part.field)
        if part.inside is not None:
            default = next(one for one in fields(part.inside) if one.name == part.inner)
            value = None if value is None else getattr(value, part.inner)
            if value is not None and not _is_default(default, value):
                made.put(name, to_value(value, names=_are_named(part)))
        elif part.leaf is scalars.REACH_BACK:
            if not _is_default(fields_by_name[part.field], value):
                made.put(name, "all" if value is None else _scalar(value))
        elif part.leaf is scalars.PERIOD and (months := getattr(noun, _months(part.field))):
            made.put(name, f"{months}mo")
        elif not _is_default(fields_by_name[part.field], value):
            made.put(name, to_value(value, names=_are_named(part)))
    return made


def _months(field: str) -> str:
    return field.removesuffix("_seconds") + "_months"


def _is_default(field: Field[Any], value: object) -> bool:
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return type(value) is type(default) and value == default
