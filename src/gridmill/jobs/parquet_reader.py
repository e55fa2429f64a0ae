"""Reads Parquet files with little memory, and reads the next batch while the previous batch is written.

Arrow's own scanner reads up to 1 GiB ahead if its consumer is slower. A query that sorts rows is a slow
consumer.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.dataset as ds

from gridmill.domain.frozen import dataclass

T = TypeVar("T")

DEPTH = 2
_PATIENCE_SECONDS = 0.2


def ahead(items: Iterable[T], depth: int = DEPTH) -> Generator[T, None, None]:
    """Yield the items in order, and read some items ahead. At most `depth` items are read before the caller
    requests them.

    Raises the errors that the iterator `items` raises. After the iterator is closed, no further item is
    read.
    """
    waiting: Queue[tuple[tuple[T, ...], BaseException | None]] = Queue(depth)
    over = Event()

    def put(entry: tuple[tuple[T, ...], BaseException | None]) -> None:
        while not over.is_set():
            try:
                return waiting.put(entry, timeout=_PATIENCE_SECONDS)
            except Full:
                continue

    def read() -> None:
        try:
            for item in items:
                if over.is_set():
                    return
                put(((item,), None))
        except BaseException as error:  # noqa: BLE001  raised again where the items are used
            put(((), error))
        else:
            put(((), None))

    thread = Thread(target=read, name="ahead", daemon=True)
    thread.start()
    try:
        while True:
            several, error = waiting.get()
            if error is not None:
                raise error
            if not several:
                return
            yield from several
    finally:
        over.set()
        _drain(waiting)
        thread.join()


def _drain(waiting: Queue[tuple[tuple[T, ...], BaseException | None]]) -> None:
    try:
        while True:
            waiting.get_nowait()
    except Empty:
        return


_AHEAD = 1
_WIDE = 16
"""If a table has at least this number of columns, a row group is large. The columns of a large row group are
read in parallel, and no row group is read ahead."""


class RowGroupDataset(ds.FileSystemDataset):  # type: ignore[misc]
    """A dataset that reads the row groups of its files one at a time. The rows and their order are the same
    as in a dataset of Arrow.

    DuckDB calls `scanner` to read such a dataset.
    """

    _unfiltered: "RowGroupDataset | None" = None

    def filter(self, expression: ds.Expression) -> "RowGroupDataset":
        """Return a dataset with only the rows that match the filter."""
        made: RowGroupDataset = super().filter(expression)
        made._unfiltered = self.unfiltered
        return made

    @property
    def unfiltered(self) -> "RowGroupDataset":
        """Return a dataset with all rows."""
        return self._unfiltered or self

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: ds.Expression | None = None,
        **others: Any,  # noqa: ANN401
    ) -> "RowGroupReader | ds.Scanner":
        """Return a reader of the rows that match the filter.

        If the caller passes further arguments (`others`), the method returns Arrow's own scanner, because
        `to_table` and similar methods hold all rows in memory anyway.
        """
        if others:
            return super().scanner(columns=columns, filter=filter, **others)
        return self.turns(columns, filter)

    def turns(
        self, columns: Sequence[str] | None = None, which: ds.Expression | None = None
    ) -> "RowGroupReader":
        """Return a reader of the rows that match the filter `which`. The reader reads rows only when they
        are consumed."""
        own = self._scan_options.get("filter")
        both = own if which is None else which if own is None else own & which
        return RowGroupReader(
            table=self.unfiltered,
            columns=tuple(self.schema.names if columns is None else columns),
            which=both,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroupReader:
    """Reads the rows of a dataset, one row group at a time. If a table has few columns, the next row group
    is read while the current row group is used."""

    table: RowGroupDataset
    columns: Sequence[str]
    which: ds.Expression | None

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a reader of the rows. The method `to_reader` can be called only once, because it reads the
        rows only once."""
        schema = pa.schema([self.table.schema.field(name) for name in self.columns])
        return pa.RecordBatchReader.from_batches(schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        groups = self._groups()
        for group in groups if len(self.columns) > _WIDE else ahead(groups, _AHEAD):
            yield from group.to_batches()

    def _groups(self) -> Iterator[pa.Table]:
        schema, columns, which = self.table.schema, list(self.columns), self.which
        for fragment in self.table.get_fragments(filter=which):
            some = fragment if which is None else fragment.subset(which, schema=schema)
            for number in [row_group.id for row_group in some.row_groups]:
                group = fragment.subset(row_group_ids=[number])
                yield group.to_table(schema=schema, columns=columns, filter=which)


def thrifty(table: ds.FileSystemDataset) -> RowGroupDataset:
    """Return a dataset with all rows of `table`, which uses little memory while it is read."""
    return RowGroupDataset(list(table.get_fragments()), table.schema, table.format, table.filesystem)
