"""Infers the type of each column from every value in every file, so that no later value needs another
type."""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import field, replace

import pyarrow as pa
import pyarrow.compute as pc

from gridmill.domain.frozen import dataclass
from gridmill.domain.sink import ColumnType
from gridmill.errors import DataError
from gridmill.jobs.sink.convert import (
    ARROW,
    TIMESTAMP,
    TextRules,
    are_plain,
    as_texts,
    fits,
    is_missing,
    is_nested,
    is_text,
    lost,
    plain,
    trimmed,
)
from gridmill.jobs.sink.form_detection import FormCandidates
from gridmill.jobs.sink.formats import NUMBERS
from gridmill.jobs.sink.lossless import has_keys
from gridmill.jobs.sink.value_forms import MARKS, Form, as_plain

PREFERENCE = (
    ColumnType.INTEGER,
    ColumnType.FLOAT,
    ColumnType.BOOLEAN,
    ColumnType.DATE,
    ColumnType.TIMESTAMP,
    ColumnType.STRING,
)
"""The types in the order in which they are tried. A column gets the first type that fits all its values."""

_LARGEST = str(2**63 - 1)
_TIMES = (ColumnType.DATE, ColumnType.TIMESTAMP, ColumnType.STRING)
_NUMBERS = (ColumnType.INTEGER, ColumnType.FLOAT)


@dataclass(slots=True)
class TypeGuess:
    """The types that are still possible for a column, or None before its first value.

    `keys` means that all values of the column are numbers, but a number begins with a zero. `narrowing`
    contains the forms that are still possible for the texts of the column.
    """

    narrowing: FormCandidates = field(default_factory=FormCandidates)
    possible: tuple[ColumnType, ...] | None = None
    nested: pa.DataType | None = None
    keys: bool = False

    @property
    def best(self) -> ColumnType:
        """Return the first type with which all values of the column can be read. If there is no such type,
        return the type text."""
        left = self.narrowing.left(MARKS)
        mark = left[0] if left else Form.POINT
        for type_ in self.possible or (ColumnType.STRING,):
            if type_ != ColumnType.INTEGER or mark in self.narrowing.whole:
                return type_
        return ColumnType.STRING

    @property
    def is_key(self) -> bool:
        """Return whether the column has the type text only because numbers in it begin with a zero."""
        return self.keys and self.possible == (ColumnType.STRING,)


@dataclass(slots=True)
class TypeGuesses:
    """The types that are still possible for all columns. Each batch of rows excludes the types that do not
    fit its values.

    `any_text` means that a text may contain a number, not only a time (CSV). `rules_of` returns the rules by
    which the texts of a column are read. For the columns in `declared`, batches exclude only forms of texts.
    """

    rules: TextRules
    rules_of: Callable[[str], TextRules] | None = None
    declared: Mapping[str, ColumnType] = field(default_factory=dict)
    any_text: bool = False
    of: dict[str, TypeGuess] = field(default_factory=dict)
    declared_of: dict[str, FormCandidates] = field(default_factory=dict)

    def begin(self, *, any_text: bool) -> None:
        """Record that the next batches come from another file."""
        self.any_text = any_text

    def see(self, table: pa.Table, skip: Container[str] = ()) -> None:
        """Exclude the types that do not fit the values of another batch. Raises DataError for a column that
        has both plain and nested values."""
        self.expect(table.column_names)
        for name in table.column_names:
            if name not in skip:
                self._narrow(name, table[name], NUMBERS in (table.schema.field(name).metadata or {}))

    def see_declared(self, table: pa.Table) -> None:
        """Exclude forms of texts in the columns whose types are declared."""
        for name in table.column_names:
            if name in self.declared:
                self._narrow_declared(name, table[name])

    def expect(self, names: Iterable[str]) -> None:
        """Add columns that exist even if they have no value."""
        for name in names:
            self._guess(name)

    def _guess(self, name: str) -> TypeGuess:
        if name not in self.of:
            self.of[name] = TypeGuess(narrowing=FormCandidates(forms=self._rules(name).known))
        return self.of[name]

    def _rules(self, name: str) -> TextRules:
        return self.rules_of(name) if self.rules_of is not None else self.rules

    def keep_texts(self, but: str) -> None:
        """Give the type text to all columns with values, whatever the values look like, except the column
        that `but` names."""
        for name, guess in self.of.items():
            if name != but and guess.possible is not None:
                guess.possible = (ColumnType.STRING,)

    def _narrow(self, name: str, column: pa.ChunkedArray, numbers: bool) -> None:
        guess = self._guess(name)
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
        rules = self._rules(name)
        if self.any_text and is_missing(column, rules.nulls):
            return
        texts = TextBatch(column, rules, possible, self.any_text or numbers, guess.narrowing)
        guess.possible = tuple(type_ for type_ in possible if texts.can_be(type_))
        guess.keys = guess.keys or texts.keys

    def _narrow_declared(self, name: str, column: pa.ChunkedArray) -> None:
        """Exclude text forms for a column with a declared type. Texts that do not have the declared type are
        ignored."""
        type_, rules = self.declared[name], self._rules(name)
        if name not in self.declared_of:
            self.declared_of[name] = FormCandidates(forms=rules.known, declared=True)
        narrowing = self.declared_of[name]
        texts = as_texts(column, ARROW[type_])
        if texts is None or rules.time_format is not None:
            return
        fitting = fits(texts, ARROW[type_], replace(rules, forms=None))
        texts = trimmed(texts, rules.nulls)
        if type_ in _TIMES:
            if not fitting:
                narrowing.see_times(texts)
            elif type_ == ColumnType.TIMESTAMP:
                narrowing.see_zones(texts)
        elif not fitting:
            narrowing.see_numbers(texts)
        elif type_ == ColumnType.FLOAT:
            narrowing.see_plain_numbers(texts)


@dataclass(slots=True)
class TextBatch:
    """A batch of texts in a column.

    `numbers` means that the texts may be numbers, not only times. `keys` has the same meaning as in
    TypeGuess.
    """

    column: pa.ChunkedArray
    rules: TextRules
    possible: tuple[ColumnType, ...]
    numbers: bool
    narrowing: FormCandidates
    keys: bool = False
    _numbers: "_NumberBatch | None" = None
    _times: tuple[bool, bool] | None = None

    def can_be(self, type_: ColumnType) -> bool:
        """Return whether every text can be read with this type without losing information."""
        if type_ == ColumnType.STRING:
            return True
        if type_ in _TIMES:
            return self._is_time(type_)
        if not self.numbers:
            return False
        return self._is_number(type_) if type_ in _NUMBERS else fits(self.column, ARROW[type_], self.rules)

    def _is_time(self, type_: ColumnType) -> bool:
        target = ARROW[type_]
        if self.rules.time_format is not None:
            return fits(self.column, target, self.rules) and not lost(self.column, target, self.rules)[1]
        if self._times is None:
            self._times = self._seen_times()
        are_times, are_dates = self._times
        return are_dates if type_ == ColumnType.DATE else are_times

    def _seen_times(self) -> tuple[bool, bool]:
        """Return whether all texts are times, and whether all of them are dates without a time of day."""
        texts = trimmed(self.column, self.rules.nulls)
        if ColumnType.DATE in self.possible and are_plain(texts, pa.date32()):
            return True, True
        if are_plain(texts, TIMESTAMP):
            self.narrowing.see_zones(texts)
            return True, False
        return self.narrowing.see_times(texts)

    def _is_number(self, type_: ColumnType) -> bool:
        numbers = self._as_numbers()
        if numbers.texts is None:
            return False
        if numbers.keys:
            self.keys = True
            return False
        if type_ == ColumnType.INTEGER:
            return numbers.whole
        return numbers.floats and not _has_long(numbers.texts)

    def _as_numbers(self) -> "_NumberBatch":
        if self._numbers is None:
            self._numbers = self._seen_numbers()
            if self._numbers.texts is not None:
                self._numbers.keys = has_keys(self._numbers.texts)
        return self._numbers

    def _seen_numbers(self) -> "_NumberBatch":
        texts = trimmed(self.column, self.rules.nulls)
        if ColumnType.INTEGER in self.possible and are_plain(texts, pa.int64()):
            return _NumberBatch(texts, whole=True)
        is_plain = are_plain(texts, pa.float64())
        if is_plain:
            self.narrowing.whole.discard(Form.POINT)
            self.narrowing.see_plain_numbers(texts)
        elif not self.narrowing.see_numbers(texts):
            return _NumberBatch(None)
        left = self.narrowing.left(MARKS)
        if not left:
            return _NumberBatch(None)
        whole = [mark for mark in left if mark in self.narrowing.whole]
        integers = bool(whole) and are_plain(as_plain(texts, whole[0], declared=False), pa.int64())
        if is_plain and Form.POINT in left:
            return _NumberBatch(texts, whole=integers)
        numbers = as_plain(texts, left[0], declared=False)
        return _NumberBatch(numbers, whole=integers, floats=are_plain(numbers, pa.float64()))


@dataclass(slots=True)
class _NumberBatch:
    """Texts as plain numbers. In this object, the number of a text that is not a number is None.

    The object shows whether all numbers are `whole`, whether all numbers are `floats`, and whether a number
    looks like a key.
    """

    texts: pa.ChunkedArray | None
    whole: bool = False
    floats: bool = True
    keys: bool = False


def _has_long(column: pa.ChunkedArray) -> bool:
    """Return whether any text is a whole number that does not fit into a 64-bit integer.

    As a float, a number that is too long for an integer would lose digits, and different numbers would
    become equal.
    """
    texts = plain(column)
    if (pc.max(pc.binary_length(texts)).as_py() or 0) < len(_LARGEST):
        return False
    whole = pc.utf8_ltrim(pc.utf8_trim(texts, " "), "+-0")
    long = pc.filter(whole, pc.match_substring_regex(whole, rf"^[0-9]{{{len(_LARGEST)},}}$"))
    return any((len(one), one) > (len(_LARGEST), _LARGEST) for one in pc.unique(long).to_pylist())


def _unified(name: str, guess: TypeGuess, kind: pa.DataType) -> pa.DataType:
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
    return DataError(f"column {name!r} holds both plain and nested values", hint="Exclude it with `select`.")


def natures(kind: pa.DataType) -> tuple[ColumnType, ...]:
    """Return the types with which a column of this Arrow type can be read, the best type first."""
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


def see_types(guesses: TypeGuesses, schema: pa.Schema) -> None:
    """Exclude the types that do not fit the types which the file itself defines (Parquet). Raises DataError
    for a column that has both plain and nested values."""
    for item in schema:
        kind = item.type.value_type if pa.types.is_dictionary(item.type) else item.type
        guesses.expect([item.name])
        guess = guesses.of[item.name]
        if pa.types.is_null(kind):
            continue
        if is_nested(kind):
            guess.nested = _unified(item.name, guess, kind)
        elif guess.nested is not None:
            raise _mixed(item.name)
        else:
            possible = natures(kind)
            guess.possible = tuple(type_ for type_ in guess.possible or PREFERENCE if type_ in possible)


def chosen_types(guesses: Mapping[str, TypeGuess]) -> dict[str, pa.DataType | None]:
    """Return the type that was chosen for each column. A column without any value becomes text, because all
    later values can be stored as text."""
    return {name: guess.nested or ARROW[guess.best] for name, guess in guesses.items()}
