"""Rows and predictions in Arrow streams, by the rules for the fields of JSON rows.

All values of a column have one type. NaN and infinity are missing numbers, as in binary tensors.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.jobs.features import Floats, encode, is_number
from gridmill.serving.arrow_messages import check_messages, not_arrow
from gridmill.serving.errors import SHOWN, FieldsError, Problem
from gridmill.serving.fields import Field, FieldKind, problem_of
from gridmill.serving.request import too_large
from gridmill.serving.served_model import ServedModel
from gridmill.serving.table_values import checked_values

NUMBER_BYTES = 8
_BROKEN = (pa.ArrowException, OSError, ValueError, OverflowError)


class ArrowRows:
    """The rows of a stream. `columns` are those of the named columns that the stream has."""

    def __init__(self, columns: Mapping[str, pa.Array], length: int) -> None:
        self.columns, self._length = columns, length

    def __len__(self) -> int:
        return self._length

    def inputs(self, model: ServedModel) -> Floats:
        """Return the inputs [rows, inputs] of a model. Raises FieldsError."""
        if model.reader.sequence is not None:
            text = "the model reads sequences, which an Arrow stream cannot have"
            raise FieldsError((Problem(problem=text),), hint="Send the rows in JSON.")
        fields = model.reader.fields
        wrong = [field for field in fields if not self._is_right(field)]
        if wrong and (problems := self._problems(wrong)):
            raise FieldsError(problems)
        if not self._length:
            return np.zeros((0, model.reader.width))
        table = {field.name: checked_values(field, self.columns[field.name]) for field in fields}
        return encode(pa.table(table), model.card.encodings)

    def objects(self) -> list[dict[str, Any]]:
        """Return the rows as the objects that JSON would have. Raises FieldsError for a column with values
        that JSON cannot have."""
        return _objects(self.columns, self._length)

    def _is_right(self, field: Field) -> bool:
        values = self.columns.get(field.name)
        return values is not None and (_fits(field.kind, values.type) or values.null_count == len(values))

    def _problems(self, wrong: Sequence[Field]) -> tuple[Problem, ...]:
        """Return the problems of the first wrong rows, row by row as for JSON."""
        has_problem = np.zeros(self._length, np.bool_)
        for field in wrong:
            values = self.columns.get(field.name)
            has_problem |= True if values is None else values.is_valid().to_numpy(zero_copy_only=False)
        problems: list[Problem] = []
        for row in np.flatnonzero(has_problem)[: SHOWN + 1].tolist():
            problems += self._problems_of_row(wrong, row)
            if len(problems) > SHOWN:
                break
        return tuple(problems)

    def _problems_of_row(self, wrong: Sequence[Field], row: int) -> Iterator[Problem]:
        for field in wrong:
            values = self.columns.get(field.name)
            given = {} if values is None else {field.name: _json_values(field.name, values.slice(row, 1))[0]}
            if _is_binary(values):
                text = "the value is binary data, not a text or a number"
                yield Problem(row=row, field=field.name, problem=text)
            elif problem := problem_of(field, given):
                yield Problem(row=row, field=field.name, problem=problem)


def arrow_columns(model: ServedModel) -> set[str]:
    """Return the names of all columns that a request to a model can have."""
    if model.features is None:
        return {field.name for field in model.reader.fields}
    plan = model.plan
    names = {*plan.request, *plan.entity, *plan.computed, *plan.features}
    return names | ({plan.time} if plan.time is not None else set())


def read_rows(body: bytes, names: Collection[str], most_bytes: int) -> ArrowRows:
    """Return the rows of a stream with the columns `names`, as far as the stream has them. Other columns are
    ignored. The body, and the values that are decoded from it, have at most `most_bytes` bytes: a number has
    8. Raises MalformedError, TooLargeError, FieldsError for two columns of the same name."""
    check_messages(body, most_bytes)
    try:
        return _read(body, names, most_bytes)
    except _BROKEN as error:
        raise not_arrow(error) from error


def _read(body: bytes, names: Collection[str], most_bytes: int) -> ArrowRows:
    found = pa.ipc.open_stream(body).schema.names
    included = [number for number, name in enumerate(found) if name in names]
    _check_once([found[number] for number in included])
    options = pa.ipc.IpcReadOptions(included_fields=included, use_threads=False)
    budget = _Budget(most_bytes)
    columns: dict[str, list[pa.Array]] = {found[number]: [] for number in included}
    length = 0
    for batch in pa.ipc.open_stream(body, options=options):
        budget.take(batch.num_rows * NUMBER_BYTES * max(1, len(columns)))
        length += batch.num_rows
        for name, parts in columns.items():
            values = batch.column(batch.schema.get_field_index(name))
            values.validate(full=True)
            parts.append(budget.plain(values))
    joined = {name: pa.concat_arrays(parts) for name, parts in columns.items() if parts}
    return ArrowRows(joined or {name: pa.nulls(0) for name in columns}, length)


def _check_once(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        text = "the stream has several columns of this name"
        raise FieldsError(tuple(Problem(field=name, problem=text) for name in twice))


class _Budget:
    """The bytes that the values of a stream may still take after they are decoded."""

    def __init__(self, most_bytes: int) -> None:
        self._most = self._left = most_bytes

    def take(self, size: int) -> None:
        """Use some bytes. Raises TooLargeError."""
        self._left -= size
        if self._left < 0:
            raise too_large(self._most)

    def plain(self, values: pa.Array) -> pa.Array:
        """Return the values without dictionary and views, whose values can share bytes."""
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        if pa.types.is_dictionary(values.type):
            known = self._without_views(values.dictionary)
            self._take_repeated(known, values.indices)
            # pyarrow cannot decode a dictionary of views
            values = pa.DictionaryArray.from_arrays(values.indices, known).dictionary_decode()
        values = self._without_views(values)
        self.take(0 if _is_fixed(values.type) else values.nbytes)
        return values

    def _without_views(self, values: pa.Array) -> pa.Array:
        """Use the bytes of texts that are views, and return these texts with bytes of their own."""
        if not (pa.types.is_string_view(values.type) or pa.types.is_binary_view(values.type)):
            return values
        self.take(_view_bytes(values))
        return values.cast(pa.string() if pa.types.is_string_view(values.type) else pa.binary())

    def _take_repeated(self, known: pa.Array, indices: pa.Array) -> None:
        """Use the bytes of the decoded texts before they are decoded."""
        if not _is_fixed(known.type):
            sizes = pc.binary_length(known)
            self.take(int(pc.sum(sizes.cast(pa.int64()).take(indices)).as_py() or 0))


def _view_bytes(values: pa.Array) -> int:
    """Return the number of bytes of texts that are views: the first 4 of the 16 bytes of each view. A null
    can have any number there, also a negative one."""
    lengths = np.frombuffer(values.buffers()[1], np.int32)[::4][values.offset : values.offset + len(values)]
    is_valid = values.is_valid().to_numpy(zero_copy_only=False)
    return int(lengths.astype(np.int64)[is_valid].sum())


def _is_fixed(kind: pa.DataType) -> bool:
    return is_number(kind) or pa.types.is_temporal(kind) or pa.types.is_fixed_size_binary(kind)


def _is_binary(values: pa.Array | None) -> bool:
    return values is not None and (
        pa.types.is_binary(values.type)
        or pa.types.is_large_binary(values.type)
        or pa.types.is_fixed_size_binary(values.type)
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _fits(kind: FieldKind, found: pa.DataType) -> bool:
    """Return whether all values of a column are of the kind of a field."""
    if kind == FieldKind.TEXT:
        return _is_text(found)
    return is_number(found) and (kind == FieldKind.BOOLEAN or not pa.types.is_boolean(found))


def _objects(columns: Mapping[str, pa.Array], length: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{} for _ in range(length)]
    for name, values in columns.items():
        for row, value in zip(rows, _json_values(name, values), strict=True):
            row[name] = value
    return rows


def _json_values(name: str, values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of the column `name` as JSON has them. Raises FieldsError for times that Python
    cannot hold, such as a year above 9999, and for an unknown time zone."""
    try:
        return [_as_json(one) for one in values.to_pylist()]
    except _BROKEN as error:
        text = f"a value of the type {str(values.type)[:60]} is out of range, or its time zone is unknown"
        raise FieldsError((Problem(field=name, problem=text),)) from error


def _as_json(value: Any) -> Any:  # noqa: ANN401  a value of Arrow, and of JSON
    """Return a value as JSON has it: times as texts in ISO 8601, and NaN and infinity as null."""
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list):
        return [_as_json(one) for one in value]
    return value if isinstance(value, bool | int | str | None) else str(value)


def write_stream(columns: Mapping[str, Any], about: Mapping[str, str]) -> bytes:
    """Return a stream with columns that are arrays or sequences. A row of an array [rows, labels] is a list.
    `about` is the metadata of its schema."""
    arrays = {name: _array(values) for name, values in columns.items()}
    table = pa.table(arrays).replace_schema_metadata(dict(about))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _array(values: Any) -> pa.Array:  # noqa: ANN401  an array or a sequence
    if isinstance(values, np.ndarray) and values.ndim > 1:
        return pa.array(list(values.astype(np.float64)), pa.list_(pa.float64()))
    return pa.array(values, from_pandas=False)


def objects_of_answer(content: bytes) -> list[dict[str, Any]]:
    """Return the rows of a stream that `write_stream` has made, as the objects that JSON would have."""
    table = pa.ipc.open_stream(content).read_all().combine_chunks()
    return _objects({name: table[name] for name in table.column_names}, table.num_rows)
