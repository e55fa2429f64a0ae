"""The interface of the readers of file formats: column names, batches of raw columns, and the position of a
row in the file."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

import pyarrow as pa

from gridmill.domain.frozen import dataclass
from gridmill.errors import DataError
from gridmill.jobs.sink.files import SourceFile

Seen: TypeAlias = Callable[[int], None]
"""A function that receives the number of bytes of the file that have been read so far."""


Types: TypeAlias = Mapping[str, pa.DataType]
"""The types of columns, by the names of the columns in the file."""


NUMBERS = b"gridmill.numbers"
"""The key in the metadata of a column that shows that the texts of the column are numbers. Numbers are
stored as texts if no type can represent all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTypes:
    """A request to a reader to return typed values instead of texts.

    `types` are the types of columns, by the names of the columns in the file. The reader of a text format
    may return values of these types directly if that is faster. The values of the columns in `inferred` must
    look like numbers without leading zeros.
    """

    types: Types
    inferred: frozenset[str] = frozenset()


class UnexpectedTypeError(Exception):
    """The error for a value in the file that does not have the expected type. After this error the file is
    read again as text."""


class Reader(Protocol):
    """A reader of a source file.

    The raw columns of a reader contain texts (CSV) or have the types of the file format. Missing values are
    null.
    """

    file: SourceFile

    def names(self) -> tuple[str, ...] | None:
        """Return the names of the columns. Return None if they are known only after the complete file has
        been read. Raises DataError."""

    def batches(
        self, columns: tuple[str, ...] | None, seen: Seen, haste: ExpectedTypes | None = None
    ) -> Iterator[pa.Table]:
        """Yield all rows in order, with limited memory. With `columns`, the result has only these columns.
        Raises DataError.

        A batch may lack a column that has no value in the batch (JSON Lines). With `haste`, the reader of a
        text format may return typed values if that is faster. A reader that returns typed values raises
        UnexpectedTypeError for a value that does not have its type. The readers of other formats may return
        dictionary-encoded texts.
        """

    def lines(self, rows: Iterator[int]) -> Iterator[int | None]:
        """Yield the line at which each row (from 0, in order) begins. Yield None if the format has no lines.

        The method `lines` reads the file again once.
        """


def place_of(reader: Reader, row: int) -> str:
    """Return `FILE:LINE` for a row (from 0). If the format has no lines, the result contains the number of
    the row (from 1) instead of the line.

    To find the line of a row, this function reads the file again.
    """
    line = next(reader.lines(iter([row])), None)
    return f"{reader.file.name}: row {row + 1}" if line is None else f"{reader.file.name}:{line}"


def check_names(file: SourceFile, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names unchanged. Raises DataError if a column name occurs twice. Names that differ only in
    upper and lower case count as equal."""
    if not names:
        raise DataError("the file has no columns", place=file.name)
    where: dict[str, list[int]] = {}
    for number, name in enumerate(names, start=1):
        where.setdefault(name.lower(), []).append(number)
    for numbers in where.values():
        if len(numbers) > 1:
            raise _twice(file, [names[n - 1] for n in numbers], numbers)
    for number, name in enumerate(names, start=1):
        if "\0" in name:
            raise DataError(
                f"the name of column {number} contains a zero byte: {name!r}",
                hint="If this is a text file, set the `encoding` of the source, for example utf-16.",
                place=file.name,
            )
    return names


def _twice(file: SourceFile, names: Sequence[str], numbers: Sequence[int]) -> DataError:
    listed = ", ".join(map(str, numbers))
    if len(set(names)) > 1:
        twice = " and ".join(map(repr, dict.fromkeys(names)))
        message = f"columns {twice} have the same name (they are the columns {listed})"
    else:
        message = f"column {names[0]!r} appears {len(numbers)} times (as column {listed})"
    hint = "Column names are not case-sensitive. Give each column a different name."
    return DataError(message, hint=hint, place=file.name)


def pick(lines: Iterator[int], rows: Iterator[int]) -> Iterator[int | None]:
    """Yield the lines of the rows in `rows` (in order), from the lines of all rows."""
    numbered = enumerate(lines)
    for row in rows:
        yield next((line for number, line in numbered if number == row), None)
