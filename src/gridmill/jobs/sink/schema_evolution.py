"""Determines how the columns of a table change when a new file has other columns, and maps the columns of
files to the columns of the table.

The functions of this module have no side effects. If a file has new columns, they are added to the table,
and earlier rows have no value in them. If necessary, columns of whole numbers become floats, and columns of
dates become times. A column that has no value yet gets the type of its first values. Gridmill makes no other
change of the columns automatically.
"""

from collections.abc import Container, Iterable, Mapping, Sequence

import pyarrow as pa

from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import suggestion
from gridmill.domain.sink import ColumnType, SinkSpec
from gridmill.errors import DataError
from gridmill.jobs.sink.convert import ARROW, TIMESTAMP, MisfitError, TextRules, convert

WIDER: Mapping[pa.DataType, pa.DataType] = {pa.int64(): pa.float64(), pa.date32(): TIMESTAMP}


def evolve(
    table: pa.Schema,
    new_types: Mapping[str, pa.DataType | None],
    fixed: Mapping[str, object],
    untold: Container[str] = (),
) -> pa.Schema:
    """Return the columns of the table after files are loaded. `new_types` contains the columns of these
    files with their types, and the type None means a column without any value.

    The columns that `fixed` names keep their type. The columns that `untold` names have no value in the
    table. If no change is possible, return the columns unchanged.
    """
    kept = [
        (item.name, new_types.get(item.name) or item.type)
        if item.name in untold
        else (item.name, _widened(item, new_types.get(item.name), item.name in fixed))
        for item in table
    ]
    existing = {name for name, _ in kept}
    added = [(name, kind or pa.string()) for name, kind in new_types.items() if name not in existing]
    return pa.schema([*kept, *added])


def _widened(item: pa.Field, new_type: pa.DataType | None, fixed: bool) -> pa.DataType:
    return new_type if new_type is not None and not fixed and WIDER.get(item.type) == new_type else item.type


def widened(before: pa.Schema, after: pa.Schema) -> tuple[str, ...]:
    """Return the columns whose existing rows must be converted to another type."""
    return tuple(item.name for item in before if after.field(item.name).type != item.type)


_SAME = "Column names are not case-sensitive: `rename` one of them."


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMapping:
    """Maps the columns of source files to the columns of the table, so that `source[i]` becomes `table[i]`.

    If `source` is None, all columns of the file are used.
    """

    spec: SinkSpec

    def sources(self, names: Sequence[str], place: str) -> tuple[str, ...]:
        """Return the source columns to read, in the order of the table. Raises DataError if a source column
        does not exist."""
        for old in self.spec.rename:
            _check(old, names, place, "rename")
        by_name = {self.rename(name): name for name in names}
        for name in self.spec.select:
            _check(name, by_name, place, "select")
        chosen = self.spec.select or [self.rename(name) for name in names]
        self.check_names(chosen, place)
        return tuple(by_name[name] for name in chosen)

    def check_names(self, names: Iterable[str], place: str) -> None:
        """Raise DataError if two columns of the table would have the same name, or if a column name is
        empty. `names` are the columns that are read."""
        columns_by_name: dict[str, str] = {}
        for name in names:
            if not name.strip():
                raise DataError(
                    f"a column's name is empty: {name!r}",
                    hint=f"`rename: {{{name!r}: NAME}}` gives it a name.",
                    place=place,
                )
            if name.lower() in columns_by_name:
                raise DataError(f"two columns would have the name {name!r}", hint=_SAME, place=place)
            columns_by_name[name.lower()] = name
        for name in self.spec.add:
            if name.lower() in columns_by_name:
                raise DataError(
                    f"the file has a column {columns_by_name[name.lower()]!r}, but `add` adds the column "
                    f"{name!r}",
                    hint="Give the added column another name, or `rename` the column of the file.",
                    place=place,
                )

    def selected(self) -> tuple[str, ...] | None:
        """Return the source columns that the field `select` names. Return None if there is no `select`."""
        old = {new: name for name, new in self.spec.rename.items()}
        return tuple(old.get(name, name) for name in self.spec.select) or None

    def named(self) -> tuple[str, ...]:
        """Return all source columns that the declaration names."""
        old = {new: name for name, new in self.spec.rename.items()}
        names = (name for name in (*self.spec.columns, *self.spec.select) if name not in self.spec.add)
        return tuple(dict.fromkeys((*(old.get(name, name) for name in names), *self.spec.rename)))

    def texts(self) -> frozenset[str]:
        """Return the source columns that are declared as texts."""
        return self.declared(ColumnType.STRING)

    def declared(self, type_: ColumnType) -> frozenset[str]:
        """Return the source columns that are declared with the type `type_`."""
        return frozenset(self.sources_of(name for name, one in self.spec.columns.items() if one == type_))

    def sources_of(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the source columns from which some columns of the table are made. `names` contains the
        names of these columns of the table."""
        old = {new: name for name, new in self.spec.rename.items()}
        return tuple(old.get(name, name) for name in names)

    def rename(self, name: str) -> str:
        """Return the name that a source column has in the table."""
        return self.spec.rename.get(name, name)

    def renamed(self, table: pa.Table) -> pa.Table:
        """Return the batch with the column names of the table."""
        return table.rename_columns([self.rename(name) for name in table.column_names])

    def check_declared(self, names: Iterable[str], place: str) -> None:
        """Raise DataError if the declaration has a type for a column that does not exist in the table."""
        available = (*names, *self.spec.add)
        for name in self.spec.columns:
            _check(name, available, place, "columns")

    def constant(self, name: str, rules: TextRules) -> pa.Scalar:
        """Return the value of an added column, with the type of the column. Raises DataError."""
        type_ = self.spec.columns.get(name)
        text = pa.chunked_array([[self.spec.add[name]]], pa.string())
        try:
            return convert(text, ARROW[type_], rules)[0] if type_ else text[0]
        except MisfitError as error:
            raise DataError(
                f"{self.spec.add[name]!r} is not of type {type_}", place=f"sink.add.{name}"
            ) from error


def _check(name: str, names: Iterable[str], place: str, field: str) -> None:
    available = tuple(names)
    if name in available:
        return
    raise DataError(
        f"there is no column {name!r}, which `{field}` names",
        hint=f"The columns are {', '.join(available)}. {suggestion(name, available)}".rstrip(),
        place=place,
    )
