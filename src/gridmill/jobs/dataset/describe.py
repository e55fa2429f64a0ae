"""What a dataset version says about itself: parts its columns play, statistics, lineage."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from gridmill.jobs.context import JobContext, JobResult
from gridmill.jobs.dataset.checks import check_label
from gridmill.jobs.dataset.compile import Compiled
from gridmill.jobs.dataset.encode import Step, describe_encoders, encoded_features
from gridmill.jobs.dataset.incremental import Kept, describe_incremental
from gridmill.jobs.dataset.label_clock import clock_remarks
from gridmill.jobs.dataset.labels import clocked
from gridmill.jobs.dataset.phases import Phase, show_progress
from gridmill.jobs.dataset.prepare import Query
from gridmill.jobs.dataset.splits import Bounds
from gridmill.jobs.dataset.statistics import Sample, looked_at, other_numbers, statistics
from gridmill.jobs.dataset.suspects import suspect_lines, suspects
from gridmill.jobs.dataset.units import INFERRED, TIMES, described, unit_lines
from gridmill.jobs.dataset.volatile import volatile_remarks
from gridmill.jobs.dataset.writing import Tally
from gridmill.jobs.facts import Facts, describe, join_facts, note_facts
from gridmill.jobs.features import is_number, is_text
from gridmill.jobs.tables import columns_of, excluded_rows
from gridmill.jobs.thrifty import Thrifty, thrifty
from gridmill.model.artifact import ArtifactKind, Output
from gridmill.model.dataset import DatasetSpec, Join, Label
from gridmill.model.job import JobSize
from gridmill.model.remarks import REMARKS

NOTE, SAMPLE, WIDE = ".facts.duckdb", ".sample.arrow", ".wide.arrow"
"""What a part leaves beside its rows."""
WIDE_CELLS = 4 * 2**20
"""Values of the sample in which only the label is held against each of many features: 32 MiB of numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """A version's files as they are described: over the training rows (or all)."""

    context: JobContext
    table: Thrifty
    names: Sequence[str]
    sample: Sample
    wide: Sample
    of: int
    """How many columns could have statistics."""

    @property
    def over(self) -> str:
        """Of which rows facts are told."""
        return "the training split" if "split" in self.table.schema.names else "the dataset"

    def files(self) -> Mapping[str, pa.RecordBatchReader]:
        """The rows of each file; the sample is taken as they go by."""
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


def _look(context: JobContext, query: Query, steps: Sequence[Step], folder: Path) -> _Look:
    table = thrifty(ds.dataset(sorted(str(path) for path in folder.glob("*.parquet")), format="parquet"))
    further = {step.name for step in query.compiled.steps[1:]}
    features = learnable(encoded_features(query.compiled.features, steps), table.schema)
    columns = looked_at(table.schema, features, query.compiled.label)
    others = other_numbers(table.schema, features, query.compiled.label)
    rows = max(query.rows, table.count_rows())
    return _Look(
        context=context,
        table=table,
        names=[name for name in table.schema.names if name not in further],
        sample=Sample(schema=table.schema, columns=columns, rows=rows),
        wide=Sample(schema=table.schema, columns=others, rows=rows, most=WIDE_CELLS // (len(others) or 1)),
        of=len(dict.fromkeys((*features, *filter(None, [query.compiled.label])))),
    )


def describe_rows(
    context: JobContext, query: Query, steps: Sequence[Step], folder: Path
) -> Mapping[str, Any]:
    """Facts and statistics of the columns over the training rows (or all). Raises DataError for a constant
    label."""
    look = _look(context, query, steps, folder)
    facts = describe(context, look.files(), look.names, look.table.schema)
    check_label(query.compiled.label, facts, look.over)
    return _told(look, facts, query)


def _told(look: _Look, facts: Facts, query: Query) -> Mapping[str, Any]:
    label = query.compiled.label
    found = [one for sample in (look.sample, look.wide) for one in suspects(sample.table(), label)]
    found.sort(key=lambda one: -abs(one.get("correlation", one.get("auc", 0.0))))
    return {
        "columns": facts,
        "statistics": {**statistics(look.sample), "of": look.of},
        "suspects": found,
    }


def note_part(context: JobContext, query: Query, folder: Path) -> None:
    """Look at a part's rows, for `describe_parts`."""
    if not any(folder.glob("*.parquet")):
        return
    look = _look(context, query, (), folder)
    note_facts(context, look.files(), look.names, look.table.schema, folder / NOTE)
    for one, name in ((look.sample, SAMPLE), (look.wide, WIDE)):
        sample = one.table()
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_file(sink, sample.schema) as writer:
            writer.write_table(sample)


def describe_parts(
    context: JobContext, query: Query, parts: Sequence[Path], folder: Path
) -> Mapping[str, Any]:
    """What `describe_rows` says of the rows that several parts wrote. Raises DataError."""
    noted = [part for part in parts if (part / NOTE).exists()]
    look = _look(context, query, (), folder)
    for part in noted:
        for sample, name in ((look.sample, SAMPLE), (look.wide, WIDE)):
            with pa.OSFile(str(part / name)) as source:
                sample.take(pa.ipc.open_file(source).read_all())
    facts = join_facts([part / NOTE for part in noted], look.names, look.table.schema)
    check_label(query.compiled.label, facts, look.over)
    return _told(look, facts, query)


def learnable(features: Sequence[str], schema: pa.Schema) -> list[str]:
    """The features that a model can take: numbers, booleans, text."""
    there = [name for name in features if name in schema.names]
    return [name for name in there if is_number(schema.field(name).type) or is_text(schema.field(name).type)]


def _left_out(features: Sequence[str], schema: pa.Schema) -> Mapping[str, str]:
    """The other columns that were to be features, and their types."""
    taken = set(learnable(features, schema))
    return {
        name: str(schema.field(name).type) for name in features if name in schema.names and name not in taken
    }


def make_result(
    context: JobContext,
    query: Query,
    tally: Tally,
    steps: Sequence[Step],
    facts: Mapping[str, Any],
    kept: Kept | None = None,
) -> JobResult:
    """The version that was made."""
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


def _events_until(label: Label | None, query: Query) -> Mapping[str, Any]:
    """Until when a label made of events is known; empty for another."""
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


def _label_column(spec: DatasetSpec, compiled: Compiled) -> str | None:
    """The column whose later value is the label, where the row's own value is among the features."""
    if spec.label is None or spec.label.next_rows is not None:
        return None
    column = spec.label.column if spec.label.table is None else None
    return column if column in compiled.features else None


def _label_after(label: Label | None) -> Mapping[str, float] | None:
    """How long and how many rows of the entity after the row its label is known; None where an expression
    says it."""
    if label is None:
        return {"seconds": 0.0, "rows": 0}
    if label.known_at is not None and label.table is None:
        return None
    seconds = (label.horizon_seconds or 0.0) + (label.delay_seconds or 0.0)
    return {"seconds": seconds, "rows": label.steps or label.next_rows or 0}


def _label_of(label: Label | None) -> Mapping[str, Any]:
    """How the label is made: the declared fields that decide what it means."""
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


def _labels(compiled: Compiled) -> Mapping[str, Any]:
    """Of labels of several rows ahead: their names, of which column each is, how many rows ahead."""
    if not compiled.steps:
        return {}
    steps = ({"name": step.name, "column": step.column, "step": step.step} for step in compiled.steps)
    return {"labels": list(steps)}


def _bounds(bounds: Bounds | None) -> Mapping[str, str]:
    if bounds is None:
        return {}
    begins = {"validation": bounds.validation_from, "test": bounds.test_from, "until": bounds.until}
    return {name: time.isoformat() + "Z" for name, time in begins.items() if time is not None}
