"""Faults of the dataset job: a text of its source, what it becomes, and which random datasets can show it."""

from collections.abc import Callable
from dataclasses import dataclass

from gridmill.domain.dataset import Aggregate, DatasetSpec, Lag, Method, SplitBy, Window

Fits = Callable[[DatasetSpec], bool]


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """`text` of `file` becomes `instead`; cases that `fit` can show it when they are made in that `way`."""

    name: str
    file: str
    text: str
    instead: str
    fits: Fits
    way: str = "whole"
    cases: int = 60
    """Of so many cases that fit one must fail."""


def is_label(kind: str) -> Fits:
    """Whether the label is of that kind."""

    def fits(spec: DatasetSpec) -> bool:
        label = spec.label
        if label is None:
            return False
        kinds = {
            "own": label.is_own,
            "events": label.table is not None,
            "horizon": label.table is None and label.horizon_seconds is not None,
            "steps": label.steps is not None,
            "rows": label.next_rows is not None,
        }
        return kinds[kind]

    return fits


def has_delay(spec: DatasetSpec) -> bool:
    """Whether it matters in the splits that labels are known late."""
    timed = spec.split is not None and bool(spec.split.test_from or spec.split.test)
    return spec.label is not None and spec.label.delay_seconds is not None and timed


def has_times(spec: DatasetSpec) -> bool:
    return spec.split is not None and bool(spec.split.test_from or spec.split.validation_from)


def is_drawn(spec: DatasetSpec) -> bool:
    return spec.split is not None and spec.split.by != SplitBy.TIME


def encodes(*methods: Method) -> Fits:
    return lambda spec: spec.split is not None and any(one.method in methods for one in spec.encoders)


def windows_of_late_labels(spec: DatasetSpec) -> bool:
    """Whether a part says an earlier time for the label's own column than the label does."""
    label = spec.label
    parts: list[Window | Lag] = [*spec.windows, *spec.lags]
    return (
        label is not None
        and label.is_own
        and label.delay_seconds is not None
        and any(part.column in label.sources and part.known_at for part in parts)
    )


def has_window(*, timed: bool, own: bool) -> Fits:
    """Whether there is a window of time (or of rows) over the entity's own rows (or others)."""

    def fits(spec: DatasetSpec) -> bool:
        label = spec.label
        late = (spec.basis is not None and spec.basis.known_at) or (label is not None and label.delay_seconds)
        return any(
            (window.span_seconds is not None) == timed
            and (window.table is None and not window.on and not window.known_at and not late) == own
            for window in spec.windows
        )

    return fits


def has_lag(*, timed: bool) -> Fits:
    return lambda spec: any(bool(lag.back_seconds if timed else lag.steps) for lag in spec.lags)


def has_within(spec: DatasetSpec) -> bool:
    return any(join.within_seconds for join in spec.asof_joins)


def aggregates(*names: Aggregate) -> Fits:
    return lambda spec: any(name in window.aggregates for window in spec.windows for name in names)


MUTATIONS = (
    Mutation(
        name="a horizon off by a minute",
        file="window_ranges.py",
        text="        times = self.times + _microseconds(seconds)\n",
        instead="        times = self.times + _microseconds(seconds + 60)\n",
        fits=is_label("horizon"),
    ),
    Mutation(
        name="steps off by one",
        file="window_ranges.py",
        text="at = self._after + step - 1\n",
        instead="at = self._after + step\n",
        fits=is_label("steps"),
    ),
    Mutation(
        name="the next rows begin one later",
        file="window_kernels.py",
        text="{step: own.ahead(step) for step in",
        instead="{step: own.ahead(step + 1) for step in",
        fits=is_label("rows"),
    ),
    Mutation(
        name="the delay of a label ignored",
        file="labels.py",
        text="return ready_at if label.delay_seconds is None else",
        instead="return ready_at if True else",
        fits=has_delay,
    ),
    Mutation(
        name="a label that is never known",
        file="labels.py",
        text="if dated and label.table is None:",
        instead="if False:",
        fits=lambda spec: spec.label is not None and spec.label.known_at is not None,
    ),
    Mutation(
        name="a label that is no number",
        file="labels.py",
        text='return f"{name} IS NULL OR isnan({name})" if type_ in FLOATS else',
        instead='return f"{name} IS NULL" if type_ in FLOATS else',
        fits=lambda spec: spec.label is not None and spec.label.column in ("x", "y"),
    ),
    Mutation(
        name="the first row of a split in the one before",
        file="splits.py",
        text='f"WHEN \\"{TIME}\\" >= {moment(begins)} THEN \'{name}\'"',
        instead='f"WHEN \\"{TIME}\\" > {moment(begins)} THEN \'{name}\'"',
        fits=has_times,
    ),
    Mutation(
        name="a label known when the next split begins",
        file="splits.py",
        text='"{LABEL_TIME}" >= {moment(start)}',
        instead='"{LABEL_TIME}" > {moment(start)}',
        fits=lambda spec: has_times(spec) and spec.label is not None and not spec.label.is_own,
        cases=200,
    ),
    Mutation(
        name="labels that reach into the next split",
        file="splits.py",
        text="    if bounds is not None and has_time(label):\n",
        instead="    if False:\n",
        fits=lambda spec: has_times(spec) and spec.label is not None and not spec.label.is_own,
    ),
    Mutation(
        name="the row at the end of the splits",
        file="splits.py",
        text='f"WHEN \\"{TIME}\\" >= {moment(bounds.until)} THEN \'{AFTER}\'"',
        instead='f"WHEN \\"{TIME}\\" > {moment(bounds.until)} THEN \'{AFTER}\'"',
        fits=lambda spec: spec.split is not None and spec.split.until is not None,
    ),
    Mutation(
        name="no gap before a split",
        file="splits.py",
        text="    if bounds.gap:\n",
        instead="    if False:\n",
        fits=lambda spec: spec.split is not None and bool(spec.split.gap),
    ),
    Mutation(
        name="drawn without a seed",
        file="splits.py",
        text="literal(str(bounds.seed))",
        instead="literal(str(0))",
        fits=lambda spec: is_drawn(spec) and spec.split is not None and spec.split.seed > 0,
    ),
    Mutation(
        name="a split by time that the drawn one is not",
        file="splits.py",
        text="if bounds.shares is not None and (bounds.validation_from or bounds.test_from):\n        yield",
        instead="if False:\n        yield",
        fits=lambda spec: is_drawn(spec) and has_times(spec),
    ),
    Mutation(
        name="shares of the rows after the end",
        file="checks.py",
        text="validation_from = (test_from or last) -",
        instead="validation_from = last -",
        fits=lambda spec: spec.split is not None and bool(spec.split.validation) and not is_drawn(spec),
    ),
    Mutation(
        name="a missing value that is required",
        file="splits.py",
        text="    if required:\n",
        instead="    if False:\n",
        fits=lambda spec: bool(spec.required),
    ),
    Mutation(
        name="encoders fitted on all rows",
        file="encode.py",
        text='return (ds.field("split") == "train") & mine if',
        instead="return mine if",
        fits=encodes(Method.STANDARD, Method.MINMAX, Method.MEAN, Method.FREQUENCY),
    ),
    Mutation(
        name="encoders fitted on rows in no split",
        file="encode.py",
        text="isin([AFTER, GAP, APART])",
        instead='isin(["nothing"])',
        fits=lambda spec: (
            encodes(Method.STANDARD, Method.MINMAX, Method.MEAN, Method.FREQUENCY)(spec)
            and spec.split is not None
            and bool(spec.split.until or spec.split.gap or (is_drawn(spec) and has_times(spec)))
        ),
    ),
    Mutation(
        name="the deviation of a sample",
        file="encoders.py",
        text="values.std()",
        instead="values.std(ddof=min(1, len(known) - 1))",
        fits=encodes(Method.STANDARD),
    ),
    Mutation(
        name="quartiles",
        file="encoders.py",
        text="[0.25, 0.5, 0.75]",
        instead="[0.2, 0.5, 0.8]",
        fits=encodes(Method.ROBUST),
    ),
    Mutation(
        name="the target of a label known at the row's time",
        file="encoders.py",
        text='at = np.searchsorted(moments, times, "left")',
        instead='at = np.searchsorted(moments, times, "right")',
        fits=encodes(Method.TARGET),
    ),
    Mutation(
        name="a target without smoothing",
        file="encoders.py",
        text="    weight = rows + smoothing\n",
        instead="    weight = rows + 0.0\n",
        fits=lambda spec: any(one.method is Method.TARGET and one.smoothing for one in spec.encoders),
    ),
    Mutation(
        name="what training never saw",
        file="encoders.py",
        text="other=-1.0",
        instead="other=0.0",
        fits=encodes(Method.ORDINAL),
    ),
    Mutation(
        name="a late label seen early",
        file="label_availability.py",
        text="WHEN {mine} < {theirs} THEN {theirs} END",
        instead="WHEN {mine} < {theirs} THEN {mine} END",
        fits=windows_of_late_labels,
    ),
    Mutation(
        name="events complete for longer than they are",
        file="checks.py",
        text="return EventCoverage(labels=until + delay,",
        instead="return EventCoverage(labels=until + delay + timedelta(hours=1),",
        fits=is_label("events"),
    ),
    Mutation(
        name="rows final before their labels are",
        file="incremental.py",
        text="return min((complete or last) - timedelta(seconds=label.horizon_seconds), last)",
        instead="return last",
        fits=lambda spec: is_label("horizon")(spec) or is_label("events")(spec),
        way="grown",
    ),
    Mutation(
        name="rows appended that are not later",
        file="incremental.py",
        text="if first is not None and first <= seen:",
        instead="if False:",
        fits=lambda spec: True,
        way="grown",
    ),
    Mutation(
        name="half the history that windows need",
        file="incremental.py",
        text="    return after - timedelta(seconds=longest)",
        instead="    return after - timedelta(seconds=longest / 60)",
        fits=lambda spec: bool(spec.windows) and not spec.lags and spec.basis is not None,
        way="grown",
        cases=200,
    ),
    Mutation(
        name="an event at the row's time",
        file="window_ranges.py",
        text='low = self.known.find(self.keys, self.times, "right")',
        instead='low = self.known.find(self.keys, self.times, "left")',
        fits=is_label("events"),
    ),
    Mutation(
        name="an event at the end of the horizon",
        file="window_ranges.py",
        text='self.times + _microseconds(seconds), "right")\n        return RowFrames(low=low, high=high',
        instead='self.times + _microseconds(seconds), "left")\n        return RowFrames(low=low, high=high',
        fits=is_label("events"),
    ),
    Mutation(
        name="a row at the beginning of a window",
        file="window_ranges.py",
        text='_microseconds(seconds), "left")\n        return RowFrames(low=low, high=self.first',
        instead='_microseconds(seconds), "right")\n        return RowFrames(low=low, high=self.first',
        fits=has_window(timed=True, own=True),
    ),
    Mutation(
        name="a row of another table at the beginning of a window",
        file="window_ranges.py",
        text='_microseconds(seconds), "left")\n        return RowFrames(low=low, high=self._high',
        instead='_microseconds(seconds), "right")\n        return RowFrames(low=low, high=self._high',
        fits=has_window(timed=True, own=False),
    ),
    Mutation(
        name="a row known at the row's time",
        file="window_ranges.py",
        text='return self.known.find(self.keys, self.times, "left")',
        instead='return self.known.find(self.keys, self.times, "right")',
        fits=has_window(timed=True, own=False),
    ),
    Mutation(
        name="rows at the same time see each other",
        file="window_ranges.py",
        text="np.where(new | changes(times), places, 0))",
        instead="np.where(new | (places >= 0), places, 0))",
        fits=has_window(timed=True, own=True),
    ),
    Mutation(
        name="a window of one row more",
        file="window_ranges.py",
        text="np.maximum(self.first - rows, self.known",
        instead="np.maximum(self.first - rows - 1, self.known",
        fits=has_window(timed=False, own=True),
    ),
    Mutation(
        name="a window of one row more of another table",
        file="window_ranges.py",
        text="np.maximum(self._high - rows, self._start)",
        instead="np.maximum(self._high - rows - 1, self._start)",
        fits=has_window(timed=False, own=False),
    ),
    Mutation(
        name="a lag of one row more",
        file="window_ranges.py",
        text="        at = self.first - step\n",
        instead="        at = self.first - step - 1\n",
        fits=has_lag(timed=False),
    ),
    Mutation(
        name="a lag of one row more of another table",
        file="window_ranges.py",
        text="        at = self._high - step\n",
        instead="        at = self._high - step - 1\n",
        fits=has_lag(timed=False),
    ),
    Mutation(
        name="a lag of a row known just then",
        file="window_ranges.py",
        text='_microseconds(back_seconds), "right") - 1',
        instead='_microseconds(back_seconds), "left") - 1',
        fits=has_lag(timed=True),
    ),
    Mutation(
        name="an as-of join of any age",
        file="window_ranges.py",
        text="if within_seconds is not None and len(self.known.times):",
        instead="if False:",
        fits=has_within,
    ),
    Mutation(
        name="an as-of join of the oldest row",
        file="window_ranges.py",
        text="self.known.times[at] >= self.times - _micro",
        instead="self.known.times[at] > self.times - _micro",
        fits=has_within,
        cases=200,
    ),
    Mutation(
        name="the deviation of a population",
        file="window_kernels.py",
        text="/ np.maximum(count - 1, 1))",
        instead="/ np.maximum(count, 1))",
        fits=aggregates(Aggregate.STD),
    ),
    Mutation(
        name="missing values counted",
        file="window_kernels.py",
        text="count = counts(column.present, frames)\n    if over.aggregate == Aggregate.COUNT",
        instead="count = frames.lengths\n    if over.aggregate == Aggregate.COUNT",
        fits=aggregates(Aggregate.COUNT, Aggregate.MEAN),
    ),
    Mutation(
        name="the last row for the last value",
        file="window_kernels.py",
        text="newest(column.present, frames)",
        instead="newest(column.present | True, frames)",
        fits=aggregates(Aggregate.LAST),
    ),
    Mutation(
        name="the distinct values of all rows",
        file="window_kernels.py",
        text="than = _typed(frames.low + 1, kind)",
        instead="than = _typed(frames.low + 2, kind)",
        fits=aggregates(Aggregate.DISTINCT),
    ),
    Mutation(
        name="the smallest for the largest",
        file="window_kernels.py",
        text="extremes(values, frames, largest=over.aggregate == Aggregate.MAX)\n    return ranked",
        instead="extremes(values, frames, largest=over.aggregate != Aggregate.MAX)\n    return ranked",
        fits=aggregates(Aggregate.MIN, Aggregate.MAX),
    ),
    Mutation(
        name="rows at the same time in any order",
        file="key_order.py",
        text="if not len(at) or not order:",
        instead="if True:",
        fits=has_lag(timed=False),
    ),
    Mutation(
        name="the smallest of rows known at once",
        file="window_plan.py",
        text="{name} NULLS FIRST",
        instead="{name} DESC NULLS FIRST",
        fits=lambda spec: bool(spec.asof_joins),
    ),
    Mutation(
        name="the last chunk lost",
        file="window_chunks.py",
        text="    if cutter is not None:\n        yield from cutter.close()\n",
        instead="",
        fits=lambda spec: True,
        way="chunked",
    ),
    Mutation(
        name="half of the past of an entity that is cut",
        file="window_chunks.py",
        text="time - round(seconds * SECOND)",
        instead="time - round(seconds * SECOND / 2)",
        fits=has_window(timed=True, own=True),
        way="chunked",
    ),
    Mutation(
        name="no future of an entity that is cut",
        file="window_chunks.py",
        text="end = at + min(len(mine), max(int(until), count))",
        instead="end = at",
        fits=is_label("steps"),
        way="chunked",
    ),
    Mutation(
        name="a join of a row known at the row's time",
        file="joins.py",
        text='{KNOWN}" < {before}',
        instead='{KNOWN}" <= {before}',
        fits=lambda spec: any(one.known_at for one in spec.joins),
        cases=200,
    ),
    Mutation(
        name="dropped rows counted by none of the parts",
        file="run.py",
        text='for name in ("dropped", "final", "splits")}',
        instead='for name in ("final", "splits")} | {"dropped": Counter[str]()}',
        fits=lambda spec: spec.split is not None,
        way="parted",
    ),
)
