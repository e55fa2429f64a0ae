"""Columns of `sql` that hold arrays of a fixed length, `FLOAT[64]`: each becomes as many columns."""

import re
from dataclasses import dataclass

from gridmill.errors import InputError
from gridmill.jobs.dataset.names import refuse_duplicates
from gridmill.jobs.engine import Types, quoted

MOST_COLUMNS = 4096
_ARRAY = re.compile(r"(?P<item>[^\[\]]+)\[(?P<length>\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The SQL with a column for each value, and what its columns are."""

    sql: str
    types: Types


def spread(sql: str, types: Types) -> Spread:
    """`pixel FLOAT[64]` as `pixel_1` ... `pixel_64`; the same SQL where there is no array.

    Raises InputError for columns that would be there twice, and for too many.
    """
    made = [item for name, type_ in types.items() for item in _columns(name, type_)]
    if len(made) == len(types) and all(_ARRAY.fullmatch(type_) is None for type_ in types.values()):
        return Spread(sql=sql, types=types)
    if len(made) > MOST_COLUMNS:
        raise InputError(
            f"its arrays would make {len(made):,} columns; {MOST_COLUMNS:,} is the most",
            hint="Give models less to look at: a smaller image, fewer buckets of words.",
            place="dataset.sql",
        )
    refuse_duplicates(name for name, _, _ in made)
    listed = ", ".join(f"{value} AS {quoted(name)}" for name, value, _ in made)
    return Spread(sql=f"SELECT {listed}\nFROM (\n{sql}\n)", types={name: type_ for name, _, type_ in made})


def _columns(name: str, type_: str) -> list[tuple[str, str, str]]:
    """Name, SQL and type of each."""
    array = _ARRAY.fullmatch(type_)
    if array is None:
        return [(name, quoted(name), type_)]
    numbers = range(1, int(array["length"]) + 1)
    return [(f"{name}_{number}", f"{quoted(name)}[{number}]", array["item"]) for number in numbers]
