"""A sink over a real PostgreSQL: types, snapshots, passwords, and kills in the middle of loads."""

import os
import signal
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from gridmill.domain.artifact import Output
from gridmill.domain.sink import ColumnType, SinkSpec
from gridmill.domain.source import Source, SqlSource
from gridmill.errors import DataError, UnavailableError
from gridmill.jobs.sink.run import run
from gridmill.jobs.sink.source import SourceRequest, list_source_files
from tests.e2e.conftest import PATIENCE_SECONDS, Place, eventually
from tests.kit.postgresql import PostgresqlServer
from tests.kit.sink_case import SinkCase
from tests.oracles.dying import at_step

pytestmark = pytest.mark.e2e

PIPELINE = """\
pipeline: shop
jobs:
  sales:
    sink:
      source:
        sql:
          url: postgresql://gridmill:${env:SHOP_PASSWORD}@127.0.0.1:PORT/DATABASE
          table: sales
          cursor: id
"""


def load(case: SinkCase, url: str, **sql: object) -> Output:
    return run(case.context(SinkSpec(source=Source(sql=SqlSource(url=url, **sql))))).outputs[0]


def test_every_type_arrives_as_it_is(postgresql: PostgresqlServer, tmp_path: Path) -> None:
    database = postgresql.create_database()
    postgresql.execute(
        """CREATE TABLE kinds AS
        SELECT 1::bigint AS i, 2.5::float8 AS f, 12.50::numeric(9, 2) AS n, true AS b,
        'ä'::text AS s, DATE '2024-02-29' AS d, TIMESTAMP '2024-01-01 10:00:00.000001' AS t,
        TIMESTAMPTZ '2024-01-01 10:00:00+02' AS z, '\\x0001'::bytea AS raw, TIME '10:30' AS clock,
        '{"a": [1]}'::jsonb AS doc, NULL::int AS nothing, NULL::timestamptz AS never""",
        database,
    )
    case = SinkCase(tmp_path)
    load(case, postgresql.socket_url(database), table="kinds", cursor="i")
    (row,) = case.rows()
    assert row == {
        "i": 1,
        "f": 2.5,
        "n": 12.5,
        "b": True,
        "s": "ä",
        "d": date(2024, 2, 29),
        "t": datetime(2024, 1, 1, 10, 0, 0, 1, tzinfo=UTC),
        "z": datetime(2024, 1, 1, 8, tzinfo=UTC),
        "raw": b"\x00\x01",
        "clock": "10:30:00",
        "doc": '{"a": [1]}',
        "nothing": None,
        "never": None,
    }
    types = {item.name: str(item.type) for item in case.table().schema}
    assert (types["nothing"], types["never"]) == ("int64", "timestamp[us, tz=UTC]")


@pytest.mark.parametrize("as_query", [False, True])
def test_decimals_declared_as_texts_keep_every_digit(
    postgresql: PostgresqlServer, tmp_path: Path, as_query: bool
) -> None:
    database = postgresql.create_database()
    postgresql.execute(
        "CREATE TABLE sums (i int, fixed numeric(20, 4), id numeric(20, 0), small numeric(38, 12),"
        " free numeric)",
        database,
    )
    postgresql.execute(
        "INSERT INTO sums VALUES (1, 1234567890123456.1234, 99999999999999999999, 0.000000000001,"
        " 123456789012345678901234567890.123456789012345678901234567890), (2, 0.10, 7, 0, 4.77),"
        " (3, NULL, NULL, NULL, NULL)",
        database,
    )
    source = {"query": "SELECT * FROM sums"} if as_query else {"table": "sums"}
    names = ("fixed", "id", "small", "free")
    case = SinkCase(tmp_path)
    spec = SinkSpec(
        source=Source(sql=SqlSource(url=postgresql.socket_url(database), **source)),
        columns=dict.fromkeys(names, ColumnType.STRING),
    )
    run(case.context(spec))
    first, second, third = sorted(case.rows(), key=lambda row: row["i"])
    assert [first[name] for name in names] == [
        "1234567890123456.1234",
        "99999999999999999999",
        "0.000000000001",
        "123456789012345678901234567890.123456789012345678901234567890",
    ]
    assert [Decimal(str(second[name])) for name in names] == [Decimal("0.10"), 7, 0, Decimal("4.77")]
    assert [third[name] for name in names] == [None] * 4


def test_decimals_become_the_nearest_float(postgresql: PostgresqlServer, tmp_path: Path) -> None:
    database = postgresql.create_database()
    postgresql.execute(
        "CREATE TABLE sums AS"
        " SELECT x AS i, (x * 0.0137)::numeric(20, 4) AS n FROM generate_series(1, 5000) AS x",
        database,
    )
    case = SinkCase(tmp_path)
    load(case, postgresql.socket_url(database), table="sums")
    assert {row["i"]: row["n"] for row in case.rows()} == {x: x * 137 / 10_000 for x in range(1, 5001)}


def test_times_as_cursors(postgresql: PostgresqlServer, tmp_path: Path) -> None:
    database = postgresql.create_database()
    insert = "INSERT INTO seen SELECT x, TIMESTAMPTZ '2024-01-01 00:00:00Z' + x * INTERVAL '1 second' FROM "
    postgresql.execute("CREATE TABLE seen (id int, at timestamptz)", database)
    postgresql.execute(insert + "generate_series(1, 100) AS x", database)
    case = SinkCase(tmp_path)
    url = postgresql.socket_url(database)
    load(case, url, table="public.seen", cursor="at", lag=10)
    assert case.table().num_rows == 89
    postgresql.execute(insert + "generate_series(95, 200) AS x", database)  # some of them late
    load(case, url, table="public.seen", cursor="at", lag=10)
    load(case, url, table="public.seen", cursor="at")
    assert case.table().num_rows == 206


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ('text COLLATE "en-x-icu"', ["'item-005'", "'Item-006'", "'item-007'"]),
        ("char(8)", ["'a'", "'b'", "'c'"]),
        ("citext", ["'item-005'", "'Item-006'", "'item-007'"]),
        ("real", ["0.1", "0.2", "0.3"]),
        ("float8", ["0.1", "0.2", "0.3"]),
        ("numeric", ["0.1", "0.2", "12345678901234567890.123"]),
        ("timestamp", ["'2024-03-31 02:30'", "'2024-03-31 03:30'", "'2024-10-27 02:30'"]),
        ("date", ["'2024-03-31'", "'2024-04-01'", "'2024-04-02'"]),
    ],
)
@pytest.mark.parametrize("lag", [None, 0])
@pytest.mark.parametrize("as_query", [False, True])
def test_each_row_is_loaded_once_whatever_the_cursor_holds(
    postgresql: PostgresqlServer, tmp_path: Path, kind: str, rows: list[str], lag: int | None, as_query: bool
) -> None:
    database = postgresql.create_database()
    if kind == "citext":
        postgresql.execute("CREATE EXTENSION citext", database)
    postgresql.execute(f"CREATE TABLE seen (id int, c {kind})", database)
    source = {"query": "SELECT * FROM seen"} if as_query else {"table": "seen"}
    case = SinkCase(tmp_path)
    for number, row in enumerate(rows, start=1):
        postgresql.execute(f"INSERT INTO seen VALUES ({number}, {row})", database)
        if number == 1:  # a query that gives no row is refused
            continue
        for _ in range(2):
            load(case, postgresql.socket_url(database), cursor="c", lag=lag, **source)
        loaded = number if lag is None else number - 1
        assert [row["id"] for row in case.rows()] == list(range(1, loaded + 1))


def test_nan_in_a_cursor_does_not_end_loading(
    postgresql: PostgresqlServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = postgresql.create_database()
    postgresql.execute(
        "CREATE TABLE seen AS SELECT * FROM (VALUES (1, 1.5), (2, 'NaN'), (3, 'Infinity')) AS t (id, c)",
        database,
    )
    case = SinkCase(tmp_path)
    load(case, postgresql.socket_url(database), table="seen", cursor="c")
    assert "2 rows not loaded: no value, NaN or infinity" in capsys.readouterr().out
    postgresql.execute("INSERT INTO seen VALUES (4, 2.5)", database)
    load(case, postgresql.socket_url(database), table="seen", cursor="c")
    assert [row["id"] for row in case.rows()] == [1, 4]


def test_infinity_in_a_cursor_of_times_does_not_end_loading(
    postgresql: PostgresqlServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = postgresql.create_database()
    postgresql.execute("CREATE TABLE seen (id int, at timestamptz)", database)
    postgresql.execute(
        "INSERT INTO seen VALUES (1, '2024-01-01Z'), (2, 'infinity'), (3, '12000-01-01Z')", database
    )
    case = SinkCase(tmp_path)
    load(case, postgresql.socket_url(database), table="seen", cursor="at", lag=1e15)
    assert case.table().num_rows == 0
    load(case, postgresql.socket_url(database), table="seen", cursor="at")
    assert "2 rows not loaded: no value, NaN or infinity" in capsys.readouterr().out
    postgresql.execute("INSERT INTO seen VALUES (4, '2024-01-02Z')", database)
    load(case, postgresql.socket_url(database), table="seen", cursor="at")
    assert [row["id"] for row in case.rows()] == [1, 4]
    postgresql.execute("UPDATE seen SET at = '-infinity'", database)
    with pytest.raises(DataError, match="newest value of the cursor is '-infinity'"):
        load(case, postgresql.socket_url(database), table="seen", cursor="at")


@pytest.mark.long
def test_a_large_table_is_streamed(postgresql: PostgresqlServer, tmp_path: Path) -> None:
    database = postgresql.create_database()
    postgresql.execute(
        "CREATE TABLE big AS SELECT x AS id, repeat('y', 2000) AS pad FROM generate_series(1, 200000) AS x",
        database,
    )
    source = Source(sql=SqlSource(url=postgresql.socket_url(database), table="big", cursor="id"))
    before = peak_bytes()
    (file,) = list_source_files(SourceRequest(source=source, folder=str(tmp_path), work=tmp_path)).files
    assert peak_bytes() - before < 300 * 2**20  # 400 MB of text, several times over were it held at once
    assert pq.ParquetFile(file.path).metadata.num_rows == 200_000


def peak_bytes() -> int:
    return (
        int(
            next(
                line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line
            ).split()[1]
        )
        * 1024
    )


def test_a_server_that_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    os.environ["SECRET_OF_THIS_TEST"] = "hush-hush"
    with pytest.raises(UnavailableError) as caught:
        load(SinkCase(tmp_path), "postgresql://u:${env:SECRET_OF_THIS_TEST}@127.0.0.1:1/d", table="t")
    assert "127.0.0.1" in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_server_that_crashes_between_two_batches_can_be_tried_again(
    postgresql: PostgresqlServer, tmp_path: Path
) -> None:
    database = postgresql.create_database()
    postgresql.execute(
        "CREATE TABLE seen AS SELECT x AS id, repeat('y', 200) AS pad FROM generate_series(1, 25000) AS x",
        database,
    )
    case = SinkCase(tmp_path)
    url = postgresql.socket_url(database)
    with at_step(1, postgresql.crash_and_recover, "batch_of"), pytest.raises(UnavailableError):
        load(case, url, table="seen", cursor="id")
    load(case, url, table="seen", cursor="id")
    assert sorted(case.table()["id"].to_pylist()) == list(range(1, 25_001))


@pytest.mark.long
def test_killed_in_the_middle_no_row_is_lost_or_doubled(place: Place, postgresql: PostgresqlServer) -> None:
    database = postgresql.create_database()
    postgresql.execute("CREATE TABLE sales (id bigint PRIMARY KEY, pad text)", database)
    insert = "INSERT INTO sales SELECT x, repeat('y', 100) FROM generate_series({}, {}) AS x"
    text = PIPELINE.replace("PORT", str(postgresql.port)).replace("DATABASE", database)
    file = place.write(text)
    env = {"SHOP_PASSWORD": postgresql.password}
    for number in range(2):
        postgresql.execute(insert.format(number * 50_000 + 1, (number + 1) * 50_000), database)
        started = place.start("run", file, **env)
        with postgresql.connect("postgres") as watch:
            assert eventually(lambda run=started, at=watch: reading(at, database) or run.poll() is not None)
            if number % 2:  # between reading and commit, or just after it
                assert eventually(lambda at=watch: not reading(at, database))
        for pid in place.leftovers():
            kill(pid)
        started.wait(PATIENCE_SECONDS)
    assert place.gridmill("run", file, **env).returncode == 0
    again = place.json("run", file, **env)
    assert [job["job"]["state"] for job in again["jobs"]] == ["unchanged"]
    table = DeltaTable(place.home / "storage" / "sinks" / "shop" / "sales" / "table").to_pyarrow_table(
        columns=["id"]
    )
    assert sorted(table["id"].to_pylist()) == list(range(1, 100_001))
    assert not holds(place.home, postgresql.password)


def reading(watch: psycopg.Connection[tuple[object, ...]], database: str) -> bool:
    """Whether anybody is connected to the database."""
    return bool(watch.execute("SELECT 1 FROM pg_stat_activity WHERE datname = %s", (database,)).fetchall())


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def holds(folder: Path, secret: str) -> bool:
    """Whether any file below holds the text."""
    return any(secret.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())
