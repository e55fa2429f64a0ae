"""Bring a database to this Gridmill's schema: make it, migrate it, or refuse it with a reason."""

from importlib import import_module

from gridmill.errors import StorageError
from gridmill.stores.connections import transaction
from gridmill.stores.dialect import Connection, Cursor, Dialect
from gridmill.stores.schema import STAMP, TABLES, VERSIONS


def prepare(dialect: Dialect, connection: Connection) -> None:
    """Make sure of the schema; may be repeated, and by several processes at once. Raises StorageError."""
    version = _version(dialect, connection)
    if version is None:
        with transaction(dialect, connection) as cursor:
            if _version(dialect, connection) is None:  # still: another process may have been first
                _make(dialect, cursor)
    elif version != VERSIONS[-1]:
        # What migrates is slow to import and seldom needed.
        import_module("gridmill.stores.migrate").upgrade(dialect)


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
