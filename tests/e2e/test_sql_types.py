"""Every type of PostgreSQL, MariaDB and SQLite arrives as the documentation promises, by table or query."""

import sqlite3
from datetime import UTC, date, datetime
from math import inf, isnan
from pathlib import Path
from typing import Any

import pytest

from gridmill.domain.sink import ColumnType, SinkSpec
from gridmill.domain.source import Source, SqlSource
from gridmill.errors import DataError, InputError
from gridmill.jobs.sink.run import run
from tests.kit.mariadb import MariadbServer, mariadb_server
from tests.kit.postgresql import PostgresqlServer
from tests.kit.sink_case import SinkCase

pytestmark = pytest.mark.e2e

Values = dict[str, tuple[str, str, object]]
"""By column: its type, a value in SQL, and what arrives."""


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]


POSTGRESQL: Values = {
    "small": ("smallint", "-32768", -32768),
    "big": ("bigint", "-9223372036854775808", -(2**63)),
    "two_digits": ("numeric(9, 2)", "12.55", 12.55),
    "no_digits": ("numeric(9, 0)", "7", 7),
    "long_number": ("numeric(20, 0)", "99999999999999999999", "99999999999999999999"),
    "any_number": ("numeric", "0.1", 0.1),
    "single": ("real", "0.1", 0.1),
    "double": ("float8", "5e-324", 5e-324),
    "endless": ("float8", "'-Infinity'", -inf),
    "money": ("money", "12.5", "$12.50"),
    "yes": ("boolean", "true", True),
    "bits": ("bit(3)", "b'101'", "101"),
    "skipped_hour": ("timestamp", "'2024-03-31 02:30:00.123456'", at(2024, 3, 31, 2, 30, 0, 123456)),
    "zoned": ("timestamptz", "'2024-10-27 02:30:00+01'", at(2024, 10, 27, 1, 30)),
    "first_day": ("date", "'0001-01-01'", date.min),
    "last_day": ("date", "'9999-12-31'", date.max),
    "clock": ("time", "'24:00'", "24:00:00"),
    "zoned_clock": ("timetz", "'10:30:00.5+02'", "10:30:00.5+02"),
    "span": ("interval", "'1 day -2:03:04.5'", 86_400 - 7384.5),
    "longest": ("interval", "'2147483647 days'", 2_147_483_647 * 86_400.0),
    "longest_time": ("interval", "'-2562047788:00:54.775807'", -9_223_372_036_854.775807),
    "padded": ("char(3)", "'ä'", "ä  "),
    "empty": ("text", "''", ""),
    "raw": ("bytea", r"'\x00ff'", b"\x00\xff"),
    "json": ("json", """'{"a": 1.10, "a":2}'""", '{"a": 1.10, "a":2}'),
    "jsonb": ("jsonb", """'{"a": 1.10}'""", '{"a": 1.10}'),
    "json_null": ("jsonb", "'null'", "null"),
    "json_text": ("jsonb", """'"1"'""", '"1"'),
    "uuid": ("uuid", "'6CCD780C-baba-1026-9564-5b8c656024db'", "6ccd780c-baba-1026-9564-5b8c656024db"),
    "host": ("inet", "'10.0.0.1/24'", "10.0.0.1/24"),
    "network": ("cidr", "'10.0.0.0/8'", "10.0.0.0/8"),
    "list": ("int[]", "'{1,NULL}'", "[1, null]"),
    "decimals": ("numeric[]", "'{1.10}'", '["1.10"]'),
    "words": ("text[]", """'{ä,"\\"",😀}'""", '["ä", "\\"", "😀"]'),
    "not_json": ("float8[]", "'{{0.1,NaN},{-Infinity,NULL}}'", '[[0.1, "NaN"], ["-Infinity", null]]'),
    "bytes": ("bytea[]", r"""'{"\\x00ff"}'""", r'["\\x00ff"]'),
    "ranges": ("int4multirange", "'{[1,3),[5,7)}'", "{[1,3),[5,7)}"),
    "range": ("daterange", "'[2024-01-01,infinity)'", "[2024-01-01,infinity)"),
    "point": ("point", "'(1,2)'", "(1,2)"),
    "xml": ("xml", "'<a/>'", "<a/>"),
}

MARIADB: Values = {
    "tiny": ("tinyint", "-128", -128),
    "yes": ("boolean", "true", 1),
    "big": ("bigint", "-9223372036854775808", -(2**63)),
    "unsigned": ("bigint unsigned", "9223372036854775807", 2**63 - 1),
    "larger": ("bigint unsigned", "18446744073709551615", "18446744073709551615"),
    "two_digits": ("decimal(9, 2)", "12.55", 12.55),
    "no_digits": ("decimal(9, 0)", "7", 7),
    "long_number": ("decimal(20, 0)", "99999999999999999999", "99999999999999999999"),
    "double": ("double", "0.1", 0.1),
    "bit": ("bit(1)", "b'1'", 1),
    "bits": ("bit(64)", "b'100000001'", 257),
    "skipped_hour": ("datetime(6)", "'2024-03-31 02:30:00.123456'", at(2024, 3, 31, 2, 30, 0, 123456)),
    "moment": ("timestamp(6) null", "'2024-03-30 02:30:00.5'", at(2024, 3, 30, 2, 30, 0, 500000)),
    "last_day": ("date", "'9999-12-31'", date.max),
    "clock": ("time(1)", "'25:00:00.5'", "25:00:00.5"),
    "before": ("time", "'-838:59:59'", "-838:59:59"),
    "year": ("year", "2024", 2024),
    "padded": ("char(3)", "'ä'", "ä"),
    "empty": ("varchar(3)", "''", ""),
    "raw": ("blob", "x'00ff'", b"\x00\xff"),
    "padded_raw": ("binary(3)", "x'61'", b"a\x00\x00"),
    "one_of": ("enum('x', 'y')", "'y'", "y"),
    "some_of": ("set('a', 'b')", "'b,a'", "a,b"),
    "json": ("json", """'{"a": 1.10, "a":2}'""", '{"a": 1.10, "a":2}'),
    "uuid": ("uuid", "'6ccd780c-baba-1026-9564-5b8c656024db'", "6ccd780c-baba-1026-9564-5b8c656024db"),
    "host": ("inet6", "'::1'", "::1"),
}

SQLITE: Values = {
    "whole": ("INTEGER", "-9223372036854775808", -(2**63)),
    "half_a_whole": ("INTEGER", "1.5", 1.5),
    "real": ("REAL", "0.1", 0.1),
    "decimal": ("DECIMAL(8, 2)", "12.55", 12.55),
    "more_digits": ("DECIMAL(8, 2)", "0.125", 0.125),
    "yes": ("BOOLEAN", "1", True),
    "two": ("BOOLEAN", "2", 2),
    "written": ("TIMESTAMP", "'2024-03-31 02:30:00.5'", at(2024, 3, 31, 2, 30, 0, 500000)),
    "counted": ("DATETIME", "1704103200", 1704103200),
    "day": ("DATE", "'2024-02-29'", date(2024, 2, 29)),
    "text": ("TEXT", "'ä'", "ä"),
    "raw": ("BLOB", "x'00ff'", b"\x00\xff"),
}


def statements(values: Values) -> tuple[str, str, str]:
    """A table `kinds` with the values in its first row, and none in its second."""
    columns = ", ".join(f"{name}_ {type_}" for name, (type_, _, _) in values.items())
    given = ", ".join(value for _, value, _ in values.values())
    return (
        f"CREATE TABLE kinds (row_number_ int, {columns})",
        f"INSERT INTO kinds VALUES (1, {given})",
        f"INSERT INTO kinds VALUES (2{', NULL' * len(values)})",
    )


def load(case: SinkCase, url: str, columns: dict[str, ColumnType] | None = None, **sql: Any) -> None:
    run(case.context(SinkSpec(source=Source(sql=SqlSource(url=url, **sql)), columns=columns or {})))


def check(case: SinkCase, values: Values) -> None:
    """Compare the first row's values and their types; nothing is in the second."""
    first, second = sorted(case.rows(), key=lambda row: row["row_number_"])
    got = {name: first[f"{name}_"] for name in values}
    assert got == {name: value for name, (_, _, value) in values.items()}
    assert {name: type(value) for name, value in got.items()} == {
        name: type(value) for name, (_, _, value) in values.items()
    }
    assert {second[f"{name}_"] for name in values} == {None}


FROM = pytest.mark.parametrize(
    "source", [{"table": "kinds"}, {"query": "SELECT * FROM kinds"}], ids=["table", "query"]
)


@FROM
def test_postgresql(postgresql: PostgresqlServer, tmp_path: Path, source: dict[str, str]) -> None:
    database = postgresql.create_database()
    postgresql.execute(f"ALTER DATABASE {database} SET timezone = 'Europe/Berlin'")
    postgresql.execute(f"ALTER DATABASE {database} SET IntervalStyle = 'iso_8601'")
    for statement in statements(POSTGRESQL):
        postgresql.execute(statement, database)
    case = SinkCase(tmp_path)
    load(case, postgresql.socket_url(database), **source)
    check(case, POSTGRESQL)


@FROM
def test_mariadb(mariadb: MariadbServer, tmp_path: Path, source: dict[str, str]) -> None:
    database = mariadb.create_database()
    for statement in statements(MARIADB):
        mariadb.execute(f"SET STATEMENT time_zone = '+00:00' FOR {statement}", database)
    case = SinkCase(tmp_path)
    load(case, mariadb.url(database), **source)
    check(case, MARIADB)


def test_sqlite(tmp_path: Path) -> None:
    case = SinkCase(tmp_path)
    with sqlite3.connect(case.folder / "kinds.db") as database:
        for statement in statements(SQLITE):
            database.execute(statement)
    load(case, "sqlite:///kinds.db", table="kinds")
    check(case, SQLITE)


@FROM
def test_a_single_of_mariadb_keeps_its_digits(
    mariadb: MariadbServer, tmp_path: Path, source: dict[str, str]
) -> None:
    database = mariadb.create_database()
    mariadb.execute("CREATE TABLE kinds (f float)", database)
    mariadb.execute("INSERT INTO kinds VALUES (0.1), (16777216), (1.5e-45), (3.40282e38), (NULL)", database)
    case = SinkCase(tmp_path)
    load(case, mariadb.url(database), **source)
    assert [row["f"] for row in case.rows()] == [0.1, 16777216.0, 1e-45, 3.40282e38, None]


def test_nan_of_postgresql_beside_decimals(postgresql: PostgresqlServer, tmp_path: Path) -> None:
    database = postgresql.create_database()
    postgresql.execute(
        "CREATE TABLE kinds AS SELECT * FROM (VALUES (0.1), ('NaN'::numeric)) AS t (n)", database
    )
    case = SinkCase(tmp_path)
    load(case, postgresql.socket_url(database), table="kinds")
    number, nan = (row["n"] for row in case.rows())
    assert number == 0.1
    assert isnan(nan)
    case = SinkCase(tmp_path / "texts")
    load(case, postgresql.socket_url(database), {"n": ColumnType.STRING}, table="kinds")
    assert [row["n"] for row in case.rows()] == ["0.1", "NaN"]


@pytest.mark.parametrize(
    ("kind", "value", "written"),
    [
        ("timestamp", "infinity", "infinity"),
        ("timestamptz", "-infinity", "-infinity"),
        ("date", "infinity", "infinity"),
        ("date", "0044-03-15 BC", "0044-03-15 BC"),
        ("timestamptz", "9999-12-31 23:59:59-10", "10000-01-01 09:59:59+00"),
        ("interval", "1 mon", "1 mon"),
        ("interval", "-1 years", "-1 years"),
    ],
)
def test_what_no_type_holds_is_refused_and_can_be_a_text(
    postgresql: PostgresqlServer, tmp_path: Path, kind: str, value: str, written: str
) -> None:
    database = postgresql.create_database()
    postgresql.execute(f"CREATE TABLE kinds AS SELECT '{value}'::{kind} AS c", database)
    url = postgresql.socket_url(database)
    with pytest.raises(DataError, match="column 'c' holds") as caught:
        load(SinkCase(tmp_path / "refused"), url, table="kinds")
    assert written in str(caught.value)
    assert "columns: {c: string}" in caught.value.hint
    case = SinkCase(tmp_path / "text")
    load(case, url, {"c": ColumnType.STRING}, table="kinds")
    assert case.rows() == [{"c": written}]


def test_decimals_of_any_length_become_floats_or_are_refused(
    postgresql: PostgresqlServer, tmp_path: Path
) -> None:
    database = postgresql.create_database()
    postgresql.execute("CREATE TABLE kinds (c numeric)", database)
    url = postgresql.socket_url(database)
    long = f"{'9' * 70}.{'9' * 70}"
    for number, value in enumerate(("1e-300", "1.5", f"{'9' * 300}.5", long, f"-0.{'0' * 200}1")):
        postgresql.execute(f"TRUNCATE kinds; INSERT INTO kinds VALUES ({value})", database)
        for source in ({"table": "kinds"}, {"query": "SELECT * FROM kinds"}):
            case = SinkCase(tmp_path / f"{number}-{len(source)}-{next(iter(source))}")
            load(case, url, **source)
            assert case.rows() == [{"c": float(value)}]
    for value in ("1e400", "-1e400 + 0.5"):
        postgresql.execute(f"TRUNCATE kinds; INSERT INTO kinds VALUES ({value}), (0.5)", database)
        with pytest.raises(DataError, match=r"column 'c' holds .*e[+]400, which is too large for a float"):
            load(SinkCase(tmp_path / f"refused {value}"), url, table="kinds")


def test_times_declared_as_texts_are_alike_beside_what_no_time_is(
    postgresql: PostgresqlServer, tmp_path: Path
) -> None:
    database = postgresql.create_database()
    postgresql.execute("CREATE TABLE kinds (id int, a timestamp, b timestamptz, c date)", database)
    insert = "INSERT INTO kinds VALUES ({}, '0044-03-15 02:30', '2024-10-27 02:30:00.5+01', '2024-03-31')"
    postgresql.execute(insert.format(1), database)
    case, texts = SinkCase(tmp_path), dict.fromkeys("abc", ColumnType.STRING)
    load(case, postgresql.socket_url(database), texts, table="kinds", cursor="id")
    postgresql.execute(insert.format(2), database)
    postgresql.execute("INSERT INTO kinds VALUES (3, 'infinity', 'infinity', 'infinity')", database)
    load(case, postgresql.socket_url(database), texts, table="kinds", cursor="id")
    rows = sorted(case.rows(), key=lambda row: row["id"])
    written = {"a": "0044-03-15 02:30:00.000000Z", "b": "2024-10-27 01:30:00.500000Z", "c": "2024-03-31"}
    assert [{name: row[name] for name in "abc"} for row in rows] == [
        written,
        written,
        dict.fromkeys("abc", "infinity"),
    ]


def test_a_date_of_zeros_is_refused_and_can_be_a_text(mariadb: MariadbServer, tmp_path: Path) -> None:
    database = mariadb.create_database()
    mariadb.execute("CREATE TABLE kinds (d date, t datetime)", database)
    mariadb.execute("SET STATEMENT sql_mode = '' FOR INSERT INTO kinds VALUES ('0000-00-00', 0)", database)
    with pytest.raises(DataError, match="column 'd' holds '0000-00-00'"):
        load(SinkCase(tmp_path / "refused"), mariadb.url(database), table="kinds")
    case = SinkCase(tmp_path / "text")
    texts = {"d": ColumnType.STRING, "t": ColumnType.STRING}
    load(case, mariadb.url(database), texts, table="kinds")
    assert case.rows() == [{"d": "0000-00-00", "t": "0000-00-00 00:00:00"}]


@pytest.mark.parametrize("as_query", [False, True])
def test_timestamps_of_a_server_in_another_zone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_query: bool
) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    with mariadb_server() as server:
        if server is None:
            pytest.skip("needs MariaDB's server: apt-get install mariadb-server")
        database = server.create_database()
        server.execute("CREATE TABLE seen (id int, at timestamp(1))", database)
        source = {"query": "SELECT * FROM seen"} if as_query else {"table": "seen"}
        case = SinkCase(tmp_path)
        begin = 1729983600  # 2024-10-26 23:00 in UTC: two hours before the clocks go back
        for number in range(12):
            statement = f"INSERT INTO seen VALUES ({number}, from_unixtime({begin + number * 1200}))"
            server.execute(f"SET STATEMENT time_zone = '+00:00' FOR {statement}", database)
            load(case, server.url(database), cursor="at", **source)
        rows = sorted(case.rows(), key=lambda row: row["id"])
        assert [row["id"] for row in rows] == list(range(12))
        assert [row["at"].timestamp() for row in rows] == [begin + n * 1200 for n in range(12)]


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("varchar(20)", ["'item-005'", "'Item-006'", "'item-007'"]),
        ("varchar(20) COLLATE utf8mb4_bin", ["'Item-005'", "'item-005'", "'item-006'"]),
        ("bigint unsigned", ["9007199254740993", "9007199254740994", "9223372036854775807"]),
        ("decimal(30, 10)", ["0.1", "12345678901234567890.1", "12345678901234567890.1000000001"]),
        ("double", ["0.1", "0.2", "0.3"]),
        ("float", ["0.1", "16777215", "16777216"]),
        ("datetime(6)", ["'2024-03-31 02:30'", "'2024-03-31 02:30:00.000001'", "'2024-10-27 02:30'"]),
        ("date", ["'2024-03-31'", "'2024-04-01'", "'2024-04-02'"]),
    ],
)
@pytest.mark.parametrize("lag", [None, 0])
@pytest.mark.parametrize("as_query", [False, True])
def test_each_row_is_loaded_once_whatever_the_cursor_holds(
    mariadb: MariadbServer, tmp_path: Path, kind: str, rows: list[str], lag: int | None, as_query: bool
) -> None:
    database = mariadb.create_database()
    mariadb.execute(f"CREATE TABLE seen (id int, c {kind})", database)
    source = {"query": "SELECT * FROM seen"} if as_query else {"table": "seen"}
    case = SinkCase(tmp_path)
    for number, row in enumerate(rows, start=1):
        mariadb.execute(f"INSERT INTO seen VALUES ({number}, {row})", database)
        if number == 1:  # a query that gives no row is refused
            continue
        for _ in range(2):
            load(case, mariadb.url(database), cursor="c", lag=lag, **source)
        loaded = number if lag is None else number - 1
        assert [row["id"] for row in case.rows()] == list(range(1, loaded + 1))


@pytest.mark.parametrize("type_", ["ENUM('b', 'a')", "SET('b', 'a')", "BLOB"])
def test_a_cursor_that_mariadb_sorts_and_compares_differently_is_refused(
    mariadb: MariadbServer, tmp_path: Path, type_: str
) -> None:
    database = mariadb.create_database()
    mariadb.execute(f"CREATE TABLE kinds (c {type_})", database)
    mariadb.execute("INSERT INTO kinds VALUES ('a'), ('b')", database)
    with pytest.raises(InputError, match=r"column 'c' has type .*, which cannot be a cursor"):
        load(SinkCase(tmp_path), mariadb.url(database), table="kinds", cursor="c")


@pytest.mark.parametrize("type_", ["uuid", "boolean", "jsonb", "bytea", "integer[]"])
def test_a_cursor_of_postgresql_that_is_no_number_time_or_text_is_refused(
    postgresql: PostgresqlServer, tmp_path: Path, type_: str
) -> None:
    database = postgresql.create_database()
    postgresql.execute(f"CREATE TABLE kinds (c {type_})", database)
    with pytest.raises(InputError, match=r"column 'c' has type .*, which cannot be a cursor"):
        load(SinkCase(tmp_path), postgresql.url(database), table="kinds", cursor="c")
