"""The field of a declaration that an error is about, as near as its words tell."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from gridmill.model.job import Job

_QUOTED = re.compile(r"'([^']+)'|\"([^\"]+)\"")
_MOST_DEPTH = 4


def nearest(job: Job, path: str, message: str) -> str:
    """The field below `path` that holds a name which the message quotes: `dataset.lags` becomes
    `dataset.lags[0].column`. The path itself (or what there is of it) where several do, or none."""
    while (value := _at(job.spec, path.split(".")[1:])) is None:
        path = path.rpartition(".")[0]
    quoted = (match[1] or match[2] for match in _QUOTED.finditer(message))
    for name in quoted:
        if name in job.spec.references():  # a table, of which a part of it lacks something
            continue
        found = [place for place, text in _texts(value, path, 0) if text == name]
        if len(found) == 1:
            return found[0]
    return path


def _at(value: Any, parts: list[str]) -> Any:  # noqa: ANN401  any part of a declaration
    for part in parts:
        name, _, number = part.partition("[")
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        if number and isinstance(value, tuple):
            value = value[int(number.rstrip("]"))]
    return value


def _texts(value: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:  # noqa: ANN401  as above
    """Names below a part of a declaration, each with its path as it is written."""
    if isinstance(value, str):
        yield path, value
    elif depth > _MOST_DEPTH:
        return
    elif isinstance(value, tuple):
        for number, item in enumerate(value):
            yield from _texts(item, f"{path}[{number}]", depth + 1)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield f"{path}.{name}", name
            yield from _texts(item, f"{path}.{name}", depth + 1)
    elif is_dataclass(value):
        for one in fields(value):
            yield from _texts(getattr(value, one.name), f"{path}.{one.name}", depth + 1)
