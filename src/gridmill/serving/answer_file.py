"""Writes the rows of a large request with their predictions, in pieces."""

import io
from collections.abc import Iterator, Sequence
from typing import IO

import msgspec
import numpy as np
import pyarrow as pa

from gridmill.errors import InputError
from gridmill.jobs.write_rows import write_csv, write_jsonl, write_parquet
from gridmill.serving.request_file import LineRows, RequestRows, RowCallback

_WRITERS = {".csv": write_csv, ".jsonl": write_jsonl, ".parquet": write_parquet}
_OWN = ("prediction", "probability_")
_DECODE, _ENCODE = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode


def answer_endings() -> tuple[str, ...]:
    """Return the endings of the files that an answer can have."""
    return tuple(_WRITERS)


class _Batches:
    """The rows of batches, which are taken in their order."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._held = [next(batches)]
        self.schema = self._held[0].schema

    def take(self, rows: int) -> pa.Table:
        """Return the next rows. The result has fewer rows if there are no more."""
        held = sum(batch.num_rows for batch in self._held)
        while held < rows and (batch := next(self._batches, None)) is not None:
            self._held.append(batch)
            held += batch.num_rows
        table = pa.Table.from_batches(self._held)
        self._held = table.slice(rows).to_batches() or [self._held[0].slice(0, 0)]
        return table.slice(0, rows)


class _Predictions:
    """The predictions of all rows, in their order. A row of the request has `length` rows in the dataset, and
    the last of them is predicted. `rows` is the number of rows of the request."""

    def __init__(
        self,
        batches: Iterator[pa.RecordBatch],
        shown: Iterator[pa.RecordBatch] | None,
        length: int,
        rows: int,
        on_rows: RowCallback | None,
    ) -> None:
        self._on_rows = on_rows
        self._batches, self._length, self.rows = _Batches(batches), length, rows
        self._shown = _Batches(shown) if shown is not None else None
        self.taken = 0
        names = self._batches.schema.names
        self._names = [name for part in _OWN for name in names if name.startswith(part)]
        fields = [self._batches.schema.field(name) for name in self._names]
        self._further = [
            one for one in (self._shown.schema if self._shown else ()) if one.name not in self._names
        ]
        self.schema = pa.schema([*fields, *self._further])

    def take(self, rows: int) -> pa.Table:
        """Return the predictions of the next rows, and what is shown about their features. Raises InputError
        if they are missing."""
        table = self._batches.take(rows)
        if table.num_rows < rows:
            number = self.taken + table.num_rows
            raise _changed(f"{number} rows have a prediction, but there are more rows")
        self._check(table["row"])
        self.taken += rows
        if self._on_rows is not None:
            self._on_rows(self.taken, 0, 0)
        made = table.select(self._names)
        further = self._shown.take(rows) if self._shown is not None else made
        for one in self._further:
            made = made.append_column(one, further[one.name])
        return made

    def _check(self, numbers: pa.ChunkedArray) -> None:
        first = self.taken * self._length + self._length - 1
        expected = np.arange(first, first + len(numbers) * self._length, self._length)
        if not np.array_equal(numbers.to_numpy(), expected):
            raise InputError(f"the predictions from row {self.taken} are not in the order of the rows")

    def check_end(self) -> None:
        """Raise InputError if a prediction was not taken."""
        if self.taken != self.rows:
            raise _changed(f"{self.rows} rows have a prediction, but there are {self.taken} rows")


def _changed(text: str) -> InputError:
    return InputError(
        f"the rows have changed while they were predicted: {text}",
        hint="Run the command again.",
        place="data",
    )


def write_answer(
    rows: RequestRows,
    count: int,
    found: Iterator[pa.RecordBatch],
    file: IO[bytes],
    on_rows: RowCallback | None = None,
) -> int:
    """Write the rows of a request with the columns of their predictions, and return the number of rows.

    `count` is the number of rows whose features were written. `found` are the batches of the prediction.
    `on_rows` is called with the number of rows so far.
    Raises InputError if a row has no prediction, for example because the file of the rows has changed.
    """
    predictions = _Predictions(found, rows.shown(), rows.reader.sequence or 1, count, on_rows)
    if isinstance(rows, LineRows) and rows.ending == ".jsonl" and not rows.is_list:
        written = _write_lines(rows, predictions, file)
    else:
        schema, batches = _only(predictions) if rows.is_list else _joined(rows, predictions)
        written = _WRITERS[rows.ending](pa.RecordBatchReader.from_batches(schema, batches), file)
    predictions.check_end()
    return written


def _only(predictions: _Predictions) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the predictions without the rows of the request, which are lists."""

    def batches() -> Iterator[pa.RecordBatch]:
        while left := min(65_536, predictions.rows - predictions.taken):
            yield from predictions.take(left).to_batches()

    return predictions.schema, batches()


def _joined(rows: RequestRows, predictions: _Predictions) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the rows of the request with their predictions. A column of a prediction replaces a column of
    the request with the same name."""
    before, every = rows.batches()
    kept = [name for name in before.names if name not in predictions.schema.names]
    schema = pa.schema([*(before.field(name) for name in kept), *predictions.schema])

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in every:
            own = predictions.take(batch.num_rows).combine_chunks()
            columns = [*batch.select(kept).columns, *(one.combine_chunks() for one in own.columns)]
            yield pa.record_batch(columns, schema=schema)

    return schema, batches()


def _write_lines(rows: LineRows, predictions: _Predictions, file: IO[bytes]) -> int:
    """Write each line of the request with the fields of its prediction at its end. The other fields stay as
    they are written in the request."""
    own = [b'"%s"' % part.encode() for part in predictions.schema.names]
    for piece in rows.lines():
        added = _json_lines(predictions.take(len(piece)))
        lines = _without(piece, own, predictions.schema.names)
        file.writelines(
            line.strip()[:-1] + b", " + more[1:] + b"\n" for line, more in zip(lines, added, strict=True)
        )
    return predictions.taken


def _json_lines(table: pa.Table) -> list[bytes]:
    """Return each row as a JSON object. NaN and infinity become null."""
    if any(pa.types.is_temporal(kind) or pa.types.is_decimal(kind) for kind in table.schema.types):
        lines = io.BytesIO()
        write_jsonl(table.to_reader(), lines)
        return lines.getvalue().splitlines()
    return [_ENCODE(row) for row in table.to_pylist()]  # four times as quick


def _without(
    piece: Sequence[tuple[int, bytes]], own: Sequence[bytes], names: Sequence[str]
) -> Iterator[bytes]:
    """Yield the lines without the fields that the prediction has too."""
    for _, line in piece:
        if any(name in line for name in own):
            yield _ENCODE({name: value for name, value in _DECODE(line).items() if name not in names})
        else:
            yield line
