"""Computes the features of a large request by key, as the service computes them for HTTP requests.

All rows read the same versions of the tables, and rows without an as-of time have the time at which the
request began. The rows are computed in groups, so that the rows of the view that a group reads fit in memory.
The last bits of a sum depend on its group. A piece therefore has the same groups in each process.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gridmill.domain.frozen import dataclass
from gridmill.errors import DataError, InputError
from gridmill.jobs.features import Encoding, is_number
from gridmill.online.definition import open_features
from gridmill.online.features import OnlineRows, Status
from gridmill.online.key_rows import TooManyRowsError
from gridmill.online.view import ViewState
from gridmill.serving.errors import FieldsError, Problem, RequestError
from gridmill.serving.fields import TOO_LARGE
from gridmill.serving.keyed_features import (
    STATUS,
    VALUES,
    Row,
    optional_keys,
    read_keyed_line,
    wish_of,
    with_optional_keys,
    wrong_field,
)
from gridmill.serving.served_model import AHEAD_SECONDS
from gridmill.serving.table_requests import requests_of

VIEW_ROWS = 262_144
"""The largest number of rows of a table that a group of several rows holds in memory."""
GROUP_ROWS = 4_096
"""The largest number of rows of a group."""
FIRST_ROWS = 64
_WORST = (Status.MISSING, Status.DEFAULTED, Status.STALE, Status.PRESENT)
_TEXTS = pa.dictionary(pa.int8(), pa.string())


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedRows:
    """The features of some rows, and what the answer shows about each of these rows (None: nothing).
    `not_present` are the numbers of values that are not present, by the names of features and of statuses.

    If the model reads sequences, each row has `sequence` rows in `features`.
    """

    features: pa.Table
    shown: pa.Table | None
    not_present: Mapping[str, Mapping[str, int]]


class RefusedRowError(RequestError):
    """A row that the service would refuse. `row` is its number among the given rows, from 0."""

    def __init__(self, row: int, message: str, *, hint: str = "", problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(message, hint=hint, problems=problems)
        self.row = row


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOrder:
    """What the features of a large request are computed from: the folder of the definition of the features,
    and the model's features. `sequence` is the number of rows of a sequence, or None.

    `began` is the as-of time of rows without one (Unix seconds). With the wish STATUS, the status of each
    feature that is computed by key is shown, and with VALUES also its value. `view_rows` is the largest
    number of rows of a table that a group of several rows holds in memory.
    """

    folder: str
    encodings: tuple[Encoding, ...]
    sequence: int | None
    began: float
    wish: str = ""
    view_rows: int = VIEW_ROWS

    def larger_group(self, group: int) -> int:
        """Return the number of rows of the group after a group."""
        return min(group * 2, max(1, GROUP_ROWS // (self.sequence or 1)))

    def group_after(self, group: int, rows: int) -> int:
        """Return the number of rows of the first group after a piece with this number of rows, whose first
        group has `group` rows."""
        while rows > 0:
            rows, group = rows - group, self.larger_group(group)
        return group


class BulkFeatures:
    """Computes the features of rows of one large request in this process.

    Use the object as a context manager. Raises MissingViewError, DamagedViewError.
    """

    def __init__(self, order: BulkOrder) -> None:
        wish_of(order.wish)
        self.order = order
        self._features = open_features(
            Path(order.folder), lambda: order.began, ahead_seconds=AHEAD_SECONDS, most_rows=order.view_rows
        )
        self.plan = self._features.plan
        self.optional = optional_keys(self.plan)
        self.state = ViewState(held={}, floor_us=None, synced_at=0.0)
        self._group, self._version = FIRST_ROWS, ExitStack()

    def __enter__(self) -> "BulkFeatures":
        """Read the versions of the tables that the view holds now, until the end of the context."""
        self.open_again()
        return self

    def __exit__(self, *error: object) -> None:
        """Close the view."""
        self._version.close()
        self._features.close()

    def open_again(self) -> ViewState:
        """Read from now on the versions that the view holds now, and return its state."""
        self._version.close()
        self.state = self._version.enter_context(self._features.one_version())
        return self.state

    @property
    def table_versions(self) -> dict[str, int]:
        """The version numbers of the tables, by their names in the declaration of the dataset."""
        return {name: one.number for name, one in self.state.held.items()}

    def of_lines(self, lines: Sequence[bytes], group: int) -> ComputedRows:
        """Return the features of lines, each an object with the fields of an HTTP request. See
        `computed`."""
        rows: list[Row] = []
        for number, line in enumerate(lines):
            try:
                rows.append(read_keyed_line(line))
            except RequestError as error:
                raise _refused(number, error) from error
        return self.computed(rows, group)

    def of_batch(self, batch: pa.RecordBatch, group: int, label: str, *, has_cells: bool) -> ComputedRows:
        """Return the features of the rows of a table. `has_cells` is whether all values are the texts of
        cells. See `computed`. Raises DataError for a column with values that a request cannot have."""
        try:
            rows = requests_of(batch, self.plan, has_cells=has_cells)
        except InputError as error:
            raise DataError(f"{label}: {error.message}", place="data") from error
        return self.computed(rows, group)

    def computed(self, rows: Sequence[Row], group: int) -> ComputedRows:
        """Return the features of rows: the values of a text as texts, and all others as doubles. `group` is
        the number of rows of the first group. Raises RefusedRowError for the first row that the service would
        refuse."""
        self._group = group
        complete = [with_optional_keys(row, self.optional) for row in rows]
        groups: list[OnlineRows] = []
        start = 0
        while start < len(rows):
            some = complete[start : start + self._group]
            groups += self._groups(some, start)
            start += len(some)
            self._group = self.order.larger_group(self._group)
        counts: dict[str, Counter[str]] = {}
        for made in groups:
            _count(made, counts)
        features = [
            pa.table({one.column: stored(made.columns[one.column], one) for one in self.order.encodings})
            for made in groups
        ]
        shown = list(filter(None, map(self._shown, groups)))
        return ComputedRows(
            features=pa.concat_tables(features),
            shown=pa.concat_tables([one.cast(shown[0].schema) for one in shown]) if shown else None,
            not_present=counts,
        )

    def _groups(self, rows: Sequence[Row], first: int) -> list[OnlineRows]:
        """Compute the rows, of which the first is the row `first`. If they need too much memory, or if one of
        them is wrong, compute each half of them alone."""
        try:
            _check_numbers(rows)
            return [self._features.features_for(rows)]
        except (InputError, FieldsError) as error:
            if len(rows) == 1:
                raise _of_row(error, first) from error
            if isinstance(error, TooManyRowsError):
                self._group = max(1, len(rows) // 4)
            half = len(rows) // 2
            return [*self._groups(rows[:half], first), *self._groups(rows[half:], first + half)]

    def _statuses(self, made: OnlineRows) -> dict[str, list[str]]:
        """Return the status of each feature of each row. In a sequence, it is the worst of its rows."""
        length = self.order.sequence or 1
        if length == 1:
            return {name: [str(one) for one in every] for name, every in made.statuses.items()}
        return {
            name: [str(min(every[at : at + length], key=_WORST.index)) for at in range(0, len(every), length)]
            for name, every in made.statuses.items()
        }

    def _shown(self, made: OnlineRows) -> pa.Table | None:
        """Return what the answer shows about the features of a group, or None if it shows nothing."""
        if not self.order.wish:
            return None
        columns: dict[str, Any] = {}
        length = self.order.sequence or 1
        for name in made.columns.column_names if self.order.wish == VALUES else ():
            if name not in self.plan.request:
                column = made.columns[name].combine_chunks()
                columns[name] = column[length - 1 :: length] if length > 1 else column
        for name, every in self._statuses(made).items():
            columns[f"{name}_{STATUS}"] = pa.array(every, pa.string()).cast(_TEXTS)
        return pa.table(columns) if columns else None


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


def _count(made: OnlineRows, counts: dict[str, Counter[str]]) -> None:
    """Add the numbers of values that are not present."""
    for name, every in made.statuses.items():
        counted = Counter(map(str, every))
        del counted[str(Status.PRESENT)]
        if counted:
            counts.setdefault(name, Counter()).update(counted)


def _of_row(error: InputError | FieldsError, row: int) -> RefusedRowError:
    """Return the error of a row that was computed alone, with its number."""
    return _refused(row, error if isinstance(error, FieldsError) else wrong_field(error))


def _refused(row: int, error: RequestError) -> RefusedRowError:
    problems = tuple(Problem(row=row, field=one.field, problem=one.problem) for one in error.problems)
    return RefusedRowError(row, error.message, hint=error.hint, problems=problems)
