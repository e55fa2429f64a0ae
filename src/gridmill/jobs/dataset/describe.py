"""Describes a version of a dataset as JSON: distributions, missing values, correlations, lineage, column
roles."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from gridmill.codec import to_builtins
from gridmill.domain.artifact import ArtifactKind, Output
from gridmill.domain.dataset import DatasetSpec, Join, Label
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import JobSize
from gridmill.domain.remarks import REMARKS
from gridmill.domain.service_features import DECLARATION
from gridmill.jobs.column_stats import Facts, describe, join_facts, note_facts
from gridmill.jobs.context import JobContext, JobResult
from gridmill.jobs.dataset.checks import check_label
from gridmill.jobs.dataset.compile import CompiledQuery
from gridmill.jobs.dataset.encode import EncoderStep, describe_encoders, encoded_features
from gridmill.jobs.dataset.incremental import ReusableVersion, describe_incremental
from gridmill.jobs.dataset.label_availability import clock_remarks
from gridmill.jobs.dataset.labels import clocked
from gridmill.jobs.dataset.prepare import PreparedQuery
from gridmill.jobs.dataset.raw_rows import Phase, show_progress
from gridmill.jobs.dataset.splits import SplitBounds
from gridmill.jobs.dataset.suspicious_features import suspect_lines, suspects, volatile_remarks
from gridmill.jobs.dataset.time_units import INFERRED, TIMES, described, unit_lines
from gridmill.jobs.dataset.write import RowTally
from gridmill.jobs.features import Floats, is_number, is_text, numbers
from gridmill.jobs.parquet_reader import RowGroupDataset, thrifty
from gridmill.jobs.tables import columns_of, excluded_rows

SAMPLE_ROWS = 200_000
BLOCK_ROWS = 16_384
MOST_COLUMNS = 60
BINS, TOP = 20, 10
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_LARGE = 2.0**1000
"""Numbers whose absolute value is at least this limit are scaled down before they are subtracted, because a
difference of doubles can overflow."""
_NOISE = 1e-12
"""If the variance divided by the mean square is below this limit, the variance is only rounding error, and
the values count as constant."""


def looked_at(schema: pa.Schema, features: Sequence[str], label: str | None) -> tuple[str, ...]:
    """Return the columns for which statistics are computed: the first MOST_COLUMNS features, and the
    label."""
    chosen = dict.fromkeys((*features[:MOST_COLUMNS], *([label] if label else [])))
    return tuple(name for name in chosen if name in schema.names)


def other_numbers(schema: pa.Schema, features: Sequence[str], label: str | None) -> tuple[str, ...]:
    """Return the numeric features after the first MOST_COLUMNS features, and the label. For numeric features
    after the first MOST_COLUMNS features, only correlations are computed."""
    names = [name for name in features[MOST_COLUMNS:] if is_number(schema.field(name).type)]
    return (*names, label) if names and label is not None and label in schema.names else ()


@dataclass(slots=True, kw_only=True)
class SampledRows:
    """A sample of the rows of a table, with the columns `columns`: every n-th row of each file, in total
    about `most` of the `rows` rows."""

    schema: pa.Schema
    columns: Sequence[str]
    rows: int
    most: int = SAMPLE_ROWS
    _parts: list[pa.RecordBatch] = field(default_factory=list)
    _seen: int = 0

    @property
    def every(self) -> int:
        """The sampling interval n."""
        return max(1, -(-self.rows // self.most))

    def passing(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one file unchanged, and add every n-th row to the sample."""
        self._seen = 0
        for batch in batches:
            self._see(batch.select(list(self.columns)))
            yield batch

    def _see(self, batch: pa.RecordBatch) -> None:
        first = -self._seen % self.every
        if first < batch.num_rows:
            chosen = np.arange(first, batch.num_rows, self.every)
            self._parts.append(batch.take(chosen) if self.every > 1 else batch)
        self._seen += batch.num_rows

    def take(self, table: pa.Table) -> None:
        """Add rows to the sample that another process sampled."""
        self._parts += table.to_batches()

    def table(self) -> pa.Table:
        """The sampled rows."""
        schema = pa.schema([self.schema.field(name) for name in self.columns])
        return pa.Table.from_batches(self._parts, schema)


def statistics(sample: SampledRows) -> dict[str, Any]:
    """Return the statistics of a sample of the training rows, or of all rows.

    For each column, return the fraction of missing values. For numbers also return quantiles and a histogram
    (20 bins between the 1 % and 99 % quantiles; the outer bins include the values outside). For text also
    return the most frequent values. `correlation` is Pearson's correlation between the numeric columns. If
    the statistics cannot be computed, they are missing, and `problem` contains the reason.
    """
    table = sample.table()
    facts = {name: _facts(table[name]) for name in sample.columns}
    numeric = [name for name in sample.columns if is_number(table[name].type)]
    return {
        "rows": table.num_rows,
        "every": sample.every,
        "columns": {name: facts_of_column for name, facts_of_column in facts.items() if facts_of_column},
        "correlation": _correlation(table, numeric),
    }


def _facts(column: pa.ChunkedArray) -> dict[str, Any]:
    try:
        return _described(column)
    except (ArithmeticError, ValueError, TypeError, pa.ArrowException) as error:
        missing = column.null_count / max(1, len(column))
        return {"missing": missing, "problem": str(error).partition("\n")[0][:200]}


def _described(column: pa.ChunkedArray) -> dict[str, Any]:
    rows = max(1, len(column))
    if is_number(column.type):
        values = numbers(column)
        finite = values[~np.isnan(values)]
        return {"missing": 1 - len(finite) / rows} | (_distribution(finite) if len(finite) else {})
    if is_text(column.type):
        counts = pc.value_counts(column.drop_null()).to_pylist()
        top = sorted(counts, key=lambda item: (-item["counts"], item["values"]))[:TOP]
        shares = [[str(item["values"])[:80], item["counts"] / rows] for item in top]
        return {"missing": column.null_count / rows, "different": len(counts), "top": shares}
    return {}


def _distribution(values: Floats) -> dict[str, Any]:
    # avoids an overflow, and scaling by a power of two rounds nothing
    scale = 0.25 if np.abs(values).max() >= _LARGE else 1.0
    low, high, *quantiles = np.quantile(values * scale, (0.01, 0.99, *QUANTILES)) / scale
    return {
        "quantiles": {f"{share:g}": float(q) for share, q in zip(QUANTILES, quantiles, strict=True)},
        "histogram": {"from": float(low), "to": float(high), "counts": _counts(values, low, high, scale)},
    }


def _counts(values: Floats, low: float, high: float, scale: float) -> list[int]:
    """Return the number of values in each of BINS bins of equal width, or in a single bin if all values are
    equal.

    This function does not use `np.histogram`, because all edges of bins must be different floats there, and
    a narrow range of values may contain fewer floats than bins.
    """
    if not high > low:
        return [len(values)]
    share = (np.clip(values, low, high) * scale - low * scale) / (high * scale - low * scale)
    counts: list[int] = np.bincount(
        np.minimum((share * BINS).astype(np.int64), BINS - 1), minlength=BINS
    ).tolist()
    return counts


def _correlation(sample: pa.Table, names: Sequence[str]) -> Mapping[str, Any]:
    """Return the correlation of each pair of columns over the rows that have both values. The correlation is
    None if a column is constant."""
    if len(names) < 2 or sample.num_rows < 2:
        return {}
    count, sums, products, squares = _moments(sample, names)
    covariance = products - sums * sums.T / np.maximum(count, 1)
    varied = squares - sums**2 / np.maximum(count, 1)
    varied = np.where(varied > _NOISE * squares, varied, 0.0)
    spread = np.sqrt(varied * varied.T)
    with np.errstate(divide="ignore", invalid="ignore"):
        correlations = np.where((spread > 0) & (count > 1), covariance / spread, np.nan)
    correlations = np.clip(correlations, -1.0, 1.0)
    rounded = [[None if np.isnan(value) else round(float(value), 4) for value in row] for row in correlations]
    return {"columns": list(names), "values": rounded}


def _moments(sample: pa.Table, names: Sequence[str]) -> Floats:
    """For each pair of columns, compute sums over the rows in which both columns have a value.

    For each pair, the result contains the number of rows and the sums of the first column, of the products,
    and of the squares of the first column. Before the sums are computed, the mean of each column is
    subtracted and the values are scaled. The result has the shape [4, columns, columns]. The sums are
    computed block by block, because a computation on all rows together would take several times the memory
    of the sample.
    """
    ranges = [_range(numbers(sample[name])) for name in names]
    centers, scales = np.array(ranges).T
    result = np.zeros((4, len(names), len(names)))
    for first in range(0, sample.num_rows, BLOCK_ROWS):
        part = sample.slice(first, BLOCK_ROWS)
        values = np.column_stack([numbers(part[name]) for name in names])
        is_present = ~np.isnan(values)
        centred = np.where(is_present, values * scales - centers, 0.0)
        flags = is_present.astype(np.float64)
        result += (flags.T @ flags, centred.T @ flags, centred.T @ centred, (centred**2).T @ flags)
    return result


def _range(values: Floats) -> tuple[float, float]:
    """Return the scaled mean of the values, and the power of two by which the values are scaled.

    After the scaling all values are close to 1, so differences and squares neither overflow nor underflow.
    If all values are equal, the mean is exactly that value.
    """
    finite = values[~np.isnan(values)]
    if not len(finite):
        return 0.0, 1.0
    scale = _scale(finite)
    scaled = finite * scale
    return float(np.clip(scaled.mean(), scaled.min(), scaled.max())), scale


def _scale(values: Floats) -> float:
    half = float(values.max()) / 2 - float(values.min()) / 2
    exponent = int(np.frexp(half or np.abs(values).max() or 1.0)[1])
    return float(np.ldexp(1.0, min(1000, max(-1000, -exponent))))


NOTE, SAMPLE, WIDE = ".facts.duckdb", ".sample.arrow", ".wide.arrow"
"""The names of the files that a part of the job writes into the folder with its rows."""
WIDE_CELLS = 4 * 2**20
"""The number of values in the sample of a wide dataset, which has many features that are compared only with
the label: 32 MiB of numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileScan:
    """Reads the files of a dataset version once to describe the version. The statistics are computed over
    the training rows, or over all rows if there is no split."""

    context: JobContext
    table: RowGroupDataset
    names: Sequence[str]
    sample: SampledRows
    wide: SampledRows
    of: int
    """The number of columns that are suitable for statistics."""

    @property
    def over(self) -> str:
        """Return a text that names the rows over which the statistics are computed."""
        return "the training split" if "split" in self.table.schema.names else "the dataset"

    def files(self) -> Mapping[str, pa.RecordBatchReader]:
        """Return a reader for each file of the version. While the rows of the files are read, every n-th row
        is added to the sample."""
        rows, seen = self.table.count_rows(), Counter[str]()
        return {Path(one.path).name: self._passing(one, rows, seen) for one in self.table.get_fragments()}

    def _passing(self, file: ds.Fragment, all_rows: int, seen: Counter[str]) -> pa.RecordBatchReader:
        which = ds.field("split") == "train" if "split" in self.table.schema.names else None
        columns = list(dict.fromkeys((*self.names, *self.sample.columns, *self.wide.columns)))
        schema = pa.schema([self.table.schema.field(name) for name in columns])
        rows = thrifty(ds.FileSystemDataset([file], self.table.schema, file.format, file.filesystem))
        batches = self.sample.passing(self._counted(rows.turns(columns, which).to_reader(), all_rows, seen))
        batches = self.wide.passing(batches) if self.wide.columns else batches
        return pa.RecordBatchReader.from_batches(schema, batches)

    def _counted(
        self, batches: pa.RecordBatchReader, rows: int, seen: Counter[str]
    ) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            show_progress(self.context, Phase.DESCRIBE, seen["rows"], rows)
            seen["rows"] += batch.num_rows
            yield batch


def _scan(context: JobContext, query: PreparedQuery, steps: Sequence[EncoderStep], folder: Path) -> _FileScan:
    table = thrifty(ds.dataset(sorted(str(path) for path in folder.glob("*.parquet")), format="parquet"))
    further = {step.name for step in query.compiled.steps[1:]}
    features = learnable(encoded_features(query.compiled.features, steps), table.schema)
    columns = looked_at(table.schema, features, query.compiled.label)
    others = other_numbers(table.schema, features, query.compiled.label)
    rows = max(query.rows, table.count_rows())
    return _FileScan(
        context=context,
        table=table,
        names=[name for name in table.schema.names if name not in further],
        sample=SampledRows(schema=table.schema, columns=columns, rows=rows),
        wide=SampledRows(
            schema=table.schema, columns=others, rows=rows, most=WIDE_CELLS // (len(others) or 1)
        ),
        of=len(dict.fromkeys((*features, *filter(None, [query.compiled.label])))),
    )


def describe_rows(
    context: JobContext, query: PreparedQuery, steps: Sequence[EncoderStep], folder: Path
) -> Mapping[str, Any]:
    """Return statistics of the columns over the training rows, or over all rows. Raises DataError if the
    label is constant."""
    scan = _scan(context, query, steps, folder)
    facts = describe(context, scan.files(), scan.names, scan.table.schema)
    check_label(query.compiled.label, facts, scan.over)
    return _findings(scan, facts, query)


def _findings(scan: _FileScan, facts: Facts, query: PreparedQuery) -> Mapping[str, Any]:
    label = query.compiled.label
    suspects_found = [one for sample in (scan.sample, scan.wide) for one in suspects(sample.table(), label)]
    suspects_found.sort(key=lambda one: -abs(one.get("correlation", one.get("auc", 0.0))))
    return {
        "columns": facts,
        "statistics": {**statistics(scan.sample), "of": scan.of},
        "suspects": suspects_found,
    }


def note_part(context: JobContext, query: PreparedQuery, folder: Path) -> None:
    """Write the statistics of the rows of one part of the job into files, so that `describe_parts` can merge
    the parts."""
    if not any(folder.glob("*.parquet")):
        return
    scan = _scan(context, query, (), folder)
    note_facts(context, scan.files(), scan.names, scan.table.schema, folder / NOTE)
    for one, name in ((scan.sample, SAMPLE), (scan.wide, WIDE)):
        sample = one.table()
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_file(sink, sample.schema) as writer:
            writer.write_table(sample)


def describe_parts(
    context: JobContext, query: PreparedQuery, parts: Sequence[Path], folder: Path
) -> Mapping[str, Any]:
    """Return the statistics that `describe_rows` would return for the rows of several parts of the job
    together. Raises DataError."""
    noted = [part for part in parts if (part / NOTE).exists()]
    scan = _scan(context, query, (), folder)
    for part in noted:
        for sample, name in ((scan.sample, SAMPLE), (scan.wide, WIDE)):
            with pa.OSFile(str(part / name)) as source:
                sample.take(pa.ipc.open_file(source).read_all())
    facts = join_facts([part / NOTE for part in noted], scan.names, scan.table.schema)
    check_label(query.compiled.label, facts, scan.over)
    return _findings(scan, facts, query)


def learnable(features: Sequence[str], schema: pa.Schema) -> list[str]:
    """Return the features that a model can use, which are numbers, booleans and texts."""
    present = [name for name in features if name in schema.names]
    return [
        name for name in present if is_number(schema.field(name).type) or is_text(schema.field(name).type)
    ]


def _left_out(features: Sequence[str], schema: pa.Schema) -> Mapping[str, str]:
    """Return the declared features that a model cannot use, with their types."""
    taken = set(learnable(features, schema))
    return {
        name: str(schema.field(name).type) for name in features if name in schema.names and name not in taken
    }


def make_result(
    context: JobContext,
    query: PreparedQuery,
    tally: RowTally,
    steps: Sequence[EncoderStep],
    facts: Mapping[str, Any],
    kept: ReusableVersion | None = None,
) -> JobResult:
    """Return the job result with the description of the new dataset version."""
    spec = context.order.job.dataset
    assert spec is not None
    files = sorted(context.below_root(context.order.output_uri).glob("*.parquet"))
    remarks: list[Any] = list(clock_remarks(spec, {name: context.input(name) for name in spec.references()}))
    remarks += [[line, True] for line in suspect_lines(facts.get("suspects") or ())]
    inferred = list(unit_lines(query.units))
    remarks += inferred
    remarks += volatile_remarks(context.order.job)
    events = query.events.complete if query.events is not None else None
    compiled, size_bytes = query.compiled, sum(path.stat().st_size for path in files)
    table = ds.dataset([str(path) for path in files], format="parquet")
    output = Output(
        kind=ArtifactKind.DATASET,
        uri=context.order.output_uri,
        rows=tally.kept,
        size_bytes=size_bytes,
        columns=columns_of(table.schema),
        metrics={},
        details={
            "features": learnable(encoded_features(compiled.features, steps), table.schema),
            "left_out": _left_out(encoded_features(compiled.features, steps), table.schema),
            "excluded": excluded_rows(context, spec.references()),
            "encoders": describe_encoders(steps),
            "label": compiled.label,
            "label_column": _label_column(spec, compiled),
            "label_of": _label_of(spec.label),
            **_labels(compiled),
            "ahead_seconds": (spec.label.horizon_seconds or 0.0) if spec.label else 0.0,
            "events_until": _events_until(spec.label, query),
            "label_after": _label_after(clocked(spec.label, spec.basis)),
            "time": compiled.time,
            "entity": list(compiled.entity),
            DECLARATION: to_builtins(spec),
            "splits": dict(sorted(tally.splits.items())),
            "bounds": _bounds(query.bounds),
            "dropped": dict(sorted(tally.dropped.items())),
            **facts,
            "kept_rows": kept.rows if kept else 0,
            "buckets": query.buckets,
            **describe_incremental(context, spec, query.seen, events, query.final, tally.final),
            "point_in_time": spec.sql is None,
            "static": [join.table for join in spec.joins if _is_static(join, context)],
            "predictions": [name for name in spec.references() if _is_prediction(name, context)],
            "exempt": [join.table for join in spec.joins if join.exempt],
            TIMES: described(query.units),
            INFERRED: inferred,
            REMARKS: remarks,
            "sql": compiled.text
            if spec.sql is None or spec.time is None
            else f"{spec.sql}\n\n{compiled.text}",
        },
    )
    for line in inferred:
        print(line)
    for reason, count in sorted(tally.dropped.items()):
        print(f"{count:,} rows dropped: {reason}")
    print(f"{tally.kept:,} rows, {len(compiled.features)} features")
    size = JobSize(rows=tally.kept, columns=len(output.columns), input_bytes=size_bytes)
    metrics = {"rows": float(tally.kept)} | {
        f"{name}_rows": float(n) for name, n in sorted(tally.splits.items())
    }
    return JobResult(outputs=(output,), metrics=metrics, size=size)


def _events_until(label: Label | None, query: PreparedQuery) -> Mapping[str, Any]:
    """Return the time up to which the events of a label are known, as text. The result is empty if the label
    is not made from events."""
    if query.events is None or label is None:
        return {}
    newest = query.events.events
    return {
        "table": label.table,
        "newest": newest.isoformat() if newest is not None else None,
        "declared": label.known_until,
    }


def _is_static(join: Join, context: JobContext) -> bool:
    return join.known_at is None and not join.exempt and not _is_prediction(join.table, context)


def _is_prediction(name: str, context: JobContext) -> bool:
    return context.input(name).kind == ArtifactKind.PREDICTION


def _label_column(spec: DatasetSpec, compiled: CompiledQuery) -> str | None:
    """If the label is a later value of a column whose current value is a feature, return the name of this
    column."""
    if spec.label is None or spec.label.next_rows is not None:
        return None
    column = spec.label.column if spec.label.table is None else None
    return column if column in compiled.features else None


def _label_after(label: Label | None) -> Mapping[str, float] | None:
    """Return the delay after which the label of a row is known, as a time or as a number of rows of the
    entity.

    Return None if the label is an expression, because then the delay is unknown.
    """
    if label is None:
        return {"seconds": 0.0, "rows": 0}
    if label.known_at is not None and label.table is None:
        return None
    seconds = (label.horizon_seconds or 0.0) + (label.delay_seconds or 0.0)
    return {"seconds": seconds, "rows": label.steps or label.next_rows or 0}


def _label_of(label: Label | None) -> Mapping[str, Any]:
    """Return the declared fields that define the meaning of the label."""
    if label is None:
        return {}
    names = (
        "column",
        "columns",
        "horizon_seconds",
        "steps",
        "next_rows",
        "delay_seconds",
        "table",
        "on",
        "outcome",
    )
    return {name: value for name in names if (value := getattr(label, name)) not in (None, ())}


def _labels(compiled: CompiledQuery) -> Mapping[str, Any]:
    """Return the labels of a declaration that predicts several rows ahead: their names, the column of each,
    and the number of rows ahead."""
    if not compiled.steps:
        return {}
    steps = ({"name": step.name, "column": step.column, "step": step.step} for step in compiled.steps)
    return {"labels": list(steps)}


def _bounds(bounds: SplitBounds | None) -> Mapping[str, str]:
    if bounds is None:
        return {}
    begins = {"validation": bounds.validation_from, "test": bounds.test_from, "until": bounds.until}
    return {name: time.isoformat() + "Z" for name, time in begins.items() if time is not None}
