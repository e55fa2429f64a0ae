"""Computes the features of requests by key, from a view, with the kernels that compute them in a dataset."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import did_you_mean
from gridmill.domain.service_features import FeatureRule, OnlinePolicy, OnTrouble
from gridmill.errors import InputError, UnavailableError
from gridmill.jobs.dataset.encoders import FittedEncoder, apply
from gridmill.jobs.dataset.prepare import register_functions
from gridmill.jobs.dataset.window_kernels import RankedValues, rank, their_features
from gridmill.jobs.dataset.window_plan import CHUNK
from gridmill.jobs.dataset.window_ranges import Flags, Ints
from gridmill.jobs.duckdb_engine import quoted
from gridmill.jobs.expressions import quote_all, select, sql_text
from gridmill.online.key_rows import NEVER, check_ahead, check_floor, load_rows, with_history
from gridmill.online.plan import Feed, OnlinePlan
from gridmill.online.requests import RequestColumns, microseconds_of, read_request
from gridmill.online.row_codec import ARROW, DamagedViewError
from gridmill.online.view import (
    HeldVersion,
    MissingViewError,
    ViewFile,
    ViewState,
    current_file,
    mark_damaged,
    open_view,
    plain_reason,
)

_PLACE = "__place"

_LOG = logging.getLogger(__name__)


class Status(StrEnum):
    """How a value of a feature came about.

    `present`: the request sent it, or it was computed from the view. `stale`: it was computed, but its newest
    row or the view itself is older than the `max_age` of the feature. `defaulted`: there was no value, and
    the declared default is used. `missing`: there was no value and no default.
    """

    PRESENT = "present"
    STALE = "stale"
    DEFAULTED = "defaulted"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineRows:
    """The features of the rows of a request.

    `columns` are all features of the plan, in the order of the dataset. `statuses` has the status of each
    value of the features that are computed by key. `held` are the versions of the tables from which they were
    computed; it is empty if the view could not be used, and then `problem` has the reason. `as_of_us` is the
    as-of time of the rows that named none, in microseconds since 1970.
    """

    columns: pa.Table
    statuses: Mapping[str, tuple[Status, ...]]
    held: Mapping[str, HeldVersion] = field(default_factory=dict)
    problem: str = ""
    as_of_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _RuledValues:
    """The values of one feature with defaults, and their statuses."""

    values: pa.Array
    statuses: tuple[Status, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Computed:
    """The features that are computed by key, and for each of them the time of the newest row that each row
    sees.

    If the model reads sequences, `request` also has the earlier rows, and `places` has the number of the row
    at each place of each sequence.
    """

    request: RequestColumns
    state: ViewState
    values: Mapping[str, pa.Array] = field(default_factory=dict)
    newest: Mapping[str, Ints] = field(default_factory=dict)
    places: Ints | None = None
    problem: str = ""


_NO_STATE = ViewState(held={}, floor_us=None, synced_at=float("inf"))


class OnlineFeatures:
    """The features of a service. Several threads may use one object; each thread has its own connections.

    `folder` is the folder of the view. A new view that replaces the old one is used by the next call. An
    as-of time may be at most `ahead_seconds` in the future (None: any time), which allows for clocks that
    differ. `example` is a row of the basis table in the form of a request. `most_rows` limits the rows of the
    view that a call for several rows holds in memory (None: no limit).
    """

    def __init__(
        self,
        folder: Path,
        plan: OnlinePlan,
        *,
        rules: Mapping[str, FeatureRule] | None = None,
        policy: OnlinePolicy | None = None,
        encoders: Sequence[FittedEncoder] = (),
        clock: Callable[[], float] = time.time,
        ahead_seconds: float | None = None,
        example: Mapping[str, Any] | None = None,
        most_rows: int | None = None,
    ) -> None:
        self.folder, self.plan, self._most_rows = folder, plan, most_rows
        self.example, self._ahead_seconds = dict(example or {}), ahead_seconds
        self.rules, self.policy = dict(rules or {}), policy or OnlinePolicy()
        self._encoders, self._clock = tuple(encoders), clock
        self._local = threading.local()
        check_rules(self.rules, plan)

    def close(self) -> None:
        """Close the connections of this thread."""
        view, engine = getattr(self._local, "view", None), getattr(self._local, "engine", None)
        if view is not None:
            view.close()
        if engine is not None:
            engine.close()
        self._local = threading.local()

    def state(self) -> ViewState:
        """Return the versions that the view holds now. Raises MissingViewError, DamagedViewError."""
        return self._view().state()

    @contextmanager
    def one_version(self) -> Iterator[ViewState]:
        """A context in which all calls of this thread read the same versions of the tables, although the view
        is refreshed meanwhile. It returns these versions. Raises MissingViewError, DamagedViewError."""
        if not self.plan.stored:
            yield _NO_STATE
            return
        view = self._view()
        self._local.pinned = True
        try:
            with view.reading():
                yield view.state()
        finally:
            self._local.pinned = False

    def features_for(self, rows: Sequence[Mapping[str, Any]], as_of: datetime | None = None) -> OnlineRows:
        """Return the features of each row. If the model reads sequences, return for each row the rows of its
        sequence, the oldest first.

        `rows` have the columns `plan.request`, and may have the as-of time under the name of the dataset's
        time column. `as_of` is the time of all other rows (default: now). Raises InputError for a wrong row,
        an unknown key or an as-of time that the view does not answer, and UnavailableError if the view cannot
        be used and the policy refuses such requests. Inside of `one_version`, such requests are always
        refused. Raises TooManyRowsError for several rows that need more rows of the view than `most_rows`.
        """
        now_us = round((self._clock() - self._clock_ahead_seconds()) * 1_000_000)
        request = read_request(rows, self.plan, as_of, now_us)
        if self._ahead_seconds is not None:
            check_ahead(request.times, now_us, self._ahead_seconds)
        try:
            computed = self._computed(request, self._most_rows if len(rows) > 1 else None)
        except UnavailableError as error:
            if isinstance(error, MissingViewError | DamagedViewError):
                _LOG.error("features cannot be computed: %s", error)
            if isinstance(error, DamagedViewError):
                mark_damaged(self.folder)
            if self._is_pinned():
                raise
            self._forget()
            if self.policy.on_broken == OnTrouble.REFUSE:
                raise
            computed = self._nothing(request, plain_reason(error))
        stale = not computed.problem and self._is_stale(computed.state, now_us)
        ruled = self._ruled(computed, is_view_stale=stale)
        columns = self._expressed(computed.request, {name: one.values for name, one in ruled.items()})
        places = computed.places
        statuses = {name: one.statuses for name, one in ruled.items()}
        if places is not None:
            columns = columns.take(pa.array(places))
            statuses = {
                name: tuple(one[place] for place in places.tolist()) for name, one in statuses.items()
            }
        return OnlineRows(
            columns=columns,
            statuses=statuses,
            held=computed.state.held,
            problem=computed.problem,
            as_of_us=now_us if as_of is None else microseconds_of(as_of, "as_of"),
        )

    def _clock_ahead_seconds(self) -> float:
        """Return how much the clock of this machine is ahead of the clock by which the view was made. The
        result is 0 if the view cannot be read; the policy then decides about the request."""
        if not self.plan.stored:
            return 0.0
        try:
            return self._view().ahead_seconds()
        except UnavailableError:
            return 0.0

    def _is_pinned(self) -> bool:
        return bool(getattr(self._local, "pinned", False))

    def _view(self) -> ViewFile:
        """Return the view that serves; open it again if it was replaced."""
        view: ViewFile | None = getattr(self._local, "view", None)
        if view is not None and self._is_pinned():
            return view
        path = current_file(self.folder)
        if view is None or view.path.name != path.name:
            if view is not None:
                view.close()
                self._local.view = None
            view = open_view(self.folder, self.plan)
            self._local.view = view
        return view

    def _forget(self) -> None:
        view = getattr(self._local, "view", None)
        if view is not None:
            view.close()
        self._local.view = None

    def _computed(self, request: RequestColumns, most_rows: int | None) -> _Computed:
        """Return the features that are computed by key, from one commit of the view."""
        if not self.plan.stored:
            return _Computed(request=request, state=_NO_STATE)
        view, places = self._view(), None
        values: dict[str, pa.Array] = {}
        newest: dict[str, Ints] = {}
        with view.reading():
            state = view.state()
            if self.plan.history is not None:
                request, places = with_history(view, self.plan, request)
            check_floor(request.times, state)
            for number, feed in enumerate(self.plan.feeds):
                found = load_rows(view, number, feed, request, most_rows)
                values |= their_features(found.loaded, found.asking, self._rank)
                newest |= dict.fromkeys(feed.features, found.newest)
        return _Computed(request=request, state=state, values=values, newest=newest, places=places)

    def _rank(self, column: pa.Array) -> RankedValues:
        return rank(column, self._engine())

    def _engine(self) -> duckdb.DuckDBPyConnection:
        engine: duckdb.DuckDBPyConnection | None = getattr(self._local, "engine", None)
        if engine is None:
            engine = duckdb.connect(config={"threads": 1, "python_enable_replacements": False})
            engine.execute("SET TimeZone = 'UTC'")
            for text in self.plan.expressions.values():
                register_functions(engine, text)
            engine.execute("SET enable_external_access = false")
            self._local.engine = engine
        return engine

    def _nothing(self, request: RequestColumns, problem: str) -> _Computed:
        """Return missing values for all features that are computed by key. A sequence then consists of the
        row of the request only."""
        count = len(request.times)
        values = {
            name: pa.nulls(count, ARROW.get(self.plan.types.get(name, ""), pa.float64()))
            for name in self.plan.computed
        }
        places = np.repeat(np.arange(count), self.plan.sequence or 1)
        return _Computed(
            request=request,
            state=_NO_STATE,
            values=values,
            places=places if self.plan.sequence else None,
            problem=problem,
        )

    def _is_stale(self, state: ViewState, now_us: int) -> bool:
        limit = self.policy.stale_after_seconds
        age = now_us / 1e6 - state.synced_at
        if limit is None or age <= limit:
            return False
        if self.policy.on_stale == OnTrouble.REFUSE:
            raise UnavailableError(
                f"the view was last updated {age:.0f} s ago, and the limit is {limit:g} s",
                hint="Wait until the view is fresh again, or allow an older view (`on_stale: serve`).",
            )
        return True

    def _ruled(self, computed: _Computed, *, is_view_stale: bool) -> dict[str, _RuledValues]:
        """Return each feature with the values that the request sent, its default and its statuses. Raises
        InputError for an unknown key, if the policy refuses such rows."""
        request, newest = computed.request, computed.newest
        never = np.full(len(request.times), NEVER)
        made: dict[str, _RuledValues] = {}
        for name, column in computed.values.items():
            rule, seen = self.rules.get(name, FeatureRule()), newest.get(name, never)
            given = np.asarray(request.given.get(name, np.zeros(len(seen), np.bool_)), np.bool_)
            if given.any():
                sent = request.table[name].combine_chunks().cast(column.type)
                column = pc.if_else(pa.array(given), sent, column)
            made[name] = _rule_values(column, rule, request.times, seen, given, is_view_stale=is_view_stale)
        if self.policy.on_unknown_key == OnTrouble.REFUSE and newest:
            self._refuse_unknown(request, newest)
        return made

    def _refuse_unknown(self, request: RequestColumns, newest: Mapping[str, Ints]) -> None:
        for feed in self.plan.feeds:
            for name in feed.features:
                rule, given = self.rules.get(name, FeatureRule()), request.given.get(name)
                unknown = newest[name] == NEVER
                if given is not None:
                    unknown &= ~np.asarray(given, np.bool_)
                if rule.default is None and unknown.any():
                    raise _unknown_key(feed, name, request, int(np.flatnonzero(unknown)[0]))

    def _expressed(self, request: RequestColumns, values: Mapping[str, pa.Array]) -> pa.Table:
        """Return all features in the order of the dataset, encoded: those of the request, those that are
        computed by key, and those that are expressions over them."""
        columns = {name: request.table[name] for name in request.table.column_names} | dict(values)
        if self.plan.expressions:
            times = pa.array(request.times).view(pa.timestamp("us"))
            named = {**columns, **({self.plan.time: times} if self.plan.time is not None else {})}
            columns |= self._evaluate(pa.table(list(named.values()), names=list(named)))
        made = pa.table([columns[name] for name in self.plan.features], names=list(self.plan.features))
        return apply(made, self._encoders) if self._encoders else made

    def _evaluate(self, rows: pa.Table) -> dict[str, pa.ChunkedArray]:
        """Evaluate the SQL expressions of the dataset over the rows."""
        engine = self._engine()
        texts = {name: f"({sql_text(text)})" for name, text in self.plan.expressions.items()}
        engine.register(CHUNK, rows.append_column(_PLACE, pa.array(np.arange(rows.num_rows))))
        featured = select(["*"], texts, quoted(CHUNK))
        listed = ", ".join(quote_all(texts))
        try:
            made = engine.sql(f'SELECT {listed} FROM (\n{featured}\n) ORDER BY "{_PLACE}"').to_arrow_table()
        except duckdb.Error as error:
            raise InputError(f"the features of the request cannot be computed: {error}") from error
        finally:
            engine.unregister(CHUNK)
        return dict(zip(texts, made.columns, strict=True))


def _rule_values(
    column: pa.Array, rule: FeatureRule, times: Ints, seen: Ints, given: Flags, *, is_view_stale: bool
) -> _RuledValues:
    missing = np.asarray(column.is_null())
    unknown = (seen == NEVER) & ~given
    defaulted = (missing | unknown) & (rule.default is not None)
    if defaulted.any():
        column = pc.if_else(pa.array(defaulted), pa.scalar(rule.default).cast(column.type), column)
    stale = np.zeros(len(times), np.bool_) | is_view_stale
    if rule.max_age_seconds is not None:
        stale |= (seen != NEVER) & (times - np.maximum(seen, NEVER // 2) > rule.max_age_seconds * 1_000_000)
    statuses = (
        Status.DEFAULTED
        if is_default
        else Status.MISSING
        if is_missing
        else Status.STALE
        if is_stale and not is_given
        else Status.PRESENT
        for is_default, is_missing, is_stale, is_given in zip(
            defaulted.tolist(), missing.tolist(), stale.tolist(), given.tolist(), strict=True
        )
    )
    return _RuledValues(values=column, statuses=tuple(statuses))


def check_rules(rules: Mapping[str, FeatureRule], plan: OnlinePlan) -> None:
    """Raise InputError if a rule names a feature that is not computed by key, or if its default has another
    type than the feature."""
    for name, rule in rules.items():
        if name not in plan.computed:
            raise InputError(
                f"{name!r} is not a feature that is computed by key{did_you_mean(name, plan.computed)}",
                hint=f"These features are computed by key: {', '.join(plan.computed) or 'none'}.",
                place=f"features.rules.{name}",
            )
        kind = ARROW.get(plan.types.get(name, ""))
        if rule.default is not None and kind is not None:
            _check_default(name, rule.default, kind)


def _check_default(name: str, value: float | str | bool, kind: pa.DataType) -> None:
    try:
        pa.scalar(value).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(
            f"{value!r} cannot be the default of {name!r}, whose values have the type {kind}",
            place=f"features.rules.{name}.default",
        ) from error


def _unknown_key(feed: Feed, name: str, request: RequestColumns, row: int) -> InputError:
    key = ", ".join(f"{column}={request.table[column][row].as_py()!r}" for column in feed.on)
    return InputError(
        f"table {feed.table!r} has no row with {key} before the as-of time, and {name!r} has no default",
        hint="Send the feature with the request, declare a default, or allow unknown keys "
        "(`on_unknown_key: serve`).",
        place=f"rows[{row}]",
    )
