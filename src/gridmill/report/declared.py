"""What a job declares, as text: the settings that are not the defaults, with durations and sizes as people
write them."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum

from gridmill.model.amounts import show_bytes, show_period
from gridmill.model.job import Job

MOST_LINES = 60
_UNITS = {"_seconds": lambda value: show_period(float(value)), "_bytes": show_bytes}
_SECRET = ("env",)
"""Fields whose values may be secret: the names alone are shown."""


def declared(job: Job) -> str:
    """The settings of a job in the form of a pipeline file, without those that have their default."""
    lines = list(_fields(job, 0, skip=("name",)))
    more = len(lines) - MOST_LINES
    return "\n".join([*lines[:MOST_LINES], *([f"... and {more} more lines"] if more > 0 else [])])


def _fields(noun: object, depth: int, skip: tuple[str, ...] = ()) -> Iterator[str]:
    for one in fields(noun):  # type: ignore[arg-type]
        value = getattr(noun, one.name)
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        if one.name not in skip and value is not None and value != default:
            yield from _entry(one.name, value, depth)


def _entry(name: str, value: object, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for end, show in _UNITS.items():
        if name.endswith(end) and isinstance(value, int | float):
            name, value = name.removesuffix(end), show(value)
    if name in _SECRET and isinstance(value, Mapping):
        yield f"{indent}{name}: {', '.join(map(str, value))} (values are not shown)"
    elif is_dataclass(value):
        yield f"{indent}{name}:"
        yield from _fields(value, depth + 1)
    elif isinstance(value, Mapping):
        yield f"{indent}{name}:"
        for key, part in value.items():
            yield from _entry(str(key), part, depth + 1)
    elif isinstance(value, tuple | list) and any(is_dataclass(part) for part in value):
        yield f"{indent}{name}:"
        for part in value:
            lines = list(_fields(part, depth + 2))
            yield from (f"{indent}  - {line.strip()}" if at == 0 else line for at, line in enumerate(lines))
    else:
        yield from _leaf(name, value, indent)


def _leaf(name: str, value: object, indent: str) -> Iterator[str]:
    text = _text(value)
    if "\n" not in text:
        yield f"{indent}{name}: {text}"
        return
    yield f"{indent}{name}: |"
    yield from (f"{indent}  {line}" for line in text.splitlines())


def _text(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_text, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
