"""Which calls in SQL give another value each time: random numbers, new identifiers, the clock."""

import re
from collections.abc import Iterable

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


def volatile_calls(texts: Iterable[str]) -> tuple[str, ...]:
    """The calls in these SQL texts, each once, in order: `random()`, `current_timestamp`. What is in strings,
    quoted names and comments is no call."""
    found = (match for text in texts for match in _CALL.finditer(_SKIPPED.sub(" ", text)))
    named = (f"{one['function']}()" if one["function"] else one["word"] for one in found)
    return tuple(dict.fromkeys(name.lower() for name in named))
