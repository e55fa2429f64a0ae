"""Declaration of a dataset: basis, joins, windows, lags, label, splits and encoders.

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
    """What an encoder makes of a column.

    Scalers: `standard` (mean 0, standard deviation 1), `minmax` (0 to 1), `robust` (median 0, interquartile
    range 1). For missing values: `mean`, `median`, `most_frequent`, `constant`. For categories: `onehot`,
    `ordinal`, `frequency` (its share of the training rows), `target` (the mean label).
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
    """`columns` encoded by `method`, with numbers that are fitted on the training rows and kept.

    Encoders apply in their order. Scalers and those for missing values replace the column; labels that are
    later values of a scaled column are scaled with it. Encoders of categories make `carrier_target`,
    `carrier_ordinal`, `carrier_frequency` or one column per category (`carrier_UA`: true or false; of the
    `most` frequent ones), and the column itself goes, unless `keep`. What training never saw becomes the mean
    label, -1, 0, or false in all columns.

    `target` counts only labels of training rows that were known before a row's own time, so that no row sees
    its own; `smoothing` is how many rows the mean of all weighs. `constant` takes `value`.
    """

    columns: tuple[str, ...]
    method: Method
    smoothing: float = 20.0
    most: int = 32
    keep: bool = False
    value: float | None = None

    def check(self) -> None:
        """Raise InputError for no columns, and for a value that is missing or goes with another method."""
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
"""Formats of numbers that a dataset uses as times."""

BUCKET_ROWS = 5_000_000
"""Rows of a dataset per bucket, if the number of buckets is not declared."""


class Aggregate(StrEnum):
    """Window aggregates."""

    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    STD = "std"
    LAST = "last"
    DISTINCT = "distinct"


class LabelRule(StrEnum):
    """How a label is made from the rows that follow."""

    ANY = "any"
    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """The rows of the dataset: one per row of `table`, at time `time`, for the entity that `entity` names.

    `columns` are the features known with the row itself (default: all of them). `known_at`, a column or SQL
    expression over the row, says when other rows may see it in windows and lags (default: after `time`). Rows
    without a time or an entity are dropped, and counted.
    """

    table: str
    time: str
    entity: tuple[str, ...] = ()
    known_at: str | None = None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """An ordinary left join on equal columns, unique in the table.

    A table that has a column of times says with `known_at` (a column or SQL expression over it) when a row
    became known: what was not known before the basis time is missing. Or it is `exempt`: its rows count as
    known whenever they are from, and the dataset says so. `columns` are those it adds (default: all others),
    each with `prefix` before its name. A prediction's rows are known with their own time, and its `truth` is
    added only where it is named.
    """

    table: str
    on: tuple[str, ...]
    columns: tuple[str, ...] = ()
    prefix: str = ""
    known_at: str | None = None
    exempt: bool = False

    def check(self) -> None:
        """Raise InputError for a join on nothing, and for one that is both checked and exempt."""
        if not self.on:
            raise InputError("names no columns to join on", place="joins.on")
        if self.known_at is not None and self.exempt:
            raise InputError("has known_at and exempt; only one of them is allowed", place="joins.exempt")


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOfJoin:
    """The newest row of `table` that was known before the basis time, per `on`.

    `known_at` is the column (or SQL expression over the table) that says when a row became known;
    it is compared with the basis time: strictly earlier. `within_seconds` drops older rows. `columns` are
    those it adds (default: all but `on` and the column `known_at`), each with `prefix` before its name. What
    it brings of the label is known when the label says so, if that is later; `exempt`, a reason, leaves it to
    `known_at`, and the dataset shows it.
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
    """Aggregates of `column` over the rows with the same `on` that were known strictly before the basis time.

    They are those of the basis table with the same entity; or those of `table`, whose `known_at` (a column
    or SQL expression over it) says when a row became known. `span_seconds` back from the basis time, or the
    last `span_rows` rows. Missing values are passed over: without any value `count` and `distinct` are 0
    and the others are missing, as is `std` (of a sample) of a single one. `column` can also be the label's
    name: then only labels count that were known before. The features are called `temp_mean_1d`,
    `temp_mean_24rows`, with `prefix` before it. A window over the column or the events that the label is made
    of sees them when the label says that they are known, if that is later than `known_at`; `exempt`, a
    reason, leaves it to `known_at`, and the dataset shows it.
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
        """Raise InputError for a window that makes nothing, and for an exemption from nothing."""
        if not self.aggregates:
            raise InputError("names no aggregates", place="windows.aggregates")
        _check_exempt(self, "windows")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Earlier values of `column` of the same entity: `temp_lag_1`, `temp_lag_7d`, ...

    `steps` are rows back among those strictly before the basis time (1 = the row before); `back_seconds`
    times back: the value of the newest row that was known by then. `table`, `on`, `known_at`, `prefix` and
    `exempt` are those of a window.
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
        """Raise InputError for a lag that goes nowhere, and for an exemption from nothing."""
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
"""The `known_until` of a label whose events are complete until the newest row of the basis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What is to be predicted: `column` of the same entity, exactly `horizon_seconds` after the basis time.

    With `steps` instead, that many rows ahead; with none of these, the row's own value, which then is no
    feature. `next_rows` gives a label for each of that many rows ahead, of `column` or of several `columns`,
    step by step: `temp_label_1`, `temp_label_2`, ... A label is known with the row it is taken from (as the
    basis says), unless `known_at` (a column or SQL expression over that row) says when, and `delay_seconds`
    later than that. No feature's expression may name it; windows, lags and joins of the basis's table see it
    once it is known, whatever their `known_at` says, and so do those of a table that is a copy of it: of the
    same columns, or made from it. A column whose later value is the label counts as known with the row where
    it is a feature of the row.

    Of a `table` of events it is the `outcome` of those with the same `on` that become known (`known_at`)
    within `horizon_seconds` after the basis time: whether there is any, how many, an aggregate of `column`.
    No part sees an event before it is known by the label's `known_at` and `delay_seconds`. The table tells of
    the time until its newest event: a row whose `horizon_seconds` ends later has no label yet. `known_until`
    says that it is complete for longer: until a time (ISO 8601) or, with `basis`, the basis's newest row.

    `name` is the column's name in the dataset. Rows without a label are dropped, and counted.
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
        """The columns it is taken from."""
        return (self.column,) if self.column is not None else self.columns

    @property
    def is_own(self) -> bool:
        """Whether it is the row's own value."""
        return (
            self.table is None
            and self.horizon_seconds is None
            and self.steps is None
            and self.next_rows is None
        )

    @property
    def complete_until(self) -> datetime | None:
        """`known_until` in UTC, without a zone; None where it is no time of its own. Raises InputError."""
        if self.known_until == UNTIL_BASIS:
            return None
        return _moment(self.known_until, "label.known_until")

    def check(self) -> None:
        """Raise InputError for several ways of looking ahead, and for columns that do not go with them."""
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
                "several columns are predicted over several rows ahead",
                hint="Add `next_rows: 1` (or more); or give one `column`.",
                place="label.columns",
            )

    def _check_events(self) -> None:
        self.complete_until  # noqa: B018  raises for what is no time
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
    """What decides the split of a row beside the times that are given."""

    TIME = "time"
    RANDOM = "random"
    ENTITY = "entity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Which rows are trained on, validated on and tested on.

    By time: `train` before `validation_from` ≤ validation before `test_from` ≤ test, as times (ISO 8601, UTC
    unless they say otherwise) or as shares of the time span (`validation: 0.15`, `test: 0.15`). A row whose
    label is known in a later split only is dropped, and counted: it would tell training what it is tested on.
    Rows from `until` on are dropped too. With `gap_seconds` rows in that time before validation and before
    test begin are dropped, and counted: 7 days of training, 7 of gap and 7 of test.

    `by` random: shares of the rows, chosen by a hash of the columns `on` (default: entity and time) and of
    `seed`; rows that come later change nothing for those that are there. `by` entity: shares of the
    entities, so that none has rows in two splits. Times can be given beside it: then rows for which both do
    not agree are dropped.
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
        """`validation_from` and `test_from` in UTC, without a zone. Raises InputError for what is no time."""
        begins = {name: getattr(self, name) for name in ("validation_from", "test_from")}
        validation, test = (_moment(text, f"split.{name}") for name, text in begins.items())
        return validation, test

    @property
    def gap(self) -> timedelta:
        """How long before validation and test rows are dropped."""
        return timedelta(seconds=self.gap_seconds or 0.0)

    @property
    def end(self) -> datetime | None:
        """`until` in UTC, without a zone. Raises InputError for what is no time."""
        return _moment(self.until, "split.until")

    def check(self) -> None:
        """Raise InputError for what is no time, and for splits that overlap."""
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
        """Raise InputError for a gap that is before nothing, and for one that leaves no validation rows."""
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
    """Features and labels, point-in-time correct; or plain SQL over the tables in `tables`.

    `features` are SQL expressions over the row's columns and features. Of plain `sql`, `time` and `entity`
    name the columns that labels, splits, windows, lags and as-of joins go by; what the SQL itself looks at is
    not checked, and the dataset says so. It may call `pixels(bytes, width, height)`: an image's grey values,
    0 to 1. A column of arrays of a fixed length becomes a column for each value: `pixel FLOAT[64]` gives
    `pixel_1` to `pixel_64`. `encoders` are fitted on the training rows alone. Rows in which one of the
    columns or features in `required` is missing are dropped, and counted.

    `buckets` cuts the work into so many parts of whole entities (default: one for each five million rows),
    for several machines and so that less memory is needed at a time. `incremental`: where the tables only had
    later rows appended since the version before, its files and encoders are kept and only the new rows are
    computed, into files of their own.

    A column of numbers that is used as a time (`time`, `known_at`) is converted: by the unit that
    `timestamp_format` declares for its name (`at`, or `events.at` for one table), or by the only unit that
    fits all its numbers, which the dataset shows. Units are `unix_s`, `unix_ms`, `unix_us` and `unix_ns`
    since 1970, and `%Y%m%d`, with `%H`, `%M` and `%S` behind it, for digits that are a date.
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
        """The columns that name a row: entity and time, of the basis or of plain SQL."""
        time = self.basis.time if self.basis else self.time
        return (*(self.basis.entity if self.basis else self.entity), *([time] if time else []))

    def references(self) -> tuple[str, ...]:
        """The tables that are read."""
        named = [self.basis.table] if self.basis else []
        named += [part.table for _, part in self.parts() if part.table is not None]
        return tuple(dict.fromkeys((*named, *self.tables)))

    def parts(self) -> Iterator[tuple[str, "Join | AsOfJoin | Window | Lag | Label"]]:
        """Joins, as-of joins, windows, lags and the label, each after the field that declares it."""
        for place in ("joins", "asof_joins", "windows", "lags"):
            yield from ((place, part) for part in getattr(self, place))
        if self.label is not None:
            yield "label", self.label

    def _check_incremental(self) -> None:
        """Raise InputError where earlier rows could change when later ones are added."""
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
        """Raise InputError where the row's own label decides which rows it sees, and where two clocks are
        given for a label's name."""
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
                        hint="Leave it out; or, in a part, declare `exempt: REASON`.",
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
        """Raise InputError for parts that need a time, or SQL, where there is none."""
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
