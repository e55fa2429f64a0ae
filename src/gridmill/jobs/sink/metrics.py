"""Metrics and drift of a load. The rows of a load are measured by a query that runs while the rows are
written, and by a small sample of the rows.

Drift shows how much the distribution of the values in a column changed since the previous load. Drift is
measured by the population stability index (PSI). PSI is the sum of (p - q) ln(p / q) over bins, where p and
q are the fractions of the rows in a bin in both loads (Siddiqi, Credit Risk Scorecards, 2006, ch. 8; PSI is
Jeffreys' divergence). Usually a PSI below 0.1 is called stable, and a PSI above 0.25 is called shifted.
Without any drift, PSI / (1/n + 1/m) is approximately chi-square distributed. The degrees of freedom are the
number of bins minus one (Yurdakul and Naranjo, Statistical properties of the population stability index,
2020). Small loads differ by chance, and Gridmill prints no warning for such differences.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from math import log, sqrt
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError
from gridmill.jobs.column_stats import json_value
from gridmill.jobs.context import JobContext
from gridmill.jobs.duckdb_engine import fetch_rows, open_engine, quoted
from gridmill.jobs.expressions import check_syntax
from gridmill.jobs.sink.column_stats import ColumnTally, Facts, extremes

SAMPLE_ROWS = 10_000
_WAITING = 4
"""The number of batches that may wait between the code that writes the rows and the query that measures
them. The code that writes and the query are never more than this number of batches apart."""
_PATIENCE_SECONDS = 0.2


@dataclass(slots=True)
class RowSample:
    """A sample of every n-th row, with at most twice SAMPLE_ROWS rows. The sample depends only on the order
    of the rows."""

    step: int = 1
    _next: int = 0
    _kept: list[pa.Table] = field(default_factory=list)
    _rows: int = 0

    def see(self, rows: pa.RecordBatch) -> None:
        """Add every n-th of these rows to the sample."""
        picked = range(self._next, rows.num_rows, self.step)
        self._next = (picked[-1] + self.step if picked else self._next) - rows.num_rows
        if not picked:
            return
        taken = rows.take(np.arange(picked.start, picked.stop, picked.step))
        self._kept.append(pa.Table.from_batches([_texts(taken)]))
        self._rows += len(picked)
        while self._rows > 2 * SAMPLE_ROWS:
            self._thin()

    def _thin(self) -> None:
        halved = self.rows()
        self._kept = [halved.take(np.arange(0, halved.num_rows, 2))]
        # so that the next sampled row comes one whole new step after the last kept row
        self._next += self.step if halved.num_rows % 2 else 0
        self._rows, self.step = self._kept[0].num_rows, self.step * 2

    def rows(self) -> pa.Table:
        """The sampled rows."""
        return pa.concat_tables(self._kept) if self._kept else pa.table({})


def _texts(rows: pa.RecordBatch, *, once: bool = False) -> pa.RecordBatch:
    """Return dictionary-encoded texts as plain texts.

    With `once`, each distinct text occurs only once and the other values are missing, because the distinct
    values of such a column are counted faster.
    """
    for at, item in enumerate(rows.schema):
        if pa.types.is_dictionary(item.type):
            column = _once(rows[at]) if once else rows[at].cast(item.type.value_type)
            rows = rows.set_column(at, item.name, column)
    return rows


def _once(column: pa.DictionaryArray) -> pa.Array:
    distinct_values = column.dictionary.take(pc.unique(column.indices))
    return pa.concat_arrays(
        [distinct_values, pa.nulls(len(column) - len(distinct_values), distinct_values.type)]
    )


def _set() -> Event:
    event = Event()
    event.set()
    return event


@dataclass(slots=True)
class LoadMetrics:
    """Measures the rows of a load while they are written.

    `own` are the metrics that the sink declares, as SQL over all rows. The `values` of these metrics are
    available after the last row.
    """

    context: JobContext
    schema: pa.Schema
    own: Mapping[str, str]
    sample: RowSample = field(default_factory=RowSample)
    tally: ColumnTally = field(default_factory=ColumnTally)
    distinct: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    _queue: "Queue[pa.Table | None]" = field(default_factory=lambda: Queue(_WAITING))
    _done: Event = field(default_factory=_set)
    _error: BaseException | None = None

    def passing(self, batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yield the batches unchanged, and measure their rows."""
        for batch in batches:
            if batch.num_rows:
                self._put(batch)
            yield batch

    def _put(self, batch: pa.Table | None) -> None:
        while not self._done.is_set():
            try:
                return self._queue.put(batch, timeout=_PATIENCE_SECONDS)
            except Full:
                continue

    def _arriving(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._queue.get()) is not None:
            yield from batch.to_batches()

    def _measure(self, batches: Iterable[pa.RecordBatch]) -> None:
        reader = pa.RecordBatchReader.from_batches(self.schema, self._seen(batches))
        self.distinct, self.values = measure(self.context, reader, self.own)

    def _seen(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.sample.see(batch)
            self.tally.see(batch)
            yield _texts(batch, once=not self.own)

    def _work(self) -> None:
        try:
            self._measure(self._arriving())
        except BaseException as error:  # noqa: BLE001  raised again in the thread that waits
            self._error = error
        finally:
            self._done.set()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Return a context in which `passing` measures rows. The results are available after the end of the
        context."""
        self._done.clear()
        thread = Thread(target=self._work, name="measure", daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            self._drain()
            self._put(None)
            thread.join()
            raise
        self._put(None)
        thread.join()
        if self._error is not None:
            raise self._error

    def _drain(self) -> None:
        try:
            while True:
                self._queue.get_nowait()
        except Empty:
            return

    def again(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Measure these rows instead of the rows that were measured before."""
        self.sample, self.tally = RowSample(), ColumnTally()
        self._measure(batches)

    def columns(self, paths: Iterable[Path]) -> Facts:
        """Return the statistics of each column that is not nested, for the measured rows, which are stored
        in these files.

        The statistics are JSON values: nulls and distinct; min and max except for bytes; mean and std for
        numbers.
        """
        ends = extremes(paths, self.schema)
        return {name: self._facts(name, ends.get(name, (None, None))) for name in self.distinct}

    def _facts(self, name: str, ends: tuple[Any, Any]) -> Mapping[str, Any]:
        binary = pa.types.is_binary(self.schema.field(name).type)
        facts: dict[str, Any] = {"nulls": 0, "distinct": self.distinct[name]}
        facts |= {} if binary else {"min": ends[0], "max": ends[1]}
        return {fact: json_value(value) for fact, value in {**facts, **self.tally.of(name)}.items()}


def measure(
    context: JobContext, rows: pa.RecordBatchReader, own: Mapping[str, str]
) -> tuple[Mapping[str, int], Mapping[str, Any]]:
    """Return the approximate number of distinct values in each column (HyperLogLog), and the values of the
    metrics that the sink declares.

    Raises InputError for a declared metric that is not an SQL aggregate.
    """
    plain = [item.name for item in rows.schema if not pa.types.is_nested(item.type)]
    selections = [f"approx_count_distinct({quoted(name)})" for name in plain]
    selections += [f"({sql}\n)" for sql in own.values()]
    if not selections:
        for _ in rows:
            pass
        return {}, {}
    listed = ", ".join(f"{sql} AS c{number}" for number, sql in enumerate(selections))
    with open_engine(context, {"loaded": rows}) as engine:
        try:
            found = list(fetch_rows(engine, f"SELECT {listed} FROM loaded")[0].values())
        except (duckdb.BinderException, duckdb.ParserException, duckdb.CatalogException) as error:
            raise _no_metric(own, error) from error
    values = found[len(plain) :]
    distinct = dict(zip(plain, found, strict=False))
    return distinct, {name: json_value(value) for name, value in zip(own, values, strict=True)}


def _no_metric(own: Mapping[str, str], error: duckdb.Error) -> InputError:
    message = str(error).partition("\n")[0]
    return InputError(
        f"a metric cannot be computed: {message}",
        hint="Write SQL aggregates over the rows of the load, such as sum(price). Now: "
        f"{', '.join(own.values())}.",
        place="sink.metrics",
    )


def check_metrics(context: JobContext, schema: pa.Schema, own: Mapping[str, str]) -> None:
    """Compute the metrics that the sink declares on a table without rows. Raises InputError with the name of
    the metric that causes an error."""
    for name, sql in own.items():
        with open_engine(context, {"loaded": schema.empty_table()}) as engine:
            check_syntax(engine, sql, f"sink.metrics.{name}")
            try:
                engine.sql(f"SELECT ({sql}\n) FROM loaded").fetchall()
            except duckdb.Error as error:
                problem = _no_metric({name: sql}, error)
                problem.place = f"sink.metrics.{name}"
                raise problem from error


BINS = 10
VALUES = 20
"""The number of bins of a text column. Each of the most frequent values has a bin. All values that are not
among the most frequent values are counted in a common bin."""
_KEY_SHARE = 0.5
"""The limit for keys: if the number of distinct texts or whole numbers in a column divided by the number of
rows is larger, the column counts as a key. A key has new values in every load."""
_SIGMAS = 3.0

Histogram = Mapping[str, Any]
"""A histogram of a column, with `counts` and with `edges` (for numbers) or `values` (for texts). `counts`
contains the number of values in each bin, and as its last number the number of missing values."""


def histograms(sample: pa.Table) -> dict[str, Histogram]:
    """Return the histogram of every column for which drift is measured. Drift is not measured for times,
    keys and nested columns."""
    by_column = {name: _histogram(sample[name]) for name in sample.column_names}
    return {name: histogram for name, histogram in by_column.items() if histogram is not None}


def _histogram(column: pa.ChunkedArray) -> Histogram | None:
    if _is_text(column.type):
        return _of_texts(_counted(column))
    return _of_numbers(column) if _is_number(column.type) else None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_boolean(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _counted(column: pa.ChunkedArray) -> dict[Any, int]:
    """Return the frequency of each value, in the order of first occurrence. The key None is the missing
    value."""
    counted = pc.value_counts(column)
    values, counts = counted.field("values").to_pylist(), counted.field("counts").to_pylist()
    return dict(zip(values, counts, strict=True))


def _of_texts(counted: Mapping[Any, int]) -> Histogram | None:
    present = {value: count for value, count in counted.items() if value is not None}
    if not present or len(present) > _KEY_SHARE * sum(present.values()):
        return None
    top = sorted(present, key=lambda value: -present[value])[:VALUES]
    return {"values": top, "counts": _by_value(counted, top)}


def _by_value(counted: Mapping[Any, int], values: Sequence[Any]) -> list[int]:
    places: dict[Any, int] = {value: number for number, value in enumerate(values)} | {None: -1}
    counts = [0] * (len(values) + 2)
    for value, count in counted.items():
        counts[places.get(value, len(values))] += count
    return counts


def _of_numbers(column: pa.ChunkedArray) -> Histogram | None:
    ordered = np.sort(_numbers(column))
    whole = pa.types.is_integer(column.type)
    if not len(ordered) or (whole and len(np.unique(ordered)) > _KEY_SHARE * len(ordered)):
        return None
    edges = np.unique([ordered[len(ordered) * number // BINS] for number in range(1, BINS)]).tolist()
    return {"edges": edges, "counts": _by_edge(column, edges)}


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return the numbers of a column. NaN and infinity count as missing values, because JSON cannot
    represent them as edges of bins."""
    values: npt.NDArray[Any] = column.drop_null().to_numpy()
    result: npt.NDArray[Any] = values[np.isfinite(values)]
    return result


def _by_edge(column: pa.ChunkedArray, edges: Sequence[Any]) -> list[int]:
    values = _numbers(column)
    bins = np.searchsorted(edges, values, side="right")
    counts: list[int] = np.bincount(bins, minlength=len(edges) + 1).tolist()
    return [*counts, len(column) - len(values)]


def drifts(before: Mapping[str, Histogram], sample: pa.Table) -> dict[str, float]:
    """Return the PSI between the previous load and a sample of this load, for every column of the previous
    load.

    If chance can explain the difference of a column, its PSI is 0.
    """
    result: dict[str, float] = {}
    for name, histogram in before.items():
        if name not in sample.column_names or not sample.num_rows:
            continue
        now = _in_same_bins(histogram, sample[name])
        if now is not None:
            result[name] = _psi(histogram["counts"], now)
    return result


def _in_same_bins(histogram: Histogram, column: pa.ChunkedArray) -> list[int] | None:
    if _is_text(column.type) and "values" in histogram:
        return _by_value(_counted(column), histogram["values"])
    if _is_number(column.type) and None not in histogram.get("edges", (None,)):
        return _by_edge(column, histogram["edges"])
    return None


def _psi(before: Sequence[int], now: Sequence[int]) -> float:
    n, m = sum(before), sum(now)
    p, q = _shares(now), _shares(before)
    psi = sum((one - other) * log(one / other) for one, other in zip(p, q, strict=True))
    free = max(1, sum(1 for a, b in zip(before, now, strict=True) if a or b) - 1)
    chance = (1 / n + 1 / m) * (free + _SIGMAS * sqrt(2 * free))
    return round(psi, 4) if psi > chance else 0.0


def _shares(counts: Sequence[int]) -> list[float]:
    """Return the fraction of the values in each bin. Half a row is added to each bin, so that no bin is
    empty."""
    total = sum(counts) + len(counts) / 2
    return [(count + 0.5) / total for count in counts]
