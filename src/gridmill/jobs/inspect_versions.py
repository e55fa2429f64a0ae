"""`python -m gridmill.jobs.inspect_versions` answers a question about versions. The question and the answer
are JSON.

The program `inspect_versions` is a separate process, so that the control node never imports the libraries
that read tables.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import date, datetime
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from gridmill.codec import decode, encode
from gridmill.domain.artifact import Artifact, ArtifactKind, Column, Output
from gridmill.domain.comparison import ArtifactAnswer, ArtifactQuery, Preview, RowChanges
from gridmill.domain.sink_status import rejects_of
from gridmill.domain.storage_uri import below
from gridmill.errors import GridmillError, InputError, StorageError, to_body
from gridmill.jobs.duckdb_engine import quoted
from gridmill.jobs.tables import columns_of, open_version

LOG = "_delta_log"
_TEXT = 200
_MEMORY = "1GB"
_TABLES = (ArtifactKind.SINK, ArtifactKind.DATASET, ArtifactKind.PREDICTION)


def answer(question: ArtifactQuery) -> ArtifactAnswer:
    """Return the answer to a question about versions. Raises InputError, StorageError."""
    root = Path(question.root)
    if question.files:
        return ArtifactAnswer(files=files_of(root, question.artifact.output))
    if question.other is None:
        return ArtifactAnswer(
            preview=preview(root, question.artifact, question.rows, rejects=question.rejects)
        )
    return ArtifactAnswer(changes=compare_rows(root, question.artifact, question.other, question.key))


def preview(root: Path, artifact: Artifact, rows: int, *, rejects: bool = False) -> Preview:
    """Return the first rows of a table, or a list of the files of a folder."""
    output = _rejects(artifact) if rejects else artifact.output
    if output.kind in _TABLES:
        return _head(_open(root, output), rows)
    return _files(root, output, rows)


def _rejects(artifact: Artifact) -> Output:
    rejects = rejects_of(artifact)
    if not rejects:
        raise InputError(f"{artifact.id} has no rejected rows")
    return Output(kind=ArtifactKind.SINK, uri=rejects["uri"], table_version=rejects["table_version"])


def _open(root: Path, output: Output) -> ds.Dataset:
    path = below(root, output.uri).resolve()
    if not path.is_relative_to(root.resolve()):
        raise InputError(f"{output.uri!r} is outside the storage root {root}")
    try:
        return open_version(path, output)
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise StorageError(f"{output.uri} cannot be read: {error}") from error


def _head(table: ds.Dataset, rows: int) -> Preview:
    head = table.head(rows)
    columns = columns_of(head.schema)
    names = [column.name for column in columns]
    cells = (tuple(_plain(record[name]) for name in names) for record in head.to_pylist())
    return Preview(columns=columns, rows=tuple(cells), total=table.count_rows())


def _plain(value: Any) -> Any:  # noqa: ANN401  a cell
    """Return the cell of a table as a JSON value. Long texts are shortened."""
    match value:
        case datetime() | date():
            return value.isoformat()
        case float():
            return value if isfinite(value) else None
        case None | bool() | int():
            return value
        case bytes():
            return f"{len(value)} bytes"
    text = str(value)
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…"


def _files(root: Path, output: Output, rows: int) -> Preview:
    paths = files_of(root, output)
    listed = tuple((name, (below(root, output.uri) / name).stat().st_size) for name in paths[:rows])
    columns = (Column(name="file", type="string"), Column(name="size_bytes", type="int64"))
    return Preview(columns=columns, rows=listed, total=len(paths))


def files_of(root: Path, output: Output) -> tuple[str, ...]:
    """Return the files of a version.

    For a table, the result contains its data files, and the files of the Delta log that describe these data
    files. The result is empty if the version has no files. Raises StorageError.
    """
    if not output.uri:
        return ()
    path = below(root, output.uri)
    if output.kind != ArtifactKind.SINK:
        return tuple(sorted(str(one.relative_to(path)) for one in path.rglob("*") if one.is_file()))
    try:
        table = DeltaTable(path, version=output.table_version)
        data = sorted(unquote(action) for action in table.get_add_actions(flatten=True)["path"].to_pylist())
    except (DeltaError, OSError) as error:
        raise StorageError(f"{output.uri} cannot be read: {error}") from error
    return (*data, *(f"{LOG}/{name}" for name in log_files(path / LOG, table.version())))


def log_files(folder: Path, version: int) -> tuple[str, ...]:
    """Return the newest checkpoint of the Delta log up to a version, and the commits after the checkpoint.

    The names of these files follow the protocol of Delta, such as `%020d.json`, `%020d.checkpoint.parquet`
    and `%020d.checkpoint.%010d.%010d.parquet`.
    """
    names = sorted(entry.name for entry in folder.iterdir())
    log_names = [name for name in names if name[:20].isdigit() and int(name[:20]) <= version]
    marks = {int(name[:20]) for name in log_names if ".checkpoint." in name}
    begin = max((mark for mark in marks if _is_whole(log_names, mark)), default=0)
    wanted = [name for name in log_names if int(name[:20]) >= begin and name.endswith(".json")]
    return (*(name for name in log_names if name.startswith(f"{begin:020}.checkpoint.")), *wanted)


def _is_whole(names: Sequence[str], mark: int) -> bool:
    """Return whether a checkpoint is complete. A checkpoint of several files is complete if all of them
    exist."""
    files = [name.split(".") for name in names if name.startswith(f"{mark:020}.checkpoint.")]
    return any(len(parts) == 3 or len(files) >= int(parts[3]) for parts in files if len(parts) in (3, 5))


def compare_rows(root: Path, before: Artifact, after: Artifact, key: Sequence[str]) -> RowChanges:
    """Return the number of rows that `after` adds, removes or changes. The columns of `key` identify a row.

    Columns that only one of the versions has are not compared. Raises InputError if several rows have the
    same key.
    """
    old, new = _open(root, before.output), _open(root, after.output)
    for name in key:
        if name not in old.schema.names or name not in new.schema.names:
            raise InputError(
                f"the two versions do not both have a column {name!r}", hint="Name other columns with --key."
            )
    shared = [name for name in new.schema.names if name in old.schema.names and name not in key]
    with (
        tempfile.TemporaryDirectory(prefix="gridmill-diff-") as spill,
        duckdb.connect(config=_config(spill)) as engine,
    ):
        engine.register("old", old)
        engine.register("new", new)
        for table in ("old", "new"):
            _check_key(engine, table, key)
        counts = engine.execute(_comparison(key, shared)).fetchone() or (0, 0, 0)
    return RowChanges(key=tuple(key), added=counts[0], removed=counts[1], changed=counts[2])


def _config(spill: str) -> dict[str, str | bool | int | float | list[str]]:
    return {
        "memory_limit": _MEMORY,
        "temp_directory": spill,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }


def _check_key(engine: duckdb.DuckDBPyConnection, table: str, key: Sequence[str]) -> None:
    columns = ", ".join(quoted(name) for name in key)
    twice = engine.execute(f"SELECT 1 FROM {table} GROUP BY {columns} HAVING count(*) > 1 LIMIT 1").fetchone()
    if twice:
        raise InputError(
            f"several rows have the same {', '.join(key)}",
            hint="With --key, name columns whose values identify one row.",
        )


def _comparison(key: Sequence[str], shared: Sequence[str]) -> str:
    differs = " OR ".join(f"old.{quoted(name)} IS DISTINCT FROM new.{quoted(name)}" for name in shared)
    joined = " AND ".join(f"old.{quoted(name)} IS NOT DISTINCT FROM new.{quoted(name)}" for name in key)
    message = "__there"
    return (
        f"SELECT count(*) FILTER (old.{message} IS NULL), count(*) FILTER (new.{message} IS NULL),"
        f" count(*) FILTER (old.{message} AND new.{message} AND ({differs or 'false'}))"
        f" FROM (SELECT *, true AS {message} FROM old) old"
        f" FULL JOIN (SELECT *, true AS {message} FROM new) new ON {joined}"
    )


def main() -> None:
    """Read a question from standard input, and write the answer or the error to standard output."""
    try:
        seen = answer(decode(sys.stdin.buffer.read(), ArtifactQuery))
    except GridmillError as error:
        seen = ArtifactAnswer(error=to_body(error))
    sys.stdout.buffer.write(encode(seen))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
    os._exit(0)  # deltalake's threads sometimes abort a normal exit; the answer is already written
