"""Which calls in SQL give another value each time: random numbers, new identifiers, the clock."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gridmill.codec import to_builtins
from gridmill.model.job import Job

_FUNCTIONS = (
    *("random", "uuid", "uuidv4", "uuidv7", "gen_random_uuid", "nextval"),
    *("now", "today", "transaction_timestamp", "get_current_time", "get_current_timestamp"),
    *("current_localtime", "current_localtimestamp"),
)
_WORDS = ("current_timestamp", "current_date", "current_time", "localtimestamp", "localtime")
_SKIPPED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_CALL = re.compile(
    rf"(?<![\w.])(?:(?P<function>{'|'.join(_FUNCTIONS)})\s*\(|(?P<word>{'|'.join(_WORDS)})\b)", re.IGNORECASE
)


def volatile_remarks(job: Job) -> list[Any]:
    """A warning where the SQL would give something else now, and the version stands all the same."""
    calls = volatile_calls(_texts(to_builtins(job.spec))) if job.cache is not False else ()
    if not calls:
        return []
    changes = (
        f"{', '.join(calls)} in SQL gives other values each time, but an unchanged job does not run again"
    )
    return [[f"{changes}: declare `cache: false` to compute it in each run", True]]


def _texts(value: object, field: str = "") -> Iterator[str]:
    """The texts of a declaration, but the reasons of exemptions."""
    if isinstance(value, str) and field != "exempt":
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(inner, str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, field)


def volatile_calls(texts: Iterable[str]) -> tuple[str, ...]:
    """The calls in these SQL texts, each once, in order: `random()`, `current_timestamp`. What is in strings,
    quoted names and comments is no call."""
    found = (match for text in texts for match in _CALL.finditer(_SKIPPED.sub(" ", text)))
    named = (f"{one['function']}()" if one["function"] else one["word"] for one in found)
    return tuple(dict.fromkeys(name.lower() for name in named))
