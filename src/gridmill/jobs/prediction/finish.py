"""Finishes a prediction: checks that each row exists exactly once, measures the predictions, and takes a
sample of the predictions for the report.

This module also records the resource usage of the parts of a job on their machines, and combines these
records.
"""

from collections.abc import Sequence
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gridmill.codec import decode, encode
from gridmill.domain.frozen import dataclass
from gridmill.domain.training import Objective
from gridmill.errors import InternalError, JobError
from gridmill.jobs import metrics
from gridmill.jobs.classes import probability_columns
from gridmill.jobs.dataset_reader import Partitions
from gridmill.jobs.features import Floats, Integers, has_all_values, list_numbers, present_values, runs
from gridmill.jobs.intervals import measure_quantiles, quantile_columns
from gridmill.jobs.metrics import by_class, by_label
from gridmill.jobs.model_files import ModelCard
from gridmill.jobs.parquet import link_file
from gridmill.jobs.prediction.swarm import ShardDone
from gridmill.jobs.prediction.worker import part_name
from gridmill.jobs.training_rows import Mask

SAMPLE_POINTS, SAMPLE_ENTITIES = 400, 3
BATCH_ROWS = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultSummary:
    """The facts about all rows of a prediction. `head` has the rows from which the sample is taken.

    `labelled` is for each row whether it has a true value. `held_out` is for each row whether a model of
    another fold has predicted it.
    """

    rows: int
    unpredicted: int
    schema: pa.Schema
    head: pa.Table
    labelled: Mask
    held_out: Mask


def summarize(folder: Path, shards: int, rows: Integers, entity: Sequence[str]) -> ResultSummary:
    """Read the rows of all shards in batches, so that a prediction of any size needs little memory. Raises
    InternalError if a row is missing or exists more than once."""
    schema = pq.read_schema(folder / part_name(0))
    head = _Head(schema, entity)
    done = unpredicted = 0
    labelled, held_out = (np.zeros(len(rows), bool) for _ in range(2))
    for shard in range(shards):
        for batch in pq.ParquetFile(folder / part_name(shard)).iter_batches(BATCH_ROWS):
            table = pa.Table.from_batches([batch])
            if not np.array_equal(table["row"].to_numpy(), rows[done : done + len(batch)]):
                raise InternalError(f"rows after row {done} of the shards are not those of the split")
            if "truth" in schema.names:
                labelled[done : done + len(batch)] = has_all_values(table["truth"])
            if "fold" in schema.names:
                held_out[done : done + len(batch)] = table["fold"].is_valid().to_numpy()
            done += len(batch)
            unpredicted += int((~has_all_values(table["prediction"])).sum())
            head.add(table)
    if done != len(rows):
        raise InternalError(f"the {done} rows of the shards are not the {len(rows)} rows of the split")
    return ResultSummary(
        rows=done,
        unpredicted=unpredicted,
        schema=schema,
        head=head.rows,
        labelled=labelled,
        held_out=held_out,
    )


class _Head:
    """Keeps the first rows of the first entities."""

    def __init__(self, schema: pa.Schema, entity: Sequence[str]) -> None:
        self.rows = schema.empty_table()
        self._entity, self._is_full = tuple(entity), False

    def add(self, table: pa.Table) -> None:
        """Add the next rows."""
        if self._is_full:
            return
        every = pa.concat_tables([self.rows, table])
        first = runs(every, self._entity)
        starts = np.unique(first)
        self._is_full = len(starts) > SAMPLE_ENTITIES
        kept = np.arange(len(first)) - first < SAMPLE_POINTS
        if self._is_full:
            kept &= first < starts[SAMPLE_ENTITIES]
        self.rows = every.take(pa.array(np.flatnonzero(kept)))


def clear_partial(folder: Path) -> None:
    """Delete the incomplete files of workers that were killed."""
    for path in folder.glob(".part-*"):
        path.unlink()


def size_of(folder: Path) -> int:
    """Return the total size of the files in a folder, in bytes.

    The folder contains only Parquet files, so that other programs can read it as a table.
    """
    return sum(path.stat().st_size for path in folder.iterdir())


def metrics_of(
    table: pa.Table, parts: Partitions, card: ModelCard, naive: ModelCard | None = None
) -> dict[str, float]:
    """Return the metrics of the rows that have a true value and a prediction. `naive` is the baseline
    prediction from which the metric skill is computed."""
    table = rows_with_truth(table)
    if table.num_rows == 0:
        return {}
    if card.objective == Objective.REGRESSION:
        truth, predicted = (values_of(table[name], card) for name in ("truth", "prediction"))
        base = naive or card
        spread = np.array(base.spread) if base.spread else None
        scores = metrics.regression(truth, predicted, naive_values(table, parts, base), spread)
        return scores | intervals(table, card, truth, spread)
    return metrics.classification(*classified(table, card), card.threshold)


def intervals(table: pa.Table, card: ModelCard, truth: Floats, spread: Floats | None) -> dict[str, float]:
    """Return the metrics of the quantiles of these rows."""
    if not card.quantiles:
        return {}
    values = [values_of(table[name], card) for name in quantile_columns(card.quantiles)]
    return measure_quantiles(truth, values, card.quantiles, spread)


def break_down(table: pa.Table, parts: Partitions, card: ModelCard) -> Any:  # noqa: ANN401  JSON
    """Return the metrics of each label if there are several labels, or of each class. The result is empty if
    the model has a single label without classes."""
    table = rows_with_truth(table)
    if table.num_rows == 0:
        return {}
    if card.objective == Objective.CLASSIFICATION:
        return by_class(card.classes, *classified(table, card), card.threshold)
    truth, predicted = (values_of(table[name], card) for name in ("truth", "prediction"))
    return by_label(card.labels, truth, predicted, naive_values(table, parts, card)) if card.many else {}


def rows_with_truth(table: pa.Table) -> pa.Table:
    """Return the rows that have a true value and a prediction. If there are several labels, a row must have
    the true values of all labels."""
    if "truth" not in table.column_names:
        return table.slice(0, 0)
    return table.take(np.flatnonzero(has_all_values(table["truth"]) & has_all_values(table["prediction"])))


def classified(table: pa.Table, card: ModelCard) -> tuple[Integers, Floats]:
    """Return the numbers of the true classes, and the probabilities as an array [rows, classes]."""
    shares = [table[name].to_numpy() for name in probability_columns(card.classes)]
    return card.classified.numbers(table["truth"]).astype(int), np.stack(shares, axis=1)


def naive_values(table: pa.Table, parts: Partitions, card: ModelCard) -> Floats:
    """Return the baseline prediction for the metric skill. The baseline is computed in the same way as in
    training."""
    present_columns = [
        name for name in dict.fromkeys(card.label_columns) if name and name in parts.schema.names
    ]
    rows = table["row"].to_numpy()
    first, stop = int(rows.min()), int(rows.max()) + 1
    present = present_values(parts.read(present_columns, first, stop), card.label_columns)
    if not present_columns:
        present = np.full((stop - first, *present.shape[1:]), np.nan)
    usual = np.array(card.usual) if len(card.usual) > 1 else card.usual[0]
    values: Floats = np.where(np.isnan(present), usual, present)[rows - first]
    return values


def values_of(column: pa.ChunkedArray, card: ModelCard) -> Floats:
    """Return the values of a column as an array [rows]. A column of lists becomes an array [rows,
    labels]."""
    values: Floats = list_numbers(column, len(card.labels)) if card.many else column.to_numpy()
    return values


def sample(table: pa.Table, card: ModelCard, ahead: timedelta) -> dict[str, list[list[Any]]]:
    """Return the first points [time, truth, prediction] of the first entities, if the labels are numbers.

    The time of a point is the forecast time, which is `ahead` after the time of the row.
    """
    if card.objective == Objective.CLASSIFICATION:
        return {}
    first = runs(table, card.entity)
    result = {}
    for start in np.unique(first)[:SAMPLE_ENTITIES]:
        piece = table.slice(start, min(SAMPLE_POINTS, int(np.count_nonzero(first == start))))
        name = " ".join(str(piece[column][0]) for column in card.entity)
        result[name] = _points(piece, card, ahead)
    return result


def _points(piece: pa.Table, card: ModelCard, ahead: timedelta) -> list[list[Any]]:
    where = piece[card.time] if card.time and card.time in piece.column_names else piece["row"]
    truth, predicted = (_first(piece, name, card) for name in ("truth", "prediction"))
    moments = [_moment(at, ahead) for at in where]
    return [list(point) for point in zip(moments, truth, predicted, strict=True)]


def _moment(at: pa.Scalar, ahead: timedelta) -> Any:  # noqa: ANN401  a time as text, or the row's number
    """Return the forecast time of a row. If Python cannot represent the forecast time, return the time of
    the row as text."""
    try:
        value = at.as_py()
        return (value + ahead).isoformat() if isinstance(value, date) else value
    except (OverflowError, ValueError):
        return str(at.cast(pa.string()))


def _first(piece: pa.Table, name: str, card: ModelCard) -> list[Any]:
    """Return the values of a column. If the values are lists, return the first element of each list."""
    if name not in piece.column_names:
        return [None] * piece.num_rows
    return [value[0] if card.many and value else value for value in piece[name].to_pylist()]


DONE_FILE = ".done.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedShards:
    """A record of the finished shards of a part of the job. `first` is the number of the first of these
    shards, and `of` is the number of all shards of the job.

    `seconds` is the time from the start of the first worker to the end of the last shard. `model` is the
    model version with which the part of the job predicted.
    """

    first: int
    of: int
    shards: tuple[ShardDone, ...]
    workers: int
    deaths: tuple[str, ...]
    seconds: float
    model: str = ""


def write_done(folder: Path, done: FinishedShards) -> None:
    """Write this record into the folder with the files of the shards."""
    (folder / DONE_FILE).write_bytes(encode(done))


def take_together(target: Path, folders: Sequence[Path], model: str) -> FinishedShards:
    """Link the files of all parts of the job into `target`, and combine the records of the parts. The result
    is the same as the result of a job that does not run in parts.

    Raises StorageError. Raises InternalError if a shard is missing or exists more than once, JobError if the
    parts of the job chose different models.
    """
    parts = [decode((folder / DONE_FILE).read_bytes(), FinishedShards) for folder in folders]
    ends = [(part.first, part.first + len(part.shards)) for part in parts]
    whole = [(0, 0), *ends, (parts[0].of, parts[0].of)]
    if any(one[1] != other[0] for one, other in pairwise(whole)):
        raise InternalError(
            f"the parts predicted the ranges of shards {ends}, but there are {parts[0].of} shards"
        )
    if len(models := {model, *(part.model for part in parts)}) > 1:
        raise JobError(
            f"the parts chose different models with the same score: {', '.join(sorted(models))}",
            hint="Name one of them in `models`.",
        )
    for folder, part in zip(folders, parts, strict=True):
        for shard in range(part.first, part.first + len(part.shards)):
            link_file(folder / part_name(shard), target)
    return FinishedShards(
        first=0,
        of=parts[0].of,
        shards=tuple(shard for part in parts for shard in part.shards),
        workers=sum(part.workers for part in parts),
        deaths=tuple(death for part in parts for death in part.deaths),
        seconds=max(part.seconds for part in parts),
        model=parts[0].model,
    )
