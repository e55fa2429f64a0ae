"""Computes the features of a large request by key, as the service computes them for HTTP requests.

All rows read the same versions of the tables, and rows without an as-of time have the time at which the
request began. The rows are computed in groups, so that the rows of the view that a group reads fit in memory.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gridmill.domain.service_features import FeatureDefinition
from gridmill.domain.storage_uri import below
from gridmill.errors import InputError
from gridmill.jobs.features import Encoding, is_number
from gridmill.online.definition import open_features
from gridmill.online.features import OnlineRows, Status
from gridmill.online.key_rows import TooManyRowsError
from gridmill.serving.errors import FieldsError, Problem, RequestError
from gridmill.serving.fields import TOO_LARGE
from gridmill.serving.keyed_features import (
    STATUS,
    VALUES,
    Row,
    optional_keys,
    wish_of,
    with_optional_keys,
    wrong_field,
)
from gridmill.serving.served_model import AHEAD_SECONDS

VIEW_ROWS = 262_144
"""The largest number of rows of a table that a group of several rows holds in memory."""
GROUP_ROWS = 4_096
"""The largest number of rows of a group."""
FIRST_ROWS = 64
_WORST = (Status.MISSING, Status.DEFAULTED, Status.STALE, Status.PRESENT)
_TEXTS = pa.dictionary(pa.int8(), pa.string())


class BulkFeatures:
    """The features of the rows of one large request.

    `definition` is the definition of the features of the model, below the storage root. With the wish STATUS,
    a file beside the features gets the status of each feature that is computed by key, and with VALUES also
    its value. Use the object as a context manager. Raises MissingViewError, DamagedViewError.
    """

    def __init__(
        self,
        root: Path,
        definition: FeatureDefinition,
        encodings: Sequence[Encoding],
        sequence: int | None,
        *,
        wish: str = "",
        clock: Callable[[], float] = time.time,
        view_rows: int = VIEW_ROWS,
    ) -> None:
        began = clock()
        self._features = open_features(
            below(root, definition.folder), lambda: began, ahead_seconds=AHEAD_SECONDS, most_rows=view_rows
        )
        self.plan, self.wish = self._features.plan, wish_of(wish)
        self.encodings, self.sequence = tuple(encodings), sequence
        self.optional = optional_keys(self.plan)
        self.not_present: dict[str, Counter[str]] = {}
        """The numbers of values that are not present, by the names of features and of statuses."""
        self.table_versions: dict[str, int] = {}
        """The version numbers of the tables, by their names in the declaration of the dataset."""
        self._shown: pq.ParquetWriter | None = None
        self._shown_path: Path | None = None
        self._group, self._open = FIRST_ROWS, ExitStack()

    def __enter__(self) -> "BulkFeatures":
        """Read the versions of the tables that the view holds now, until the end of the context."""
        self._open.callback(self._features.close)
        state = self._open.enter_context(self._features.one_version())
        self.table_versions = {name: one.number for name, one in state.held.items()}
        return self

    def __exit__(self, *error: object) -> None:
        """Close the view."""
        self.end()
        self._open.close()

    def begin(self, folder: Path) -> None:
        """Begin with the first row. The file with what the answer shows about the features is in `folder`."""
        self.not_present = {}
        self._shown_path = folder / "shown.parquet" if self.wish else None

    def end(self) -> None:
        """Finish the file with what the answer shows about the features."""
        if self._shown is not None:
            self._shown.close()
            self._shown = None

    def shown(self) -> Iterator[pa.RecordBatch] | None:
        """Return what the answer shows about the features of all rows, or None if it shows nothing."""
        if self._shown_path is None or not self._shown_path.exists():
            return None
        batches: Iterator[pa.RecordBatch] = pq.ParquetFile(self._shown_path).iter_batches(GROUP_ROWS)
        return batches

    def table_of(self, rows: Sequence[Row]) -> pa.Table:
        """Return the features of the model for the next rows: the values of a text as texts, and all others
        as doubles. If the model reads sequences, each row has `sequence` rows. Raises FieldsError for the
        first row that the service would refuse, and RequestError."""
        complete = [with_optional_keys(row, self.optional) for row in rows]
        tables: list[pa.Table] = []
        start = 0
        while start < len(rows):
            group = complete[start : start + self._group]
            tables += self._tables(group, start)
            start += len(group)
            self._group = min(self._group * 2, max(1, GROUP_ROWS // (self.sequence or 1)))
        return pa.concat_tables(tables)

    def _tables(self, rows: Sequence[Row], first: int) -> list[pa.Table]:
        """Compute the rows, of which the first is the row `first`. If they need too much memory, or if one of
        them is wrong, compute each half of them alone."""
        try:
            _check_numbers(rows)
            made = self._features.features_for(rows)
        except (InputError, FieldsError) as error:
            if len(rows) == 1:
                raise _of_row(error, first) from error
            if isinstance(error, TooManyRowsError):
                self._group = max(1, len(rows) // 4)
            half = len(rows) // 2
            return [*self._tables(rows[:half], first), *self._tables(rows[half:], first + half)]
        self._count(made)
        self._show(made)
        return [pa.table({one.column: stored(made.columns[one.column], one) for one in self.encodings})]

    def _statuses(self, made: OnlineRows) -> dict[str, list[str]]:
        """Return the status of each feature of each row. In a sequence, it is the worst of its rows."""
        length = self.sequence or 1
        if length == 1:
            return {name: [str(one) for one in every] for name, every in made.statuses.items()}
        return {
            name: [str(min(every[at : at + length], key=_WORST.index)) for at in range(0, len(every), length)]
            for name, every in made.statuses.items()
        }

    def _count(self, made: OnlineRows) -> None:
        for name, every in made.statuses.items():
            counted = Counter(map(str, every))
            del counted[str(Status.PRESENT)]
            if counted:
                self.not_present.setdefault(name, Counter()).update(counted)

    def _show(self, made: OnlineRows) -> None:
        """Write what the answer shows about the features of a group."""
        if self._shown_path is None:
            return
        columns: dict[str, Any] = {}
        statuses, last = self._statuses(made), (self.sequence or 1) - 1
        for name in made.columns.column_names if self.wish == VALUES else ():
            if name not in self.plan.request:
                column = made.columns[name].combine_chunks()
                columns[name] = column[last :: self.sequence or 1] if last else column
        for name, every in statuses.items():
            columns[f"{name}_{STATUS}"] = pa.array(every, pa.string()).cast(_TEXTS)
        if not columns:
            self._shown_path = None
            return
        table = pa.table(columns)
        if self._shown is None:
            self._shown = pq.ParquetWriter(self._shown_path, table.schema)
        self._shown.write_table(table.cast(self._shown.schema))


def stored(column: pa.ChunkedArray, encoding: Encoding) -> pa.ChunkedArray:
    """Return a feature in the type in which it is stored for the model: as texts if it has categories, and
    otherwise as doubles. NaN and infinity are missing."""
    if encoding.categories is not None:
        return column.cast(pa.string())
    if not is_number(column.type):
        raise InputError(
            f"the feature {encoding.column!r} has the type {column.type}, but the model needs {encoding.type}"
        )
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    numbers = pc.cast(column, pa.float64(), safe=False)
    return pc.if_else(pc.is_finite(numbers), numbers, pa.scalar(None, pa.float64()))


def _check_numbers(rows: Sequence[Row]) -> None:
    """Raise FieldsError for a number that JSON cannot send."""
    for number, row in enumerate(rows):
        for name, value in row.items():
            if isinstance(value, float) and value - value != 0.0:
                raise FieldsError((Problem(row=number, field=name, problem=TOO_LARGE),))


def _of_row(error: InputError | FieldsError, row: int) -> RequestError:
    """Return the error of a row that was computed alone, with its number."""
    refused = error if isinstance(error, FieldsError) else wrong_field(error)
    problems = tuple(Problem(row=row, field=one.field, problem=one.problem) for one in refused.problems or ())
    return FieldsError(problems, hint=refused.hint)
