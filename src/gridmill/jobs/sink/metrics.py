"""What a load brought, measured while it is written: one query beside the writer, and a small sample."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import sqrt
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any

import duckdb
import pyarrow as pa

from gridmill.errors import InputError
from gridmill.jobs.context import JobContext
from gridmill.jobs.engine import fetch_rows, open_engine
from gridmill.jobs.tables import facts_of, json_value

SAMPLE_ROWS = 10_000
_WAITING = 4
"""Batches between the writer and the query: what the slower one lets the quicker be ahead."""
_PATIENCE_SECONDS = 0.2

Facts = Mapping[str, Mapping[str, Any]]


@dataclass(slots=True)
class Sample:
    """Every so-many-th row, at most twice SAMPLE_ROWS: which ones follows from their order alone."""

    step: int = 1
    _next: int = 0
    _kept: list[pa.Table] = field(default_factory=list)
    _rows: int = 0

    def see(self, rows: pa.Table) -> None:
        """Take what falls on the steps."""
        picked = list(range(self._next, rows.num_rows, self.step))
        self._next = (picked[-1] + self.step if picked else self._next) - rows.num_rows
        if not picked:
            return
        self._kept.append(rows.take(picked))
        self._rows += len(picked)
        while self._rows > 2 * SAMPLE_ROWS:
            self._thin()

    def _thin(self) -> None:
        halved = self.rows()
        self._kept = [halved.take(list(range(0, halved.num_rows, 2)))]
        # The next picked row is a whole new step behind the last that stays.
        self._next += self.step if halved.num_rows % 2 else 0
        self._rows, self.step = self._kept[0].num_rows, self.step * 2

    def rows(self) -> pa.Table:
        """What was taken."""
        return pa.concat_tables(self._kept) if self._kept else pa.table({})


@dataclass(slots=True)
class Meter:
    """Measures the rows of one load as they pass. `own` are the sink's own metrics, SQL over all rows."""

    context: JobContext
    schema: pa.Schema
    own: Mapping[str, str]
    sample: Sample = field(default_factory=Sample)
    columns: Facts = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    _queue: "Queue[pa.Table | None]" = field(default_factory=lambda: Queue(_WAITING))
    _done: Event = field(default_factory=Event)
    _error: BaseException | None = None

    def passing(self, batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """The batches themselves."""
        for batch in batches:
            if batch.num_rows:
                self.sample.see(batch)
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

    def _work(self) -> None:
        reader = pa.RecordBatchReader.from_batches(self.schema, self._arriving())
        try:
            self.columns, self.values = measure(self.context, reader, self.own)
        except BaseException as error:  # noqa: BLE001  raised again in the thread that waits
            self._error = error
        finally:
            self._done.set()

    @contextmanager
    def running(self) -> Iterator[None]:
        """While open, what passes is measured; the results are there when it is closed."""
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
        """Measure other rows in place of those that passed."""
        self.sample = Sample()
        reader = pa.RecordBatchReader.from_batches(self.schema, self._sampled(batches))
        self.columns, self.values = measure(self.context, reader, self.own)

    def _sampled(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.sample.see(pa.Table.from_batches([batch]))
            yield batch


def measure(
    context: JobContext, rows: pa.RecordBatchReader, own: Mapping[str, str]
) -> tuple[Facts, Mapping[str, Any]]:
    """Per column nulls, distinct (approximate: HyperLogLog), min, max, of numbers mean and std; and the
    sink's own metrics.

    Raises InputError for an own metric that is no SQL aggregate.
    """
    plain = [item for item in rows.schema if not pa.types.is_nested(item.type)]
    facts = [(item.name, fact, sql) for item in plain for fact, sql in facts_of(item.name, item.type).items()]
    asked = [sql for _, _, sql in facts] + [f"({sql}\n)" for sql in own.values()]
    if not asked:
        for _ in rows:
            pass
        return {}, {}
    listed = ", ".join(f"{sql} AS c{number}" for number, sql in enumerate(asked))
    with open_engine(context, {"loaded": rows}) as engine:
        try:
            found = list(fetch_rows(engine, f"SELECT {listed} FROM loaded")[0].values())
        except (duckdb.BinderException, duckdb.ParserException, duckdb.CatalogException) as error:
            raise _no_metric(own, error) from error
    columns: dict[str, dict[str, Any]] = {item.name: {} for item in plain}
    for (name, fact, _), value in zip(facts, found, strict=False):
        columns[name][fact] = json_value(value)
    values = found[len(facts) :]
    return columns, {name: json_value(value) for name, value in zip(own, values, strict=True)}


def _no_metric(own: Mapping[str, str], error: duckdb.Error) -> InputError:
    message = str(error).partition("\n")[0]
    return InputError(
        f"a metric cannot be computed: {message}",
        hint=f"Each is an SQL aggregate over the load's rows, such as sum(price): {', '.join(own.values())}.",
        place="sink.metrics",
    )


def check_metrics(context: JobContext, schema: pa.Schema, own: Mapping[str, str]) -> None:
    """Try the sink's own metrics on no rows. Raises InputError that names the one."""
    for name, sql in own.items():
        with open_engine(context, {"loaded": schema.empty_table()}) as engine:
            try:
                engine.sql(f"SELECT ({sql}\n) FROM loaded").fetchall()
            except duckdb.Error as error:
                problem = _no_metric({name: sql}, error)
                problem.place = f"sink.metrics.{name}"
                raise problem from error


def merged(before: Facts, before_rows: int, added: Facts, added_rows: int) -> dict[str, dict[str, Any]]:
    """Facts of rows put together, without looking at them: `distinct` is then at least that many."""
    names = dict.fromkeys((*before, *added))
    return {
        name: _merged_column(before.get(name), before_rows, added.get(name), added_rows) for name in names
    }


def _merged_column(
    a: Mapping[str, Any] | None, a_rows: int, b: Mapping[str, Any] | None, b_rows: int
) -> dict[str, Any]:
    if a is None or b is None:
        only, rows = (b, a_rows) if a is None else (a, b_rows)
        return {**(only or {}), "nulls": (only or {}).get("nulls", 0) + rows}
    merged_facts: dict[str, Any] = {
        "nulls": a["nulls"] + b["nulls"],
        "distinct": max(a["distinct"], b["distinct"]),
    }
    for fact, choose in (("min", min), ("max", max)):
        there = [one[fact] for one in (a, b) if one.get(fact) is not None]
        if fact in a or fact in b:
            merged_facts[fact] = choose(there) if there else None
    if "mean" in a or "mean" in b:
        merged_facts |= _moments(a, a_rows - a["nulls"], b, b_rows - b["nulls"])
    return merged_facts


def _moments(a: Mapping[str, Any], n: int, b: Mapping[str, Any], m: int) -> dict[str, Any]:
    """Mean and standard deviation of two samples together (Chan, Golub and LeVeque, 1979)."""
    if not n or a.get("mean") is None:
        return {"mean": b.get("mean"), "std": b.get("std")}
    if not m or b.get("mean") is None:
        return {"mean": a.get("mean"), "std": a.get("std")}
    difference = b["mean"] - a["mean"]
    mean = a["mean"] + difference * m / (n + m)
    squares = sum(
        (one.get("std") or 0.0) ** 2 * (count - 1) for one, count in ((a, n), (b, m))
    ) + difference**2 * n * m / (n + m)
    return {"mean": mean, "std": sqrt(squares / (n + m - 1)) if n + m > 1 else None}
