"""What a load brought, measured while it is written: one query beside the writer, and a small sample."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.errors import InputError
from gridmill.jobs.context import JobContext
from gridmill.jobs.engine import fetch_rows, open_engine, quoted
from gridmill.jobs.expressions import check_syntax
from gridmill.jobs.facts import json_value
from gridmill.jobs.sink.extremes import extremes
from gridmill.jobs.sink.facts import Facts, Tally

SAMPLE_ROWS = 10_000
_WAITING = 4
"""Batches between the writer and the query: what the slower one lets the quicker be ahead."""
_PATIENCE_SECONDS = 0.2


@dataclass(slots=True)
class Sample:
    """Every so-many-th row, at most twice SAMPLE_ROWS: which ones follows from their order alone."""

    step: int = 1
    _next: int = 0
    _kept: list[pa.Table] = field(default_factory=list)
    _rows: int = 0

    def see(self, rows: pa.RecordBatch) -> None:
        """Take what falls on the steps."""
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
        # The next picked row is a whole new step behind the last that stays.
        self._next += self.step if halved.num_rows % 2 else 0
        self._rows, self.step = self._kept[0].num_rows, self.step * 2

    def rows(self) -> pa.Table:
        """What was taken."""
        return pa.concat_tables(self._kept) if self._kept else pa.table({})


def _texts(rows: pa.RecordBatch, *, once: bool = False) -> pa.RecordBatch:
    """Texts as texts, where they are numbers of a dictionary; with `once` each different one only once, which
    is quicker to count, and missing else."""
    for at, item in enumerate(rows.schema):
        if pa.types.is_dictionary(item.type):
            column = _once(rows[at]) if once else rows[at].cast(item.type.value_type)
            rows = rows.set_column(at, item.name, column)
    return rows


def _once(column: pa.DictionaryArray) -> pa.Array:
    found = column.dictionary.take(pc.unique(column.indices))
    return pa.concat_arrays([found, pa.nulls(len(column) - len(found), found.type)])


def _set() -> Event:
    event = Event()
    event.set()
    return event


@dataclass(slots=True)
class Meter:
    """Measures the rows of one load as they pass while it is running. `own` are the sink's own metrics, SQL
    over all rows; their `values` are there when all have passed."""

    context: JobContext
    schema: pa.Schema
    own: Mapping[str, str]
    sample: Sample = field(default_factory=Sample)
    tally: Tally = field(default_factory=Tally)
    distinct: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    _queue: "Queue[pa.Table | None]" = field(default_factory=lambda: Queue(_WAITING))
    _done: Event = field(default_factory=_set)
    _error: BaseException | None = None

    def passing(self, batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """The batches themselves."""
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
        """While open, what passes is measured; the results are there when it is closed."""
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
        """Measure other rows in place of those that passed."""
        self.sample, self.tally = Sample(), Tally()
        self._measure(batches)

    def columns(self, paths: Iterable[Path]) -> Facts:
        """What is told of each column but nested ones, of the rows that passed and are in these files: nulls,
        distinct, min and max but of bytes, of numbers mean and std too. JSON values."""
        ends = extremes(paths, self.schema)
        return {name: self._facts(name, ends.get(name, (None, None))) for name in self.distinct}

    def _facts(self, name: str, ends: tuple[Any, Any]) -> Mapping[str, Any]:
        binary = pa.types.is_binary(self.schema.field(name).type)
        told: dict[str, Any] = {"nulls": 0, "distinct": self.distinct[name]}
        told |= {} if binary else {"min": ends[0], "max": ends[1]}
        return {fact: json_value(value) for fact, value in {**told, **self.tally.of(name)}.items()}


def measure(
    context: JobContext, rows: pa.RecordBatchReader, own: Mapping[str, str]
) -> tuple[Mapping[str, int], Mapping[str, Any]]:
    """How many values are distinct (approximate: HyperLogLog), per column; and the sink's own metrics.

    Raises InputError for an own metric that is no SQL aggregate.
    """
    plain = [item.name for item in rows.schema if not pa.types.is_nested(item.type)]
    asked = [f"approx_count_distinct({quoted(name)})" for name in plain]
    asked += [f"({sql}\n)" for sql in own.values()]
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
    values = found[len(plain) :]
    distinct = dict(zip(plain, found, strict=False))
    return distinct, {name: json_value(value) for name, value in zip(own, values, strict=True)}


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
            check_syntax(engine, sql, f"sink.metrics.{name}")
            try:
                engine.sql(f"SELECT ({sql}\n) FROM loaded").fetchall()
            except duckdb.Error as error:
                problem = _no_metric({name: sql}, error)
                problem.place = f"sink.metrics.{name}"
                raise problem from error
