"""A database as a sink's source: one consistent look, the rows beyond the position, and where they end."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, SQLAlchemyError

from gridmill.errors import DataError, InputError, UnavailableError
from gridmill.jobs.sink.arrivals import Arrivals, Asked
from gridmill.jobs.sink.files import SourceFile
from gridmill.jobs.sink.sql.address import Address, address_of
from gridmill.jobs.sink.sql.columns import Unreadable
from gridmill.jobs.sink.sql.position import Position, edge_of, is_endless, read_position
from gridmill.jobs.sink.sql.session import begin, connect_arguments, read_all_times, read_as_written
from gridmill.jobs.sink.sql.shape import Shape, shape_of
from gridmill.jobs.sink.sql.staging import Staged, stage
from gridmill.jobs.sink.stretch import key_of

T = TypeVar("T")

FIRST_UNREADABLE = "10000-01-01"
"""The first time after those that Python has values for."""
BATCH_ROWS = 10_000
"""Rows the server hands over at a time, and that are held in Python's objects."""
_DRIVERS = {"psycopg": "gridmill[postgresql]"}


def arrive(asked: Asked) -> Arrivals:
    """The rows that are new since the position (all, without a cursor), brought here.

    Raises InputError for a URL, table or column that is not right, DataError for what the database refuses,
    UnavailableError when it does not answer.
    """
    source = asked.source.sql
    assert source is not None
    address = address_of(source.url, asked.folder)
    name = f"{address.shown} {asked.source.name}"
    key = hashlib.sha256((source.table or source.lasting_query).encode()).hexdigest()[:16]
    with _connected(address, name) as connection:
        shape = shape_of(connection, source, name)
        read_as_written(connection)
        if source.stretch is not None:
            return _of_stretch(connection, shape, asked, name, key_of(source.stretch))
        if source.cursor is None:
            staged = _staged(connection, shape, shape.statement(), asked, name, key)
            return Arrivals(files=staged.files(staged.content))
        low = read_position(asked.positions.get(key))
        newest, edge = _newest(connection, shape, name)
        high = (
            None if newest is None else _reached(connection, shape, edge_of(newest, source, low, name), low)
        )
        unseen = _count_unseen(connection, shape, edge)
        if high is None and low is None:  # the columns, so that there is a table
            none = _staged(connection, shape, shape.statement().where(sa.false()), asked, name, key)
            return Arrivals(files=none.files(none.content), append=True, unseen=unseen)
        if high is None:
            return Arrivals(files=(), append=True, unseen=unseen)
        statement = shape.statement(shape.between(low, high))
        staged = _staged(connection, shape, statement, asked, name, key)
        written = high.written()
        content = hashlib.sha256(repr((low and low.written(), written)).encode()).hexdigest()[:16]
        return Arrivals(files=staged.files(content), positions={key: written}, append=True, unseen=unseen)


def arrive_empty(asked: Asked) -> tuple[SourceFile, ...]:
    """The columns of the source, without rows. Raises what `arrive` raises."""
    source = asked.source.sql
    assert source is not None
    address = address_of(source.url, asked.folder)
    name = f"{address.shown} {asked.source.name}"
    with _connected(address, name) as connection:
        shape = shape_of(connection, source, name)
        read_as_written(connection)
        staged = _staged(connection, shape, shape.statement().where(sa.false()), asked, name, "")
        return tuple(staged.files(staged.content))


def _of_stretch(connection: sa.Connection, shape: Shape, asked: Asked, name: str, key: str) -> Arrivals:
    """The rows of a stretch of time; those of another one never count as the same, though they are alike."""
    staged = _staged(connection, shape, shape.statement(), asked, name, key)
    content = hashlib.sha256(f"{key} {staged.content}".encode()).hexdigest()[:16]
    return Arrivals(files=staged.files(content), partial=True)


def _newest(connection: sa.Connection, shape: Shape, name: str) -> tuple[Any, Any]:
    """The largest value that others can exceed: after NaN or infinity no row would ever be beyond. And where
    those begin, if there are any."""
    newest, edge = _greatest(connection, shape), None
    while is_endless(newest):
        edge = newest
        newest = _greatest(connection, shape, shape.below(newest))
    if isinstance(newest, Unreadable):
        edge = FIRST_UNREADABLE
        newest = _greatest(connection, shape, shape.below(edge))
    if isinstance(newest, Unreadable):
        raise DataError(
            f"the newest value of the cursor is {str(newest)!r}, no date or time of the years 1 to 9999",
            hint="Name another column as `cursor`, or leave such rows out in a `query`.",
            place=name,
        )
    return newest, edge


def _reached(
    connection: sa.Connection, shape: Shape, edge: Position, low: Position | None
) -> Position | None:
    """The largest value that this load takes, up to `edge`; None where there is none beyond the last load's.

    A later load begins right after it: a row that comes late is lost only at or below a loaded value.
    """
    value = _greatest(connection, shape, shape.between(low, edge))
    return None if value is None else Position(value=value, included=True)


def _count_unseen(connection: sa.Connection, shape: Shape, edge: Any) -> int:  # noqa: ANN401
    """Rows that no load takes: without a cursor value, or with one that nothing can exceed."""
    unseen = shape.unseen(edge)
    return 0 if unseen is None else int(connection.execute(shape.count(unseen)).scalar() or 0)


def _greatest(connection: sa.Connection, shape: Shape, where: sa.ColumnElement[bool] | None = None) -> Any:  # noqa: ANN401
    value = _read(connection, lambda: connection.execute(shape.newest(where)).scalar())
    if isinstance(value, float):
        return connection.execute(shape.newest(where, as_double=True)).scalar()
    return value


def _staged(
    connection: sa.Connection, shape: Shape, statement: sa.Select[Any], asked: Asked, name: str, key: str
) -> Staged:
    streaming = connection.execution_options(stream_results=True, max_row_buffer=BATCH_ROWS)

    def staged() -> Staged:
        with streaming.execute(statement) as result:
            batches = ([tuple(row) for row in rows] for rows in result.partitions(BATCH_ROWS))
            names = tuple(result.keys())
            return stage(batches, names, shape.types, asked.work, name, key, shape.rest, asked.texts)

    return _read(connection, staged)


def _read(connection: sa.Connection, read: Callable[[], T]) -> T:
    """What it reads; a second time where the driver cannot read a time: what Python has no value for is then
    told from what it has. What the server says has a state, and no connection is left where it was lost."""
    try:
        return read()
    except sa.exc.DataError as error:
        if getattr(error.orig, "sqlstate", "") is not None or not read_all_times(connection):
            raise
    return read()


@contextmanager
def _connected(address: Address, name: str) -> Iterator[sa.Connection]:
    """A transaction that sees one state of the database and changes nothing."""
    try:
        engine = sa.create_engine(
            address.url,
            poolclass=sa.NullPool,
            hide_parameters=True,
            connect_args=connect_arguments(address.url),
        )
    except NoSuchModuleError as error:
        raise InputError(
            f"SQLAlchemy knows no database {address.url.drivername!r}",
            hint="Write postgresql+psycopg://, sqlite:///, or install the package with its dialect.",
            place="source.sql.url",
        ) from error
    except ModuleNotFoundError as error:
        raise InputError(
            f"the package {error.name!r} is not installed here",
            hint=f"pip install '{_DRIVERS.get(error.name or '', error.name)}'",
            place="source.sql.url",
        ) from error
    try:
        with engine.connect() as connection:
            if engine.dialect.name in ("postgresql", "mysql", "mariadb"):
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin() as transaction:
                begin(connection)
                yield connection
                transaction.rollback()
    except DBAPIError as error:
        raise (UnavailableError if _is_lost(error, address) else DataError)(
            f"the database says: {_said(error)}", place=name
        ) from error
    except SQLAlchemyError as error:
        raise DataError(f"cannot be read: {error}", place=name) from error
    finally:
        engine.dispose()


def _is_lost(error: DBAPIError, address: Address) -> bool:
    """Whether trying again can help. SQLite calls every mistake operational."""
    if address.url.get_backend_name() == "sqlite":
        return "locked" in str(error.orig)
    return error.connection_invalidated or isinstance(error, sa.exc.OperationalError)


def _said(error: DBAPIError) -> str:
    """The driver's own words, which name hosts and columns, never passwords."""
    return " ".join(str(error.orig).split())[:500]
