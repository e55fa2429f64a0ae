"""The interface of file formats: names, batches of raw columns, and the position of a row in the file."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

import pyarrow as pa

from gridmill.domain.frozen import dataclass
from gridmill.errors import DataError
from gridmill.jobs.sink.files import SourceFile

Seen: TypeAlias = Callable[[int], None]
"""Receives the number of bytes of the file that have been read so far."""


Types: TypeAlias = Mapping[str, pa.DataType]
"""Types of columns by their names in the file."""


NUMBERS = b"gridmill.numbers"
"""The key in a column's metadata for texts that are numbers. They are texts because no type can represent all
of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTypes:
    """A request to read typed values.

    `types` are the types of columns, by the columns' names in the file. A text format may return values of
    these types directly if that is faster. The values of `inferred` columns must look like numbers without
    leading zeros.
    """

    types: Types
    inferred: frozenset[str] = frozenset()


class UnexpectedTypeError(Exception):
    """A value does not have the expected type. The file is then read again as text."""


class Reader(Protocol):
    """Reads one source file.

    Raw columns are text (CSV) or have the format's own types. Missing values are null.
    """

    file: SourceFile

    def names(self) -> tuple[str, ...] | None:
        """Return the columns; None if they are known only after reading the whole file. Raises DataError."""

    def batches(
        self, columns: tuple[str, ...] | None, seen: Seen, haste: ExpectedTypes | None = None
    ) -> Iterator[pa.Table]:
        """Yield all rows in order, with limited memory; with `columns`, only these columns. Raises DataError.

        A batch may lack a column in which it has no value (JSON lines). With `haste`, a text format may
        return typed values if that is faster. It then raises UnexpectedTypeError for a value that does not
        have its type. Other formats may return dictionary-encoded texts.
        """

    def lines(self, rows: Iterator[int]) -> Iterator[int | None]:
        """Yield the line at which each row (from 0, in order) begins; None if the format has no lines.

        This reads the file again, once.
        """


def place_of(reader: Reader, row: int) -> str:
    """Return `FILE:LINE` of a row (from 0). If the format has no lines, the number of the row (from 1)
    replaces the line.

    This reads the file again.
    """
    line = next(reader.lines(iter([row])), None)
    return f"{reader.file.name}: row {row + 1}" if line is None else f"{reader.file.name}:{line}"


def check_names(file: SourceFile, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names unchanged. Raises DataError for duplicates (column names are not case-sensitive)."""
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
        message = (
            f"columns {' and '.join(map(repr, dict.fromkeys(names)))} have the same name (columns {listed})"
        )
    else:
        message = f"column {names[0]!r} appears {len(numbers)} times (columns {listed})"
    hint = "Column names are not case-sensitive. Give each column a different name."
    return DataError(message, hint=hint, place=file.name)


def pick(lines: Iterator[int], rows: Iterator[int]) -> Iterator[int | None]:
    """Yield the lines of some rows (in order), from the lines of all rows."""
    numbered = enumerate(lines)
    for row in rows:
        yield next((line for number, line in numbered if number == row), None)
