"""Encoders of columns, which are fitted on training rows. A fitted encoder encodes rows in the same way in
datasets and in predictions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.domain.dataset import CATEGORICAL, SCALERS, Encoder, Method
from gridmill.domain.frozen import dataclass
from gridmill.errors import DataError, InputError
from gridmill.jobs.features import Floats, Integers, is_number

EMPTY: Mapping[str, pa.Array] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedEncoder:
    """A fitted encoder of one column.

    Encoders that scale numbers compute (x - `center`) / `scale`. `fill` replaces missing values. An encoder
    with `values` replaces each text in `categories` by the number at the same position in `values`, and
    every other text by the number `other`. `labels` are the names of labels that are scaled in the same way
    as the column.
    """

    column: str
    method: Method
    center: float = 0.0
    scale: float = 1.0
    fill: float | str | None = None
    categories: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    other: float = 0.0
    keep: bool = False
    labels: tuple[str, ...] = ()

    @property
    def made(self) -> tuple[str, ...]:
        """The names of the new columns that replace the encoded column. Encoders that scale numbers or fill
        missing values keep the name of the column."""
        if self.method == Method.ONEHOT:
            return tuple(f"{self.column}_{category}" for category in self.categories)
        return (f"{self.column}_{self.method}",) if self.method in CATEGORICAL else (self.column,)


def fit(
    encoder: Encoder, column: str, train: pa.Table, label: str | None, labels: Sequence[str]
) -> FittedEncoder:
    """Fit an encoder for `column` on its training rows. `labels` are the names of labels that are later
    values of the column. Raises InputError."""
    values = train[column]
    empty = FittedEncoder(column=column, method=encoder.method, keep=encoder.keep)
    if encoder.method in SCALERS:
        return replace(_scaler(empty, _numbers(values, column, encoder.method)), labels=tuple(labels))
    if encoder.method in CATEGORICAL:
        return _categories(empty, encoder, train, label)
    return replace(empty, fill=_fill(encoder, values, column))


def _numbers(values: pa.ChunkedArray, column: str, method: Method) -> Floats:
    if not is_number(values.type):
        raise InputError(
            f"`{method}` needs numbers, but {column!r} has type {values.type}",
            place="dataset.encoders.columns",
        )
    found: Floats = pc.cast(values, pa.float64(), safe=False).to_numpy().astype(np.float64)
    return found[np.isfinite(found)]


def _scaler(empty: FittedEncoder, values: Floats) -> FittedEncoder:
    if len(values) == 0:
        return empty
    with np.errstate(over="ignore", invalid="ignore"):
        center, scale = _center_and_scale(empty.method, values)
    if not np.isfinite(center) or not np.isfinite(scale):
        raise InputError(
            f"`{empty.method}` cannot scale {empty.column!r}: its values reach from {values.min():g} to "
            f"{values.max():g}, and their spread is too large for a float",
            hint="Correct or drop the wrong values, or divide the column in `features`.",
            place="dataset.encoders.columns",
        )
    usable = scale > 1e-12 * max(1.0, abs(center))
    return replace(empty, center=float(center), scale=float(scale) if usable else 1.0)


def _center_and_scale(method: Method, values: Floats) -> tuple[float, float]:
    match method:
        case Method.STANDARD:
            return values.mean(), values.std()
        case Method.MINMAX:
            return values.min(), values.max() - values.min()
    low, center, high = np.quantile(values, [0.25, 0.5, 0.75])
    return center, high - low


def _fill(encoder: Encoder, values: pa.ChunkedArray, column: str) -> float | str | None:
    match encoder.method:
        case Method.CONSTANT:
            return encoder.value
        case Method.MOST_FREQUENT:
            counts = sorted(_counts(values).items(), key=lambda item: (-item[1], str(item[0])))
            return counts[0][0] if counts else None
    numbers = _numbers(values, column, encoder.method)
    if len(numbers) == 0:
        return None
    return float(numbers.mean() if encoder.method == Method.MEAN else np.median(numbers))


def _counts(values: pa.ChunkedArray) -> dict[Any, int]:
    counts = pc.value_counts(values.drop_null()).to_pylist()
    return {item["values"]: item["counts"] for item in counts}


def _categories(empty: FittedEncoder, encoder: Encoder, train: pa.Table, label: str | None) -> FittedEncoder:
    text = as_text(train[empty.column])
    counts = sorted(_counts(text).items(), key=lambda item: (-item[1], item[0]))
    match encoder.method:
        case Method.ONEHOT:
            return replace(empty, categories=tuple(sorted(name for name, _ in counts[: encoder.most])))
        case Method.ORDINAL:
            names = sorted(name for name, _ in counts)
            return replace(
                empty, categories=tuple(names), values=tuple(float(n) for n in range(len(names))), other=-1.0
            )
        case Method.FREQUENCY:
            shares = tuple(count / max(1, train.num_rows) for _, count in counts)
            return replace(empty, categories=tuple(name for name, _ in counts), values=shares)
    return _target(empty, encoder, text, train, label)


def _target(
    empty: FittedEncoder, encoder: Encoder, text: pa.ChunkedArray, train: pa.Table, label: str | None
) -> FittedEncoder:
    """Return an encoder with the smoothed mean label of each category over all training rows."""
    target = label_numbers(train, label)
    names = sorted(_counts(text))
    codes = codes_of(text, names)
    overall = float(target.mean()) if len(target) else 0.0
    is_known = codes >= 0
    sums = np.bincount(codes[is_known], target[is_known], len(names))
    rows = np.bincount(codes[is_known], minlength=len(names))
    means = (sums + encoder.smoothing * overall) / np.maximum(rows + encoder.smoothing, 1e-300)
    return replace(empty, categories=tuple(names), values=tuple(float(m) for m in means), other=overall)


def label_numbers(train: pa.Table, label: str | None) -> Floats:
    """Return the label as doubles. Raises InputError if the label is not numeric or boolean."""
    if label is None or not is_number(train[label].type):
        raise InputError(
            "`target` needs a label of numbers or of true and false", place="dataset.encoders.method"
        )
    values: Floats = pc.cast(train[label], pa.float64(), safe=False).to_numpy().astype(np.float64)
    return values


def as_text(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values as texts (`1`, `true`, `UA`). Encoders compare categories as texts."""
    return values if pa.types.is_string(values.type) else values.cast(pa.string())


def codes_of(text: pa.ChunkedArray, categories: Sequence[str]) -> Integers:
    """Return for each row the number of its category, or -1 for an unknown or missing category."""
    found = pc.index_in(text, value_set=pa.array(categories, pa.string()))
    codes: Integers = pc.fill_null(found, -1).to_numpy().astype(np.int64)
    return codes


def means_so_far(
    codes: Integers, times: Integers, seen: tuple[Integers, Integers, Floats], smoothing: float
) -> Floats:
    """Return for each row the smoothed mean label of its category, computed from the labels that were known
    strictly before the time of the row.

    `seen` contains the category numbers, the times at which the labels became known, and the labels of the
    training rows. If no label was known, the smoothed mean of 0 rows is NaN.
    """
    sums, rows = _before(codes, times, *seen)
    zero = np.zeros(len(codes), np.int64)
    all_sums, all_rows = _before(zero, times, np.zeros(len(seen[0]), np.int64), *seen[1:])
    overall = np.divide(all_sums, all_rows, out=np.full(len(codes), np.nan), where=all_rows > 0)
    weight = rows + smoothing
    means: Floats = np.divide(sums + smoothing * overall, weight, out=overall.copy(), where=weight > 0)
    return means


def _before(
    codes: Integers, times: Integers, known_codes: Integers, numbers: Integers, labels: Floats
) -> tuple[Floats, Integers]:
    """Return for each row the sum and the number of the labels with the same category number that were known
    before the time of the row."""
    moments = np.unique(numbers)
    width = len(moments) + 1
    place = known_codes * width + np.searchsorted(moments, numbers, "left")
    order = np.argsort(place, kind="stable")
    place = place[order]
    total = np.concatenate([[0.0], np.cumsum(labels[order], dtype=np.longdouble)])
    at = np.searchsorted(moments, times, "left")
    low = np.searchsorted(place, codes * width, "left")
    high = np.searchsorted(place, codes * width + at, "left")
    nothing = codes < 0
    low, high = np.where(nothing, 0, low), np.where(nothing, 0, high)
    sums: Floats = (total[high] - total[low]).astype(np.float64)
    return sums, (high - low).astype(np.int64)


def apply(table: pa.Table, fitted: Sequence[FittedEncoder], own: Mapping[str, pa.Array] = EMPTY) -> pa.Table:
    """Return the table with the new columns that are made by the encoders. If `own` contains values for a
    column of the result, the column gets these values. Raises DataError if a column that an encoder needs is
    missing."""
    columns = _Columns(table)
    for one in fitted:
        if one.column not in columns.values:
            raise DataError(f"there is no column {one.column!r} to encode")
        _APPLY.get(one.method, _imputed)(columns, one)
    return columns.table(own)


class _Columns:
    """The columns of a table, stored in a form that encoders can change quickly.

    Arrow's `set_column` copies the list of all columns. For thousands of columns, one call per column would
    therefore take quadratic time.
    """

    def __init__(self, table: pa.Table) -> None:
        self.values: dict[str, pa.ChunkedArray | pa.Array] = dict(
            zip(table.column_names, table.columns, strict=True)
        )
        self._made: dict[str, list[tuple[str, pa.Array]]] = {}
        self._left_out: set[str] = set()

    def add(self, one: FittedEncoder, made: Sequence[pa.Array]) -> None:
        """Insert the columns that an encoder makes, either after the encoded column or instead of it."""
        behind = self._made.get(one.column, [])
        self._made[one.column] = [*zip(one.made, made, strict=True), *behind]
        if not one.keep:
            self._left_out.add(one.column)

    def table(self, own: Mapping[str, pa.Array]) -> pa.Table:
        """Return the columns as an Arrow table."""
        pairs: list[tuple[str, pa.ChunkedArray | pa.Array]] = []
        for name, values in self.values.items():
            if name not in self._left_out:
                pairs.append((name, values))
            pairs += self._made.get(name, ())
        return pa.Table.from_arrays([own.get(name, one) for name, one in pairs], [name for name, _ in pairs])


def _scaled(columns: _Columns, one: FittedEncoder) -> None:
    for name in (one.column, *one.labels):
        if name in columns.values:
            columns.values[name] = _scaled_values(columns.values[name], one.center, one.scale)


def _scaled_values(
    values: pa.ChunkedArray | pa.Array, center: float, scale: float
) -> pa.ChunkedArray | pa.Array:
    """Return (x - center) / scale for each value x.

    If no value is missing, the function uses numpy: numpy is several times faster than Arrow, which looks up
    a kernel for each call.
    """
    if values.null_count == 0 and pa.types.is_float64(values.type):
        scaled = np.subtract(values.to_numpy(), center)
        return pa.array(np.divide(scaled, scale, out=scaled))
    numbers = pc.cast(values, pa.float64(), safe=False)
    return pc.divide(pc.subtract(numbers, center), scale)


def _imputed(columns: _Columns, one: FittedEncoder) -> None:
    values = columns.values[one.column]
    if one.fill is None:
        return
    if pa.types.is_integer(values.type) and one.fill != int(one.fill):
        values = values.cast(pa.float64(), safe=False)
    filled = pc.fill_null(values, pa.scalar(one.fill).cast(values.type))
    if pa.types.is_floating(filled.type):
        filled = pc.if_else(pc.is_nan(filled), pa.scalar(one.fill, filled.type), filled)
    columns.values[one.column] = filled


def _one_hot(columns: _Columns, one: FittedEncoder) -> None:
    codes = codes_of(as_text(columns.values[one.column]), one.categories)
    columns.add(one, [pa.array(codes == number) for number in range(len(one.categories))])


def _mapped(columns: _Columns, one: FittedEncoder) -> None:
    codes = codes_of(as_text(columns.values[one.column]), one.categories)
    values = np.append(np.asarray(one.values, np.float64), one.other)
    columns.add(one, [pa.array(values[codes])])


_APPLY: Mapping[Method, Callable[[_Columns, FittedEncoder], None]] = {
    **dict.fromkeys(SCALERS, _scaled),
    Method.ONEHOT: _one_hot,
    **dict.fromkeys((Method.ORDINAL, Method.FREQUENCY, Method.TARGET), _mapped),
}
