"""Encodes a dataset: fits encoders on the training rows, stores the encoders in the dataset version, and
encodes all rows."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from gridmill.codec import from_builtins, to_builtins
from gridmill.domain.dataset import CATEGORICAL, SCALERS, DatasetSpec, Encoder, Label, Method
from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError
from gridmill.jobs.dataset.compile import CompiledQuery
from gridmill.jobs.dataset.encoders import (
    FittedEncoder,
    apply,
    as_text,
    codes_of,
    fit,
    label_numbers,
    means_so_far,
)
from gridmill.jobs.dataset.raw_rows import RawRows
from gridmill.jobs.dataset.splits import AFTER, APART, GAP
from gridmill.jobs.expressions import DROPPED, LABEL_TIME, TIME
from gridmill.jobs.features import Floats, Integers
from gridmill.jobs.parquet import BATCH_CELLS

FILE = "encoders.json"
HIDDEN = (DROPPED, TIME, LABEL_TIME)
"""The names of the columns that the raw rows have and the dataset does not have."""
SHOWN = 100
"""The largest number of categories of an encoder that the details of a version list. The file of the
encoders has all categories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderStep:
    """A fitted encoder. An encoder of type `target` also stores the training labels, sorted by the time at
    which they became known."""

    fitted: FittedEncoder
    smoothing: float = 0.0
    seen: tuple[Integers, Integers, Floats] | None = None


def needs_times(encoders: Sequence[Encoder]) -> bool:
    """Return whether an encoder needs the time of each row and the time at which the label of the row is
    known."""
    return any(encoder.method == Method.TARGET for encoder in encoders)


def fit_all(spec: DatasetSpec, raw: ds.Dataset, compiled: CompiledQuery) -> tuple[EncoderStep, ...]:
    """Fit each encoder of each column on the training rows of `raw`, and return the fitted encoders. Raises
    InputError."""
    steps: list[EncoderStep] = []
    before: dict[str, list[FittedEncoder]] = {}
    feature_names = frozenset(compiled.features)
    later = _later_values(spec.label, compiled)
    at_once = max(1, BATCH_CELLS // max(1, raw.count_rows()))
    for encoder in spec.encoders:
        for columns in _batches(encoder.columns, at_once):
            for column in columns:
                _check_role(encoder, column, compiled, feature_names)
                _check_column_exists(encoder, column, before.get(column, ()))
            for step in _fit_some(encoder, columns, raw, compiled, before, later):
                before.setdefault(step.fitted.column, []).append(step.fitted)
                steps.append(step)
    return tuple(steps)


def _batches(columns: Sequence[str], most: int) -> Iterator[Sequence[str]]:
    """Yield groups of up to `most` different columns that are read together.

    In a file with thousands of columns, finding a column takes longer than reading it. Reading the columns
    of such a file one by one would therefore be slow.
    """
    batch: dict[str, None] = {}
    for column in columns:
        if column in batch or len(batch) == most:
            yield tuple(batch)
            batch = {}
        batch[column] = None
    if batch:
        yield tuple(batch)


def _check_role(
    encoder: Encoder, column: str, compiled: CompiledQuery, feature_names: frozenset[str]
) -> None:
    if column not in feature_names and not (column in compiled.entity and encoder.keep):
        hint = (
            f"The features are {', '.join(compiled.features)}; an entity column can be encoded with "
            "`keep: true`."
        )
        raise InputError(f"{column!r} is not a feature", hint=hint, place="dataset.encoders.columns")


def _check_column_exists(encoder: Encoder, column: str, before: Sequence[FittedEncoder]) -> None:
    """Raise InputError if an earlier encoder has already replaced the column, or has already encoded it in
    the same way."""
    for one in before:
        if one.method not in CATEGORICAL:
            continue
        if not one.keep:
            hint = f"`keep: true` in the encoder {one.method} keeps the column."
            raise InputError(
                f"column {column!r} does not exist any more: the encoder `{one.method}` replaced it by "
                f"{', '.join(one.made[:3])}",
                hint=hint,
                place="dataset.encoders.columns",
            )
        if one.method == encoder.method:
            raise InputError(
                f"two encoders `{one.method}` encode the column {column!r}", place="dataset.encoders.columns"
            )


def _fit_some(
    encoder: Encoder,
    columns: Sequence[str],
    raw: ds.Dataset,
    compiled: CompiledQuery,
    before: Mapping[str, Sequence[FittedEncoder]],
    later: Mapping[str, Sequence[str]],
) -> Iterator[EncoderStep]:
    target = encoder.method == Method.TARGET
    label = compiled.label if target else None
    times = [name for name in (TIME, LABEL_TIME) if target and name in raw.schema.names]
    names = list(dict.fromkeys((*columns, *([label] if label else []), *times)))
    train = raw.to_table(columns=names, filter=_training(raw, label))
    train = apply(train, [one for column in columns for one in before.get(column, ())])
    for column in columns:
        labels = later.get(column, ()) if encoder.method in SCALERS else ()
        fitted = fit(encoder, column, train, label, labels)
        yield EncoderStep(fitted=fitted, smoothing=encoder.smoothing, seen=_seen(train, fitted, label))


def _training(raw: ds.Dataset, label: str | None) -> ds.Expression:
    """Return an expression that selects the training rows. The rows have their labels if an encoder needs
    labels.

    Rows without a label are selected too, because encoders use their features. Rows that belong to no split
    are not selected.
    """
    dropped = ds.field(DROPPED)
    mine = dropped.is_null() if label is not None else ~dropped.isin([AFTER, GAP, APART])
    return (ds.field("split") == "train") & mine if "split" in raw.schema.names else mine


def _later_values(label: Label | None, compiled: CompiledQuery) -> Mapping[str, Sequence[str]]:
    """Return for each column the labels whose values are later values of this column."""
    if label is None or label.is_own or label.table is not None:
        return {}
    later: dict[str, list[str]] = {}
    for step in compiled.steps:
        later.setdefault(step.column, []).append(step.name)
    return later or ({label.column: [label.name]} if label.column else {})


def _seen(
    train: pa.Table, fitted: FittedEncoder, label: str | None
) -> tuple[Integers, Integers, Floats] | None:
    if label is None:
        return None
    label_times = train[LABEL_TIME if LABEL_TIME in train.column_names else TIME]
    codes = codes_of(as_text(train[fitted.column]), fitted.categories)
    return codes, microseconds(label_times), label_numbers(train, label)


def microseconds(times: pa.ChunkedArray) -> Integers:
    """Return times as whole microseconds."""
    numbers: Integers = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()).to_numpy()
    return numbers


def encoded_schema(raw: pa.Schema, steps: Sequence[EncoderStep]) -> pa.Schema:
    """Return the schema of the rows after encoding."""
    hidden = [name for name in HIDDEN if name in raw.names]
    return apply(raw.empty_table().drop_columns(hidden), [step.fitted for step in steps]).schema


def encode_batches(raw: RawRows, steps: Sequence[EncoderStep]) -> Iterator[pa.Table]:
    """Yield the encoded rows in order, without the dropped rows."""
    schema = encoded_schema(raw.table.schema, steps)
    fitted = [step.fitted for step in steps]
    for batch in raw.batches():
        kept = pa.Table.from_batches([batch])
        if batch.column(DROPPED).null_count < batch.num_rows:
            kept = kept.filter(pc.is_null(batch.column(DROPPED)))
        hidden = [name for name in HIDDEN if name in kept.column_names]
        table = apply(kept.drop_columns(hidden), fitted, _own_means(kept, steps))
        yield table if table.schema == schema else table.select(schema.names).cast(schema)


def _own_means(kept: pa.Table, steps: Sequence[EncoderStep]) -> Mapping[str, pa.Array]:
    """Return the values of the `target` encoders for each row.

    The value of a row is computed from the labels that were known before the time of the row. If no label
    was known, the value is missing.
    """
    made: dict[str, pa.Array] = {}
    for step in steps:
        if step.seen is not None:
            codes = codes_of(as_text(kept[step.fitted.column]), step.fitted.categories)
            means = means_so_far(codes, microseconds(kept[TIME]), step.seen, step.smoothing)
            made[step.fitted.made[0]] = pa.array(means, mask=np.isnan(means))
    return made


def encoded_features(features: Sequence[str], steps: Sequence[EncoderStep]) -> tuple[str, ...]:
    """Return the features of the dataset after encoding, in order."""
    names = list(features)
    for step in steps:
        one = step.fitted
        if one.made == (one.column,):
            continue
        at = names.index(one.column) if one.column in names else len(names)
        names[at : at + 1] = [*([one.column] if one.keep and one.column in names else []), *one.made]
    return tuple(names)


def save_encoders(folder: Path, steps: Sequence[EncoderStep]) -> None:
    """Store the fitted encoders in the folder with the rows of the dataset."""
    content = [to_builtins(step.fitted) for step in steps]
    (folder / FILE).write_text(json.dumps(content, indent=1))


def load_encoders(folder: Path) -> tuple[FittedEncoder, ...]:
    """Return the encoders of a dataset version; the result is empty if the version has no encoders."""
    path = folder / FILE
    if not path.exists():
        return ()
    return tuple(from_builtins(item, FittedEncoder) for item in json.loads(path.read_bytes()))


def describe_encoders(steps: Sequence[EncoderStep]) -> list[dict[str, Any]]:
    """Return the numbers that each fitted encoder computed, for the details of a version. Long lists of
    categories are left out."""
    result = []
    for step in steps:
        item: dict[str, Any] = to_builtins(step.fitted)
        count = len(step.fitted.categories)
        if count > SHOWN:
            item |= {"categories": count, "values": None}
        result.append(item)
    return result
