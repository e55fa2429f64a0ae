"""Checks a record beyond the types of its fields, for example that an amount is positive, or that exactly
one of several fields is set.

If the record has a method `check()`, this method is called too, and raises an InputError whose place ends in
`.FIELD`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, TypeAlias

from gridmill.declarations.problems import FieldPath, show_value
from gridmill.domain.dataset import DatasetSpec, Label, Split, SplitBy, Window
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import DECLARED_KINDS, Job
from gridmill.domain.schedule import ScheduleSpec
from gridmill.domain.service_spec import ServiceSpec
from gridmill.domain.source import SqlSource
from gridmill.domain.training import TrainingSpec
from gridmill.errors import InputError

Noun: TypeAlias = Any  # Any, because the record classes have no common base class

POSITIVE = frozenset(
    {
        "timeout_seconds",
        "deadline_seconds",
        "cpus",
        "memory_bytes",
        "disk_bytes",
        "disk_files",
        "rows",
        "columns",
        "workers",
        "shards",
        "span_seconds",
        "span_rows",
        "horizon_seconds",
        "within_seconds",
        "next_rows",
        "buckets",
        "delay_seconds",
        "gap_seconds",
        "settled_seconds",
        "cpu_share",
    }
)
NOT_NEGATIVE = frozenset({"retries", "gpus", "keep_seconds"})
EXACTLY_ONE: Mapping[type, tuple[str, ...]] = {
    Job: DECLARED_KINDS,
    ScheduleSpec: ("every_seconds", "every_months", "cron", "continuous"),
    Window: ("span_seconds", "span_rows"),
    DatasetSpec: ("basis", "sql"),
    SqlSource: ("table", "query"),
}
INSTEAD: Mapping[type, str] = {ScheduleSpec: "drift"}
"""A field that can be given instead of exactly one of these fields, or beside it."""
AT_LEAST_ONE: Mapping[type, tuple[str, ...]] = {
    TrainingSpec: ("dataset", "file"),
    ServiceSpec: ("model",),
}
"""The fields of which the JSON Schema requires at least one. The method `check()` finds a record
without any of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantViolation:
    """A problem of a record. `path` leads from the record to the field with the problem, and has the field
    names of the pipeline file."""

    message: str
    path: FieldPath = ()
    hint: str = ""


def flaws(noun: Noun) -> Iterator[InvariantViolation]:
    """Yields the problems of a record itself. The records that it contains were checked before."""
    amounts = list(_amounts(noun))
    yield from amounts
    yield from _exactly_one(noun)
    match noun:
        case Label(steps=int(steps)) if steps < 1:
            yield InvariantViolation(
                message="`steps` must be at least 1: 1 means the next row", path=("steps",)
            )
        case Split():
            yield from _split(noun)
    if not amounts:
        yield from _own_check(noun)


def written(field: str) -> str:
    """Returns the name of a field in YAML."""
    return (
        field.removesuffix("_seconds").removesuffix("_bytes").removesuffix("_months").removesuffix("_micros")
    )


def _amounts(noun: Noun) -> Iterator[InvariantViolation]:
    for field in fields(noun):
        value = getattr(noun, field.name)
        if not isinstance(value, int | float):
            continue
        name = written(field.name)
        if field.name in POSITIVE and value <= 0:
            yield InvariantViolation(
                message=f"`{name}` must be more than 0, got {show_value(value)}", path=(name,)
            )
        elif field.name in NOT_NEGATIVE and value < 0:
            yield InvariantViolation(
                message=f"`{name}` must not be negative, got {show_value(value)}", path=(name,)
            )


def _exactly_one(noun: Noun) -> Iterator[InvariantViolation]:
    choices = EXACTLY_ONE.get(type(noun))
    if not choices:
        return
    given = [written(name) for name in choices if getattr(noun, name) is not None]
    names = ", ".join(dict.fromkeys(written(name) for name in choices))
    instead = INSTEAD.get(type(noun), "")
    if not given:
        if not instead or getattr(noun, instead) is None:
            names += f", {instead}" if instead else ""
            yield InvariantViolation(message=f"needs one of {names}")
    elif len(given) > 1:
        yield InvariantViolation(
            message=f"has {' and '.join(given)}; only one of {names} can be given", path=(given[-1],)
        )


def _split(split: Split) -> Iterator[InvariantViolation]:
    times = (split.validation_from, split.test_from) != (None, None)
    shares = [share for share in (split.validation, split.test) if share is not None]
    if times and shares and split.by == SplitBy.TIME:
        yield InvariantViolation(
            message="give either times (`validation_from`, `test_from`) or shares (`validation`, "
            "`test`), not both"
        )
    if any(not 0 < share < 1 for share in shares) or sum(shares) >= 1:
        yield InvariantViolation(
            message="`validation` and `test` must be shares between 0 and 1, and their sum must be below 1"
        )


def _own_check(noun: Noun) -> Iterator[InvariantViolation]:
    check = getattr(noun, "check", None)
    if callable(check):
        try:
            check()
        except InputError as error:
            yield InvariantViolation(message=error.message, path=_below(error.place), hint=error.hint)


def _below(place: str) -> FieldPath:
    """Returns the path of a field without its first part, which is the name of the record itself (for
    example, `training` in `training.search.parameters.trees`)."""
    names = place.split(".") if place else []
    return tuple(written(name) for name in names[1:] or names)
