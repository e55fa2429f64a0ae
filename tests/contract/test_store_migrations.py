"""Stores of earlier versions are brought up to date, as a whole or not at all; later ones are left alone."""

import json
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData
from tests.kit.lost_fields import lost

from gridmill.codec import encode
from gridmill.domain.pod_protocol import Event, sequence_of
from gridmill.domain.run import Run
from gridmill.errors import StorageError
from gridmill.ports.store import key_of
from gridmill.stores import migrate, sql
from gridmill.stores.rows import CLASSES
from gridmill.stores.schema import STAMP, VERSIONS
from gridmill.testing.store_samples import a_run, one_of_each
from gridmill.testing.store_suite import put_new

GOLDEN = Path(__file__).parents[1] / "golden"
RELEASES = sorted({path.name.split(".sq")[0].split(".po")[0] for path in GOLDEN.glob("store-*.sql")})
HOW = "CONTRIBUTING.md, 'Change the store's tables', says how to write one"


@dataclass
class Database:
    """An empty database, and how a dump gets into it."""

    kind: str
    address: str
    load: Callable[[str], None]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sql.dialect_of(self.address).open()) as connection:
            cursor = connection.cursor()
            cursor.execute(query)
            return cursor.fetchall()

    def change(self, statement: str) -> None:
        with closing(sql.dialect_of(self.address).open()) as connection:
            connection.cursor().execute(statement)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        path = tmp_path / "store.db"

        def load(dump: str) -> None:
            with closing(sqlite3.connect(path)) as connection:
                connection.executescript(dump)

        return Database("sqlite", str(path), load)
    server = request.getfixturevalue("postgresql")
    name = server.create_database()
    return Database("postgresql", server.url(name), lambda dump: server.execute(dump, name) and None)


# -- from earlier releases ---------------------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
def test_a_store_of_an_earlier_release_is_migrated_and_reads_back(database: Database, release: str):
    database.load((GOLDEN / f"{release}.{database.kind}.sql").read_text())
    records = database.rows("SELECT noun, key, version, body FROM record ORDER BY position")
    events = database.rows(
        "SELECT sequence, time, type, run_id, job, attempt_id, pod_id, number, body FROM event"
    )
    counters = dict(database.rows("SELECT name, value FROM counter"))
    assert {noun for noun, *_ in records} <= CLASSES.keys()
    with closing(sql.make(database.address)) as store:
        for noun, key, version, body in records:
            found = store.get(CLASSES[noun], key)
            assert found is not None, f"{noun} {key} is gone"
            assert (key_of(found.noun), found.version) == (key, version)
            assert lost(json.loads(body), json.loads(encode(found.noun))) == [], f"{noun} {key}"
        assert [*map(as_row, store.events())] == [(*event[:-1], json.loads(event[-1])) for event in events]
        assert store.counters() == counters
        put_new(store, a_run(3))
        assert store.commit([], [store.events()[0]]) == (0,)
    assert database.rows("SELECT version_num FROM alembic_version") == [(VERSIONS[-1],)]


def as_row(event: Event) -> tuple[Any, ...]:
    where = (event.run_id, event.job, event.attempt_id, event.pod_id)
    return (sequence_of(event.id), event.time, str(event.type), *where, event.number, dict(event.body))


def test_each_release_was_kept_for_both_databases():
    for release in RELEASES:
        assert {p.name for p in GOLDEN.glob(f"{release}.*")} == {
            f"{release}.sqlite.sql",
            f"{release}.postgresql.sql",
        }


# -- the tables and the migrations say the same ------------------------------------------------------------


def test_every_change_of_the_tables_has_a_migration(database: Database, tmp_path: Path, request):
    url = request.getfixturevalue("postgresql_url") if database.kind == "postgresql" else None
    fresh = url or str(tmp_path / "fresh.db")
    sql.make(fresh).close()
    wanted = MetaData()
    wanted.reflect(migrate.toolkit(sql.dialect_of(fresh)))
    wanted.remove(wanted.tables[STAMP])
    migrate.upgrade(sql.dialect_of(database.address))
    with migrate.toolkit(sql.dialect_of(database.address)).begin() as connection:
        lacking = compare_metadata(MigrationContext.configure(connection), wanted)
    assert not lacking, f"stores/schema.py says what no migration makes: {lacking}. {HOW}"


def test_migrations_make_the_same_file_as_a_new_store(tmp_path: Path):
    sql.make(tmp_path / "fresh.db").close()
    migrate.upgrade(sql.dialect_of(tmp_path / "migrated.db"))
    fresh, migrated = tables(tmp_path / "fresh.db"), tables(tmp_path / "migrated.db")
    assert fresh == migrated, f"a new store and a migrated one differ. {HOW}"


def tables(path: Path) -> dict[str, str]:
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        return {name: re.sub(r"\s*([(),])\s*", r"\1", made.replace('"', "")) for name, made in found}


def test_the_known_versions_are_those_of_the_migrations():
    script = ScriptDirectory.from_config(migrate.configuration())
    steps = tuple(step.revision for step in script.walk_revisions())[::-1]
    assert steps == VERSIONS, f"VERSIONS in stores/schema.py must name every migration, oldest first. {HOW}"


def test_a_database_before_the_first_migration_is_migrated(database: Database):
    database.change("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
    with closing(sql.make(database.address)) as store:
        put_new(store, *one_of_each())
    with closing(sql.make(database.address)) as store:
        assert store.get(Run, "weather-1")


# -- never half-way, never back ----------------------------------------------------------------------------

STEP = '''
"""A step that is interrupted."""
import os, signal
import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "{last}"

def upgrade():
    op.add_column("counter", sa.Column("half", sa.String))
    op.execute("UPDATE record SET version = version + 1000")
    {end}
'''
MIGRATE = """
import sys
from pathlib import Path
from gridmill.stores.migrate import upgrade
from gridmill.stores.sql import dialect_of
upgrade(dialect_of(sys.argv[1]), Path(sys.argv[2]))
"""


def steps_with(folder: Path, end: str) -> Path:
    """The shipped migrations, and one more."""
    steps = folder / "migrations"
    shutil.copytree(Path(migrate.__file__).parent / "migrations", steps)
    (steps / "versions" / "v9999_one_more.py").write_text(STEP.format(last=VERSIONS[-1], end=end))
    return steps


def picture(database: Database) -> list[Any]:
    query = "SELECT noun, key, version, body FROM record ORDER BY position"
    return [
        database.rows(q) for q in (query, "SELECT * FROM counter", "SELECT version_num FROM alembic_version")
    ]


@pytest.mark.parametrize(
    ("end", "code"),
    [("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL), ("raise RuntimeError('half-way')", 1)],
)
def test_an_interrupted_migration_is_harmless(database: Database, tmp_path: Path, end: str, code: int):
    with closing(sql.make(database.address)) as store:
        put_new(store, *one_of_each())
    before = picture(database)
    words = [sys.executable, "-c", MIGRATE, database.address, str(steps_with(tmp_path, end))]
    done = subprocess.run(words, capture_output=True, timeout=300, check=False)
    assert done.returncode == code, done.stderr
    assert picture(database) == before
    with closing(sql.make(database.address)) as store:
        put_new(store, a_run(2))


def test_a_migration_that_ends_is_there(database: Database, tmp_path: Path):
    """What the test above interrupts does work."""
    sql.make(database.address).close()
    words = [sys.executable, "-c", MIGRATE, database.address, str(steps_with(tmp_path, "pass"))]
    subprocess.run(words, timeout=300, check=True)
    assert database.rows("SELECT version_num FROM alembic_version") == [("9999",)]


def test_a_store_of_a_newer_gridmill_is_refused_and_not_touched(database: Database):
    with closing(sql.make(database.address)) as store:
        put_new(store, a_run())
    database.change("UPDATE alembic_version SET version_num = '9999'")
    before = picture(database)
    with pytest.raises(StorageError, match="newer Gridmill") as raised:
        sql.make(database.address)
    assert "Update Gridmill" in raised.value.hint
    assert re.search(r"schema 9999; this one reads \d+", str(raised.value))
    assert picture(database) == before


def test_a_store_of_before_the_first_release_is_refused_and_not_touched(database: Database):
    """Its records would be read without what their fields had under other names."""
    with closing(sql.make(database.address)) as store:
        put_new(store, a_run())
    database.change("UPDATE alembic_version SET version_num = '0001'")
    before = picture(database)
    with pytest.raises(StorageError, match=r"before the first release .*\(schema 0001\)") as raised:
        sql.make(database.address)
    assert "Set GRIDMILL_HOME to a new folder" in raised.value.hint
    assert picture(database) == before


def test_there_is_no_way_back():
    """A downgrade would have to invent what the older version does not know: none is written."""
    script = ScriptDirectory.from_config(migrate.configuration())
    for step in script.walk_revisions():
        assert not hasattr(step.module, "downgrade"), f"{step.revision} has a downgrade: see {HOW}"
