"""The type of each column from every value of every file, so that no later value can surprise."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from gridmill.errors import DataError
from gridmill.jobs.sink.convert import ARROW, TextRules, fits, is_missing, is_nested, is_text, plain, trimmed
from gridmill.jobs.sink.exact import has_keys
from gridmill.jobs.sink.reading import NUMBERS
from gridmill.model.sink import ColumnType

PREFERENCE = (
    ColumnType.INTEGER,
    ColumnType.FLOAT,
    ColumnType.BOOLEAN,
    ColumnType.DATE,
    ColumnType.TIMESTAMP,
    ColumnType.STRING,
)
"""A column gets the first of these that all its values can be read as."""

_LARGEST = str(2**63 - 1)
_TIMES = (ColumnType.DATE, ColumnType.TIMESTAMP, ColumnType.STRING)


@dataclass(slots=True)
class Guess:
    """What a column can still be; None until a value was seen. `keys`: it would be numbers, but one of them
    begins with a zero."""

    possible: tuple[ColumnType, ...] | None = None
    nested: pa.DataType | None = None
    keys: bool = False

    @property
    def is_key(self) -> bool:
        """Whether it is text only since numbers in it begin with a zero."""
        return self.keys and self.possible == (ColumnType.STRING,)


@dataclass(slots=True)
class Guesses:
    """Guesses by column, narrowed batch by batch. `any_text`: text may hold numbers, not only times (CSV)."""

    rules: TextRules
    any_text: bool = False
    of: dict[str, Guess] = field(default_factory=dict)

    def begin(self, *, any_text: bool) -> None:
        """What follows is from another file."""
        self.any_text = any_text

    def see(self, table: pa.Table, skip: Container[str] = ()) -> None:
        """Narrow by another batch. Raises DataError for a column of several natures."""
        self.expect(table.column_names)
        for name in table.column_names:
            if name not in skip:
                self._narrow(name, table[name], NUMBERS in (table.schema.field(name).metadata or {}))

    def expect(self, names: Iterable[str]) -> None:
        """Columns that are there even when no value is."""
        for name in names:
            self.of.setdefault(name, Guess())

    def keep_texts(self, but: str) -> None:
        """Leave columns with values as texts, whatever these look like, all but one."""
        for name, guess in self.of.items():
            if name != but and guess.possible is not None:
                guess.possible = (ColumnType.STRING,)

    def _narrow(self, name: str, column: pa.ChunkedArray, numbers: bool) -> None:
        guess = self.of.setdefault(name, Guess())
        if column.null_count == len(column):
            return
        if is_nested(column.type):
            guess.nested = _unified(name, guess, column.type)
            return
        if guess.nested is not None:
            raise _mixed(name)
        possible = guess.possible or PREFERENCE
        kind = plain(column).type
        if not is_text(kind):
            known = natures(kind)
            guess.possible = tuple(type_ for type_ in possible if type_ in known)
            return
        if self.any_text and is_missing(column, self.rules.nulls):
            return
        texts = Texts(column=column, rules=self.rules, numbers=self.any_text or numbers)
        guess.possible = tuple(type_ for type_ in possible if texts.can_be(type_))
        guess.keys = guess.keys or texts.keys


@dataclass(slots=True)
class Texts:
    """A batch of texts. `numbers`: they may be numbers, not only times. `keys` as in a Guess."""

    column: pa.ChunkedArray
    rules: TextRules
    numbers: bool
    keys: bool = False

    def can_be(self, type_: ColumnType) -> bool:
        """Whether every text can be read as that type, and none loses anything."""
        if type_ == ColumnType.STRING:
            return True
        if not (self.numbers or type_ in _TIMES) or not fits(self.column, ARROW[type_], self.rules):
            return False
        if type_ not in (ColumnType.INTEGER, ColumnType.FLOAT):
            return True
        if has_keys(trimmed(self.column, self.rules.nulls)):
            self.keys = True
            return False
        return type_ == ColumnType.INTEGER or not _has_long(self.column)


def _has_long(column: pa.ChunkedArray) -> bool:
    """Whether one is a whole number that no integer holds: as a float it would lose digits, and be equal to
    its neighbours."""
    texts = plain(column)
    if (pc.max(pc.binary_length(texts)).as_py() or 0) < len(_LARGEST):
        return False
    whole = pc.utf8_ltrim(pc.utf8_trim(texts, " "), "+-0")
    long = pc.filter(whole, pc.match_substring_regex(whole, rf"^[0-9]{{{len(_LARGEST)},}}$"))
    return any((len(one), one) > (len(_LARGEST), _LARGEST) for one in pc.unique(long).to_pylist())


def _unified(name: str, guess: Guess, kind: pa.DataType) -> pa.DataType:
    if guess.possible is not None:
        raise _mixed(name)
    if guess.nested is None:
        return kind
    try:
        schemas = [pa.schema([(name, one)]) for one in (guess.nested, kind)]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise DataError(f"column {name!r} holds values that have no common type: {error}") from error


def _mixed(name: str) -> DataError:
    return DataError(
        f"column {name!r} holds both plain and nested values", hint="Leave it out with `select`."
    )


def natures(kind: pa.DataType) -> tuple[ColumnType, ...]:
    """What a column of that Arrow type can be read as, best first."""
    if pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale <= 0):
        return (ColumnType.INTEGER, ColumnType.FLOAT, ColumnType.STRING)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return (ColumnType.FLOAT, ColumnType.STRING)
    if pa.types.is_boolean(kind):
        return (ColumnType.BOOLEAN, ColumnType.STRING)
    if pa.types.is_date(kind):
        return _TIMES
    if pa.types.is_timestamp(kind):
        return (ColumnType.TIMESTAMP, ColumnType.STRING)
    return (ColumnType.STRING,)


def see_types(guesses: Guesses, schema: pa.Schema) -> None:
    """Narrow by declared types alone (Parquet). Raises DataError for a column of several natures."""
    for item in schema:
        kind = item.type.value_type if pa.types.is_dictionary(item.type) else item.type
        guess = guesses.of.setdefault(item.name, Guess())
        if pa.types.is_null(kind):
            continue
        if is_nested(kind):
            guess.nested = _unified(item.name, guess, kind)
        elif guess.nested is not None:
            raise _mixed(item.name)
        else:
            known = natures(kind)
            guess.possible = tuple(type_ for type_ in guess.possible or PREFERENCE if type_ in known)


def found_types(guesses: Mapping[str, Guess]) -> dict[str, pa.DataType | None]:
    """The type chosen for each column; one without any value is text, which whatever comes later fits."""
    return {name: guess.nested or ARROW[_best(guess)] for name, guess in guesses.items()}


def _best(guess: Guess) -> ColumnType:
    return (guess.possible or (ColumnType.STRING,))[0]
