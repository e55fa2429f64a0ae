"""Bring a database to this Gridmill's schema: make it, migrate it, or refuse it with a reason."""

from importlib import import_module

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    inspect,
    select,
)

from gridmill.errors import StorageError
from gridmill.stores.dialect import translated, writing
from gridmill.stores.schema import METADATA, VERSIONS

_STAMP = Table(  # as Alembic makes it
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


def prepare(engine: Engine) -> None:
    """Make sure of the schema; may be repeated, and by several processes at once. Raises StorageError."""
    with translated(engine):
        with engine.connect() as connection:
            if _version(connection) == VERSIONS[-1]:
                return
        with writing(engine) as connection, connection.begin():
            _bring_up_to_date(connection)


def _bring_up_to_date(connection: Connection) -> None:
    version = _version(connection)  # again: another process may have been first
    if version is None:
        METADATA.create_all(connection)
        _STAMP.create(connection)
        connection.execute(_STAMP.insert(), {"version_num": VERSIONS[-1]})
    elif version != VERSIONS[-1]:
        # Alembic is slow to import and seldom needed.
        import_module("gridmill.stores.migrate").upgrade(connection)


def _version(connection: Connection) -> str | None:
    """The schema's version; None for an empty database, '' before the first migration."""
    tables = inspect(connection).get_table_names()
    if not tables:
        return None
    if _STAMP.name not in tables:
        raise StorageError(
            "this database is not a Gridmill store: it holds other tables",
            hint="Name another file or database.",
            place=connection.engine.url.database or "",
        )
    version = connection.execute(select(_STAMP.c.version_num)).scalar() or ""
    if version and version not in VERSIONS:
        raise StorageError(
            f"the store was written by a newer Gridmill (schema {version}; this one knows {VERSIONS[-1]})",
            hint="Update Gridmill, or set GRIDMILL_HOME to another folder.",
            place=connection.engine.url.database or "",
        )
    return version
