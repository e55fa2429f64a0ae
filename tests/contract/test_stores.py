"""The stores pass the suite, and what is special about the one over SQL."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gridmill.domain.pod_protocol import sequence_of
from gridmill.domain.resource import Resource
from gridmill.domain.run import JobRun, Run
from gridmill.errors import InputError, StaleVersionError, StorageError
from gridmill.ports.store import Order, Record, key_of
from gridmill.stores import memory, sql
from gridmill.testing.faults import Fault, FaultScript, FaultySchedule, FaultyStore, KillAt, with_faults
from gridmill.testing.store_model import StoreModel, random_changes, random_events
from gridmill.testing.store_samples import a_job_run, a_resource, a_run, an_attempt, an_event, one_of_each
from gridmill.testing.store_suite import CHECKS, SHARED_CHECKS, everything, put_new

# -- conformance -----------------------------------------------------------------------------------------


def name(check) -> str:
    return check.__name__.removeprefix("check_")


@pytest.mark.parametrize("check", CHECKS, ids=name)
def test_in_memory(check):
    check(memory.make)


@pytest.mark.parametrize("check", [*CHECKS, *SHARED_CHECKS], ids=name)
def test_sqlite(check, tmp_path: Path):
    check(lambda: sql.make(tmp_path / "store.db"))


@pytest.mark.parametrize("check", CHECKS, ids=name)
def test_a_wrapped_store_without_faults(check):
    check(lambda: FaultyStore(memory.make(), FaultScript()))


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@given(random=st.randoms(use_true_random=False))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
def test_any_commits_leave_what_the_model_holds(kind, random, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "store.db"
    with closing(memory.make() if kind == "memory" else sql.make(path)) as store:
        model = StoreModel()
        for _ in range(random.randint(1, 20)):
            model.follow(store, random_changes(random, model), random_events(random))
        model.compare(store)


# -- the file --------------------------------------------------------------------------------------------


def tables(path: Path) -> dict[str, str]:
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))


def test_a_database_of_something_else_is_refused(tmp_path: Path):
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        connection.execute("CREATE TABLE cookies (id INTEGER)")
    with pytest.raises(StorageError, match="not a Gridmill store"):
        sql.make(tmp_path / "store.db")
    assert set(tables(tmp_path / "store.db")) == {"cookies"}


def test_opening_an_up_to_date_database_imports_nothing_that_only_migrations_need(tmp_path: Path):
    code = (
        "import sys; from gridmill.stores.sql import make; make(sys.argv[1]).close(); "
        "make(sys.argv[1]).close(); assert not {'alembic', 'sqlalchemy', 'psycopg'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "store.db")], check=True, timeout=300)


def test_the_file_is_in_wal_mode_and_leaves_one_file_when_closed(tmp_path: Path):
    store = sql.make(tmp_path / "store.db")
    put_new(store, a_resource())
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    store.close()
    assert [path.name for path in tmp_path.iterdir()] == ["store.db"]


def opened(path: Path, act: Callable[[sqlite3.Connection], object]) -> sql.SqlStore:
    """A store on every new connection of which `act` is done."""
    dialect = sql.dialect_of(path)

    def open_() -> sqlite3.Connection:
        connection = dialect.open()
        act(connection)
        return connection

    return sql.SqlStore(replace(dialect, open=open_))


def test_live_and_events_are_read_by_index(tmp_path: Path):
    statements = []
    with closing(opened(tmp_path / "store.db", lambda c: c.set_trace_callback(statements.append))) as store:
        put_new(store, *one_of_each())
        statements.clear()
        store.live()
        store.list(JobRun, parent="weather-1")
        store.list(Run, newest_first=True, limit=5)
        store.page(Run, order=Order.NEWEST_FIRST, after=7, limit=5)
        store.page(JobRun, order=Order.OLDEST_FIRST, after=7, limit=5, parent="weather-1")
        store.page(Resource, order=Order.BY_KEY, after="a", limit=5)
        store.events(run_id="weather-1", after=5)
        store.events(run_id="weather-1", job="work", after=5)
        store.commit([], [an_event(1)])
        selects = [text for text in statements if text.lstrip().startswith("SELECT")]
        assert len(selects) == 10
        with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
            for text in selects:
                plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}")]
                bad = [line for line in plan if "SCAN" in line or "TEMP B-TREE" in line]
                assert not bad, f"{text}: {plan}"


# -- what goes wrong -------------------------------------------------------------------------------------


def test_a_file_that_is_no_database_is_explained(tmp_path: Path):
    (tmp_path / "store.db").write_bytes(b"no database at all\n" * 1000)
    with pytest.raises(StorageError, match="is damaged or is not a database") as raised:
        sql.make(tmp_path / "store.db")
    assert raised.value.place == str(tmp_path / "store.db")
    assert "backup" in raised.value.hint


def test_a_damaged_file_is_explained(tmp_path: Path):
    path = tmp_path / "store.db"
    with closing(sql.make(path)) as store:
        put_new(store, *(a_job_run(name=f"j{n}") for n in range(500)))
    data = bytearray(path.read_bytes())
    data[8192:] = os.urandom(len(data) - 8192)
    path.write_bytes(data)
    with pytest.raises(StorageError, match="damaged"), closing(sql.make(path)) as store:
        store.list(JobRun)


@pytest.mark.parametrize("where", [".", "missing/store.db"])
def test_a_place_that_cannot_be_opened_is_explained(tmp_path: Path, where: str):
    with pytest.raises(StorageError, match="cannot be opened") as raised:
        sql.make(tmp_path / where)
    assert "folder must exist" in raised.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_explained(tmp_path: Path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StorageError, match="cannot be opened"):
            sql.make(tmp_path / "store.db")
    finally:
        tmp_path.chmod(0o700)


def with_pragma(path: Path, pragma: str) -> sql.SqlStore:
    return opened(path, lambda connection: connection.execute(f"PRAGMA {pragma}"))


def test_a_store_that_may_not_be_written_is_explained_and_can_be_read(tmp_path: Path):
    with closing(sql.make(tmp_path / "store.db")) as store:
        put_new(store, a_resource())
    with closing(with_pragma(tmp_path / "store.db", "query_only = ON")) as store:
        with pytest.raises(StorageError, match="may not be written"):
            put_new(store, a_run())
        assert store.get(Resource, a_resource().name)


def test_a_full_disk_leaves_nothing_half_written_and_the_store_goes_on(tmp_path: Path):
    with closing(sql.make(tmp_path / "store.db")) as store:
        put_new(store, a_resource())
        before = everything(store)
    with closing(with_pragma(tmp_path / "store.db", "max_page_count = 40")) as store:
        with pytest.raises(StorageError, match="disk is full") as raised:
            put_new(store, a_run(), *(a_job_run(name=f"j{n}") for n in range(2000)))
        assert "Free some space" in raised.value.hint
        assert everything(store) == before
        put_new(store, a_run())
        assert store.get(Run, "weather-1") == Record(noun=a_run(), version=1)


def test_a_lock_that_is_not_given_up_is_explained(tmp_path: Path):
    path = tmp_path / "store.db"
    with closing(with_pragma(path, "busy_timeout = 10")) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StorageError, match="locked"):
                put_new(store, a_run())
            assert store.get(Run, "weather-1") is None
        put_new(store, a_run())


def test_what_json_cannot_carry_is_refused_before_it_is_kept(tmp_path: Path):
    with closing(sql.make(tmp_path / "store.db")) as store:
        attempt = replace(an_attempt(), metrics={"loss": float("nan")})
        for noun in (attempt, a_resource(jobs=("\udc80",))):
            with pytest.raises(InputError, match=f"{key_of(noun)}' cannot be stored"):
                put_new(store, a_run(), noun)
        with pytest.raises(InputError, match="an event of weather-1 cannot be stored"):
            store.commit([], [an_event(1, text="\udc80")])
        assert store.get(Run, "weather-1") is None


@pytest.mark.parametrize("url", ["sqlite://", "nosuch://host/db", "sqlite:///:memory:"])
def test_a_url_that_cannot_be_used_is_refused(url: str):
    with pytest.raises(InputError):
        sql.make(url)


def test_a_sqlite_url_is_a_path(tmp_path: Path):
    with closing(sql.make(f"sqlite:///{tmp_path}/store.db")) as store:
        put_new(store, a_run())
    with closing(sql.make(str(tmp_path / "store.db"))) as store:
        assert store.get(Run, "weather-1")


# -- faults ----------------------------------------------------------------------------------------------


def test_each_fault_does_what_it_says():
    store = FaultyStore(memory.make(), FaultScript(Fault.FAIL_BEFORE, Fault.FAIL_AFTER, Fault.REPEAT))
    with pytest.raises(StorageError, match="before"):
        put_new(store, a_run(1))
    assert store.get(Run, "weather-1") is None
    with pytest.raises(StorageError, match="after"):
        put_new(store, a_run(1))
    assert store.get(Run, "weather-1") == Record(noun=a_run(1), version=1)
    with pytest.raises(StaleVersionError):
        put_new(store, a_run(2))
    assert store.get(Run, "weather-2") == Record(noun=a_run(2), version=1)
    put_new(store, a_run(3))


def test_the_same_seed_gives_the_same_faults_about_as_often_as_asked():
    def faults(seed):
        schedule = FaultySchedule(seed, fail_before=0.1, fail_after=0.2)
        return [schedule.next() for _ in range(2000)]

    assert faults(1) == faults(1) != faults(2)
    assert 150 < faults(1).count(Fault.FAIL_BEFORE) < 250
    assert 330 < faults(1).count(Fault.FAIL_AFTER) < 470
    assert Fault.REPEAT not in faults(1)


def test_no_fault_is_the_store_itself():
    store = memory.make()
    assert with_faults(store, "") is store


@pytest.mark.parametrize(
    "fault", ["before-commit", "after-commit:0", "later:3", "fail-before:1", "before-commit:x"]
)
def test_an_unknown_fault_is_refused(fault: str):
    with pytest.raises(InputError, match="not a fault"):
        with_faults(memory.make(), fault)


@pytest.mark.parametrize(("where", "kept"), [("before-commit", 2), ("after-commit", 3)])
def test_the_process_would_be_killed_at_that_commit(where: str, kept: int):
    class Killed(BaseException):
        pass

    def kill():
        raise Killed

    store = FaultyStore(memory.make(), KillAt(f"{where}:3"), kill)
    put_new(store, a_run(1))
    put_new(store, a_run(2))
    with pytest.raises(Killed):
        put_new(store, a_run(3))
    assert len(store.list(Run)) == kept


@pytest.mark.e2e
@pytest.mark.parametrize(("fault", "kept"), [("before-commit:5", 4), ("after-commit:5", 5)])
def test_what_was_committed_before_a_kill_is_there_and_nothing_else(tmp_path: Path, fault: str, kept: int):
    code = """
import sys
from gridmill.stores.sql import make
from gridmill.testing.faults import with_faults
from gridmill.testing.store_samples import a_run, an_event
from gridmill.testing.store_suite import Put
store = with_faults(make(sys.argv[1]), sys.argv[2])
for number in range(1, 10):
    store.commit([Put(noun=a_run(number), expected=0)], [an_event(number)])
"""
    path = tmp_path / "store.db"
    done = subprocess.run([sys.executable, "-c", code, str(path), fault], check=False, timeout=300)
    assert done.returncode == -9
    with closing(sql.make(path)) as store:
        assert [key_of(r.noun) for r in store.list(Run)] == [f"weather-{n}" for n in range(1, kept + 1)]
        sequences = [sequence_of(event.id) for event in store.events()]
        assert len(sequences) == kept
        assert all(b > a for a, b in pairwise(sequences))
        assert store.counters()["weather"] == kept
