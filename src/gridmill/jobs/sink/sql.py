"""An SQL database as the source of a sink: this module reads the rows after the position in one consistent
snapshot.

If the source is a table, it is read with its declared types. If the source is a query, the types of the
columns are inferred from their values. The URL of the database may contain values of environment variables.
Messages show the URL without secrets.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import Any, TypeVar
from warnings import catch_warnings, simplefilter

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects.mysql import SET
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, NoSuchTableError, SQLAlchemyError

from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import suggestion
from gridmill.domain.source import SqlSource
from gridmill.errors import DataError, InputError, UnavailableError
from gridmill.jobs.secret_values import fill_in
from gridmill.jobs.sink.convert import TIMESTAMP
from gridmill.jobs.sink.files import SourceFile
from gridmill.jobs.sink.source import SourceFiles, SourceRequest
from gridmill.jobs.sink.sql_columns import (
    UnrepresentableTime,
    begin,
    connect_arguments,
    read_all_times,
    read_as_written,
)
from gridmill.jobs.sink.sql_parameters import bind_values
from gridmill.jobs.sink.sql_staging import (
    CursorPosition,
    StagedRows,
    edge_of,
    is_endless,
    read_position,
    stage,
)
from gridmill.jobs.sink.time_ranges import key_of

_MYSQL = ("mysql", "mariadb")
_FLOAT = 4
"""The number of the type FLOAT in MySQL:
https://dev.mysql.com/doc/dev/mysql-server/latest/field__types_8h.html"""

_OF_MYSQL = {"YEAR": pa.int64(), "BIT": pa.int64()}
_OF_OTHERS = {"INTERVAL": pa.float64(), "OID": pa.int64()}
"""Types that only a single database has and that no general type of SQLAlchemy represents, by their names in
SQLAlchemy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryColumns:
    """The columns of a table or of a query. `types` are the declared types that are more precise than the
    types of the values."""

    origin: sa.FromClause
    columns: tuple[sa.ColumnElement[Any], ...]
    cursor: sa.ColumnElement[Any] | None = None
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    rest: pa.DataType | None = None
    """The type of all other columns until they have a value, or None if it is unknown."""
    may_lack: bool = True
    """Whether a row can have no value for the cursor."""

    def newest(
        self, where: sa.ColumnElement[bool] | None = None, *, as_double: bool = False
    ) -> sa.Select[Any]:
        """Return the statement that selects the largest cursor value of all rows, or of the rows that match
        `where`.

        With `as_double`, the value is read in double precision, because the database compares it in double
        precision. A single-precision number that is shown as 0.1 is a slightly different number.
        """
        value: sa.ColumnElement[Any] = sa.func.max(self.cursor, type_=sa.types.NullType())
        if as_double:
            value = _as_double(value)
        statement = sa.select(value).select_from(self.origin)
        return statement if where is None else statement.where(where)

    def count(self, where: sa.ColumnElement[bool]) -> sa.Select[Any]:
        """Return the statement that counts the rows that match `where`."""
        return sa.select(sa.func.count()).select_from(self.origin).where(where)

    def below(self, value: Any) -> sa.ColumnElement[bool]:  # noqa: ANN401  of the cursor's type, or its text
        """Return the SQL condition for rows whose cursor value is less than the given value."""
        assert self.cursor is not None
        return self.cursor < _bound(value)

    def unseen(self, edge: Any) -> sa.ColumnElement[bool] | None:  # noqa: ANN401  of the cursor's type
        """Return the SQL condition for rows that no load includes: rows without a cursor value and, if
        `edge` is set, rows with the cursor value `edge` or larger.

        Return None if no row can be skipped in this way.
        """
        assert self.cursor is not None
        conditions = [] if edge is None else [~self.below(edge)]
        if self.may_lack:
            conditions.append(self.cursor.is_(None))
        return sa.or_(*conditions) if conditions else None

    def between(self, low: CursorPosition | None, high: CursorPosition) -> sa.ColumnElement[bool]:
        """Return the SQL condition for rows with a cursor value after `low` and up to `high`."""
        assert self.cursor is not None
        upper = _bound(high.value)
        up_to: sa.ColumnElement[bool] = self.cursor <= upper if high.included else self.cursor < upper
        if low is None:
            return up_to
        lower = _bound(low.value)
        return sa.and_(self.cursor > lower if low.included else self.cursor >= lower, up_to)

    def statement(self, where: sa.ColumnElement[bool] | None = None) -> sa.Select[Any]:
        """Return the statement that selects the rows. If there is a cursor, the rows are in the order of the
        cursor."""
        statement = sa.select(*self.columns).select_from(self.origin)
        if where is None or self.cursor is None:
            return statement
        return statement.where(where).order_by(self.cursor)


def _bound(value: Any) -> sa.BindParameter[Any]:  # noqa: ANN401  of the cursor's type
    """Return the value as a bound parameter.

    The parameter of a text has no type, so that the database compares the text by the rules of the type of
    the column.
    """
    return sa.bindparam(None, value, type_=sa.types.NullType(), unique=True)


def _as_double(value: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return sa.type_coerce(value, sa.types.NullType()).op("+")(sa.literal_column("0e0"))


def shape_of(connection: sa.Connection, source: SqlSource, place: str) -> QueryColumns:
    """Return the columns of the table or query.

    Raises DataError for a table or a cursor column that does not exist, InputError for a query in which a
    value cannot be bound.
    """
    if source.query is None:
        return _of_table(connection, source, place)
    return _of_query(connection, source)


def _of_query(connection: sa.Connection, source: SqlSource) -> QueryColumns:
    dialect = connection.dialect.name
    bound = bind_values((source.query or "").strip().rstrip(";"), source.parameters, dialect)
    origin = sa.text(f"({bound.text}\n) AS source_query").bindparams(*bound.values)
    cursor: sa.ColumnElement[Any] | None = sa.column(source.cursor) if source.cursor else None
    types = _singles(connection, origin) if dialect in _MYSQL else {}
    if not any(types.values()):
        return QueryColumns(origin=origin, columns=(sa.literal_column("*"),), cursor=cursor)  # type: ignore[arg-type]
    return QueryColumns(
        origin=origin,  # type: ignore[arg-type]
        columns=tuple(_as_it_is(sa.column(name), type_) for name, type_ in types.items()),
        cursor=cursor,
        types={name: type_ for name, type_ in types.items() if type_ is not None},
    )


def _singles(connection: sa.Connection, origin: sa.TextClause) -> Mapping[str, pa.DataType | None]:
    """Return the columns of a query. In the result, only columns of single-precision numbers have a type."""
    columns: tuple[sa.ColumnElement[Any], ...] = (sa.literal_column("*"),)
    none = QueryColumns(origin=origin, columns=columns).statement().limit(0)  # type: ignore[arg-type]
    with connection.execute(none) as result:
        description = result.cursor.description if result.cursor is not None else ()
        return {name: pa.float32() if code == _FLOAT else None for name, code, *_ in description}


def _of_table(connection: sa.Connection, source: SqlSource, place: str) -> QueryColumns:
    schema, _, name = (source.table or "").rpartition(".")
    try:
        # no warning for types that SQLAlchemy does not know, because their values are read unchanged
        with catch_warnings():
            simplefilter("ignore", sa.exc.SAWarning)
            table = sa.Table(
                name, sa.MetaData(), schema=schema or None, autoload_with=connection, resolve_fks=False
            )
    except NoSuchTableError as error:
        inspector = sa.inspect(connection)
        table_names = [*inspector.get_table_names(schema or None), *inspector.get_view_names(schema or None)]
        raise _missing(f"there is no table {source.table!r}", name, table_names, place) from error
    if source.cursor is not None and source.cursor not in table.c:
        raise _missing(
            f"there is no column {source.cursor!r}, which `cursor` names",
            source.cursor,
            list(table.c.keys()),
            place,
        )
    is_mysql = connection.dialect.name in _MYSQL
    if source.cursor is not None:
        _check_cursor(table.c[source.cursor], is_mysql=is_mysql)
    types = {column.name: _declared(column.type, is_mysql=is_mysql) for column in table.c}
    columns = tuple(_as_it_is(column, types[column.name]) for column in table.c)
    cursor = _as_it_is(table.c[source.cursor], None) if source.cursor else None
    return QueryColumns(
        origin=table,
        columns=columns,
        cursor=cursor,
        types={name: type_ for name, type_ in types.items() if type_ is not None},
        rest=pa.string(),
        may_lack=source.cursor is None or table.c[source.cursor].nullable is not False,
    )


def _check_cursor(column: sa.Column[Any], *, is_mysql: bool) -> None:
    """Raise InputError if the database cannot sort and compare the column as a cursor.

    MySQL sorts ENUM and SET by the position of the value in the type but compares them as text, so rows would
    be skipped.
    """
    refused = (sa.Boolean, sa.types.Uuid, sa.JSON, sa.LargeBinary, sa.ARRAY)
    if not isinstance(column.type, (*refused, *((sa.Enum, SET) if is_mysql else ()))):
        return
    raise InputError(
        f"column {column.name!r} has type {column.type.__visit_name__.lower()}, which cannot be a cursor: "
        "a cursor holds numbers, times or texts that only grow",
        hint="Name a column of numbers or times, or leave `cursor` out.",
        place="source.sql.cursor",
    )


def _as_it_is(column: sa.ColumnClause[Any], type_: pa.DataType | None) -> sa.ColumnElement[Any]:
    """Return the expression that selects the value as the driver returns it.

    SQLAlchemy would truncate a TIME of 25 hours, and split a SET. MySQL itself shows only six digits of a
    FLOAT.
    """
    raw = _as_double(column) if type_ == pa.float32() else sa.type_coerce(column, sa.types.NullType())
    return raw.label(column.name)


def _declared(type_: sa.types.TypeEngine[Any], *, is_mysql: bool) -> pa.DataType | None:
    """Return the Arrow type for a declared type, if an empty column would not show it.

    Return None if the type is inferred from the values.
    """
    match type_:
        case sa.Boolean():
            return pa.bool_()
        case sa.DateTime():
            return TIMESTAMP
        case sa.Date():
            return pa.date32()
        case sa.Integer():
            return pa.int64()
        case sa.FLOAT() if is_mysql:
            return pa.float32()
        case sa.Float():
            return pa.float64()
        case sa.Numeric(precision=int(), scale=0):
            return pa.int64()
        case sa.Numeric(precision=int() as digits, scale=int() as scale) if 0 < digits <= 38 and scale >= 0:
            return pa.decimal128(digits, scale)
        case sa.Numeric():
            return pa.float64()
        case sa.LargeBinary() | sa.BINARY() | sa.VARBINARY():
            return pa.binary()
    base = getattr(type_, "data_type", None)
    if isinstance(base, sa.types.TypeEngine):  # a PostgreSQL domain has the values of its base type
        return _declared(base, is_mysql=is_mysql)
    return (_OF_MYSQL if is_mysql else _OF_OTHERS).get(type_.__visit_name__)


def _missing(message: str, name: str, available: list[str], place: str) -> DataError:
    shown = ", ".join(sorted(available)[:10]) or "nothing"
    hint = f"There is {shown}. {suggestion(name, available)}".rstrip()
    return DataError(message, hint=hint, place=place)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseAddress:
    """The address of a database. `url` is only for SQLAlchemy. `shown` is for messages: it contains the host
    and the database, without user and password."""

    url: sa.URL
    shown: str


def address_of(written: str, folder: str) -> DatabaseAddress:
    """Return the address of the database at a declared URL. Relative SQLite paths start at `folder`.

    Raises InputError for an environment variable that is not set, a URL that cannot be parsed, and a missing
    SQLite file.
    """
    try:
        url = sa.make_url(fill_in(written, "source.sql.url", in_url=True))
    except (sa.exc.ArgumentError, ValueError) as error:
        raise InputError("this is not a valid database URL", place="source.sql.url") from error
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() != "sqlite":
        return DatabaseAddress(
            url=url, shown=f"{url.get_backend_name()}://{url.host or ''}/{url.database or ''}"
        )
    path = os.path.normpath(os.path.join(os.path.abspath(folder), url.database or ""))
    if not os.path.isfile(path):
        raise InputError(f"the SQLite file {path} does not exist", place="source.sql.url")
    return DatabaseAddress(url=url.set(database=path), shown=f"sqlite:///{url.database}")


T = TypeVar("T")

FIRST_UNREADABLE = "10000-01-01"
"""The first time after the years that Python can represent."""
BATCH_ROWS = 10_000
"""The number of rows that the server sends together. Rows that the server has sent are in memory as Python
objects."""
_DRIVERS = {"psycopg": "gridmill[postgresql]"}


def arrive(request: SourceRequest) -> SourceFiles:
    """Write the rows after the position to local files. Without a cursor, write all rows.

    Raises InputError for a wrong URL, table or column, DataError for errors of the database, UnavailableError
    if the database does not answer.
    """
    source = request.source.sql
    assert source is not None
    address = address_of(source.url, request.folder)
    name = f"{address.shown} {request.source.name}"
    key = hashlib.sha256((source.table or source.lasting_query).encode()).hexdigest()[:16]
    with _connected(address, name) as connection:
        shape = shape_of(connection, source, name)
        read_as_written(connection)
        if source.stretch is not None:
            return _of_stretch(connection, shape, request, name, key_of(source.stretch))
        if source.cursor is None:
            staged = _staged(connection, shape, shape.statement(), request, name, key)
            return SourceFiles(files=staged.files(staged.content))
        low = read_position(request.positions.get(key))
        newest, edge = _newest(connection, shape, name)
        high = (
            None if newest is None else _reached(connection, shape, edge_of(newest, source, low, name), low)
        )
        unseen = _count_unseen(connection, shape, edge)
        if high is None and low is None:  # writes the columns without rows, so that the table exists
            none = _staged(connection, shape, shape.statement().where(sa.false()), request, name, key)
            return SourceFiles(files=none.files(none.content), append=True, unseen=unseen)
        if high is None:
            return SourceFiles(files=(), append=True, unseen=unseen)
        statement = shape.statement(shape.between(low, high))
        staged = _staged(connection, shape, statement, request, name, key)
        written = high.written()
        content = hashlib.sha256(repr((low and low.written(), written)).encode()).hexdigest()[:16]
        return SourceFiles(files=staged.files(content), positions={key: written}, append=True, unseen=unseen)


def arrive_empty(request: SourceRequest) -> tuple[SourceFile, ...]:
    """Write a file that has the columns of the source and no rows. Raises the same errors as `arrive`."""
    source = request.source.sql
    assert source is not None
    address = address_of(source.url, request.folder)
    name = f"{address.shown} {request.source.name}"
    with _connected(address, name) as connection:
        shape = shape_of(connection, source, name)
        read_as_written(connection)
        staged = _staged(connection, shape, shape.statement().where(sa.false()), request, name, "")
        return tuple(staged.files(staged.content))


def _of_stretch(
    connection: sa.Connection, shape: QueryColumns, request: SourceRequest, name: str, key: str
) -> SourceFiles:
    """Write the rows of a time range.

    Rows of different time ranges never count as the same rows, even if they are equal.
    """
    staged = _staged(connection, shape, shape.statement(), request, name, key)
    content = hashlib.sha256(f"{key} {staged.content}".encode()).hexdigest()[:16]
    return SourceFiles(files=staged.files(content), partial=True)


def _newest(connection: sa.Connection, shape: QueryColumns, name: str) -> tuple[Any, Any]:
    """Return the largest cursor value that a later row can exceed. Also return the first value that no row
    can exceed, if there is such a value.

    NaN and infinity are values that no row can exceed.
    """
    newest, edge = _greatest(connection, shape), None
    while is_endless(newest):
        edge = newest
        newest = _greatest(connection, shape, shape.below(newest))
    if isinstance(newest, UnrepresentableTime):
        edge = FIRST_UNREADABLE
        newest = _greatest(connection, shape, shape.below(edge))
    if isinstance(newest, UnrepresentableTime):
        raise DataError(
            f"the newest value of the cursor is {str(newest)!r}, which is not a date or time of the years "
            "1 to 9999",
            hint="Name another column as `cursor`, or exclude such rows in a `query`.",
            place=name,
        )
    return newest, edge


def _reached(
    connection: sa.Connection, shape: QueryColumns, edge: CursorPosition, low: CursorPosition | None
) -> CursorPosition | None:
    """Return the position with the largest cursor value that this load includes, up to `edge`. Return None
    if there is no value after the value of the last load.

    The next load begins directly after the cursor value of this position. A row that arrives late is skipped
    only if its cursor value is not larger than the last loaded value.
    """
    value = _greatest(connection, shape, shape.between(low, edge))
    return None if value is None else CursorPosition(value=value, included=True)


def _count_unseen(connection: sa.Connection, shape: QueryColumns, edge: Any) -> int:  # noqa: ANN401
    """Return the number of rows that no load includes: rows without a cursor value, or with a cursor value
    that no other value can exceed."""
    unseen = shape.unseen(edge)
    return 0 if unseen is None else int(connection.execute(shape.count(unseen)).scalar() or 0)


def _greatest(
    connection: sa.Connection, shape: QueryColumns, where: sa.ColumnElement[bool] | None = None
) -> Any:  # noqa: ANN401
    value = _read(connection, lambda: connection.execute(shape.newest(where)).scalar())
    if isinstance(value, float):
        return connection.execute(shape.newest(where, as_double=True)).scalar()
    return value


def _staged(
    connection: sa.Connection,
    shape: QueryColumns,
    statement: sa.Select[Any],
    request: SourceRequest,
    name: str,
    key: str,
) -> StagedRows:
    streaming = connection.execution_options(stream_results=True, max_row_buffer=BATCH_ROWS)

    def staged() -> StagedRows:
        with streaming.execute(statement) as result:
            batches = ([tuple(row) for row in rows] for rows in result.partitions(BATCH_ROWS))
            names = tuple(result.keys())
            return stage(batches, names, shape.types, request.work, name, key, shape.rest, request.texts)

    return _read(connection, staged)


def _read(connection: sa.Connection, read: Callable[[], T]) -> T:
    """Return the result of the function `read`.

    If the driver cannot read a time that Python cannot represent, `read` is called a second time and returns
    such times as text. Errors of the server are classified by their state codes. If the connection is lost,
    none of the connections of its pool is used again.
    """
    try:
        return read()
    except sa.exc.DataError as error:
        if getattr(error.orig, "sqlstate", "") is not None or not read_all_times(connection):
            raise
    return read()


@contextmanager
def _connected(address: DatabaseAddress, name: str) -> Iterator[sa.Connection]:
    """Return a context with a transaction that reads a consistent state of the database and changes
    nothing."""
    try:
        engine = sa.create_engine(
            address.url,
            poolclass=sa.NullPool,
            hide_parameters=True,
            connect_args=connect_arguments(address.url),
        )
    except NoSuchModuleError as error:
        raise InputError(
            f"SQLAlchemy does not know the database {address.url.drivername!r}",
            hint="Write postgresql+psycopg:// or sqlite:///, or install the package with its dialect.",
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
            f"the database reports: {_driver_message(error)}", place=name
        ) from error
    except SQLAlchemyError as error:
        raise DataError(f"cannot be read: {error}", place=name) from error
    finally:
        engine.dispose()


def _is_lost(error: DBAPIError, address: DatabaseAddress) -> bool:
    """Return whether another attempt may succeed after this error. SQLite is an exception, because it
    reports every error as operational."""
    if address.url.get_backend_name() == "sqlite":
        return "locked" in str(error.orig)
    return error.connection_invalidated or isinstance(error, sa.exc.OperationalError)


def _driver_message(error: DBAPIError) -> str:
    """Return the message of the database driver, which may contain hosts and columns but never passwords."""
    return " ".join(str(error.orig).split())[:500]
