"""Records the rows on which a model was trained, with a hash for each row, and finds these rows in any
dataset.

The hash of a row has 64 bits. The hash of a row is computed from the keys of the row (entity and time), or
from all its values if several rows can have the same keys. The same row always has the same hash. At most
KEPT hashes are stored with the model, and these are the smallest hashes. If the training set is larger, the
stored hashes are those of a random sample of its rows. A row can be recognised if its hash is not above the
largest stored hash.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from safetensors import SafetensorError
from safetensors.numpy import load, save

from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import dataclass
from gridmill.domain.training import ModelKind
from gridmill.errors import StorageError
from gridmill.jobs.dataset_reader import Partitions, fetch_piece
from gridmill.jobs.features import Integers, is_number
from gridmill.jobs.model_files import ModelCard, TrainingRowKeys, load_card, member_folder

FILE = "learned.safetensors"
KEPT = 4_000_000
"""The largest number of hashes that are stored with a model: 32 MB."""
LEAST_SHARE = 0.2
"""The smallest fraction of the validation rows on which models may be compared. Models are compared on the
validation rows on which none of them was trained. To compare models, at least this fraction of all
validation rows is needed."""

Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
SHORT = 64
"""Texts of up to this length in bytes are hashed many at a time."""
_ALL, _MISSING = np.uint64(2**64 - 1), np.uint64(0x6D697373696E6721)
_FRACTION = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowUse:
    """For each row, whether the model was trained on it (`train`), or used it for early stopping or to
    choose settings or weights (`validation`).

    `known` is false if it is unknown whether the row was used.
    """

    train: Mask
    validation: Mask
    known: Mask


def row_hashes(table: pa.Table, columns: Sequence[str]) -> Hashes:
    """Return for each row a hash of 64 bits of the values in these columns. Equal numbers give equal hashes,
    whatever their type is."""
    hashes: Hashes = np.zeros(table.num_rows, np.uint64)
    for name in columns:
        hashes = _mixed(hashes * _FRACTION + _column_bits(table[name]))
    return hashes


def _mixed(bits: Hashes) -> Hashes:
    """Apply the finaliser of splitmix64 (Steele, Lea, Flood 2014) to the bits."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(bits ^ (bits >> np.uint64(31)), np.uint64)


def _column_bits(column: pa.ChunkedArray) -> Hashes:
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), _MISSING)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        bits = column.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False).cast(pa.int64())
        bits_of_column = pc.fill_null(bits, 0).to_numpy().view(np.uint64)
    elif pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        bits_of_column = pc.fill_null(column.cast(pa.int64(), safe=False), 0).to_numpy().view(np.uint64)
    elif is_number(kind) and not pa.types.is_decimal(kind):
        bits_of_column = _float_bits(pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy())
    else:
        return _text_bits(column)
    missing = np.asarray(pc.is_null(column).to_numpy(), bool)
    return np.asarray(np.where(missing, _MISSING, bits_of_column), np.uint64)


def _float_bits(values: npt.NDArray[np.float64]) -> Hashes:
    """Return the bits of doubles.

    A whole number gets the bits of the integer, so that the type of a column may change.
    """
    whole = (np.abs(values) < 2**62) & (np.floor(values) == values)
    numbers = np.where(whole, values, 0.0).astype(np.int64).view(np.uint64)
    return np.where(whole, numbers, ~np.ascontiguousarray(values).view(np.uint64))


def _text_bits(column: pa.ChunkedArray) -> Hashes:
    """Return the bits of the texts in a column. The bits are computed once for each distinct text."""
    plain = column.combine_chunks()
    if isinstance(plain, pa.ChunkedArray):
        plain = pa.concat_arrays(plain.chunks)
    if pa.types.is_dictionary(plain.type):
        plain = plain.cast(plain.type.value_type)
    if pa.types.is_nested(plain.type):
        values = [None if value is None else repr(value) for value in plain.to_pylist()]
        plain = pa.array(values, pa.string())
    codes = plain.dictionary_encode(null_encoding="encode")
    bits = _value_bits(codes.dictionary)
    return np.asarray(bits[codes.indices.to_numpy(zero_copy_only=False)], np.uint64)


def _value_bits(values: pa.Array) -> Hashes:
    """Return the bits of these values, which are first converted to text or binary."""
    if not (pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)):
        values = values.cast(pa.string())
    values = values.cast(pa.large_binary())
    missing = np.asarray(pc.is_null(values).to_numpy(zero_copy_only=False), bool)
    lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    result = _short_bits(values, lengths, missing | (lengths > SHORT))
    for place in np.flatnonzero(lengths > SHORT):
        digest = hashlib.blake2b(values[int(place)].as_py(), digest_size=8).digest()
        result[place] = int.from_bytes(digest, "little")
    result[missing] = _MISSING
    return result


def _short_bits(values: pa.Array, lengths: Integers, other: Mask) -> Hashes:
    """Return the bits of texts of at most SHORT bytes. All texts of at most SHORT bytes are processed
    together, eight bytes at a time."""
    lengths = np.where(other, 0, lengths).astype(np.int64)
    offsets = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values)]
    data = values.buffers()[2]
    content = np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8)
    result = lengths.astype(np.uint64)
    rows = np.arange(len(values))
    for begin in range(0, int(lengths.max(initial=0)), 8):
        rows = rows[lengths[rows] > begin]  # so that a hash does not depend on the length of other texts
        block = np.zeros((len(rows), 8), np.uint8)
        for at in range(8):
            has_byte = lengths[rows] > begin + at
            block[has_byte, at] = content[offsets[rows[has_byte]] + begin + at]
        result[rows] = _mixed(result[rows] * _FRACTION + block.view("<u8")[:, 0])
    return result


def dataset_hashes(parts: Partitions, columns: Sequence[str], rows: Integers | None = None) -> Hashes:
    """Return the hashes of these rows of a dataset, in ascending order of the row numbers. If `rows` is
    None, return the hashes of all rows. The dataset is read one row group at a time."""
    hashes = [row_hashes(table, columns) for table in _tables(parts, columns, rows)]
    return np.concatenate(hashes) if hashes else np.zeros(0, np.uint64)


def _tables(parts: Partitions, columns: Sequence[str], rows: Integers | None) -> Iterator[pa.Table]:
    for piece in parts.pieces:
        if rows is None:
            yield fetch_piece(piece, tuple(columns))
            continue
        first, stop = np.searchsorted(rows, [piece.start, piece.stop])
        if stop > first:
            yield fetch_piece(piece, tuple(columns)).take(pa.array(rows[first:stop] - piece.start))


def note_learned(
    folder: Path,
    hashes: Hashes,
    columns: Sequence[str],
    train: Integers,
    validation: Integers,
    most: int = KEPT,
) -> TrainingRowKeys:
    """Write the smallest hashes of these rows, at most `most` of them, into the folder of a model. Return
    the description of these hashes for the model card."""
    both = [distinct(hashes[rows]) for rows in (train, validation)]
    below = _ALL
    if sum(map(len, both)) > most:
        below = np.partition(np.concatenate(both), most - 1)[most - 1]
        both = [one[one <= below] for one in both]
    tensors = {"below": np.array([below], np.uint64), "train": both[0], "validation": both[1]}
    (folder / FILE).write_bytes(save(tensors))
    return TrainingRowKeys(columns=tuple(columns), train=len(both[0]), validation=len(both[1]))


def distinct(hashes: Hashes) -> Hashes:
    """Return the distinct values in ascending order.

    This function is faster than the function `unique` of NumPy, which first fills a hash table.
    """
    ordered = np.sort(hashes)
    result: Hashes = ordered[np.diff(ordered, prepend=~ordered[:1]) != 0]
    return result


def seen_rows(folder: Path, card: ModelCard, dataset: Artifact, parts: Partitions, rows: Integers) -> RowUse:
    """Return for each of these rows of the dataset (in ascending order) whether the model in `folder` was
    trained on it.

    For an ensemble, return whether any of its members was trained on the row. Raises StorageError.
    """
    result = _own(folder, card, dataset, parts, rows)
    for number, member in enumerate(_members(folder, card)):
        other = seen_rows(member_folder(folder, number), member, dataset, parts, rows)
        result = RowUse(
            train=result.train | other.train,
            validation=result.validation | other.validation,
            known=result.known & other.known,
        )
    return result


def _members(folder: Path, card: ModelCard) -> Iterator[ModelCard]:
    for number in range(len(card.weights)):
        yield load_card(member_folder(folder, number))


def _own(folder: Path, card: ModelCard, dataset: Artifact, parts: Partitions, rows: Integers) -> RowUse:
    none, every = np.zeros(len(rows), bool), np.ones(len(rows), bool)
    same = bool(card.content) and card.content == dataset.fingerprint
    if same and card.kind != ModelKind.ENSEMBLE and "split" in parts.schema.names:
        split = parts.read(["split"])["split"].cast(pa.string()).take(pa.array(rows))
        train, validation = (_equal(split, name) for name in ("train", "validation"))
        return RowUse(train=train, validation=validation, known=every)
    if card.learned is None or not _keys_identify_rows(card, dataset, parts):
        return RowUse(train=none, validation=none, known=none)
    kept = _load(folder)
    mine = dataset_hashes(parts, card.learned.columns, rows)
    return RowUse(
        train=_among(mine, kept["train"]),
        validation=_among(mine, kept["validation"]),
        known=mine <= kept["below"][0],
    )


def _equal(split: pa.ChunkedArray, name: str) -> Mask:
    return np.asarray(pc.fill_null(pc.equal(split, name), False).to_numpy(), bool)


def _keys_identify_rows(card: ModelCard, dataset: Artifact, parts: Partitions) -> bool:
    """Return whether rows with equal keys are always the same row.

    Rows with equal keys are the same row if they belong to the same dataset, or if the keys contain a time.
    (Keys without a time, such as the numbers 1, 2, 3, can occur in any table.)
    """
    assert card.learned is not None
    has_keys = set(card.learned.columns) <= set(parts.schema.names)
    return has_keys and (card.dataset.partition("@")[0] == dataset.name or card.time in card.learned.columns)


def _load(folder: Path) -> Mapping[str, Hashes]:
    try:
        hashes: Mapping[str, Hashes] = load((folder / FILE).read_bytes())
    except (OSError, SafetensorError) as error:
        raise StorageError(
            f"the hashes of the model's training rows cannot be read: {error}",
            place=str(folder / FILE),
        ) from error
    return hashes


def _among(mine: Hashes, hashes: Hashes) -> Mask:
    if len(hashes) == 0:
        return np.zeros(len(mine), bool)
    place = np.searchsorted(hashes, mine).clip(max=len(hashes) - 1)
    return np.asarray(hashes[place] == mine, bool)
