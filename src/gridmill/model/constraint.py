"""A constraint on a sink: what each of its rows must keep to."""

import re
from collections.abc import Iterator

from gridmill.errors import InputError
from gridmill.model.noun import dataclass

Bound = int | float | str

_ONE_OF = ("column", "unique", "foreign_key", "expression")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """Exactly one of `column`, `unique`, `foreign_key`, `expression` is given.

    `column` with `required` (no missing value), `min`, `max` (both inclusive; times in ISO 8601), `allowed`
    and `pattern` (RE2, over the whole of a text). `unique`: columns whose values together appear once, in the
    load and in the table; the first row stays. `foreign_key`: columns whose values are in the sink
    `references`, in its columns `referenced` (default: the same names). `expression`: DuckDB's SQL over the
    row. A missing value breaks `required` only. `name` is what reports call it (default: in words).
    """

    name: str | None = None
    column: str | None = None
    required: bool = False
    min: Bound | None = None
    max: Bound | None = None
    allowed: tuple[str | int | float | bool, ...] = ()
    pattern: str | None = None
    unique: tuple[str, ...] = ()
    foreign_key: tuple[str, ...] = ()
    references: str | None = None
    referenced: tuple[str, ...] = ()
    expression: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it names; an expression's are in its text."""
        return (self.column,) if self.column else self.unique or self.foreign_key

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the other sink."""
        return self.referenced or self.foreign_key

    def rules(self) -> Iterator[tuple[str, str]]:
        """Which tests it makes, each with the reason that a rejected row is given."""
        if self.column:
            yield from self._column_rules(self.column)
        elif self.unique:
            yield "unique", self.name or f"{', '.join(self.unique)}: there before"
        elif self.foreign_key:
            yield "foreign_key", self.name or f"{', '.join(self.foreign_key)}: not in {self.references}"
        else:
            yield "expression", self.name or f"not ({self.expression})"

    def _column_rules(self, column: str) -> Iterator[tuple[str, str]]:
        if self.required:
            yield "required", self.name or f"{column}: missing"
        if self.min is not None:
            yield "min", self.name or f"{column}: less than {self.min}"
        if self.max is not None:
            yield "max", self.name or f"{column}: more than {self.max}"
        if self.allowed:
            yield "allowed", self.name or f"{column}: not one of {_listed(self.allowed)}"
        if self.pattern is not None:
            yield "pattern", self.name or f"{column}: not like {self.pattern}"

    def check(self) -> None:
        """Raise InputError for none or several kinds, for nothing asked, and for what is no pattern."""
        given = [name for name in _ONE_OF if getattr(self, name)]
        if len(given) != 1:
            named = " and ".join(given) or "none"
            raise InputError(
                f"a constraint has one of {', '.join(_ONE_OF)}; this has {named}", place="constraint."
            )
        if self.foreign_key and not self.references:
            raise InputError("a foreign key needs the sink it `references`", place="constraint.foreign_key")
        if self.references and len(self.keys) != len(self.foreign_key):
            raise InputError(
                "`referenced` names as many columns as `foreign_key`", place="constraint.referenced"
            )
        self._check_column()

    def _check_column(self) -> None:
        rules = [rule for rule, _ in self._column_rules(self.column or "")]
        if self.column and not rules:
            raise InputError(
                f"nothing is asked of column {self.column!r}",
                hint="Give it required, min, max, allowed or pattern.",
                place="constraint.column",
            )
        if rules and not self.column:
            raise InputError(f"`{rules[0]}` is for a `column`", place=f"constraint.{rules[0]}")
        if isinstance(self.min, int | float) and isinstance(self.max, int | float) and self.min > self.max:
            raise InputError("`min` is more than `max`", place="constraint.min")
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            raise InputError(
                f"{self.pattern!r} is no pattern: {error}", place="constraint.pattern"
            ) from error


def _listed(values: tuple[object, ...]) -> str:
    more = f", ... {len(values) - 5} more" if len(values) > 5 else ""
    return ", ".join(str(value) for value in values[:5]) + more
