"""Measures the model of a prediction and the version that an alias names, on the same newest labelled rows of
the dataset, from which neither has learned."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gridmill.domain.amounts import show_count
from gridmill.domain.artifact import Artifact, split_reference
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.promotion import PromotionMeasurement, PromotionSpec
from gridmill.errors import DataError, InputError
from gridmill.jobs.context import JobContext
from gridmill.jobs.dataset_reader import Partitions, open_partitions
from gridmill.jobs.features import Integers, has_all_values
from gridmill.jobs.metrics import BEST_BY, check_metric
from gridmill.jobs.prediction.candidates import (
    Candidate,
    check_candidates,
    check_dataset,
    folder_of,
    labelled_rows,
    predicted,
)
from gridmill.jobs.prediction.finish import metrics_of
from gridmill.jobs.training_rows import seen_rows

ALIAS_FIELD = "prediction.promote.alias"
_Times = npt.NDArray[np.datetime64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """The numbers of the rows on which both versions are measured, and their first and last time."""

    numbers: Integers
    begins: str
    ends: str


def check_alias_of(spec: PredictionSpec, candidate: Candidate) -> None:
    """Raise InputError if the alias belongs to another model."""
    if spec.promote is None:
        return
    name = split_reference(spec.promote.alias)[0]
    if name != candidate.artifact.name:
        raise InputError(
            f"{spec.promote.alias!r} is an alias of {name}, but the model is {candidate.artifact.name}",
            hint=f"Write {candidate.artifact.name}@{split_reference(spec.promote.alias)[1]}.",
            place=ALIAS_FIELD,
        )


def measure_promotion(
    context: JobContext,
    spec: PredictionSpec,
    terms: PromotionSpec,
    candidate: Candidate,
    serving: Candidate | None,
) -> PromotionMeasurement:
    """Measure the new version and the version that the alias names. If they cannot be compared, the result
    has the reason. Raises StorageError."""
    metric = check_metric(spec.best_by, candidate.card.objective, BEST_BY)
    result = PromotionMeasurement(candidate=candidate.artifact.id, metric=metric)
    if serving is None or candidate.artifact.id == serving.artifact.id:
        return replace(result, serving=serving.artifact.id if serving is not None else "")
    result = replace(result, serving=serving.artifact.id)
    dataset = context.input(spec.dataset)
    parts = open_partitions(context.below_root(dataset.output.uri))
    try:
        check_candidates((candidate, serving))
        check_dataset(serving, dataset, parts)
        rows = _newest_rows(context, terms, dataset, (candidate, serving), parts, spec.split)
        values = _values(context, spec, dataset, (candidate, serving), parts, rows.numbers)
    except (InputError, DataError) as error:
        return replace(result, problem=error.message)
    return replace(
        result,
        rows=len(rows.numbers),
        begins=rows.begins,
        ends=rows.ends,
        candidate_value=values[0].get(metric),
        serving_value=values[1].get(metric),
    )


def _values(
    context: JobContext,
    spec: PredictionSpec,
    dataset: Artifact,
    both: tuple[Candidate, Candidate],
    parts: Partitions,
    rows: Integers,
) -> list[dict[str, float]]:
    """Return the metrics of both versions on these rows. Raises DataError if a version does not predict all
    of them."""
    tables = [predicted(context, spec.split, one, dataset, parts, rows) for one in both]
    for one, table in zip(both, tables, strict=True):
        if none := int((~has_all_values(table["prediction"])).sum()):
            raise DataError(f"{one.artifact.id} predicted no number for {none} of {len(rows)} rows")
    return [metrics_of(table, parts, one.card, both[0].card) for one, table in zip(both, tables, strict=True)]


def _newest_rows(
    context: JobContext,
    terms: PromotionSpec,
    dataset: Artifact,
    both: tuple[Candidate, Candidate],
    parts: Partitions,
    split: str | None,
) -> _Rows:
    """Return the labelled rows that are newer than all rows from which either version has learned. Raises
    DataError if there are fewer than `min_rows`."""
    times = _times(parts, both[0].card.time)
    rows = labelled_rows(parts, both[0].card, split)
    rows = rows[~np.isnat(times[rows])]
    if terms.period_seconds is not None and len(rows):
        rows = rows[times[rows] > times[rows].max() - np.timedelta64(round(terms.period_seconds * 1e6), "us")]
    count = len(rows)
    if count < terms.min_rows:
        raise DataError(f"{show_count(count, 'row')} with a label, and at least {terms.min_rows} are needed")
    for one in both:
        rows = _unlearned(context, one, dataset, parts, times, rows)
        if len(rows) < terms.min_rows:
            raise DataError(
                f"only {len(rows)} of {count} rows with a label are newer than the rows from which "
                f"{one.artifact.id} has learned, and at least {terms.min_rows} are needed"
            )
    begins, ends = (str(moment.astype("datetime64[s]")) for moment in (times[rows].min(), times[rows].max()))
    return _Rows(numbers=rows, begins=begins, ends=ends)


def _unlearned(
    context: JobContext, one: Candidate, dataset: Artifact, parts: Partitions, times: _Times, rows: Integers
) -> Integers:
    """Return the rows that are newer than all rows of the dataset from which the version has learned. Rows
    that its early stopping used count as learned. Raises DataError if its rows are unknown."""
    seen = seen_rows(folder_of(context, one), one.card, dataset, parts, np.arange(parts.rows))
    if not seen.known.any():
        raise DataError(f"it is unknown from which rows {one.artifact.id} has learned")
    learned = times[seen.train | seen.validation]
    learned = learned[~np.isnat(learned)]
    newer = times[rows] > learned.max() if len(learned) else np.ones(len(rows), bool)
    kept: Integers = rows[seen.known[rows] & newer]
    return kept


def _times(parts: Partitions, column: str | None) -> _Times:
    """Return the times of all rows in microseconds. Raises DataError if the dataset has no column with
    times."""
    kind = parts.schema.field(column).type if column and column in parts.schema.names else None
    if not column or not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise DataError("the dataset has no column with times, so it is unknown which rows are the newest")
    values = parts.read([column])[column].cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False)
    times: _Times = values.cast(pa.timestamp("us"), safe=False).to_numpy().astype("datetime64[us]")
    return times
