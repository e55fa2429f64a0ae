"""A sink over a real Redis: entries once, whatever is killed."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
import redis
from deltalake import DeltaTable

from gridmill.domain.artifact import Output
from gridmill.domain.sink import ColumnType, SinkSpec
from gridmill.domain.source import Source, StreamSource
from gridmill.errors import DataError, InputError, UnavailableError
from gridmill.jobs.sink.run import run
from tests.e2e.conftest import PATIENCE_SECONDS, Place, eventually
from tests.kit.redisserver import HOW_TO_GET_IT, PASSWORD, redis_server
from tests.kit.sink_case import SinkCase

pytestmark = pytest.mark.e2e

PIPELINE = """\
pipeline: shop
jobs:
  clicks:
    sink:
      source:
        stream: {url: "redis://:${env:REDIS_PASSWORD}@127.0.0.1:PORT/0", key: clicks}
      columns: {n: integer}
"""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with redis_server(tmp_path_factory.mktemp("redis")) as found:
        if found is None:
            pytest.skip(HOW_TO_GET_IT)
        yield found


@pytest.fixture
def server(port: int, monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    monkeypatch.setenv("REDIS_PASSWORD", PASSWORD)
    found = redis.Redis(port=port, password=PASSWORD)
    found.flushall()
    return found


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    return SinkCase(tmp_path)


def load(case: SinkCase, port: int, **stream: object) -> Output:
    given = {"url": f"redis://:${{env:REDIS_PASSWORD}}@127.0.0.1:{port}/0", "key": "clicks"} | stream
    spec = SinkSpec(source=Source(stream=StreamSource(**given)), columns={"n": ColumnType.INTEGER})
    return run(case.context(spec)).outputs[0]


def add(server: redis.Redis, numbers: range) -> None:
    pipe = server.pipeline(transaction=False)
    for n in numbers:
        pipe.xadd("clicks", {"n": n, "who": "ä"}, id=f"{1_700_000_000_000 + n}-0")
    pipe.execute()


def test_entries_are_loaded_once_with_their_time(server: redis.Redis, port: int, case: SinkCase) -> None:
    add(server, range(3))
    assert load(case, port).rows == 3
    assert load(case, port).table_version == 1
    add(server, range(3, 5))
    assert load(case, port).rows == 5
    assert case.rows()[1] == {
        "entry_id": "1700000000001-0",
        "entry_time": datetime(2023, 11, 14, 22, 13, 20, 1000, tzinfo=UTC),
        "n": 1,
        "who": "ä",
    }


def test_a_load_is_bounded_by_rows(server: redis.Redis, port: int, case: SinkCase) -> None:
    add(server, range(12_000))
    assert load(case, port, max_rows=7_000).rows == 7_000
    assert load(case, port, max_rows=7_000).rows == 12_000


def test_a_load_waits_for_more_until_its_time_or_rows(server: redis.Redis, port: int, case: SinkCase) -> None:
    add(server, range(3))
    load(case, port)
    add(server, range(3, 6))
    assert load(case, port, wait_seconds=0.2).rows == 6
    add(server, range(6, 7))
    assert load(case, port, wait_seconds=60.0, max_rows=1).rows == 7


def test_json_in_a_field(server: redis.Redis, port: int, case: SinkCase) -> None:
    server.xadd("clicks", {"doc": '{"n": 1, "price": 2.5, "tags": ["a"]}'})
    load(case, port, json="doc")
    (row,) = case.rows()
    assert (row["n"], row["price"], row["tags"]) == (1, 2.5, ["a"])
    server.xadd("clicks", {"doc": "{"}, id="9000000000000-0")
    with pytest.raises(DataError, match="clicks entry 9000000000000-0: field 'doc' is not JSON"):
        load(case, port, json="doc")


def test_fields_are_texts_whatever_they_look_like(server: redis.Redis, port: int, case: SinkCase) -> None:
    server.xadd("clicks", {"day": "2024-01-01", "at": "2024-01-01T10:00:00Z", "zip": "01234", "n": "1"})
    load(case, port)
    server.xadd("clicks", {"day": "later", "at": "", "zip": "x", "n": "2", "new": "2024-01-01"})
    load(case, port)
    first, second = sorted(case.rows(), key=lambda row: row["n"])
    assert (first["day"], first["at"], first["zip"]) == ("2024-01-01", "2024-01-01T10:00:00Z", "01234")
    assert (second["day"], second["at"], second["zip"], second["new"]) == ("later", "", "x", "2024-01-01")


def test_entries_that_lack_a_place_for_a_field_are_named(
    server: redis.Redis, port: int, case: SinkCase
) -> None:
    server.execute_command("XADD", "clicks", "1-0", "a", "1", "a", "2")
    with pytest.raises(DataError, match="clicks entry 1-0: the entry has the field 'a' more than once"):
        load(case, port)
    server.xadd("clicks", {"entry_time": "2024-01-01"}, id="2-0")
    server.xdel("clicks", "1-0")
    with pytest.raises(DataError, match="clicks entry 2-0: the entry has a field 'entry_time'"):
        load(case, port)


def test_the_time_of_an_entry_is_exact_until_the_year_9999(
    server: redis.Redis, port: int, case: SinkCase
) -> None:
    server.xadd("clicks", {"n": 1}, id="253402300799999-0")
    load(case, port)
    assert case.rows()[0]["entry_time"] == datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
    server.xadd("clicks", {"n": 1}, id="253402300800000-0")
    with pytest.raises(
        DataError, match="clicks entry 253402300800000-0: the id of the entry has a time after"
    ):
        load(case, port)


def test_a_stream_that_was_made_anew_is_refused(server: redis.Redis, port: int, case: SinkCase) -> None:
    add(server, range(3))
    load(case, port)
    server.delete("clicks")
    server.xadd("clicks", {"n": 1}, id="5-0")
    with pytest.raises(DataError, match="the stream was deleted and made again"):
        load(case, port)


def test_what_is_wrong_is_said(server: redis.Redis, port: int, case: SinkCase) -> None:
    with pytest.raises(InputError, match="there is no stream 'nothing'"):
        load(case, port, key="nothing")
    with pytest.raises(InputError, match="refuses"):
        load(case, port, url=f"redis://:wrong@127.0.0.1:{port}/0")
    with pytest.raises(UnavailableError):
        load(case, port, url="redis://127.0.0.1:1/0")


@pytest.mark.long
def test_killed_in_the_middle_no_entry_is_lost_or_doubled(
    place: Place, server: redis.Redis, port: int
) -> None:
    file = place.write(PIPELINE.replace("PORT", str(port)))
    for number in range(2):
        add(server, range(number * 20_000, (number + 1) * 20_000))
        started = place.start("run", file)
        assert eventually(lambda run=started: len(server.client_list()) > 1 or run.poll() is not None)
        if number % 2:  # between reading and commit, or just after it
            assert eventually(lambda: len(server.client_list()) == 1)
        for pid in place.leftovers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        started.wait(PATIENCE_SECONDS)
    done = place.gridmill("run", file)
    assert done.returncode == 0, done.stderr
    table = DeltaTable(place.home / "storage" / "sinks" / "shop" / "clicks" / "table")
    assert sorted(table.to_pyarrow_table(columns=["n"])["n"].to_pylist()) == list(range(40_000))


def test_an_empty_stream_makes_an_empty_table(server: redis.Redis, port: int, case: SinkCase) -> None:
    server.xgroup_create("clicks", "readers", mkstream=True)
    first = load(case, port)
    assert (first.rows, [column.name for column in first.columns]) == (0, ["entry_id", "entry_time", "n"])
    assert load(case, port).table_version == first.table_version
    server.xadd("clicks", {"n": "7", "new": "x"})
    assert load(case, port).rows == 1
    (row,) = case.rows()
    assert (row["n"], row["new"]) == (7, "x")
