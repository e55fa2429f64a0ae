"""This module declares a dataset: basis, joins, windows, lags, label, splits and encoders.

Encoders are fitted on the training rows and then applied to all rows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise

from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import read_moment
from gridmill.domain.source import DATE_DIGITS, UNIX_UNITS
from gridmill.errors import InputError


class Method(StrEnum):
    """The method of an encoder, such as scaling or one-hot encoding.

    The methods that scale numbers are `standard` (mean 0, standard deviation 1), `minmax` (0 to 1),
    `robust` (median 0, interquartile range 1). The methods that replace missing values are `mean`,
    `median`, `most_frequent`, `constant`. The methods that encode categories are `onehot`, `ordinal`,
    `frequency` (the fraction of the training rows that have the category), `target` (the mean label of the
    category).
    """

    STANDARD = "standard"
    MINMAX = "minmax"
    ROBUST = "robust"
    MEAN = "mean"
    MEDIAN = "median"
    MOST_FREQUENT = "most_frequent"
    CONSTANT = "constant"
    ONEHOT = "onehot"
    ORDINAL = "ordinal"
    FREQUENCY = "frequency"
    TARGET = "target"


SCALERS = (Method.STANDARD, Method.MINMAX, Method.ROBUST)
CATEGORICAL = (Method.ONEHOT, Method.ORDINAL, Method.FREQUENCY, Method.TARGET)


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """The declaration of an encoder, which encodes the columns in `columns` by `method`. The numbers of the
    encoding are fitted on the training rows and stored.

    Encoders are applied in the order in which they are declared. Scalers and encoders of missing values
    replace the column that they encode. If a label is a later value of a scaled column, the label is scaled
    in the same way as the column. Encoders of categories add a column such as `carrier_target`,
    `carrier_ordinal` or `carrier_frequency`, or (`onehot`) a column with true or false (`carrier_UA`) for
    each of the most frequent categories, at most `most` of them. Encoders of categories remove the encoded
    column unless `keep` is true. A category that does not occur in the training rows is encoded as the mean
    label (`target`), -1 (`ordinal`), 0 (`frequency`), or false in all columns (`onehot`).

    The encoder `target` uses only labels of training rows that were known before the time of the encoded
    row, so that no row uses its own label. `smoothing` is the weight of the mean label of all rows,
    expressed as a number of rows. The method `constant` replaces missing values by `value`.
    """

    columns: tuple[str, ...]
    method: Method
    smoothing: float = 20.0
    most: int = 32
    keep: bool = False
    value: float | None = None

    def check(self) -> None:
        """Raise InputError if the fields of the encoder do not fit together, or if a number is too small."""
        if not self.columns:
            raise InputError("names no columns", place="encoders.columns")
        if (self.value is None) == (self.method == Method.CONSTANT):
            rule = "needs `value`" if self.value is None else "has `value`, which is only for `constant`"
            raise InputError(f"`method: {self.method}` {rule}", place="encoders.value")
        if self.smoothing < 0:
            raise InputError("`smoothing` must not be negative", place="encoders.smoothing")
        if self.most < 1:
            raise InputError("`most` must be 1 or more", place="encoders.most")


NUMBER_FORMATS = (*UNIX_UNITS, *DATE_DIGITS)
"""The formats of numbers that a dataset can interpret as times."""

BUCKET_ROWS = 5_000_000
"""The number of rows in each bucket of a dataset if `buckets` is not set."""


class Aggregate(StrEnum):
    """The aggregates that a window can compute."""

    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    STD = "std"
    LAST = "last"
    DISTINCT = "distinct"


class LabelRule(StrEnum):
    """The aggregate with which the label of a row is computed from later events."""

    ANY = "any"
    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """The rows of the dataset: the dataset has one row for each row of `table`. `time` is the column with
    the time of the row, and `entity` are the columns that identify its entity.

    `columns` are the columns that become features (default: all columns). The windows and lags of a row use
    another row only after the time `known_at` of that other row. `known_at` is a column or an SQL expression
    over the row (`time` by default). Rows without a time or an entity are dropped and counted.
    """

    table: str
    time: str
    entity: tuple[str, ...] = ()
    known_at: str | None = None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A left join on the columns in `on`. In `table`, the combined values of these columns must be unique.

    If the table has a column with times, the join needs either `known_at` or `exempt`. `known_at` (a column
    or an SQL expression over the table) is the time when a row became known: if a row was not known before
    the basis time, its values are missing. With `exempt`, all rows of the joined table are treated as known
    at any time, and the dataset shows the exemption. `columns` are the columns that the join adds (default:
    all columns except those in `on`), with `prefix` before each name. If the table is a prediction, each row
    is known at its own time, and the column `truth` is added only if `columns` contains it.
    """

    table: str
    on: tuple[str, ...]
    columns: tuple[str, ...] = ()
    prefix: str = ""
    known_at: str | None = None
    exempt: bool = False

    def check(self) -> None:
        """Raise InputError if `on` has no columns, or if both `known_at` and `exempt` are set."""
        if not self.on:
            raise InputError("names no columns to join on", place="joins.on")
        if self.known_at is not None and self.exempt:
            raise InputError("has known_at and exempt; only one of them is allowed", place="joins.exempt")


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOfJoin:
    """The join adds the newest row of `table` that has the same values in the columns that `on` names and
    that was known before the basis time.

    `known_at` is the column (or SQL expression over the table) with the time when a row became known, which
    must be strictly before the basis time. `within_seconds` is the largest age that the joined row may have.
    `columns` are the columns that the join adds (default: all columns except those in `on` and `known_at`),
    with `prefix` before each name. If the table contains values of the label, a row becomes known only when
    its label is known, if that time is later than `known_at`. `exempt` contains a reason and turns off the
    rule that values of the label are known only when the label is known; the dataset shows the reason.
    """

    table: str
    known_at: str
    on: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    prefix: str = ""
    within_seconds: float | None = None
    exempt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Aggregates of `column` over rows that were known strictly before the basis time. A window covers the
    rows of the basis table with the same entity, or the rows of `table` with the same values in the columns
    that `on` names. `known_at` (a column or an SQL expression over the table) is the time when a row of
    `table` became known. The window covers `span_seconds` before the basis time, or the last `span_rows`
    rows. The aggregates of a window skip missing values. If a window has no value, `count` and `distinct`
    are 0 and all other aggregates are missing. `std` is the standard deviation of a sample; if there is only
    one value, `std` is missing. `column` can also be the name of the label: then the window uses only labels
    that were known before the basis time. The features of a window are named `temp_mean_1d` or
    `temp_mean_24rows`, with `prefix` before the name. If the window uses the column or the events from which
    the label is made, a value becomes known only when its label is known, if that time is later than
    `known_at`. `exempt` contains a reason and turns off the rule that values of the label are known only
    when the label is known; the dataset shows the reason.
    """

    column: str
    aggregates: tuple[Aggregate, ...]
    span_seconds: float | None = None
    span_rows: int | None = None
    table: str | None = None
    on: tuple[str, ...] = ()
    known_at: str | None = None
    prefix: str = ""
    exempt: str = ""

    def check(self) -> None:
        """Raise InputError if the window has no aggregates, or if `exempt` is set without `known_at`."""
        if not self.aggregates:
            raise InputError("names no aggregates", place="windows.aggregates")
        _check_exempt(self, "windows")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Earlier values of `column` of the same entity, as features `temp_lag_1`, `temp_lag_7d` and so on.

    `steps` are numbers of rows back, among the rows that are strictly before the basis time (1: the row
    directly before). `back_seconds` are durations: the feature is the value of the newest row that was known
    this long before the basis time. `table`, `on`, `known_at`, `prefix` and `exempt` mean the same as in
    `Window`.
    """

    column: str
    steps: tuple[int, ...] = ()
    back_seconds: tuple[float, ...] = ()
    table: str | None = None
    on: tuple[str, ...] = ()
    known_at: str | None = None
    prefix: str = ""
    exempt: str = ""

    def check(self) -> None:
        """Raise InputError if `steps` and `back_seconds` are missing or out of range, or if `exempt` is set
        without `known_at`."""
        _check_exempt(self, "lags")
        if not self.steps and not self.back_seconds:
            raise InputError("needs `steps` or `back`", place="lags.steps")
        if any(step < 1 for step in self.steps):
            raise InputError("`steps` must be 1 or more: 1 is the row before", place="lags.steps")
        if any(seconds <= 0 for seconds in self.back_seconds):
            raise InputError("`back` must be more than 0", place="lags.back")


def _check_exempt(part: Window | Lag, place: str) -> None:
    if part.exempt and part.known_at is None:
        raise InputError(
            "`exempt` needs `known_at`, the time when a row becomes known",
            hint="Add `known_at: COLUMN` (or an SQL expression).",
            place=f"{place}.exempt",
        )


UNTIL_BASIS = "basis"
"""The value of `known_until` for a label whose events are complete until the newest row of the basis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """The value that a model trained on the dataset predicts. With `horizon_seconds`, the label is the value
    of `column` of the same entity, exactly `horizon_seconds` after the basis time.

    With `steps`, the label is the value of the row that follows `steps` rows later. If `horizon_seconds`,
    `steps` and `next_rows` are not set, the label is the value of the row itself, and the column of the
    label is not a feature. `next_rows` gives one label for each of the next `next_rows` rows, of `column` or
    of several `columns`, with the names `temp_label_1`, `temp_label_2` and so on. A label is known when the
    row that contains its value is known (see `Basis`). `known_at` (a column or an SQL expression over the
    row with the label's value) replaces the time when the label is known, and `delay_seconds` is added to
    it. Expressions in `features` must not name the label. Windows, lags and joins over the basis table use
    the label only after the label is known, whatever their own `known_at` is. The same rule applies to
    tables with the same columns as the basis table, and to tables that were made from it. If the label is a
    later value of a column, the present value of this column is a feature, which is known with the row.

    If `table` is set, the label is the `outcome` of the events in `table` that have the same values in the
    columns that `on` names and become known (`known_at`) within `horizon_seconds` after the basis time. The
    outcome is either whether there is any such event, the number of events, or an aggregate of `column`. No
    feature or label uses an event before the event is known, at the label's `known_at` plus `delay_seconds`.
    By default, the table of events is assumed to be complete until its newest event: a row whose time plus
    `horizon_seconds` is later has no label yet. `known_until` declares that the table of events is complete
    for longer: until a time (ISO 8601) or, with `basis`, until the newest row of the basis.

    `name` is the name of the label's column in the dataset. Rows that have no label are dropped and counted.
    """

    column: str | None = None
    columns: tuple[str, ...] = ()
    horizon_seconds: float | None = None
    steps: int | None = None
    next_rows: int | None = None
    known_at: str | None = None
    delay_seconds: float | None = None
    table: str | None = None
    on: tuple[str, ...] = ()
    outcome: LabelRule | None = None
    known_until: str | None = None
    name: str = "label"

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns from which the values of the label are taken."""
        return (self.column,) if self.column is not None else self.columns

    @property
    def is_own(self) -> bool:
        """Whether the label is the value of the row itself, without a horizon."""
        return (
            self.table is None
            and self.horizon_seconds is None
            and self.steps is None
            and self.next_rows is None
        )

    @property
    def complete_until(self) -> datetime | None:
        """Return `known_until` in UTC, or None if it is not set or is `basis`. Raises InputError."""
        if self.known_until == UNTIL_BASIS:
            return None
        return _moment(self.known_until, "label.known_until")

    def check(self) -> None:
        """Raise InputError if the fields of the label do not fit together."""
        ways = ("horizon_seconds", "steps", "next_rows")
        given = [name.removesuffix("_seconds") for name in ways if getattr(self, name) is not None]
        if len(given) > 1:
            raise InputError(f"has {' and '.join(given)}; only one is allowed", place=f"label.{given[-1]}")
        if self.name == "split" or not self.name.strip():
            raise InputError(f"a label cannot be called {self.name!r}", place="label.name")
        if self.column is not None and self.columns:
            raise InputError("has column and columns; only one is allowed", place="label.columns")
        if self.table is not None:
            self._check_events()
        elif self.on or self.outcome or self.known_until:
            raise InputError("`on`, `outcome` and `known_until` need `table`", place="label.table")
        elif (self.column is None) == (not self.columns):
            raise InputError("needs one of column, columns", place="label.column")
        if self.columns and self.next_rows is None:
            raise InputError(
                "a label that spans several rows cannot have several columns",
                hint="Add `next_rows: 1` (or more); or give one `column`.",
                place="label.columns",
            )

    def _check_events(self) -> None:
        self.complete_until  # noqa: B018  raises InputError for an invalid time
        if self.horizon_seconds is None or self.known_at is None or self.outcome is None or self.columns:
            raise InputError(
                "a label made of a table's events needs horizon, known_at and outcome, and no columns",
                hint="Write for example"
                " {table: exits, on: [user], known_at: time, horizon: 30d, outcome: any}.",
                place="label.table",
            )
        if (self.column is None) != (self.outcome in (LabelRule.ANY, LabelRule.COUNT)):
            needs = "no column" if self.column else "a column"
            raise InputError(f"`outcome: {self.outcome}` needs {needs}", place="label.column")


class SplitBy(StrEnum):
    """The rule that assigns rows to splits, in addition to times."""

    TIME = "time"
    RANDOM = "random"
    ENTITY = "entity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The rules that select the rows for training, for validation and for test.

    If the dataset is split by time, rows before `validation_from` are for training, rows before `test_from`
    are for validation, and all later rows are for test. Times of the splits are in ISO 8601 (UTC unless they
    contain a time zone). Fractions of the time span can replace the times (`validation: 0.15`, `test:
    0.15`). If the label of a row is known only during a later split, the row is dropped and counted, because
    training must not use information from the time of the test. Rows of the dataset at or after the time
    `until` are dropped too. Rows within `gap_seconds` before validation and before test are dropped and
    counted. An example is 7 days of training, 7 days of gap and 7 days of test.

    With `by: random`, the splits are fractions of the rows, chosen by a hash of `seed` and of the columns
    that `on` names (default: entity and time). Later rows do not change the split of an existing row. With
    `by: entity`, the splits are fractions of the entities, so that no entity has rows in two splits. If `by`
    and times are both set, a row is dropped if the split that its time selects differs from the split that
    its hash selects.
    """

    validation_from: str | None = None
    test_from: str | None = None
    until: str | None = None
    gap_seconds: float | None = None
    validation: float | None = None
    test: float | None = None
    by: SplitBy = SplitBy.TIME
    on: tuple[str, ...] = ()
    seed: int = 0

    @property
    def times(self) -> tuple[datetime | None, datetime | None]:
        """Return `validation_from` and `test_from` in UTC, without a zone. Raises InputError."""
        begins = {name: getattr(self, name) for name in ("validation_from", "test_from")}
        validation, test = (_moment(text, f"split.{name}") for name, text in begins.items())
        return validation, test

    @property
    def gap(self) -> timedelta:
        """Rows are dropped if they are within this number of seconds before the validation split or before
        the test split."""
        return timedelta(seconds=self.gap_seconds or 0.0)

    @property
    def end(self) -> datetime | None:
        """Return `until` in UTC, without a time zone. Raises InputError."""
        return _moment(self.until, "split.until")

    def check(self) -> None:
        """Raise InputError for an invalid time, overlapping splits, and fields that do not fit together."""
        validation_from, test_from = self.times
        ordered = [(t, n) for t, n in ((validation_from, "validation"), (test_from, "test")) if t]
        ordered += [(self.end, "the end")] if self.end else []
        for (one, name), (other, following) in pairwise(ordered):
            if one >= other:
                raise InputError(
                    f"{name} begins at {one.isoformat()}, which is not before {following} "
                    f"({other.isoformat()})",
                    hint="The order is train, validation, test.",
                    place=f"split.{name}_from",
                )
        if self.gap_seconds is not None:
            self._check_gap()
        if self.by == SplitBy.TIME and (self.on or self.seed):
            raise InputError("`on` and `seed` need `by: random` or `by: entity`", place="split.by")
        if self.by != SplitBy.TIME and self.validation is None and self.test is None:
            raise InputError(
                f"`by: {self.by}` needs shares, such as `validation: 0.15`", place="split.validation"
            )

    def _check_gap(self) -> None:
        """Raise InputError if no split follows the gap, or if the gap leaves no validation rows."""
        validation_from, test_from = self.times
        if self.by != SplitBy.TIME and validation_from is None and test_from is None:
            raise InputError(
                f"`gap` is a time between splits, and with `by: {self.by}` the splits have no times",
                hint="Add `test_from: TIME`, or leave out `gap`.",
                place="split.gap",
            )
        if (self.validation, self.test, validation_from, test_from) == (None, None, None, None):
            raise InputError("`gap` needs a validation or test split", place="split.gap")
        if validation_from and test_from and test_from - validation_from <= self.gap:
            raise InputError(
                "`gap` is as long as the time between `validation_from` and `test_from`: the validation"
                " split would be empty",
                place="split.gap",
            )


def _moment(text: str | None, place: str) -> datetime | None:
    return None if text is None else read_moment(text, place).replace(tzinfo=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSpec:
    """The declaration of a dataset: either features and labels that use only values known at the time of
    each row, or plain SQL over the tables in `tables`.

    `features` are SQL expressions over the columns and features of the row. With plain `sql`, `time` and
    `entity` name the columns for the label, the splits, the windows, the lags and the as-of joins. Gridmill
    does not check at which time the rows that the plain SQL reads were known, and the dataset shows a note
    about this. The plain SQL may call `pixels(bytes, width, height)`, which returns the grey values of an
    image, from 0 to 1. If a column has arrays of a fixed length, each value of the array becomes one column:
    for example, `pixel FLOAT[64]` gives the columns `pixel_1` to `pixel_64`. `encoders` are fitted on the
    training rows only. A row is dropped and counted if one of the columns or features in `required` is
    missing.

    `buckets` divides the work into that many parts, each with all rows of its entities (default: one part
    for each five million rows), so that several machines share the work and each part needs less memory.
    With `incremental`, if the tables have only gained later rows since the previous version, the files and
    the encoders of that version are used again. With `incremental`, Gridmill computes only the new rows, and
    writes them into new files.

    If a column that is used as a time (`time`, `known_at`) contains numbers, these numbers are converted to
    times. `timestamp_format` declares the unit of numbers that are used as times, by the name of their
    column (`at`, or `events.at` for one table). If no unit is declared, Gridmill uses the only unit that
    fits all numbers, and the dataset shows this unit. The units of numbers that are times are `unix_s`,
    `unix_ms`, `unix_us` and `unix_ns` since 1970. For numbers whose digits are a date, the unit is `%Y%m%d`,
    optionally followed by `%H`, `%M` and `%S`.
    """

    basis: Basis | None = None
    joins: tuple[Join, ...] = ()
    asof_joins: tuple[AsOfJoin, ...] = ()
    windows: tuple[Window, ...] = ()
    lags: tuple[Lag, ...] = ()
    features: Mapping[str, str] = field(default_factory=dict)
    label: Label | None = None
    split: Split | None = None
    encoders: tuple[Encoder, ...] = ()
    required: tuple[str, ...] = ()
    buckets: int | None = None
    incremental: bool = False
    sql: str | None = None
    tables: tuple[str, ...] = ()
    time: str | None = None
    entity: tuple[str, ...] = ()
    timestamp_format: Mapping[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row: entity and time, of the basis or of the plain SQL."""
        time = self.basis.time if self.basis else self.time
        return (*(self.basis.entity if self.basis else self.entity), *([time] if time else []))

    def references(self) -> tuple[str, ...]:
        """The tables that the dataset reads."""
        named = [self.basis.table] if self.basis else []
        named += [part.table for _, part in self.parts() if part.table is not None]
        return tuple(dict.fromkeys((*named, *self.tables)))

    def parts(self) -> Iterator[tuple[str, "Join | AsOfJoin | Window | Lag | Label"]]:
        """The joins, as-of joins, windows, lags and label, each with the name of its field."""
        for place in ("joins", "asof_joins", "windows", "lags"):
            yield from ((place, part) for part in getattr(self, place))
        if self.label is not None:
            yield "label", self.label

    def _check_incremental(self) -> None:
        """Raise InputError if new rows of an incremental dataset could change values of earlier rows."""
        drawn = self.split is not None and self.split.by != SplitBy.TIME
        shares = self.split is not None and (self.split.validation, self.split.test) != (None, None)
        parts: tuple[Window | Lag, ...] = (*self.windows, *self.lags)
        names = {part.column for part in parts if part.table is None}
        problems = {
            "needs a `basis`": self.basis is None,
            "needs a split at times, not by shares of the time span": shares and not drawn,
            "cannot have labels that count rows ahead": self.label is not None
            and (self.label.steps is not None or self.label.next_rows is not None),
            "cannot have windows over labels": self.label is not None
            and not self.label.is_own
            and self.label.name in names,
        }
        for problem, there in problems.items():
            if there:
                raise InputError(f"an incremental dataset {problem}", place="dataset.incremental")

    def _check_label_use(self) -> None:
        """Raise InputError if the label is used to select the rows of a window, lag or join, or if a window
        or lag over the label sets its own `known_at`."""
        label = self.label
        if label is None:
            return
        sources = {name.lower() for name in label.sources} if label.is_own else set()
        entity = self.basis.entity if self.basis is not None else self.entity
        keyed = {"entity": entity}
        for place in ("joins", "asof_joins", "windows", "lags"):
            parts: tuple[Join | AsOfJoin | Window | Lag, ...] = getattr(self, place)
            keyed[f"{place}.on"] = tuple(name for part in parts if not part.exempt for name in part.on)
        for place, names in keyed.items():
            for name in names:
                if name.lower() in sources:
                    raise InputError(
                        f"{name!r} is the label; its value must not decide which rows a row can use",
                        hint="Leave out the column, or declare `exempt: REASON` in the part that uses it.",
                        place=place,
                    )
        counted: tuple[Window | Lag, ...] = (*self.windows, *self.lags)
        for part in counted:
            named = part.column == label.name and label.name not in label.sources
            if named and part.table is None and part.known_at is not None:
                raise InputError(
                    f"{label.name!r} is the label, which has a `known_at` of its own",
                    hint="Leave out `known_at` here; the label has `known_at` and `delay`.",
                    place=f"{'windows' if isinstance(part, Window) else 'lags'}.known_at",
                )

    def check(self) -> None:
        """Raise InputError for a field that is invalid or does not fit the other fields."""
        self._check_label_use()
        for name, unit in self.timestamp_format.items():
            if unit not in NUMBER_FORMATS:
                raise InputError(
                    f"{unit!r} is not a format of times that are numbers",
                    hint=f"It is one of {', '.join(NUMBER_FORMATS)}. For texts, declare the format in the"
                    f" sink.",
                    place=f"timestamp_format.{name}",
                )
        for name in self.features:
            if name == "split" or not name.strip():
                raise InputError(f"a feature cannot be called {name!r}", place="features")
        if self.incremental:
            self._check_incremental()
        if self.basis is not None and (self.time or self.entity or self.tables):
            raise InputError("`time`, `entity` and `tables` need `sql`; a basis has its own")
        if self.sql is not None and self.time is None:
            needs = {
                "asof_joins": self.asof_joins,
                "windows": self.windows,
                "lags": self.lags,
                "split": self.split,
            }
            ahead = self.label is not None and not self.label.is_own
            named = [name for name, value in needs.items() if value] + ["a label ahead"] * bool(ahead)
            if named:
                raise InputError(f"{named[0]} needs `time`, the column with the time of a row", place="time")
