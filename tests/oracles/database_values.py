"""What the values of each type of a database become.

The rules are those of docs/how-to/sources.md, "What the types of a database become". Each kind names the
row of that table. Texts are as the manuals of PostgreSQL, MariaDB and SQLite write them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import inf, nan

Rule = Callable[[Sequence[object]], list[object]]
"""What the values of one column become: one value can decide on the type of all."""


def as_is(values: Sequence[object]) -> list[object]:
    return list(values)


def whole(values: Sequence[object]) -> list[object]:
    """Integers; texts where one is beyond 64 bits."""
    fits = all(-(2**63) <= value < 2**63 for value in values if isinstance(value, int))
    return list(values) if fits else [None if value is None else str(value) for value in values]


def decimals(values: Sequence[object]) -> list[object]:
    """The nearest floats."""
    return [None if value is None else float(str(value)) for value in values]


@dataclass(frozen=True)
class Kind:
    """A type of a database, with values in SQL and what they become."""

    row: str
    """The row of the documents' table."""
    type: str
    values: tuple[tuple[str, object], ...]
    rule: Rule = as_is
    refused: tuple[tuple[str, str], ...] = ()
    """Values that are errors, and how the error shows them."""
    texts: tuple[tuple[str, str], ...] = ()
    """Values, and what they are in a column that is declared `string`."""
    in_query: bool = True
    """Whether a query is to give the same: SQLite's types are those that a table declares."""


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]


def numbers(*values: int) -> tuple[tuple[str, object], ...]:
    return tuple((str(value), value) for value in values)


def digits(*values: str) -> tuple[tuple[str, object], ...]:
    return tuple((value, Decimal(value)) for value in values)


def texts(*values: str) -> tuple[tuple[str, object], ...]:
    return tuple((f"'{value.replace(chr(39), chr(39) * 2)}'", value) for value in values)


def casts(type_: str, *values: str) -> tuple[tuple[str, object], ...]:
    """Values that are written and read alike."""
    return tuple((f"'{value}'::{type_}", value) for value in values)


def singles(*values: str) -> tuple[tuple[str, object], ...]:
    """Written with the fewest digits."""
    return tuple((f"'{value}'::real", float(value)) for value in values)


MAX, MIN = 2**63 - 1, -(2**63)
WHOLE = "whole numbers, also decimals without digits behind the point"
DECIMALS = "decimals"
FLOATS = "numbers of double and single precision"
BOOLEANS = "booleans"
DATES, TIMES = "dates", "times"
SPANS = "intervals"
WRITTEN = "times of day, JSON, ranges, enumerations, sets, UUIDs, addresses"
ARRAYS = "arrays"
BYTES = "binary strings"
PLAIN = "text"
"""No row of the table: a text is a text."""

ODD = (
    "",
    " ",
    "a'b",
    'a"b',
    "a,b",
    "null",
    "NaN",
    "ä",
    "e\u0301",
    "😀",
    "\U0010ffff",
    "\u0001",
    "x\ny",
    "x\r\ny",
    "\t",
)
LONG = "9" * 30
TEXT_ROWS = texts(*ODD, "\ufffd", "x" * 3000)
BACKSLASHED = texts("\\", "a\\b", "\\N", "\\x00")
"""In MariaDB a backslash must be doubled."""

MICRO = timedelta(microseconds=1)
LAST = datetime.max.replace(tzinfo=UTC)

POSTGRESQL: tuple[Kind, ...] = (
    Kind(WHOLE, "smallint", numbers(-32768, 32767, 0)),
    Kind(WHOLE, "integer", numbers(-(2**31), 2**31 - 1, -1)),
    Kind(WHOLE, "bigint", numbers(MIN, MAX, 2**53 + 1, -(2**53) - 1)),
    Kind(WHOLE, "oid", numbers(0, 2**32 - 1)),
    Kind(WHOLE, "numeric(20, 0)", numbers(10**20 - 1, 1 - 10**20, MAX, MIN, 2**53 + 1, 0), whole),
    Kind(WHOLE, "numeric(38, 0)", numbers(10**38 - 1, MAX + 1, MIN - 1, 7), whole),
    Kind(
        DECIMALS,
        "numeric(38, 20)",
        digits("123456789012345678.12345678901234567891", "-0.00000000000000000001", "0.1", "1.5"),
        decimals,
        texts=(
            ("123456789012345678.12345678901234567891", "123456789012345678.12345678901234567891"),
            ("1.5", "1.50000000000000000000"),
            ("1e-20", "0.00000000000000000001"),
            ("999999999999999999.99999999999999999999", "999999999999999999.99999999999999999999"),
            ("'NaN'", "NaN"),
        ),
    ),
    Kind(
        DECIMALS, "numeric(9, 2)", (*digits("9999999.99", "-0.01", "12.55", "0.10"), ("'NaN'", nan)), decimals
    ),
    Kind(
        DECIMALS,
        "numeric",
        (
            *digits("0.1", "1e-300", "123456789012345678901234567890.5", f"1.{LONG}", f"{'9' * 300}.5"),
            ("'Infinity'", inf),
        ),
        decimals,
        texts=(
            (f"{LONG}.{LONG}", f"{LONG}.{LONG}"),
            ("1.10", "1.10"),
            ("1e-30", "0.000000000000000000000000000001"),
            ("1e50", "1" + "0" * 50),
            ("1e400", "1" + "0" * 400),
            ("'-Infinity'", "-Infinity"),
            ("2", "2"),
        ),
    ),
    Kind(
        FLOATS,
        "real",
        singles(
            "0.1", "3.4028235e38", "-3.4028235e38", "1e-45", "1.1754944e-38", "16777216", "-0", "nan", "inf"
        ),
    ),
    Kind(
        FLOATS,
        "double precision",
        tuple(
            (f"'{v}'::float8", float(v))
            for v in ("0.1", "1.7976931348623157e308", "5e-324", "-0", "nan", "-inf", "1e22")
        ),
    ),
    Kind(BOOLEANS, "boolean", (("true", True), ("false", False))),
    Kind(
        DATES,
        "date",
        (
            ("'0001-01-01'", date.min),
            ("'9999-12-31'", date.max),
            ("'2024-02-29'", date(2024, 2, 29)),
            ("'1582-10-10'", date(1582, 10, 10)),
        ),
        refused=(
            ("'infinity'", "infinity"),
            ("'-infinity'", "-infinity"),
            ("'4713-01-01 BC'", "4713-01-01 BC"),
            ("'0001-12-31 BC'", "0001-12-31 BC"),
            ("'10000-01-01'", "10000-01-01"),
            ("'5874897-12-31'", "5874897-12-31"),
        ),
        texts=(
            ("'infinity'", "infinity"),
            ("'0001-12-31 BC'", "0001-12-31 BC"),
            ("'2024-02-29'", "2024-02-29"),
        ),
    ),
    Kind(
        TIMES,
        "timestamp",
        (
            ("'0001-01-01'", at(1, 1, 1)),
            ("'9999-12-31 23:59:59.999999'", LAST),
            ("'2024-03-31 02:30:00.000001'", at(2024, 3, 31, 2, 30, 0, 1)),
            ("'1969-12-31 23:59:59.999999'", at(1970, 1, 1) - MICRO),
        ),
        refused=(
            ("'infinity'", "infinity"),
            ("'10000-01-01'", "10000-01-01 00:00:00"),
            ("'0001-12-31 23:59:59.999999 BC'", "0001-12-31 23:59:59.999999 BC"),
            ("'294276-12-31 23:59:59.999999'", "294276-12-31 23:59:59.999999"),
        ),
        texts=(("'2024-03-31 02:30'", "2024-03-31 02:30:00.000000Z"), ("'-infinity'", "-infinity")),
    ),
    Kind(TIMES, "timestamp(0)", (("'2024-03-31 02:30:00.6'", at(2024, 3, 31, 2, 30, 1)),)),
    Kind(
        TIMES,
        "timestamptz",
        (
            ("'0001-01-01 00:00+00'", at(1, 1, 1)),
            ("'9999-12-31 23:59:59.999999+00'", LAST),
            ("'2024-10-27 02:30+02'", at(2024, 10, 27, 0, 30)),
            ("'2024-10-27 02:30+01'", at(2024, 10, 27, 1, 30)),
        ),
        refused=(
            ("'infinity'", "infinity"),
            ("'9999-12-31 23:59:59-10'", "10000-01-01 09:59:59+00"),
            ("'0001-01-01 00:00+10'", "0001-12-31 14:00:00+00 BC"),
        ),
        texts=(("'2024-10-27 02:30+01'", "2024-10-27 01:30:00.000000Z"), ("'infinity'", "infinity")),
    ),
    Kind(
        SPANS,
        "interval",
        (
            ("'1 day -2:03:04.5'", 86_400 - 7384.5),
            ("'0.000001 s'", 1e-6),
            ("'-10 days'", -864_000.0),
            ("'12 mons -1 year'", 0.0),
            ("'2147483647 days'", 2147483647 * 86400.0),
            ("'2562047788:00:54.775807'", 9223372036854.775807),
        ),
        refused=(
            ("'1 mon'", "1 mon"),
            ("'1 mon -30 days'", "1 mon -30 days"),
            ("'-1 years'", "-1 years"),
            ("'178000000 years'", "178000000 years"),
        ),
        texts=(("'1 mon'", "1 mon"), ("'1 day -2:03:04.5'", "1 day -02:03:04.5"), ("'0'", "00:00:00")),
    ),
    Kind(
        WRITTEN,
        "time",
        (
            ("'24:00'", "24:00:00"),
            ("'0:0'", "00:00:00"),
            ("'23:59:59.999999'", "23:59:59.999999"),
            ("'1:2:3.10'", "01:02:03.1"),
        ),
    ),
    Kind(
        WRITTEN,
        "timetz",
        (("'10:30:00.5+02'", "10:30:00.5+02"), ("'23:59:59.999999-15:59'", "23:59:59.999999-15:59")),
    ),
    Kind(
        WRITTEN,
        "json",
        texts('{"a": 1.10, "a":2}', "null", '"1"', "1", '{"b":  [1e400]}', '"\\ud83d\\ude00"'),
    ),
    Kind(
        WRITTEN,
        "jsonb",
        (
            ("'{\"a\":1.10}'", '{"a": 1.10}'),
            ("'null'", "null"),
            ("'\"1\"'", '"1"'),
            ("'1e2'", "100"),
            ("'123456789012345678901234567890.10'", "123456789012345678901234567890.10"),
        ),
    ),
    Kind(WRITTEN, "int4range", (("'[1,5]'", "[1,6)"), ("'empty'", "empty"), ("'(,)'", "(,)"))),
    Kind(WRITTEN, "numrange", (("'[1.10,5)'", "[1.10,5)"),)),
    Kind(
        WRITTEN, "tstzrange", (("'[2024-01-01 00:00+02,infinity]'", '["2023-12-31 22:00:00+00",infinity]'),)
    ),
    Kind(WRITTEN, "daterange", (("'[2024-01-01,infinity)'", "[2024-01-01,infinity)"),)),
    Kind(WRITTEN, "int4multirange", (("'{[1,3),[5,7)}'", "{[1,3),[5,7)}"),)),
    Kind(WRITTEN, "mood", (("'sad'", "sad"), ("'very happy'", "very happy"))),
    Kind(
        WRITTEN, "uuid", (("'6CCD780C-baba-1026-9564-5b8c656024db'", "6ccd780c-baba-1026-9564-5b8c656024db"),)
    ),
    Kind(
        WRITTEN, "inet", (("'10.0.0.1/24'", "10.0.0.1/24"), ("'::1'", "::1"), ("'10.0.0.1/32'", "10.0.0.1"))
    ),
    Kind(WRITTEN, "cidr", (("'10.0.0.0/8'", "10.0.0.0/8"), ("'10.0.0.1'", "10.0.0.1/32"))),
    Kind(WRITTEN, "macaddr", (("'08-00-2B-01-02-03'", "08:00:2b:01:02:03"),)),
    Kind(
        ARRAYS,
        "integer[]",
        (("'{1,NULL}'", "[1, null]"), ("'{}'", "[]"), ("'{{1,2},{3,4}}'", "[[1, 2], [3, 4]]")),
    ),
    Kind(
        ARRAYS,
        "text[]",
        (
            ('\'{"a,b",NULL,"NULL"}\'', '["a,b", null, "NULL"]'),
            ("ARRAY['😀', '\"', '\\']", '["😀", "\\"", "\\\\"]'),
        ),
    ),
    Kind(ARRAYS, "boolean[]", (("'{t,f}'", "[true, false]"),)),
    Kind(ARRAYS, "bigint[]", ((f"ARRAY[{MAX}, {MIN}]", f"[{MAX}, {MIN}]"),)),
    Kind(ARRAYS, "float8[]", (("'{0.1,1e300}'", "[0.1, 1e+300]"),)),
    Kind(ARRAYS, "numeric[]", (("'{1.10}'", '["1.10"]'), (f"'{{{LONG}.5}}'", f'["{LONG}.5"]'))),
    Kind(
        BYTES,
        "bytea",
        (
            ("''", b""),
            ("'\\x00ff'", b"\x00\xff"),
            (f"decode('{bytes(range(256)).hex()}', 'hex')", bytes(range(256))),
        ),
    ),
    Kind("", "bit(3)", (("b'101'", "101"), ("b'000'", "000"))),
    Kind("", "bit varying", (("b''", ""), ("b'0101'", "0101"))),
    Kind("", "money", (("12.5", "$12.50"), ("'-92233720368547758.08'", "-$92,233,720,368,547,758.08"))),
    Kind("", "xml", texts("<a/>", "<a>ä</a>")),
    Kind("", "point", (("'(1,2)'", "(1,2)"),)),
    Kind("", "tsvector", (("'a b'", "'a' 'b'"),)),
    Kind("", "pair", (("ROW(1, 'a b')", '(1,"a b")'),)),
    Kind(PLAIN, "text", (*TEXT_ROWS, *BACKSLASHED)),
    Kind(PLAIN, "varchar(5)", texts("", "a  ", "😀😀😀😀😀")),
    Kind(PLAIN, "char(3)", (("'ä'", "ä  "), ("''", "   "), ("'abc'", "abc"))),
    Kind(PLAIN, "name", texts("x")),
    Kind(PLAIN, '"char"', texts("x")),
    Kind(PLAIN, "citext", texts("aB", "")),
    Kind(WHOLE, "positive", numbers(1, 2**31 - 1)),
    Kind(
        DECIMALS,
        "price",
        digits("0.10", "12345678901234.55"),
        decimals,
        texts=(("12345678901234.55", "12345678901234.55"),),
    ),
)

POSTGRESQL_MADE = (
    "CREATE TYPE mood AS ENUM ('sad', 'very happy')",
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE DOMAIN positive AS integer CHECK (VALUE > 0)",
    "CREATE DOMAIN price AS numeric(20, 2)",
    "CREATE EXTENSION citext",
)
"""What the types above need."""

MARIADB: tuple[Kind, ...] = (
    Kind(WHOLE, "tinyint", numbers(-128, 127)),
    Kind(WHOLE, "tinyint unsigned", numbers(0, 255)),
    Kind(WHOLE, "mediumint", numbers(-(2**23), 2**23 - 1)),
    Kind(WHOLE, "int(6) zerofill", numbers(42, 0)),
    Kind(WHOLE, "int unsigned", numbers(0, 2**32 - 1)),
    Kind(WHOLE, "bigint", numbers(MIN, MAX, 2**53 + 1)),
    Kind(WHOLE, "bigint unsigned", numbers(0, MAX, MAX + 1, 2**64 - 1, 2**53 + 1), whole),
    Kind(WHOLE, "decimal(20, 0)", numbers(10**20 - 1, 1 - 10**20, MAX, 0), whole),
    Kind(WHOLE, "decimal(65, 0)", numbers(10**65 - 1, MIN, 3), whole),
    Kind(WHOLE, "year", numbers(1901, 2155, 0)),
    Kind(
        DECIMALS,
        "decimal(65, 30)",
        digits(f"12345678901234567890123456789012345.{LONG}", "0.1", "-0.000000000000000000000000000001"),
        decimals,
        texts=(
            (f"12345678901234567890123456789012345.{LONG}", f"12345678901234567890123456789012345.{LONG}"),
            ("1.5", "1.5" + "0" * 29),
        ),
    ),
    Kind(
        DECIMALS,
        "decimal(9, 2)",
        digits("12.55", "-9999999.99", "0.10"),
        decimals,
        texts=(("12.5", "12.50"), ("-0.01", "-0.01")),
    ),
    Kind(
        FLOATS,
        "float",
        (
            ("0.1", 0.1),
            ("3.40282e38", 3.40282e38),
            ("16777216", 16777216.0),
            ("1.5e-45", 1e-45),
            ("1.1754944e-38", 1.1754944e-38),
        ),
    ),
    Kind(
        FLOATS,
        "double",
        (
            ("0.1", 0.1),
            ("1.7976931348623157e308", 1.7976931348623157e308),
            ("2.2250738585072014e-308", 2.2250738585072014e-308),
            ("1e22", 1e22),
            ("5e-324", 5e-324),
        ),
    ),
    Kind(BOOLEANS, "boolean", (("true", 1), ("false", 0))),
    Kind(
        DATES,
        "date",
        (("'0001-01-01'", date.min), ("'9999-12-31'", date.max), ("'2024-02-29'", date(2024, 2, 29))),
        refused=(
            ("'0000-00-00'", "0000-00-00"),
            ("'2024-00-00'", "2024-00-00"),
            ("'0000-01-01'", "0000-01-01"),
            ("'2024-01-00'", "2024-01-00"),
        ),
        texts=(
            ("'0000-00-00'", "0000-00-00"),
            ("'2024-00-00'", "2024-00-00"),
            ("'2024-02-29'", "2024-02-29"),
        ),
    ),
    Kind(
        TIMES,
        "datetime(6)",
        (
            ("'0001-01-01'", at(1, 1, 1)),
            ("'9999-12-31 23:59:59.999999'", LAST),
            ("'2024-03-31 02:30:00.000001'", at(2024, 3, 31, 2, 30, 0, 1)),
        ),
        refused=(
            ("'0000-00-00'", "0000-00-00 00:00:00.000000"),
            ("'2024-00-01 10:00'", "2024-00-01 10:00:00.000000"),
        ),
        texts=(
            ("'0000-00-00'", "0000-00-00 00:00:00.000000"),
            ("'2024-03-31 02:30:00.5'", "2024-03-31 02:30:00.500000Z"),
        ),
    ),
    Kind(
        TIMES,
        "datetime",
        (("'2024-10-27 02:30:00'", at(2024, 10, 27, 2, 30)),),
        texts=(("'2024-10-27 02:30'", "2024-10-27 02:30:00.000000Z"),),
    ),
    Kind(
        TIMES,
        "timestamp(6) null",
        (
            ("'1970-01-01 00:00:01'", at(1970, 1, 1, 0, 0, 1)),
            ("'2038-01-19 03:14:07.999999'", at(2038, 1, 19, 3, 14, 7, 999999)),
            ("'2024-10-27 00:30:00'", at(2024, 10, 27, 0, 30)),
            ("'2024-10-27 01:30:00.5'", at(2024, 10, 27, 1, 30, 0, 500000)),
            ("'2024-03-31 01:00:00'", at(2024, 3, 31, 1)),
        ),
        texts=(("'2024-10-27 00:30:00'", "2024-10-27 00:30:00.000000Z"),),
    ),
    Kind(
        WRITTEN,
        "time(6)",
        (
            ("'838:59:59.999999'", "838:59:59.999999"),
            ("'-838:59:59'", "-838:59:59.000000"),
            ("'-00:00:00.5'", "-00:00:00.500000"),
            ("'25:00'", "25:00:00.000000"),
        ),
    ),
    Kind(WRITTEN, "time", (("'0:0:0'", "00:00:00"), ("'10:30'", "10:30:00"), ("'-1:00:00'", "-01:00:00"))),
    Kind(WRITTEN, "enum('x', 'y z', '')", texts("x", "y z", "")),
    Kind(WRITTEN, "set('a', 'b', 'c')", (("'c,a'", "a,c"), ("''", ""), ("'a,b,c'", "a,b,c"))),
    Kind(WRITTEN, "json", texts('{"a": 1.10, "a":2}', "null", '"1"')),
    Kind(
        WRITTEN, "uuid", (("'6CCD780C-baba-1026-9564-5b8c656024db'", "6ccd780c-baba-1026-9564-5b8c656024db"),)
    ),
    Kind(WRITTEN, "inet6", (("'::1'", "::1"), ("'2001:DB8::1'", "2001:db8::1"))),
    Kind(WRITTEN, "inet4", (("'10.0.0.1'", "10.0.0.1"),)),
    Kind(BYTES, "bit(1)", (("b'1'", 1), ("b'0'", 0))),
    Kind(BYTES, "bit(64)", ((f"b'{1:b}'", 1), (f"b'{MAX:b}'", MAX), (f"b'{2**64 - 1:b}'", 2**64 - 1)), whole),
    Kind(
        BYTES,
        "blob",
        (("''", b""), ("x'00ff'", b"\x00\xff"), (f"x'{bytes(range(256)).hex()}'", bytes(range(256)))),
    ),
    Kind(BYTES, "binary(3)", (("x'61'", b"a\x00\x00"),)),
    Kind(BYTES, "varbinary(9)", (("x'6100'", b"a\x00"), ("''", b""))),
    Kind(PLAIN, "text", (*TEXT_ROWS, ("'a\\\\b'", "a\\b"), ("x'610062'", "a\x00b"))),
    Kind(PLAIN, "varchar(5)", texts("a  ", "", "😀😀😀😀😀")),
    Kind(PLAIN, "char(3)", (("'ä '", "ä"), ("''", ""))),
    Kind(PLAIN, "varchar(9) character set latin1", texts("é", "ÿ€")),
    Kind(PLAIN, "varchar(9) character set utf16", texts("é😀")),
    Kind(PLAIN, "longtext", texts("x" * 5000)),
)

SQLITE: tuple[Kind, ...] = (
    Kind(WHOLE, "INTEGER", numbers(MIN, MAX, 0, 2**53 + 1)),
    Kind(WHOLE, "BIGINT", numbers(MIN, MAX)),
    Kind(WHOLE, "TINYINT", numbers(1, MAX)),
    Kind(
        FLOATS,
        "REAL",
        (
            ("0.1", 0.1),
            ("5", 5.0),
            ("9e999", inf),
            ("1.7976931348623157e308", 1.7976931348623157e308),
            ("5e-324", 5e-324),
        ),
    ),
    Kind(FLOATS, "DOUBLE", (("1e22", 1e22), ("-1.5", -1.5))),
    Kind(DECIMALS, "DECIMAL(8, 2)", (("12.55", 12.55), ("0.125", 0.125))),
    Kind(BOOLEANS, "BOOLEAN", (("1", True), ("0", False)), in_query=False),
    Kind(
        DATES,
        "DATE",
        (("'2024-02-29'", date(2024, 2, 29)), ("'0001-01-01'", date.min), ("'9999-12-31'", date.max)),
        in_query=False,
    ),
    Kind(
        TIMES,
        "TIMESTAMP",
        (
            ("'2024-03-31 02:30:00.5'", at(2024, 3, 31, 2, 30, 0, 500000)),
            ("'2024-03-31 02:30:00'", at(2024, 3, 31, 2, 30)),
            ("'9999-12-31 23:59:59.999999'", LAST),
            ("'2024-03-31T02:30:00Z'", at(2024, 3, 31, 2, 30)),
            ("'2024-03-31 02:30:00+02:00'", at(2024, 3, 31, 0, 30)),
        ),
        in_query=False,
    ),
    Kind(TIMES, "DATETIME", (("1704103200", 1704103200), ("0", 0))),
    Kind(PLAIN, "TEXT", (*TEXT_ROWS, *BACKSLASHED, ("'a' || char(0) || 'b'", "a\x00b"))),
    Kind(PLAIN, "VARCHAR(3)", texts("longer than three", "a  ")),
    Kind(PLAIN, "", texts("x", "ä")),
    Kind(WHOLE, "", numbers(MAX, MIN)),
    Kind(BYTES, "BLOB", (("x''", b""), ("x'00ff'", b"\x00\xff"))),
)
