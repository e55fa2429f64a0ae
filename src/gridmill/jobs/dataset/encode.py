"""Encoding a dataset: numbers fitted on its training rows, kept with it, and applied to every row."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from gridmill.codec import from_builtins, to_builtins
from gridmill.errors import InputError
from gridmill.jobs.dataset.compile import Compiled
from gridmill.jobs.dataset.encoders import (
    Fitted,
    apply,
    as_text,
    codes_of,
    fit,
    label_numbers,
    means_so_far,
)
from gridmill.jobs.dataset.sqltext import DROPPED, LABEL_TIME, TIME
from gridmill.jobs.features import Floats, Integers
from gridmill.jobs.thrifty import Thrifty
from gridmill.model.dataset import DatasetSpec, Label
from gridmill.model.encoder import CATEGORICAL, SCALERS, Encoder, Method

FILE = "encoders.json"
SHOWN = 100
"""Most categories of an encoder that the version's details repeat; the file has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A fitted encoder; of `target` also the training labels by when they were known."""

    fitted: Fitted
    smoothing: float = 0.0
    seen: tuple[Integers, Integers, Floats] | None = None


def needs_times(encoders: Sequence[Encoder]) -> bool:
    """Whether it must be known of each row when it is, and when its label is known."""
    return any(encoder.method == Method.TARGET for encoder in encoders)


def fit_all(spec: DatasetSpec, raw: ds.Dataset, compiled: Compiled) -> tuple[Step, ...]:
    """Each encoder of each column, fitted on the training rows of `raw`. Raises InputError."""
    steps: list[Step] = []
    for encoder in spec.encoders:
        for column in encoder.columns:
            _check_role(encoder, column, compiled)
            before = [step.fitted for step in steps if step.fitted.column == column]
            _check_there(encoder, column, before)
            steps.append(_fit_one(spec, encoder, column, raw, compiled, before))
    return tuple(steps)


def _check_role(encoder: Encoder, column: str, compiled: Compiled) -> None:
    if column not in compiled.features and not (column in compiled.entity and encoder.keep):
        hint = f"Features are {', '.join(compiled.features)}; entities can be encoded with `keep: true`."
        raise InputError(f"{column!r} is no feature", hint=hint, place="dataset.encoders.columns")


def _check_there(encoder: Encoder, column: str, before: Sequence[Fitted]) -> None:
    """Raise InputError for a column that an encoder before has turned into others, or made the same of."""
    for one in before:
        if one.method not in CATEGORICAL:
            continue
        if not one.keep:
            hint = f"`keep: true` in the encoder of {one.method} leaves it there."
            raise InputError(
                f"{column!r} is gone: `{one.method}` made {', '.join(one.made[:3])} of it",
                hint=hint,
                place="dataset.encoders.columns",
            )
        if one.method == encoder.method:
            raise InputError(
                f"{column!r} is encoded by `{one.method}` twice", place="dataset.encoders.columns"
            )


def _fit_one(
    spec: DatasetSpec,
    encoder: Encoder,
    column: str,
    raw: ds.Dataset,
    compiled: Compiled,
    before: Sequence[Fitted],
) -> Step:
    target = encoder.method == Method.TARGET
    label = compiled.label if target else None
    times = [name for name in (TIME, LABEL_TIME) if target and name in raw.schema.names]
    names = list(dict.fromkeys((column, *([label] if label else []), *times)))
    train = raw.to_table(columns=names, filter=_training(raw, label))
    train = apply(train, before)
    labels = _later_values(spec.label, column, compiled) if encoder.method in SCALERS else ()
    fitted = fit(encoder, column, train, label, labels)
    return Step(fitted=fitted, smoothing=encoder.smoothing, seen=_seen(train, fitted, label))


def _training(raw: ds.Dataset, label: str | None) -> ds.Expression | None:
    """The training rows; with their label where one is needed."""
    train = ds.field("split") == "train" if "split" in raw.schema.names else None
    if label is None:
        return train
    kept = ds.field(DROPPED).is_null()
    return kept if train is None else train & kept


def _later_values(label: Label | None, column: str, compiled: Compiled) -> tuple[str, ...]:
    if label is None or label.is_own or label.table is not None:
        return ()
    if compiled.steps:
        return tuple(step.name for step in compiled.steps if step.column == column)
    return (label.name,) if label.column == column else ()


def _seen(train: pa.Table, fitted: Fitted, label: str | None) -> tuple[Integers, Integers, Floats] | None:
    if label is None:
        return None
    known = train[LABEL_TIME if LABEL_TIME in train.column_names else TIME]
    codes = codes_of(as_text(train[fitted.column]), fitted.categories)
    return codes, microseconds(known), label_numbers(train, label)


def microseconds(times: pa.ChunkedArray) -> Integers:
    """Times as whole microseconds."""
    found: Integers = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()).to_numpy()
    return found


def encoded_schema(raw: pa.Schema, steps: Sequence[Step]) -> pa.Schema:
    """The columns that encoding leaves."""
    hidden = [name for name in (DROPPED, TIME, LABEL_TIME) if name in raw.names]
    return apply(raw.empty_table().drop_columns(hidden), [step.fitted for step in steps]).schema


def encode_batches(raw: Thrifty, steps: Sequence[Step]) -> Iterator[pa.Table]:
    """The rows that stay, encoded, in order."""
    schema = encoded_schema(raw.schema, steps)
    for batch in raw.turns().to_reader():
        kept = pa.Table.from_batches([batch]).filter(pc.is_null(batch.column(DROPPED)))
        made = _own_means(kept, steps)
        table = apply(kept, [step.fitted for step in steps])
        for name, values in made.items():
            table = table.set_column(table.column_names.index(name), name, values)
        yield table.select(schema.names).cast(schema)


def _own_means(kept: pa.Table, steps: Sequence[Step]) -> Mapping[str, pa.Array]:
    """What `target` encoders say of each row: the labels known before it, missing before there is any."""
    made: dict[str, pa.Array] = {}
    for step in steps:
        if step.seen is not None:
            codes = codes_of(as_text(kept[step.fitted.column]), step.fitted.categories)
            means = means_so_far(codes, microseconds(kept[TIME]), step.seen, step.smoothing)
            made[step.fitted.made[0]] = pa.array(means, mask=np.isnan(means))
    return made


def encoded_features(features: Sequence[str], steps: Sequence[Step]) -> tuple[str, ...]:
    """The features that encoding leaves, in order."""
    names = list(features)
    for step in steps:
        one = step.fitted
        if one.made == (one.column,):
            continue
        at = names.index(one.column) if one.column in names else len(names)
        names[at : at + 1] = [*([one.column] if one.keep and one.column in names else []), *one.made]
    return tuple(names)


def save_encoders(folder: Path, steps: Sequence[Step]) -> None:
    """Keep the numbers beside the dataset's rows."""
    content = [to_builtins(step.fitted) for step in steps]
    (folder / FILE).write_text(json.dumps(content, indent=1))


def load_encoders(folder: Path) -> tuple[Fitted, ...]:
    """The encoders of a dataset version; none when it has none."""
    path = folder / FILE
    if not path.exists():
        return ()
    return tuple(from_builtins(item, Fitted) for item in json.loads(path.read_bytes()))


def describe_encoders(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """For the version's details: the numbers, without long lists of categories."""
    found = []
    for step in steps:
        item: dict[str, Any] = to_builtins(step.fitted)
        count = len(step.fitted.categories)
        if count > SHOWN:
            item |= {"categories": count, "values": None}
        found.append(item)
    return found
