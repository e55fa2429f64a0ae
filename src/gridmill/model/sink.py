"""Declaration of a sink."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gridmill.errors import InputError
from gridmill.model.source import FileSource


class ColumnType(StrEnum):
    """Types a column can be declared as."""

    STRING = "string"
    INTEGER = "integer"
    FLOAT = "float"
    BOOLEAN = "boolean"
    DATE = "date"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSpec:
    """A table loaded from sources: appended to, versioned, each source file exactly once.

    `rename` maps source names to table names and applies first; `select` keeps and orders columns;
    `columns` gives types (others are inferred over the whole of the files); `add` adds columns of one text
    each. A changed source file replaces its rows; a changed declaration loads the table anew.
    """

    source: FileSource
    columns: Mapping[str, ColumnType] = field(default_factory=dict)
    select: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    add: Mapping[str, str] = field(default_factory=dict)

    def references(self) -> tuple[str, ...]:
        """A sink reads sources, no other job."""
        return ()

    def check(self) -> None:
        """Raise InputError for a column selected, renamed to or added twice."""
        for name, columns in (("select", self.select), ("rename", tuple(self.rename.values()))):
            twice = sorted({column for column in columns if columns.count(column) > 1})
            if twice:
                raise InputError(f"column {twice[0]!r} is named twice", place=f"sink.{name}")
        both = sorted({*self.add} & {*self.select, *self.rename.values()})
        if both:
            raise InputError(f"column {both[0]!r} is added and read from the source", place="sink.add")
