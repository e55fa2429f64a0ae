"""A damaged record or event is noticed, costs itself only, and is never taken for what was written."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gridmill.domain.artifact import Artifact
from gridmill.domain.run import JobRun, Run
from gridmill.errors import StorageError
from gridmill.ports.store import Order, Put, Record, Store, key_of
from gridmill.stores import memory, sql
from gridmill.stores.rows import CLASSES
from gridmill.testing.store_samples import a_job_run, a_run, an_artifact, an_event, one_of_each
from gridmill.testing.store_suite import put_new

COLUMNS = {
    "record": ("noun", "key", "version", "parent", "live", "body", "checksum"),
    "event": ("time", "type", "run_id", "job", "attempt_id", "pod_id", "number", "body", "checksum"),
    "counter": ("name", "value", "checksum"),
}


def filled(address: str | Path) -> Store:
    """A store with a record of each class, some events, and numbers that ids used up."""
    store = sql.make(address)
    put_new(store, *one_of_each())
    store.commit([], [an_event(number) for number in range(1, 5)])
    store.use_numbers({"weather": 7, "order": 9})
    return store


def records(store: Store) -> dict[tuple[str, str], Record]:
    """All records that are found, in every way that there is to find them."""
    found = [record for kind in CLASSES.values() for record in store.list(kind)]
    found += store.live()
    for kind in CLASSES.values():
        found += [record for _, record in store.page(kind, order=Order.BY_KEY, limit=3)]
    result = {(type(record.noun).__name__, key_of(record.noun)): record for record in found}
    for name, key in result:
        assert store.get(CLASSES[name], key) in (None, result[name, key])
    return result


def flipped(value: Any, random: Random) -> Any:
    """The value with one other bit, of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value ^ (1 << random.randrange(32))
    if isinstance(value, float):
        return value + 2.0 ** random.randrange(-20, 20)
    data = bytearray(str(value).encode())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


def flip_sqlite(path: Path, random: Random) -> tuple[str, str]:
    """Flip a bit of a value; the table and the column."""
    table = random.choice([*COLUMNS])
    column = random.choice(COLUMNS[table])
    with closing(sqlite3.connect(path)) as connection, connection:
        row, value = random.choice(
            connection.execute(f"SELECT rowid, {column} FROM {table} WHERE length({column}) > 0").fetchall()
        )
        other = flipped(value, random)
        spelled = "CAST(? AS TEXT)" if isinstance(other, bytes) else "?"
        connection.execute(f"UPDATE {table} SET {column} = {spelled} WHERE rowid = ?", (other, row))
    return table, column


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_bit_of_any_value_is_noticed_and_costs_its_record_only(tmp_path: Path, seed: int):
    path, random = tmp_path / "store.db", Random(seed)
    with closing(filled(path)) as store:
        before, events, numbers = records(store), store.events(), store.counters()
    original = path.read_bytes()
    for _ in range(8):
        path.write_bytes(original)
        table, column = flip_sqlite(path, random)
        with closing(sql.make(path)) as store:
            store.check()
            after, rest = records(store), [*store.events()]
            assert len(store.take_new_damage()) == 1, (table, column)
            assert store.take_new_damage() == ()
            assert after.items() <= before.items()
            assert len(before) - len(after) == (table == "record"), column
            assert {*map(repr, rest)} <= {*map(repr, events)}
            assert len(events) - len(rest) == (table == "event"), column
            assert {name: store.counters().get(name) for name in numbers} == numbers or table == "counter"
            missing = [before[key].noun for key in before.keys() - after.keys()]
            store.commit([Put(noun=noun, expected=0) for noun in missing])
            assert records(store).keys() == before.keys()  # what is made again takes its place
            assert len(store.damage()) == 1


def test_a_page_does_not_end_at_a_damaged_record(tmp_path: Path):
    with closing(sql.make(tmp_path / "store.db")) as store:
        runs = [replace(a_run(), id=f"weather-{number}", order=number) for number in range(1, 31)]
        put_new(store, *runs)
        damage(tmp_path / "store.db", "noun = 'Run' AND key IN ('weather-1', 'weather-2', 'weather-30')")
        page = store.page(Run, order=Order.OLDEST_FIRST, limit=5)
        assert [key_of(record.noun) for _, record in page] == [f"weather-{n}" for n in range(3, 8)]
        [newest] = store.list(Run, limit=1, newest_first=True)
        assert key_of(newest.noun) == "weather-29"
        assert len(store.list(Run)) == 27
        assert {one.key for one in store.take_new_damage()} == {"weather-1", "weather-2", "weather-30"}


def test_a_damaged_record_is_set_aside_by_the_next_commit(tmp_path: Path):
    path = tmp_path / "store.db"
    with closing(sql.make(path)) as store:
        put_new(store, a_run(), a_job_run(), an_artifact())
        damage(path, "noun = 'Artifact'")
        artifact = an_artifact()
        assert store.get(Artifact, artifact.id) is None
        put_new(store, artifact)
        assert store.get(Artifact, artifact.id) == Record(noun=artifact, version=1)
        [one] = store.damage()
        assert (one.name, one.parent, one.told) == (f"Artifact {artifact.id}", artifact.name, False)
        store.mark_told()
    with closing(sql.make(path)) as store:
        [one] = store.damage()
        assert one.told
        assert store.get(JobRun, a_job_run().id) is not None


def test_a_damaged_record_is_named_by_its_body_where_that_is_whole(tmp_path: Path):
    with closing(sql.make(tmp_path / "store.db")) as store:
        put_new(store, a_run())
        with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
            connection.execute("UPDATE record SET key = 'another', parent = 'x'")
        [one] = store.check()
        assert (one.name, one.parent) == ("Run weather-1", "weather")


def test_damaged_numbers_are_taken_from_the_records(tmp_path: Path):
    with closing(filled(tmp_path / "store.db")) as store:
        put_new(store, replace(a_run(), id="weather-8", order=12))
        with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
            connection.execute("UPDATE counter SET value = 1 WHERE name = 'weather'")
        assert store.counters()["weather"] == 8
        assert [one.name for one in store.take_new_damage()] == ["Counter weather"]
        store.use_numbers({"weather": 20})
    with closing(sql.make(tmp_path / "store.db")) as store:
        assert store.counters()["weather"] == 20
        assert store.check() == ()


def test_a_flipped_bit_anywhere_in_the_file_is_noticed_or_harmless(tmp_path: Path):
    flip_in_pages(tmp_path / "store.db", seed=1, times=60)


class LeadsBack(sql.SqlStore):
    """Whatever row is asked for, the same ones come: a page of the file leads back to an earlier one."""

    def _rows(self, query: str, **values: str | int | None):
        if "after" in values:
            values["after"] = -1
        return super()._rows(query, **values)


def test_pages_that_lead_back_end_the_check(tmp_path: Path):
    filled(tmp_path / "store.db").close()
    with closing(sql.make(tmp_path / "store.db")) as store:
        store.__class__ = LeadsBack
        assert store.check() == ()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_flipped_bits_anywhere_in_the_file(tmp_path: Path, seed: int):
    flip_in_pages(tmp_path / "store.db", seed=seed, times=300)


def flip_in_pages(path: Path, seed: int, times: int) -> None:
    with closing(filled(path)) as store:
        before, events = records(store), {repr(event) for event in store.events()}
        numbers = store.counters()
    original, random, noticed = path.read_bytes(), Random(seed), 0
    for _ in range(times):
        data = bytearray(original)
        place, bit = random.randrange(len(data)), random.randrange(8)
        data[place] ^= 1 << bit
        path.write_bytes(data)
        try:
            with closing(sql.make(path)) as store:
                assert records(store).items() <= before.items(), (place, bit)
                assert {repr(event) for event in store.events()} <= events, (place, bit)
                found = store.counters()
                lost = before.keys() - records(store).keys() or len(events) - len(store.events())
                damaged = store.check()
                assert damaged or not lost, (place, bit)
                assert damaged or found == numbers, (place, bit)
                noticed += bool(damaged)
        except StorageError as error:
            noticed += 1
            if not error.hint:
                pytest.fail(f"{place}, {bit}: {error}")
        for left in path.parent.glob("store.db?*"):
            left.unlink()
    assert noticed > times // 8  # most of a small file is unused


def test_postgresql(postgresql_url: str, postgresql: Any):
    random = Random(3)
    with closing(filled(postgresql_url)) as store:
        before = records(store)
        connection = sql.dialect_of(postgresql_url).open()
        with closing(connection):
            cursor = connection.cursor()
            cursor.execute("SELECT position FROM record ORDER BY position")
            positions = [position for (position,) in cursor.fetchall()]
            for column, position in zip(COLUMNS["record"], positions, strict=False):
                cursor.execute(f"SELECT {column} FROM record WHERE position = {position}")
                [(value,)] = cursor.fetchall()
                other = value + "x" if isinstance(value, str) else flipped(value, random)
                cursor.execute(
                    f"UPDATE record SET {column} = %(v)s WHERE position = %(p)s",
                    {"v": other, "p": position},
                )
        store.check()
        lost = len(COLUMNS["record"])
        assert len(store.take_new_damage()) == lost
        assert records(store).items() <= before.items()
        assert len(records(store)) == len(before) - lost
        store.commit([], [an_event(9)])
        assert len(store.damage()) == lost


def test_in_memory_nothing_is_damaged():
    store = memory.make()
    put_new(store, a_run())
    assert (store.check(), store.damage(), store.take_new_damage()) == ((), (), ())


def damage(path: Path, where: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE record SET body = replace(body, 'e', 'f') WHERE {where}")
