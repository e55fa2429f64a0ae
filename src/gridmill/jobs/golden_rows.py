"""Golden rows: rows of the dataset with the predictions that the model made for them when it was trained.

The folder of a model contains these rows as they are in the dataset, before they are encoded. A process that
loads the model elsewhere predicts them again, which shows a different environment, a damaged file or a change
of the encoding.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gridmill.domain.frozen import dataclass
from gridmill.errors import DataError
from gridmill.jobs.dataset_reader import Partitions, fetch_piece
from gridmill.jobs.features import Floats, Integers, encode, windows
from gridmill.jobs.model_files import ModelCard, Predictor, predict_rows

GOLDEN = "golden.arrow"
"""The file in the folder of the model, in the Arrow IPC format."""
MOST = 20
TOLERANCE = 1e-3
"""The allowed difference of a prediction, in standard deviations of the label, or as a probability. It is the
tolerance within which a model must predict a row again when it is trained."""
_RELATIVE = 1e-6
_ENDS, _OUTPUTS = b"gridmill.ends", b"gridmill.outputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenRows:
    """Golden rows with their predictions.

    `rows` contains the columns that the model reads. Each golden row is the last of a group of consecutive
    rows, whose other rows are its history. `ends` contains for each group the number of the row after its
    end. `outputs` are the predictions, in the shape [groups, outputs].
    """

    rows: pa.Table
    ends: tuple[int, ...]
    outputs: Floats

    def __len__(self) -> int:
        return len(self.ends)

    def groups(self) -> Sequence[pa.Table]:
        """Return the rows of each group."""
        starts = (0, *self.ends)
        return [self.rows.slice(begin, end - begin) for begin, end in zip(starts, self.ends, strict=False)]

    def example(self) -> dict[str, Any]:
        """Return a golden row as a dict, to show how a row of this model looks."""
        row: dict[str, Any] = self.rows.slice(self.ends[0] - 1, 1).to_pylist()[0]
        return row


def columns_of(card: ModelCard) -> tuple[str, ...]:
    """Return the columns of a row that the model reads. A model of sequences also reads the entity and the
    time, to find the earlier rows of a row."""
    keys = card.keys if card.sequence is not None else ()
    return tuple(dict.fromkeys((*keys, *(encoding.column for encoding in card.encodings))))


def save_golden(
    folder: Path, predictor: Predictor, parts: Partitions, order: Integers, starts: Integers, rows: Integers
) -> None:
    """Write up to MOST of the rows with these numbers, and their predictions, into the folder of a model.

    `order` contains the number in the dataset of each row, after the rows are sorted by entity and time, and
    `starts` the number of the first row of its entity. `rows` are numbers of sorted rows.
    """
    places = np.linspace(0, len(rows) - 1, min(len(rows), MOST)).round().astype(np.int64)
    groups = [_history(row, starts, predictor.card.sequence) for row in rows[np.unique(places)]]
    if not groups:
        return
    write_golden(folder, predictor, _read(parts, columns_of(predictor.card), [order[one] for one in groups]))


def write_golden(folder: Path, predictor: Predictor, tables: Sequence[pa.Table]) -> None:
    """Predict the last row of each of these tables, and write the tables with the predictions into the folder
    of a model."""
    ends = np.cumsum([table.num_rows for table in tables]).tolist()
    outputs = [_predict(predictor, table).tolist() for table in tables]
    texts = {_ENDS: json.dumps(ends), _OUTPUTS: json.dumps(outputs)}
    table = pa.concat_tables(tables, promote_options="permissive").replace_schema_metadata(texts)
    with pa.OSFile(str(folder / GOLDEN), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _history(row: int, starts: Integers, length: int | None) -> Integers:
    if length is None:
        return np.array([row])
    return np.unique(windows(np.array([row]), starts, length))


def _read(parts: Partitions, columns: Sequence[str], groups: Sequence[Integers]) -> list[pa.Table]:
    fetch = lru_cache(maxsize=4)(fetch_piece)  # neighbours in a group are often in the same row group
    rows = [
        [parts.read(columns, int(number), int(number) + 1, fetch=fetch) for number in group]
        for group in groups
    ]
    return [pa.concat_tables(group, promote_options="permissive") for group in rows]


def _predict(predictor: Predictor, table: pa.Table) -> Floats:
    inputs, starts = encode(table, predictor.card.encodings), np.zeros(table.num_rows, np.int64)
    return predict_rows(predictor, inputs, starts, np.array([table.num_rows - 1])).reshape(-1)


def load_golden(folder: Path) -> GoldenRows | None:
    """Return the golden rows of the model in `folder`, or None if the model has none. Raises DataError if the
    file is damaged."""
    try:
        with pa.OSFile(str(folder / GOLDEN)) as file:
            table = pa.ipc.open_file(file).read_all()
        metadata = table.schema.metadata
        ends, outputs = json.loads(metadata[_ENDS]), np.array(json.loads(metadata[_OUTPUTS]), np.float64)
    except FileNotFoundError:
        return None
    except (pa.ArrowInvalid, OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / GOLDEN} cannot be read: {error}") from error
    return GoldenRows(rows=table.replace_schema_metadata(None), ends=tuple(ends), outputs=outputs)


def check_golden(predictor: Predictor, golden: GoldenRows) -> float:
    """Predict the golden rows, and return the largest difference as a fraction of the allowed difference.
    Raises DataError with the row if a prediction differs by more than is allowed."""
    found = predict_last(predictor, golden.groups())
    if found.shape != golden.outputs.shape:
        raise DataError(f"the model returns {found.shape[1]} numbers per row, not {golden.outputs.shape[1]}")
    share = shares_of_tolerance(found, golden.outputs, scale_of(predictor.card)).max(axis=1)
    row = int(share.argmax())
    if share[row] > 1:
        raise DataError(
            f"the model predicts {_shown(found[row])} for golden row {row + 1} of {len(golden)}, but "
            f"{_shown(golden.outputs[row])} when it was trained ({int((share > 1).sum())} rows differ)",
            hint="The packages here differ from those of the training, or a file of the model was changed: "
            "compare them with the version's packages, and use `gridmill verify`.",
        )
    return float(share[row])


def predict_last(predictor: Predictor, tables: Sequence[pa.Table]) -> Floats:
    """Predict the last row of each of these tables, in the shape [tables, outputs]."""
    return np.stack([_predict(predictor, table) for table in tables])


def shares_of_tolerance(found: Floats, expected: Floats, scale: Floats) -> Floats:
    """Return each difference as a fraction of the allowed difference. `scale` is the standard deviation of
    the values."""
    allowed = TOLERANCE * scale + _RELATIVE * np.abs(expected)
    with np.errstate(invalid="ignore"):
        share = np.abs(found - expected) / allowed
    both = np.isnan(found) & np.isnan(expected)
    return np.where(both, 0.0, np.where(np.isnan(share), np.inf, share))


def scale_of(card: ModelCard) -> Floats:
    """Return the scale of the tolerance: the standard deviation of each label, or 1 for classes."""
    spread = np.array(card.spread or (1.0,))
    return np.ones(1) if card.classes else np.where(spread > 0, spread, 1.0)


def _shown(row: Floats) -> str:
    return ", ".join(f"{value:.9g}" for value in row[:6]) + (", ..." if len(row) > 6 else "")
