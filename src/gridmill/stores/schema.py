"""The database schema of a record store: its tables, its versions, and the migration of older databases.

Each change of the tables gets a number in `VERSIONS` and a migration in `stores/migrations`.
"""

from gridmill.errors import StorageError
from gridmill.stores.dialect import RECOVER, Connection, Cursor, Dialect, transaction

VERSIONS = ("0002",)
"""The schema versions that this release can open, with the oldest version first. Migrations convert the
older versions to the last version."""

RETIRED = ("0001",)
"""Early schema versions that cannot be opened, because fields of their records had other names."""

STAMP = "alembic_version"
"""The table in which Alembic stores the schema version."""

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
        checksum BIGINT NOT NULL,
        PRIMARY KEY (position)
    )
    """,
    "CREATE UNIQUE INDEX record_key ON record (noun, key)",
    "CREATE INDEX record_order ON record (noun, position)",
    "CREATE INDEX record_parent ON record (noun, parent, position)",
    "CREATE INDEX record_live ON record (live, noun, key) WHERE live = TRUE",
    # The writer assigns sequences, not the database: so they grow in the order of commits, and a reader that
    # asks for events `after` the last one it has read misses none.
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
        checksum BIGINT NOT NULL,
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
        checksum BIGINT NOT NULL,
        PRIMARY KEY (name)
    )
    """,
    # damaged records are moved here, so that they no longer occupy their keys
    """
    CREATE TABLE damaged (
        number {counted},
        noun VARCHAR NOT NULL,
        key VARCHAR NOT NULL,
        parent VARCHAR NOT NULL,
        problem VARCHAR NOT NULL,
        body TEXT NOT NULL,
        told BOOLEAN NOT NULL,
        PRIMARY KEY (number)
    )
    """,
    f"""
    CREATE TABLE {STAMP} (
        version_num VARCHAR(32) NOT NULL,
        CONSTRAINT {STAMP}_pkc PRIMARY KEY (version_num)
    )
    """,
)
"""The statements that create the tables; {counted} and {number} are column types (see Dialect)."""


def prepare(dialect: Dialect, connection: Connection) -> None:
    """Creates or migrates the tables. Several processes may call this function at the same time. Raises
    StorageError."""
    version = _version(dialect, connection)
    if version is None:
        with transaction(dialect, connection) as cursor:
            # read again under the lock, because another process may have created the tables first
            if _version(dialect, connection) is None:
                _make(dialect, cursor)
    elif version != VERSIONS[-1]:
        # imported here, because it loads Alembic and SQLAlchemy, which only an upgrade needs
        from gridmill.stores.migrate import upgrade

        upgrade(dialect)


def _make(dialect: Dialect, cursor: Cursor) -> None:
    for statement in TABLES:
        cursor.execute(dialect.spell(statement).format(number=dialect.number, counted=dialect.counted))
    cursor.execute(dialect.spell(f"INSERT INTO {STAMP} VALUES (:version)"), {"version": VERSIONS[-1]})


def _version(dialect: Dialect, connection: Connection) -> str | None:
    """Returns the schema version, None for an empty database, or '' before the first migration."""
    cursor = connection.cursor()
    cursor.execute(dialect.tables)
    tables = {name for (name,) in cursor.fetchall()}
    if not tables:
        return None
    if STAMP not in tables:
        raise StorageError(
            "this database is not a Gridmill store: it holds other tables",
            hint=f"Set GRIDMILL_STORE to another database. {RECOVER}",
            place=dialect.place,
        )
    cursor.execute(f"SELECT version_num FROM {STAMP}")
    version: str = next((version for (version,) in cursor.fetchall()), "")
    if version in RETIRED:
        raise StorageError(
            f"the store was written before the first release of Gridmill (schema {version}) and cannot be"
            f" read by this one (schema {VERSIONS[-1]})",
            hint="Set GRIDMILL_HOME to a new folder, and run the pipelines there. The old folder keeps its"
            " artifacts; the manifests beside them describe each of them.",
            place=dialect.place,
        )
    if version and version not in VERSIONS:
        raise StorageError(
            f"the store was written by a newer Gridmill (schema {version}; this one reads {VERSIONS[-1]})",
            hint="Update Gridmill, or set GRIDMILL_HOME to another folder.",
            place=dialect.place,
        )
    return version
