"""What is special about the store over PostgreSQL: its owner, lost connections, and what it says then."""

import os
import subprocess
import sys
import threading
from contextlib import closing, suppress
from itertools import chain, repeat

import pytest
from tests.e2e.conftest import PATIENCE_SECONDS, eventually
from tests.kit.cutting_proxy import Cut, cutting_proxy
from tests.kit.postgresql import PostgresqlServer

from gridmill.domain.run import Run
from gridmill.errors import InputError, StaleVersionError, StorageError, StoreInUseError, StoreLostError
from gridmill.ports.store import Record, key_of
from gridmill.stores import sql
from gridmill.stores.ownership import StoreLock
from gridmill.testing.store_samples import a_run, an_event
from gridmill.testing.store_suite import CHECKS, OWNER_CHECKS, SHARED_CHECKS, everything, put_new


def name(check) -> str:
    return check.__name__.removeprefix("check_")


@pytest.mark.parametrize("check", [*CHECKS, *SHARED_CHECKS, *OWNER_CHECKS], ids=name)
def test_conformance(check, postgresql_url: str):
    check(lambda: sql.make(postgresql_url))


# -- lost connections ------------------------------------------------------------------------------------


def test_a_connection_that_is_ended_costs_one_commit(postgresql: PostgresqlServer):
    database = postgresql.create_database()
    with closing(sql.make(postgresql.url(database))) as store:
        put_new(store, a_run(1))
        assert postgresql.cut(database)
        with pytest.raises(StoreLostError):
            put_new(store, a_run(2))
        put_new(store, a_run(2))
        assert [key_of(record.noun) for record in store.list(Run)] == ["weather-1", "weather-2"]


def test_reading_does_not_mind_a_restart(postgresql: PostgresqlServer):
    with closing(sql.make(postgresql.url(postgresql.create_database()))) as store:
        put_new(store, a_run(1))
        assert store.get(Run, "weather-1")
        postgresql.restart()
        assert store.get(Run, "weather-1") == Record(noun=a_run(1), version=1)


def test_what_was_committed_outlives_a_crash_of_the_server(postgresql: PostgresqlServer):
    url = postgresql.url(postgresql.create_database())
    with closing(sql.make(url)) as store:
        put_new(store, a_run(1))
        before = everything(store)
        postgresql.crash_and_recover()
        assert everything(store) == before


def test_a_server_that_is_down_is_explained(postgresql: PostgresqlServer):
    url = postgresql.url(postgresql.create_database())
    store = sql.make(url)
    postgresql.stop()
    try:
        for use in (lambda: store.list(Run), lambda: put_new(store, a_run(1)), lambda: sql.make(url)):
            with pytest.raises(StoreLostError, match="cannot be used") as raised:
                use()
            assert "is running" in raised.value.hint
            assert postgresql.password not in f"{raised.value}{raised.value.place}"
    finally:
        postgresql.start()
    put_new(store, a_run(1))
    store.close()


def own_again(store, owner: str) -> None:
    """The server needs a moment to end the old session."""

    def owned() -> bool:
        with suppress(StoreLostError, StoreInUseError):
            store.own(owner)
            return True
        return False

    assert eventually(owned)


@pytest.mark.parametrize(("cut", "kept"), [(Cut.BEFORE, 0), (Cut.AFTER, 1)])
def test_a_connection_cut_at_a_commit_leaves_all_of_it_or_nothing(
    postgresql: PostgresqlServer, cut: Cut, kept: int
):
    database = postgresql.create_database()
    sql.make(postgresql.url(database)).close()
    fates = iter([])
    with (
        cutting_proxy(postgresql.port, lambda: next(fates, Cut.NONE)) as proxy,
        closing(sql.make(postgresql.url(database, port=proxy.port))) as store,
    ):
        store.own("first")
        fates = iter([cut])
        with pytest.raises(StoreLostError):
            store.commit([sql.Put(noun=a_run(1), expected=0)], [an_event(1)])
        assert proxy.cuts == 1
        own_again(store, "first")
        assert (len(store.list(Run)), len(store.events())) == (kept, kept)
        put_new(store, a_run(2))
        assert store.commit([], [an_event(1)]) == ((0,) if kept else (1,))


def test_an_owner_that_lost_its_connection_writes_nothing_until_it_owns_again(postgresql: PostgresqlServer):
    database = postgresql.create_database()
    with (
        closing(sql.make(postgresql.url(database))) as one,
        closing(sql.make(postgresql.url(database))) as other,
    ):
        one.own("one")
        postgresql.cut(database)
        own_again(other, "other")  # its connection was cut too
        for _ in range(3):
            with pytest.raises(StoreLostError):
                put_new(one, a_run(1))
        with pytest.raises(StoreInUseError, match="other"):
            one.own("one")
        put_new(other, a_run(1))
        other.close()
        one.own("one")
        put_new(one, a_run(2))
        assert len(one.list(Run)) == 2


def test_an_owners_lost_session_does_not_keep_it_out(postgresql_url: str):
    """As when the network fails: the server still holds what the client has given up."""
    with closing(sql.make(postgresql_url)) as lost, closing(sql.make(postgresql_url)) as again:
        lost.own("me, 4711")
        with pytest.raises(StoreLostError, match="holds the lock for a lost connection"):
            again.own("me, 4711")
        own_again(again, "me, 4711")
        with pytest.raises(StoreLostError):
            put_new(lost, a_run(1))
        put_new(again, a_run(1))


def test_of_many_that_want_to_own_it_one_does(postgresql_url: str):
    stores = [sql.make(postgresql_url) for _ in range(4)]
    start, owners = threading.Barrier(len(stores)), []

    def take(index: int) -> None:
        start.wait(PATIENCE_SECONDS)
        with suppress(StoreInUseError):
            stores[index].own(f"number {index}")
            owners.append(index)

    threads = [threading.Thread(target=take, args=(index,)) for index in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert len(owners) == 1
    for store in stores:
        store.close()


# -- how it says what is wrong ------------------------------------------------------------------------------


def test_a_wrong_password_is_explained_and_not_printed(postgresql: PostgresqlServer):
    url = postgresql.url(postgresql.create_database()).replace(postgresql.password, "sesame-open")
    with pytest.raises(StoreLostError, match="password authentication failed") as raised:
        sql.make(url)
    assert "PGPASSWORD" in raised.value.hint
    assert "sesame-open" not in f"{raised.value} {raised.value.place} {raised.value.hint}"
    assert "***" in raised.value.place


def test_the_password_may_come_from_the_environment_or_a_file(
    postgresql: PostgresqlServer, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    url = postgresql.url(postgresql.create_database(), password=False)
    with pytest.raises(StoreLostError, match="no password supplied"):
        sql.make(url)
    monkeypatch.setenv("PGPASSWORD", postgresql.password)
    sql.make(url).close()
    monkeypatch.delenv("PGPASSWORD")
    (tmp_path / "pgpass").write_text(f"127.0.0.1:{postgresql.port}:*:gridmill:{postgresql.password}\n")
    (tmp_path / "pgpass").chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pgpass"))
    sql.make(url).close()


def test_a_database_that_is_not_there_or_belongs_to_others_is_explained(postgresql: PostgresqlServer):
    with pytest.raises(StoreLostError, match='"nowhere" does not exist'):
        sql.make(postgresql.url("nowhere"))
    database = postgresql.create_database()
    postgresql.execute("CREATE TABLE cookies (id int)", database)
    with pytest.raises(StorageError, match="not a Gridmill store"):
        sql.make(postgresql.url(database))
    assert postgresql.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", database) == [
        (1,)
    ]


def test_a_user_who_may_not_write_is_told(postgresql: PostgresqlServer):
    database = postgresql.create_database()
    url = postgresql.url(database)
    sql.make(url).close()
    postgresql.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    with closing(sql.make(url)) as store, pytest.raises(StorageError, match="may not be written"):
        put_new(store, a_run(1))


def test_a_full_disk_leaves_nothing_half_written_and_the_store_goes_on(postgresql: PostgresqlServer):
    with postgresql.small_disk(megabytes=16) as tablespace:
        if tablespace is None:
            pytest.skip("needs the right to mount a tmpfs: run the tests as root")
        database = postgresql.create_database(tablespace)
        with closing(sql.make(postgresql.url(database))) as store:
            put_new(store, a_run(1))
            with pytest.raises(StorageError, match="disk is full"):
                store.commit([], [an_event(1, text=os.urandom(2**23).hex())])  # does not compress
            assert (store.get(Run, "weather-1"), store.events()) == (Record(noun=a_run(1), version=1), [])
            put_new(store, a_run(2))
        postgresql.execute(f"DROP DATABASE {database}")


def test_without_the_driver_it_is_said_what_to_install(postgresql_url: str):
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from gridmill.stores.sql import make; from gridmill.errors import InputError\n"
        "try: make(sys.argv[1])\n"
        "except InputError as error: print(error, error.hint)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, postgresql_url], capture_output=True, text=True, timeout=300, check=True
    )
    assert "gridmill[postgresql]" in done.stdout


@pytest.mark.parametrize("url", ["postgresql://host:port/db", "postgresql+nosuch://host/db"])
def test_a_url_that_cannot_be_used_is_refused(url: str):
    with pytest.raises(InputError):
        sql.make(url)


def test_every_commit_may_be_cut(postgresql: PostgresqlServer):
    """Twenty runs are put, each until it is there, while every second commit is cut, before or after."""
    database = postgresql.create_database()
    sql.make(postgresql.url(database)).close()
    turns = chain.from_iterable(repeat((Cut.NONE, Cut.BEFORE, Cut.NONE, Cut.AFTER)))
    with (
        cutting_proxy(postgresql.port, lambda: next(turns)) as proxy,
        closing(sql.make(postgresql.url(database, port=proxy.port))) as store,
    ):
        for number in range(1, 21):
            while store.get(Run, f"weather-{number}") is None:
                with suppress(StoreLostError, StaleVersionError):  # stale: came after our look
                    store.commit([sql.Put(noun=a_run(number), expected=0)], [an_event(number)])
        assert proxy.cuts >= 10
        assert [event.number for event in store.events()] == [*range(1, 21)]


def test_a_lock_given_back_while_its_owner_is_looked_up_is_taken(postgresql_url: str, monkeypatch):
    refuse = StoreLock._refuse
    with closing(sql.make(postgresql_url)) as one, closing(sql.make(postgresql_url)) as other:
        one.own("one")

        def refuse_late(ownership: StoreLock, cursor, name: str) -> None:
            one.close()
            refuse(ownership, cursor, name)

        monkeypatch.setattr(StoreLock, "_refuse", refuse_late)
        other.own("other")
        put_new(other, a_run(1))
