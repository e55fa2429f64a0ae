"""Reads the rows of feeds from versions of tables: all rows of a version, or only the rows of some of its
data files."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from gridmill.codec import to_builtins
from gridmill.domain.artifact import ArtifactKind, Output
from gridmill.domain.frozen import dataclass
from gridmill.domain.storage_uri import below
from gridmill.errors import StorageError
from gridmill.jobs.dataset.joins import register_tables
from gridmill.jobs.dataset.time_units import Units
from gridmill.jobs.duckdb_engine import Types, quoted
from gridmill.jobs.expressions import KNOWN, types_of
from gridmill.jobs.tables import open_version, with_outages
from gridmill.online.plan import Feed
from gridmill.online.view import HeldVersion

MEMORY_BYTES = 2 * 2**30
BATCH_ROWS = 65_536
COUNT = "__n"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A version of a table: its name in the declaration, the storage root, and the version. `units` are the
    units of numbers in its columns that are used as times."""

    name: str
    root: Path
    output: Output
    units: Units

    @property
    def path(self) -> Path:
        """The folder with the files of the table."""
        return below(self.root, self.output.uri)

    @property
    def held(self) -> HeldVersion:
        """The record of this version in a view."""
        outages = self.output.details.get("outages") or []
        text = json.dumps(to_builtins(outages), sort_keys=True) if outages else ""
        return HeldVersion(uri=self.output.uri, number=self.output.table_version or 0, outages=text)

    @property
    def is_delta(self) -> bool:
        """Whether the table has versions with a log of changes."""
        return self.output.kind == ArtifactKind.SINK

    def schema(self) -> pa.Schema:
        """Return the columns of the version. Their times have no zone. Raises StorageError."""
        with _readable(self.output.uri):
            return without_zones(open_version(self.path, self.output).schema)

    def rows(self) -> ds.Dataset:
        """Return all rows of the version. Raises StorageError."""
        with _readable(self.output.uri):
            return open_version(self.path, self.output, self.schema())

    def rows_of(self, files: Sequence[str], schema: pa.Schema) -> ds.Dataset:
        """Return the rows of data files of the table, without those in outages. A column that a file lacks
        has no values. Raises StorageError."""
        with _readable(self.output.uri):
            paths = [str(self.path / file) for file in files]
            return with_outages(ds.dataset(paths, format="parquet", schema=schema), self.output)


def without_zones(schema: pa.Schema) -> pa.Schema:
    """Return the schema with times that have no zone."""
    return pa.schema(
        [
            (item.name, pa.timestamp("us") if pa.types.is_timestamp(item.type) else item.type)
            for item in schema
        ]
    )


@contextmanager
def _readable(uri: str) -> Iterator[None]:
    try:
        yield
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise StorageError(f"{uri} cannot be read: {error}") from error


@contextmanager
def open_sources(
    folder: Path, threads: int = 2, memory_bytes: int = MEMORY_BYTES
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a SQL engine that reads only tables that are registered. Its temporary files are in `folder`."""
    config: dict[str, str | bool | int | float | list[str]] = {
        "threads": threads,
        "memory_limit": f"{memory_bytes}B",
        "temp_directory": str(folder / "spill"),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
    }
    with duckdb.connect(config=config) as engine:
        engine.execute("SET TimeZone = 'UTC'")
        engine.execute("SET enable_external_access = false")
        yield engine


def table_types(engine: duckdb.DuckDBPyConnection, tables: Mapping[str, SourceTable]) -> Mapping[str, Types]:
    """Return the columns of each table with their DuckDB types, and register the tables. Raises
    StorageError."""
    for name, table in tables.items():
        register_tables(engine, {name: table.rows()}, table.units)
    return {name: types_of(engine, f"SELECT * FROM {quoted(name)}") for name in tables}


def register(engine: duckdb.DuckDBPyConnection, table: SourceTable, rows: ds.Dataset) -> None:
    """Register rows under the name of a table, with its time units."""
    register_tables(engine, {table.name: rows}, table.units)


def known_rows_sql(feed: Feed, after_us: int | None = None) -> str:
    """Return SQL for the rows of a feed that have a time and a key.

    If `after_us` is set, the SQL returns only the rows after this time, and the newest earlier rows that the
    feed needs.
    """
    text = f'SELECT * FROM (\n{feed.request.sql}\n) WHERE "{KNOWN}" IS NOT NULL'
    if after_us is None:
        return text
    limit = f"make_timestamp({after_us})"
    late = f'SELECT * FROM ({text}) WHERE "{KNOWN}" > {limit}'
    if not feed.rows:
        return late
    keys = ", ".join(quoted(name) for name in feed.on)
    by = f"PARTITION BY {keys} " if keys else ""
    return (
        f'{late} UNION ALL SELECT * FROM ({text}) WHERE "{KNOWN}" <= {limit} '
        f'QUALIFY rank() OVER ({by}ORDER BY "{KNOWN}" DESC) <= {feed.rows}'
    )


def changed_files(table: SourceTable, held: HeldVersion) -> tuple[list[str], list[str]] | None:
    """Return the data files that the version has and the held version has not, and those that only the held
    version has. Return None if the two versions cannot be compared.

    The log of the table tells the files. If entries of the log are missing, or if the version is older than
    the held version, the lists of files of both versions are compared.
    """
    number = table.output.table_version
    if not table.is_delta or number is None or held.uri != table.output.uri:
        return None
    if held.outages != table.held.outages:
        return None
    if held.number <= number:
        found = _from_log(table.path, held.number, number)
        if found is not None:
            return found
    return _from_lists(table.path, held.number, number)


def _from_log(path: Path, before: int, after: int) -> tuple[list[str], list[str]] | None:
    added: dict[str, None] = {}
    removed: dict[str, None] = {}
    for number in range(before + 1, after + 1):
        try:
            lines = (path / "_delta_log" / f"{number:020d}.json").read_text("utf-8").splitlines()
        except OSError:
            return None
        for line in lines:
            action = json.loads(line)
            # a file that was removed and is added again, as by `restore`, is not changed
            for kind, here, other in (("add", added, removed), ("remove", removed, added)):
                if kind in action:
                    name = unquote(action[kind]["path"])
                    if name in other:
                        del other[name]
                    else:
                        here[name] = None
    return list(added), list(removed)


def _from_lists(path: Path, before: int, after: int) -> tuple[list[str], list[str]] | None:
    try:
        old, new = (_files(path, number) for number in (before, after))
    except (DeltaError, OSError):
        return None
    return sorted(new - old), sorted(old - new)


def _files(path: Path, number: int) -> set[str]:
    actions = pa.table(DeltaTable(path, version=number).get_add_actions())
    return set(actions["path"].to_pylist())
