"""Rows of a chain: rows of the dataset of a model, and the rows from which its stages predicted features of
these rows. A service computes the whole chain for them before it takes requests."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from gridmill.domain.frozen import dataclass
from gridmill.errors import DataError

FILE = "chain.arrow"
"""The file with the rows of the model in the folder of its definition, in the Arrow IPC format."""
_STAGES, _ENDS = b"gridmill.stages", b"gridmill.ends"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRows:
    """Rows of a chain. `rows` has the columns that the model reads, with the predictions of its stages as
    they are in the dataset. `stages` has for each of these rows the row that a stage reads, by the id of the
    stage; if the stage reads sequences, the row is the last of its sequence."""

    rows: pa.Table
    stages: Mapping[str, Sequence[pa.Table]]


def save_chain_rows(folder: Path, chain: ChainRows) -> None:
    """Write the rows into the folder of a definition."""
    metadata = {_STAGES: json.dumps(list(chain.stages))}
    _write(folder / FILE, chain.rows.replace_schema_metadata(metadata))
    for number, groups in enumerate(chain.stages.values()):
        ends = json.dumps([group.num_rows for group in groups])
        _write(_stage_file(folder, number), pa.concat_tables(groups).replace_schema_metadata({_ENDS: ends}))


def load_chain_rows(folder: Path) -> ChainRows | None:
    """Return the rows in the folder of a definition, or None if it has none. Raises DataError."""
    try:
        rows = _read(folder / FILE)
        names = json.loads(rows.schema.metadata[_STAGES])
        stages = {name: _groups(_read(_stage_file(folder, number))) for number, name in enumerate(names)}
    except FileNotFoundError:
        return None
    except (pa.ArrowInvalid, OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"the rows of the chain in {folder} cannot be read: {error}") from error
    return ChainRows(rows=rows.replace_schema_metadata(None), stages=stages)


def _groups(table: pa.Table) -> list[pa.Table]:
    groups: list[pa.Table] = []
    at = 0
    for count in json.loads(table.schema.metadata[_ENDS]):
        groups.append(table.slice(at, count).replace_schema_metadata(None))
        at += count
    return groups


def _stage_file(folder: Path, number: int) -> Path:
    return folder / f"chain-{number}.arrow"


def _write(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _read(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).read_all()
