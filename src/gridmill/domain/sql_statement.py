"""This module finds the references to parameters in the SQL of users, so that their values can be bound at
these positions.

All functions of this module work only on text. If the query of a source is executed by a database, the
database binds the values. If SQL is executed by Gridmill's own engine, the engine receives the values as
literals.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeAlias

from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import read_moment
from gridmill.errors import InputError

REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}?")
"""A pattern that matches either `$${` (an escaped `${`) or a reference. The closing brace of the reference
may be missing."""
BOUNDS = (("from", "to"), ("due_before", "due"))
"""Pairs of parameters that are the beginning (included) and the end (excluded) of a range of time."""
TIMES = frozenset(name for pair in BOUNDS for name in pair)
DUE = ("due", "due_before")
"""The parameters that a schedule sets for its runs: the due time of the run, and the previous due time."""

Scalar: TypeAlias = str | int | float | bool
Given: TypeAlias = Scalar | tuple[Scalar, ...]
"""The types that the value of a parameter can have."""

_ELSEWHERE = r"""(?P<quote>'(?:[^']|'')*')
    |(?P<name>"(?:[^"]|"")*"|`(?:[^`]|``)*`)
    |(?P<comment>--[^\n]*|/\*.*?\*/)"""
_MYSQL = r"""(?P<quote>'(?:[^'\\]|''|\\.)*')
    |(?P<name>"(?:[^"\\]|""|\\.)*"|`(?:[^`]|``)*`)
    |(?P<comment>--(?=\s|\Z)[^\n]*|\#[^\n]*|/\*.*?\*/)"""


def _tokens(quotes: str) -> re.Pattern[str]:
    return re.compile(
        rf"""(?P<escapes>[eE]'(?:[^'\\]|''|\\.)*')
        |{quotes}
        |(?P<escape>\$\$\{{)
        |(?P<reference>\$\{{[^}}]*\}}?)
        |(?P<dollar>\$(?P<tag>[A-Za-z_]\w*|)\$.*?\$(?P=tag)\$)
        |(?P<other>\w+|.)""",
        re.VERBOSE | re.DOTALL,
    )


_TOKENS = {False: _tokens(_ELSEWHERE), True: _tokens(_MYSQL)}
_TYPED = frozenset({"date", "time", "timestamp", "timestamptz", "datetime", "interval", "zone"})
"""SQL words that give a type to the quoted text after them. Within such a text, no value can be bound."""
_HARMLESS = re.compile(r"[0-9A-Za-z :.,+/_-]*")


class ReferenceContext(StrEnum):
    """The context of a reference in the SQL statement."""

    VALUE = "value"
    TEXT = "text in quotes"
    TYPED = "typed constant"
    NAME = "name in quotes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholder:
    """A position in a statement for values: one reference, or a quoted text with references. `parts`
    contains texts and references alternately, beginning with a text. `quote` is the quote character around
    the placeholder. `enclosed` means that the placeholder is in parentheses."""

    where: ReferenceContext
    parts: tuple[str, ...]
    quote: str = ""
    enclosed: bool = False

    @property
    def references(self) -> tuple[str, ...]:
        """The references of the placeholder, as they are written between the braces."""
        return self.parts[1::2]


def holes_of(text: str, *, backslashes: bool = False) -> Iterator[str | Placeholder]:
    """Split the statement into texts and placeholders. With `backslashes`, a backslash is an escape
    character within quotes, as in MySQL.

    Raises InputError if a reference is at a position where no value can be inserted.
    """
    before, position = "", 0
    while position < len(text):
        match = _TOKENS[backslashes].match(text, position)
        assert match is not None  # never None, because the group `other` of the pattern matches any character
        position = match.end()
        kind, token = match.lastgroup or "", match[0]
        if kind == "escape":
            yield "${"
        elif kind == "comment":
            yield REFERENCE.sub(" ", token)
        elif not _refers(token):
            yield token
        else:
            yield _hole(kind, token, before, text[position:], backslashes=backslashes)
        before += token
        before = before[-200:]


def _refers(token: str) -> bool:
    return any(match[1] is not None for match in REFERENCE.finditer(token))


def _hole(kind: str, token: str, before: str, after: str, *, backslashes: bool) -> Placeholder:
    if kind in ("dollar", "escapes") or (backslashes and kind != "reference" and "\\" in token):
        raise _nowhere(token, "a text with escapes")
    word = re.search(r"(\w*)(\s*)\Z", before)
    assert word is not None  # the pattern always matches, because it also matches an empty text
    if word[1] and not word[2]:
        raise _nowhere(token, f"a word, behind {word[1]!r}")
    if kind == "reference":
        if re.match(r"\w", after):
            raise _nowhere(token, "a word")
        enclosed = before.rstrip().endswith("(") and after.lstrip().startswith(")")
        return Placeholder(where=ReferenceContext.VALUE, parts=_parts(token), enclosed=enclosed)
    quote = token[0]
    parts = tuple(
        part if number % 2 else part.replace(quote * 2, quote)
        for number, part in enumerate(_parts(token[1:-1]))
    )
    if kind == "name":
        return Placeholder(where=ReferenceContext.NAME, parts=parts, quote=quote)
    return Placeholder(
        where=ReferenceContext.TYPED if word[1].lower() in _TYPED else ReferenceContext.TEXT,
        parts=parts,
        quote=quote,
    )


def _parts(text: str) -> tuple[str, ...]:
    """Return the texts around the references and the contents of the references, alternately, beginning with
    a text."""
    parts, begins = [""], 0
    for match in REFERENCE.finditer(text):
        parts[-1] += text[begins : match.start()]
        begins = match.end()
        if match[1] is None:
            parts[-1] += "${"
        else:
            parts += [match[1], ""]
    parts[-1] += text[begins:]
    return tuple(parts)


def _nowhere(token: str, where: str) -> InputError:
    shown = next(match[0] for match in REFERENCE.finditer(token) if match[1] is not None)
    name = shown[2:].rstrip("}").partition(":")[0]
    return InputError(
        f"`{shown}` is within {where}, where no value can be bound",
        hint=f"Write the parameter alone or within plain single quotes; ${{{name}:raw}} inserts its text "
        "unchanged.",
    )


def worded(value: Given) -> str:
    """Return the form that a value has within a text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        raise InputError("a list cannot be within quotes", hint="Write IN ${name}, without quotes.")
    return str(value)


def filled(hole: Placeholder, values: Mapping[str, Given]) -> str:
    """Return the text of a quoted placeholder with its values inserted. Raises InputError for a value that
    is a list, and for a typed constant into which no value can be inserted."""
    text = "".join(worded(values[part]) if n % 2 else part for n, part in enumerate(hole.parts))
    if hole.where is ReferenceContext.TYPED and not _HARMLESS.fullmatch(text):
        raise InputError(
            f"{text!r} cannot be written safely as a typed constant",
            hint="Write CAST('${name}' AS TYPE) in place of TYPE '${name}'.",
        )
    if hole.where is ReferenceContext.NAME and ("\\" in text or "\0" in text):
        raise InputError(f"{text!r} cannot be a name", hint="Names in quotes cannot contain a backslash.")
    return text


def named(text: str, quote: str) -> str:
    """Return a name in SQL quotes."""
    return f"{quote}{text.replace(quote, quote * 2)}{quote}"


def references_of(text: str) -> tuple[str, ...]:
    """Return all references in the text, each once, as they are written between the braces."""
    references = (match[1] for match in REFERENCE.finditer(text))
    return tuple(dict.fromkeys(body for body in references if body is not None))


def pasted(text: str, values: Mapping[str, Given]) -> str:
    """Return the statement with all values inserted as texts. The result may only be compared with other
    statements, and must never be executed."""

    def paste(match: re.Match[str]) -> str:
        if match[1] is None:
            return "${"
        value = values.get(match[1], match[0])
        return ", ".join(map(worded, value)) if isinstance(value, tuple) else worded(value)

    return REFERENCE.sub(paste, text)


def literals(text: str, values: Mapping[str, Given]) -> str:
    """Return the statement with its values as literals of standard SQL, for Gridmill's own engine.

    Raises InputError if a reference is at a position where no value can be inserted.
    """
    return "".join(part if isinstance(part, str) else _as_literal(part, values) for part in holes_of(text))


def _as_literal(hole: Placeholder, values: Mapping[str, Given]) -> str:
    if hole.where is ReferenceContext.VALUE:
        name = hole.references[0]
        value = values[name]
        if name in DUE:
            return f"TIMESTAMP '{moment_of(value, name).replace(tzinfo=None)}'"
        if not isinstance(value, tuple):
            return literal(value)
        listed = ", ".join(map(literal, some(value)))
        return listed if hole.enclosed else f"({listed})"
    text = filled(hole, values)
    return named(text, hole.quote)


def check_statement(text: str, values: Mapping[str, Given]) -> None:
    """Raise InputError if the statement has a reference whose value cannot be bound in any database."""
    for part in holes_of(text):
        if not isinstance(part, str) and part.where is not ReferenceContext.VALUE:
            filled(part, values)
        elif not isinstance(part, str):
            value = values[part.references[0]]
            some(value if isinstance(value, tuple) else (value,))


def some(value: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    """Return the values of a list parameter. Raises InputError for an empty list, because SQL has no empty
    lists."""
    if not value:
        raise InputError(
            "the list is empty, which SQL does not allow", hint="Give the list at least one value."
        )
    return value


def literal(value: Scalar) -> str:
    """Return a value as a literal of standard SQL."""
    if isinstance(value, bool):
        return str(value).upper()
    return named(value, "'") if isinstance(value, str) else str(value)


def stretch(text: str, values: Mapping[str, Given]) -> tuple[datetime, datetime] | None:
    """Return the range of time of a query, if the query refers to both of its bounds; otherwise None.

    Raises InputError if the bounds are invalid, or if the end is not after the beginning.
    """
    names = {body.partition(":")[0] for body in references_of(text)}
    for first, last in BOUNDS:
        if {first, last} <= names:
            begins, ends = (moment_of(values[name], name) for name in (first, last))
            if begins >= ends:
                raise InputError(f"`{first}` ({values[first]}) is not before `{last}` ({values[last]})")
            return begins, ends
    return None


def moment_of(value: Given, name: str) -> datetime:
    """Return the value as a time in UTC. Raises InputError."""
    if not isinstance(value, str):
        raise InputError(f"`{name}` is {value!r}, not a time", hint="For example 2013-01-01.")
    moment = read_moment(value, name)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
