"""A version that is loaded into a program: its rows as data frames, its model as a function, and its
files."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gridmill.domain.artifact import Artifact, ArtifactKind
from gridmill.domain.frozen import dataclass
from gridmill.domain.storage_uri import below
from gridmill.errors import InputError, NotFoundError, StorageError, UnavailableError
from gridmill.plugins import find
from gridmill.sdk.arguments import check_methods

if TYPE_CHECKING:
    import pyarrow

TABLES = (ArtifactKind.SINK, ArtifactKind.DATASET, ArtifactKind.PREDICTION)
FORMATS = ("csv", "parquet", "jsonl", "onnx")
"""The file formats of `write`, by the extension of the file name."""
BATCH_ROWS = 65_536
GRAPH = "model.onnx"


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version of a sink, dataset, prediction, model or command, read from its files.

    A loaded version needs no control node, and does not change when newer versions are made. Tables have the
    methods `to_arrow`, `to_pandas`, `to_polars` and `to_batches`. Models have the method `predict`. Versions
    of all kinds have `path` and `files`.
    """

    artifact: Artifact
    root: str

    @property
    def id(self) -> str:
        """The id of the version, such as `pipeline/job@3`."""
        return self.artifact.id

    @property
    def kind(self) -> ArtifactKind:
        """The kind of the version: sink, dataset, prediction, model, or files (of a command)."""
        return self.artifact.kind

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics of the version, by name."""
        return self.artifact.output.metrics

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a table, or the columns that a model reads."""
        if self.kind == ArtifactKind.MODEL:
            card = plugged("card")(self.path)
            return tuple(encoding.column for encoding in card.encodings)
        return tuple(column.name for column in self.artifact.output.columns)

    @property
    def path(self) -> Path:
        """The folder with the files of the version. For a sink, this folder is the Delta table, which
        contains all versions.

        Raises StorageError if the files were deleted, UnavailableError if they are on another machine.
        """
        output, root = self.artifact.output, Path(self.root)
        if not output.uri:
            raise NotFoundError(
                f"{self.id} has no files",
                hint="The job of this version wrote no file to the folder GRIDMILL_OUTPUT.",
            )
        if not root.is_dir():
            raise UnavailableError(
                f"the files of {self.id} are in {root} on the control node's machine, not on this machine",
                hint="Run this program on that machine, or mount the folder on this machine under the "
                "same path.",
            )
        path = below(root, output.uri)
        if not path.exists():
            raise StorageError(
                f"the files of {self.id} are deleted",
                hint="To make the version again, run its pipeline: gridmill run PIPELINE",
            )
        if not path.resolve().is_relative_to(root.resolve()):
            raise InputError(f"{output.uri!r} is outside the storage root {root}")
        return path

    def files(self) -> tuple[Path, ...]:
        """The paths of the files of the version, sorted by name."""
        paths = plugged("files")(Path(self.root), self.artifact.output) if self.path else ()
        return tuple(self.path / name for name in paths)

    def to_arrow(
        self, *, columns: Sequence[str] | str | None = None, split: str | None = None
    ) -> "pyarrow.Table":
        """Return the rows as an Arrow table. With `columns`, the table has only these columns. With `split`,
        the table has only the rows of this split of a dataset (`train`, `validation` or `test`).

        Raises InputError for unknown columns and splits, and StorageError if a file cannot be read.
        """
        self._need(TABLES, "rows")
        path = self.path
        result: pyarrow.Table = plugged("rows")(path, self.artifact, _names(columns), split)
        return result

    def to_batches(
        self,
        *,
        columns: Sequence[str] | str | None = None,
        split: str | None = None,
        rows: int = BATCH_ROWS,
    ) -> "Iterator[pyarrow.RecordBatch]":
        """Read the rows in batches of at most `rows` rows, so that a table of any size needs little
        memory."""
        if not isinstance(rows, int) or rows < 1:
            raise InputError(f"`rows` must be 1 or more, got {rows!r}")
        return iter(self._reader(columns, split, rows))

    def to_pandas(self, *, columns: Sequence[str] | str | None = None, split: str | None = None) -> Any:  # noqa: ANN401  a pandas.DataFrame; pandas need not be installed
        """Return the rows as a pandas data frame. Raises InputError if pandas is not installed."""
        _installed("pandas")
        return self.to_arrow(columns=columns, split=split).to_pandas()

    def to_polars(self, *, columns: Sequence[str] | str | None = None, split: str | None = None) -> Any:  # noqa: ANN401  a polars.DataFrame; polars need not be installed
        """Return the rows as a polars data frame. Raises InputError if polars is not installed."""
        library = _installed("polars")
        return library.from_arrow(self.to_arrow(columns=columns, split=split))

    def predict(self, rows: Any, *, trust: bool = False) -> Any:  # noqa: ANN401  the form of `rows`
        """Return predictions for `rows`, in which columns are found by name. `rows` is a pandas or polars
        data frame, an Arrow table, or a list of dicts. The result has the type of `rows`, and the columns of
        a prediction job.

        If the model needs sequences, `rows` must contain the entity and the time of each row, and the
        earlier rows of the entity. `trust` allows a model that predicts with its own code. Raises
        InputError, DataError.
        """
        self._need((ArtifactKind.MODEL,), "a model")
        table, back = plugged("as arrow")(rows), plugged("in form of")(rows)
        return back(plugged("apply model")(self.path, self.id, table, trust=trust))

    def write(
        self,
        to: str | Path | IO[bytes],
        *,
        format: str | None = None,
        columns: Sequence[str] | str | None = None,
        split: str | None = None,
        replace: bool = False,
    ) -> int:
        """Write the rows to a file (`.csv`, `.parquet`, `.jsonl`), or write the graph of a model (`.onnx`).
        Return the number of rows. The file is written completely or not at all. With `replace`, an existing
        file is replaced.

        Raises InputError for a file format that does not fit the version.
        """
        form = _format(to, format)
        write = (
            self._graph_writer(columns, split) if form == "onnx" else self._row_writer(form, columns, split)
        )
        return _whole(Path(to), write, replace) if isinstance(to, str | Path) else write(to)

    def _row_writer(
        self, form: str, columns: Sequence[str] | str | None, split: str | None
    ) -> Callable[[IO[bytes]], int]:
        if self.kind == ArtifactKind.MODEL:
            raise InputError(f"{self.id} is a model, which can be written as .onnx, not as .{form}")
        reader, write = self._reader(columns, split, BATCH_ROWS), plugged(f"write {form}")
        return lambda file: int(write(reader, file))

    def _reader(self, columns: Sequence[str] | str | None, split: str | None, rows: int) -> Any:  # noqa: ANN401
        self._need(TABLES, "rows")
        return plugged("batches")(self.path, self.artifact, _names(columns), split, rows)

    def _graph_writer(
        self, columns: Sequence[str] | str | None, split: str | None
    ) -> Callable[[IO[bytes]], int]:
        self._need((ArtifactKind.MODEL,), "a graph")
        if columns is not None or split is not None:
            raise InputError("`columns` and `split` work only with tables, and .onnx only with models")
        graph = _graph(self.path, self.id)

        def write(file: IO[bytes]) -> int:
            file.write(graph)
            return 0

        return write

    def _need(self, kinds: Sequence[ArtifactKind], what: str) -> None:
        if self.kind not in kinds:
            has = "predict()" if self.kind == ArtifactKind.MODEL else "to_arrow(), to_pandas(), to_polars()"
            raise InputError(
                f"{self.id} is {_a(self.kind)}, which has no {what.removeprefix('a ')}",
                hint=f"It has {has if self.kind != ArtifactKind.FILES else 'path and files()'}.",
            )


check_methods(Version)


def _a(kind: ArtifactKind) -> str:
    return "files of a command" if kind == ArtifactKind.FILES else f"a {kind}"


def plugged(name: str) -> Callable[..., Any]:
    """Import a function that reads data or models when it is first used. Raises InputError if a library is
    not installed."""
    try:
        return find("versions", name)
    except ImportError as error:
        raise InputError(
            f"the library {error.name} is not installed",
            hint="To read tables and models: pip install 'gridmill[data,learning]'",
        ) from error


def _installed(library: str) -> Any:  # noqa: ANN401  a module
    try:
        return import_module(library)
    except ImportError as error:
        raise InputError(
            f"the library {library} is not installed",
            hint=f"Install it with `pip install {library}`, or use to_arrow().",
        ) from error


def _names(columns: Sequence[str] | str | None) -> list[str] | None:
    if columns is None:
        return None
    names = [columns] if isinstance(columns, str) else list(columns) if isinstance(columns, Iterable) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise InputError(
            f"`columns` is a list of names, got {columns!r}", hint='For example ["day", "sold"].'
        )
    return names


def _format(to: str | Path | IO[bytes], format: str | None) -> str:
    if format is None and isinstance(to, str | Path):
        format = Path(to).suffix.removeprefix(".").lower()
    if format not in FORMATS:
        name = f"{to}: " if isinstance(to, str | Path) else ""
        raise InputError(
            f"{name}the format {format!r} cannot be written" if format else f"{name}the format is missing",
            hint=f"There are: {', '.join(FORMATS)}. The ending of the file's name says which.",
        )
    return format


def _graph(folder: Path, name: str) -> bytes:
    """Return the ONNX graph of the model, with the names of its columns in the metadata."""
    path, card = folder / GRAPH, plugged("card")(folder)
    if not path.is_file():
        why = (
            "predicts with its own code"
            if card.predict
            else "has one graph for each member and no single graph"
        )
        raise InputError(f"{name} {why}", hint=f"`gridmill path {name}` prints the folder with its files.")
    graph = path.read_bytes()
    if b"gridmill.columns" in graph:
        return graph
    described: bytes = plugged("described graph")(graph, plugged("graph facts")(card))
    return described


def _whole(path: Path, write: Callable[[IO[bytes]], int], replace: bool) -> int:
    """Write a temporary file and rename it to `path`. If `path` is a pipe or a device, write to it directly.
    Raises InputError."""
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as stream:
                return write(stream)
        if path.exists() and not replace:
            raise InputError(
                "the file exists already",
                place=str(path),
                hint="Choose another file, or overwrite the file: --force, in Python `replace=True`.",
            )
        return _put(path.resolve(), write)
    except OSError as error:
        raise InputError(f"the file cannot be written: {error.strerror}", place=str(path)) from error


def _put(path: Path, write: Callable[[IO[bytes]], int]) -> int:
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        with draft.open("wb") as file:
            rows = write(file)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return rows
