"""The types of single values in YAML: text, numbers, durations, sizes and counts. Each type of single value
has a parser and a JSON Schema.

The parser of a type converts a value from the YAML reader to the value of a field. The JSON Schema describes
the accepted values. Parsers and schemas come from one table.
"""

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from pydantic_core import PydanticCustomError

from gridmill.declarations.other_tools import value_pointer
from gridmill.declarations.yaml import YamlFloat, YamlInteger
from gridmill.domain.amounts import parse_bytes, parse_count, parse_period, parse_seconds
from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import did_you_mean
from gridmill.domain.rental_terms import parse_micros
from gridmill.domain.secret import reference_to
from gridmill.errors import InputError

PARAMETER = {"type": "string", "pattern": r"\$\{"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarType:
    """A type of single values. `expected` is inserted into the sentence `expected ..., got ...`."""

    expected: str
    parse: Callable[[Any], Any]
    schema: dict[str, Any]


def wrong(expected: str, more: str = "") -> PydanticCustomError:
    """Returns an error with a message such as `expected a duration such as 5m, got [1, 2]`, which is
    followed by the text `more`."""
    return PydanticCustomError("expected", "expected {expected}", {"expected": expected, "more": more})


def _name(value: object) -> str:
    if isinstance(value, str) and NAMES.fullmatch(value):
        return value
    if isinstance(value, YamlInteger) and NAMES.fullmatch(value.text):
        return value.text
    raise wrong(NAME.expected)


def _text(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case YamlInteger() | YamlFloat():
            return value.text
        case str():
            return value
    raise wrong(TEXT.expected)


def _text_or_secret(value: object) -> str:
    if isinstance(value, dict):
        name = value.get("secret")
        if set(value) != {"secret"} or not isinstance(name, str) or not NAMES.fullmatch(name):
            raise wrong(TEXT_OR_SECRET.expected)
        return reference_to(name)
    if value is None or isinstance(value, list):
        raise wrong(TEXT_OR_SECRET.expected)
    return _text(value)


def _texts(value: object) -> str | tuple[str, ...]:
    if isinstance(value, list) and not any(isinstance(item, list | dict) or item is None for item in value):
        return tuple(_text(item) for item in value)
    if value is None or isinstance(value, list | dict):
        raise wrong(TEXTS.expected)
    return _text(value)


def _whole(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise wrong(WHOLE.expected)


def _whole_or_auto(value: object) -> int | None:
    if value == "auto":
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise wrong(AUTO.expected)


def _number(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise wrong(NUMBER.expected)


def _as_written(value: object) -> int | float:
    return _whole(value) if isinstance(value, int) else _number(value)


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise wrong(FLAG.expected)


def _scalar(value: object) -> str | int | float | bool:
    match value:
        case bool() | str():
            return value
        case YamlInteger():
            return int(value)
        case YamlFloat():
            return float(value)
    raise wrong(SCALAR.expected)


def _value(value: object) -> str | int | float | bool | tuple[str | int | float | bool, ...]:
    if not isinstance(value, list):
        return _scalar(value)
    if any(isinstance(item, list | dict) or item is None for item in value):
        raise wrong(VALUE.expected)
    return tuple(_scalar(item) for item in value)


def _with_unit(parse: Callable[[str], float], expected: str) -> Callable[[object], float]:
    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise wrong(expected)
        try:
            return parse(value if isinstance(value, str) else str(value))
        except (InputError, OverflowError) as error:
            _, _, why = getattr(error, "message", "").partition(": ")
            raise wrong(expected, f": {why}" if why else "") from error

    return read


def _unit(parse: Callable[[str], float], expected: str, units: str) -> ScalarType:
    pattern = rf"^\s*[0-9]+(\.[0-9]+)?\s*({units})?\s*$"
    accepted = [{"type": "number", "minimum": 0}, {"type": "string", "pattern": pattern}, PARAMETER]
    return ScalarType(expected=expected, parse=_with_unit(parse, expected), schema={"anyOf": accepted})


def _duration_or_all(value: object) -> float | None:
    return None if value == "all" else DURATION.parse(value)


def choice(enum: type[StrEnum]) -> ScalarType:
    """Returns the type for the values of an enum."""
    names = [member.value for member in enum]
    expected = f"one of {', '.join(names)}"

    def read(value: object) -> StrEnum:
        if isinstance(value, str) and value in names:
            return enum(value)
        cure = value_pointer(enum, str(value))
        raise wrong(expected, f"; {cure}" if cure else did_you_mean(str(value), names))

    return ScalarType(expected=expected, parse=read, schema={"anyOf": [{"enum": names}, PARAMETER]})


def _or_parameter(name: str) -> dict[str, Any]:
    return {"anyOf": [{"type": name}, PARAMETER]}


NAMES = re.compile(r"[a-z0-9][a-z0-9_-]*")
_WORD = ["string", "number", "boolean"]
NAME = ScalarType(
    expected="a name of a-z, 0-9, _ and -, starting with a letter or digit",
    parse=_name,
    schema={"type": "string", "pattern": f"^{NAMES.pattern}$"},
)
TEXT = ScalarType(expected="text", parse=_text, schema={"type": _WORD})
TEXT_OR_SECRET = ScalarType(
    expected="text or {secret: NAME}",
    parse=_text_or_secret,
    schema={
        "anyOf": [
            TEXT.schema,
            {
                "type": "object",
                "properties": {"secret": {"type": "string"}},
                "required": ["secret"],
                "additionalProperties": False,
            },
        ]
    },
)
TEXTS = ScalarType(
    expected="text or a list of text",
    parse=_texts,
    schema={"anyOf": [TEXT.schema, {"type": "array", "items": TEXT.schema}]},
)
SCALAR = ScalarType(expected="text, a number, true or false", parse=_scalar, schema={"type": _WORD})
VALUE = ScalarType(
    expected="text, a number, true, false or a list of them",
    parse=_value,
    schema={"anyOf": [SCALAR.schema, {"type": "array", "items": SCALAR.schema}]},
)
WHOLE = ScalarType(expected="a whole number", parse=_whole, schema=_or_parameter("integer"))
AUTO = ScalarType(
    expected="a whole number or auto",
    parse=_whole_or_auto,
    schema={"anyOf": [{"type": "integer"}, {"const": "auto"}, PARAMETER]},
)
NUMBER = ScalarType(expected="a number", parse=_number, schema=_or_parameter("number"))
AS_WRITTEN = ScalarType(expected="a number", parse=_as_written, schema=NUMBER.schema)
FLAG = ScalarType(expected="true or false", parse=_flag, schema=_or_parameter("boolean"))
DURATION = _unit(parse_seconds, "a duration such as 5m", "ms|[sS]|m|min|[hH]|[dD]|[wW]")
PERIOD = _unit(parse_period, "a period such as 5m, 7d or 6mo", "ms|[sS]|m|min|[hH]|[dD]|[wW]|mo|y")
MONEY = ScalarType(
    expected="an amount of money such as 2.50",
    parse=_with_unit(parse_micros, "an amount of money such as 2.50"),
    schema={"anyOf": [{"type": "number", "minimum": 0}, PARAMETER]},
)
SIZE = _unit(parse_bytes, "a size such as 2GiB", "[kKmMgGtT]([iI]?B)?|[kmgt]i?b|[bB]")
REACH_BACK = ScalarType(
    expected="a duration such as 5m, or all",
    parse=_duration_or_all,
    schema={"anyOf": [{"const": "all"}, *DURATION.schema["anyOf"]]},
)
COUNT = _unit(parse_count, "a count such as 42 or 1M", "[kKmMbB]")

PLAIN: dict[object, ScalarType] = {str: TEXT, int: WHOLE, float: NUMBER, bool: FLAG}
