"""Declaration of a dataset."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from gridmill.errors import InputError


class Aggregate(StrEnum):
    """Window aggregates."""

    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    STD = "std"
    LAST = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """The rows of the dataset: one per row of `table`, at time `time`, for the entity that `entity` names.

    `columns` are the features known with the row itself (default: all of them). Rows without a time or an
    entity are dropped, and counted.
    """

    table: str
    time: str
    entity: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """An ordinary left join to a static table on equal columns, unique in it.

    `columns` are those it adds (default: all others), each with `prefix` before its name.
    """

    table: str
    on: tuple[str, ...]
    columns: tuple[str, ...] = ()
    prefix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOfJoin:
    """The newest row of `table` that was known before the basis time, per `on`.

    `known_at` is the column (or SQL expression over the table) that says when a row became known;
    it is compared with the basis time: strictly earlier. `within_seconds` drops older rows. `columns` are
    those it adds (default: all but `on` and the column `known_at`), each with `prefix` before its name.
    """

    table: str
    known_at: str
    on: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    prefix: str = ""
    within_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Aggregates of `column` over the entity's rows strictly before the basis time.

    `span_seconds` back from it, or the last `span_rows` rows. Missing values are passed over: without any
    value `count` is 0 and the others are missing, as is `std` (of a sample) of a single one. The features
    are called `temp_mean_1d`, `temp_mean_24rows`.
    """

    column: str
    aggregates: tuple[Aggregate, ...]
    span_seconds: float | None = None
    span_rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Earlier values of `column` of the same entity: `temp_lag_1`, ...

    `steps` are rows back among those strictly before the basis time (1 = the row before).
    """

    column: str
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What is to be predicted: `column` of the same entity, exactly `horizon_seconds` after the basis time.

    With `steps` instead, that many rows ahead; with neither, the row's own value, which then is no feature.
    `name` is the column's name in the dataset. Rows without a label are dropped, and counted.
    """

    column: str
    horizon_seconds: float | None = None
    steps: int | None = None
    name: str = "label"

    def check(self) -> None:
        """Raise InputError for both a horizon and steps."""
        if self.horizon_seconds is not None and self.steps is not None:
            raise InputError("has horizon and steps; only one of them can be given", place="label.steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Splits by time: `train` before `validation_from` ≤ validation before `test_from` ≤ test.

    Either times (ISO 8601, UTC unless they say otherwise) or shares of the time span (`validation: 0.15`,
    `test: 0.15`). A row whose label lies in a later split than itself is dropped, and counted: it would tell
    training what it is tested on.
    """

    validation_from: str | None = None
    test_from: str | None = None
    validation: float | None = None
    test: float | None = None

    @property
    def times(self) -> tuple[datetime | None, datetime | None]:
        """`validation_from` and `test_from` in UTC, without a zone. Raises InputError for what is no time."""
        return _moment(self.validation_from, "validation_from"), _moment(self.test_from, "test_from")

    def check(self) -> None:
        """Raise InputError for what is no time, and for splits that overlap."""
        validation_from, test_from = self.times
        if validation_from and test_from and validation_from >= test_from:
            raise InputError(
                f"validation begins at {self.validation_from}, which is not before test ({self.test_from})",
                hint="The order is train, validation, test.",
                place="split.validation_from",
            )


def _moment(text: str | None, field_name: str) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(
            f"{text!r} is not a time",
            hint="Write 2013-10-01 or 2013-10-01T06:00:00Z.",
            place=f"split.{field_name}",
        ) from error
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSpec:
    """Features and labels, point-in-time correct; or plain SQL over the tables in `tables`.

    `features` are SQL expressions over the row's columns and features. Of plain `sql`, `time` and `entity`
    name the columns that labels, splits, windows, lags and as-of joins go by; what the SQL itself looks at
    is not checked, and the dataset says so.
    """

    basis: Basis | None = None
    joins: tuple[Join, ...] = ()
    asof_joins: tuple[AsOfJoin, ...] = ()
    windows: tuple[Window, ...] = ()
    lags: tuple[Lag, ...] = ()
    features: Mapping[str, str] = field(default_factory=dict)
    label: Label | None = None
    split: Split | None = None
    sql: str | None = None
    tables: tuple[str, ...] = ()
    time: str | None = None
    entity: tuple[str, ...] = ()

    def references(self) -> tuple[str, ...]:
        """The tables that are read."""
        named = [self.basis.table] if self.basis else []
        named += [join.table for join in self.joins] + [join.table for join in self.asof_joins]
        return tuple(dict.fromkeys((*named, *self.tables)))

    def check(self) -> None:
        """Raise InputError for parts that need a time, or SQL, where there is none."""
        if self.basis is not None and (self.time or self.entity or self.tables):
            raise InputError("`time`, `entity` and `tables` go with `sql`; a basis has its own")
        if self.sql is not None and self.time is None:
            needs = {
                "asof_joins": self.asof_joins,
                "windows": self.windows,
                "lags": self.lags,
                "split": self.split,
            }
            ahead = self.label is not None and (self.label.horizon_seconds or self.label.steps)
            named = [name for name, value in needs.items() if value] + ["a label ahead"] * bool(ahead)
            if named:
                raise InputError(f"{named[0]} needs `time`, the column that says when a row is", place="time")
