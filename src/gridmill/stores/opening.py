"""Opens a database: creates or migrates the tables of a store, or refuses the database with a reason.

The tables hold records, events, and the numbers used up for ids.
"""

from gridmill.errors import StorageError
from gridmill.stores.dialect import Connection, Cursor, Dialect, transaction

VERSIONS = ("0001",)
"""Every schema version this Gridmill can open, oldest first; the migrations lead from each to the last."""

STAMP = "alembic_version"  # the table, as Alembic makes it, that says which

TABLES = (
    # position grows: the order of first puts; noun: the class's name; live: false for every JobRun, which is
    # live while its run is; body: the noun as JSON
    """
    CREATE TABLE record (
        position {counted},
        noun VARCHAR NOT NULL,
        key VARCHAR NOT NULL,
        version BIGINT NOT NULL,
        parent VARCHAR NOT NULL,
        live BOOLEAN NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (position)
    )
    """,
    "CREATE UNIQUE INDEX record_key ON record (noun, key)",
    "CREATE INDEX record_order ON record (noun, position)",
    "CREATE INDEX record_parent ON record (noun, parent, position)",
    "CREATE INDEX record_live ON record (live, noun, key) WHERE live = TRUE",
    # The sequence is given by the writer, not by the database: then sequences grow in the order of commits,
    # and a reader that asks for what is `after` the last one it saw misses nothing.
    """
    CREATE TABLE event (
        sequence {number},
        time FLOAT NOT NULL,
        type VARCHAR NOT NULL,
        run_id VARCHAR NOT NULL,
        job VARCHAR NOT NULL,
        attempt_id VARCHAR NOT NULL,
        pod_id VARCHAR NOT NULL,
        number BIGINT NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (sequence)
    )
    """,
    "CREATE UNIQUE INDEX event_number ON event (pod_id, number) WHERE number > 0",
    "CREATE INDEX event_run ON event (run_id, sequence)",
    "CREATE INDEX event_job ON event (run_id, job, sequence)",
    """
    CREATE TABLE counter (
        name VARCHAR NOT NULL,
        value BIGINT NOT NULL,
        PRIMARY KEY (name)
    )
    """,
    f"""
    CREATE TABLE {STAMP} (
        version_num VARCHAR(32) NOT NULL,
        CONSTRAINT {STAMP}_pkc PRIMARY KEY (version_num)
    )
    """,
)
"""The statements that make an empty database a store; {counted} and {number} are types (see Dialect)."""


def prepare(dialect: Dialect, connection: Connection) -> None:
    """Make sure of the schema; may be repeated, and by several processes at once. Raises StorageError."""
    version = _version(dialect, connection)
    if version is None:
        with transaction(dialect, connection) as cursor:
            if _version(dialect, connection) is None:  # still: another process may have been first
                _make(dialect, cursor)
    elif version != VERSIONS[-1]:
        from gridmill.stores.migrate import upgrade  # and with it Alembic and SQLAlchemy

        upgrade(dialect)


def _make(dialect: Dialect, cursor: Cursor) -> None:
    for statement in TABLES:
        cursor.execute(dialect.spell(statement).format(number=dialect.number, counted=dialect.counted))
    cursor.execute(dialect.spell(f"INSERT INTO {STAMP} VALUES (:version)"), {"version": VERSIONS[-1]})


def _version(dialect: Dialect, connection: Connection) -> str | None:
    """The schema's version; None for an empty database, '' before the first migration."""
    cursor = connection.cursor()
    cursor.execute(dialect.tables)
    tables = {name for (name,) in cursor.fetchall()}
    if not tables:
        return None
    if STAMP not in tables:
        raise StorageError(
            "this database is not a Gridmill store: it holds other tables",
            hint="Name another file or database.",
            place=dialect.place,
        )
    cursor.execute(f"SELECT version_num FROM {STAMP}")
    version: str = next((version for (version,) in cursor.fetchall()), "")
    if version and version not in VERSIONS:
        raise StorageError(
            f"the store was written by a newer Gridmill (schema {version}; this one knows {VERSIONS[-1]})",
            hint="Update Gridmill, or set GRIDMILL_HOME to another folder.",
            place=dialect.place,
        )
    return version
