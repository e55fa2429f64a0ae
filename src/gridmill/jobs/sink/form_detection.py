"""Detects the forms in which numbers and times are written in the texts of a column. Every text excludes the
forms that do not fit it, until only one form of each family remains."""

from dataclasses import field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.domain.frozen import dataclass
from gridmill.jobs.sink.dates import DateReadings, Mask, as_mask, distinct
from gridmill.jobs.sink.value_forms import (
    ANY,
    MARKS,
    NOT_A_NUMBER,
    ORDERS,
    UNITS,
    Form,
    Forms,
    as_plain,
    is_ambiguous,
)

_ZONE = r"[T ].*(?:[Zz]|[+-]\d{2}(?::?\d{2})?)$"
_LOOK_FIRST = 20
"""The number of texts that are tested first. Most text columns contain no times, so the other texts need no
test."""


@dataclass(slots=True)
class FormCandidates:
    """The forms that are still possible for the texts of a column.

    `declared` means that the type of the column is declared. If `declared` is true, texts that do not have
    the declared type are ignored. `written` means that Arrow cannot read at least one text directly.
    `against` contains for each excluded form the text that excluded it. `opens` contains for each family of
    forms a text that has a different meaning in each form of the family. `short` is a date whose year has
    two digits. `zoned` means that the column has ISO 8601 times with a time zone. `whole` contains the
    decimal separators with which all numbers of the column would be whole numbers.
    """

    forms: Forms = ANY
    declared: bool = False
    written: bool = False
    against: dict[Form, str] = field(default_factory=dict)
    opens: dict[tuple[Form, ...], str] = field(default_factory=dict)
    whole: set[Form] = field(default_factory=lambda: set(MARKS))
    short: str = ""
    zoned: bool = False

    def left(self, family: tuple[Form, ...]) -> tuple[Form, ...]:
        """Return the forms of a family that are still possible."""
        return tuple(form for form in family if form in self.forms)

    def see_plain_numbers(self, texts: pa.ChunkedArray) -> None:
        """Exclude forms that do not fit numbers which Arrow can read.

        Most numbers with a decimal point cannot be read as numbers with a decimal comma.
        """
        if Form.COMMA in self.forms:
            self._see_numbers(texts)

    def see_numbers(self, texts: pa.ChunkedArray) -> bool:
        """Exclude forms that do not fit these texts. Return whether all texts are numbers with a decimal
        separator that is still possible."""
        are_numbers = self._see_numbers(texts)
        self.written = self.written or are_numbers
        return are_numbers and bool(self.left(MARKS))

    def _see_numbers(self, texts: pa.ChunkedArray) -> bool:
        if not self.declared and not _are_numbers(_first_few(texts)):
            return False
        different, _ = distinct(texts)
        column = pa.chunked_array([different])
        plain = {mark: as_plain(column, mark, declared=self.declared) for mark in MARKS}
        ok = {mark: as_mask(pc.not_equal(numbers, NOT_A_NUMBER)) for mark, numbers in plain.items()}
        numbers = ok[Form.POINT] | ok[Form.COMMA]
        if not (numbers.any() if self.declared else numbers.all()):
            return False
        for mark in MARKS:
            self._rule_out(mark, numbers & ~ok[mark], different)
            if mark in self.whole and as_mask(pc.match_substring_regex(plain[mark], r"[.eEnN]")).any():
                self.whole.discard(mark)
        either = as_mask(is_ambiguous(column))
        if either.any():
            self.opens.setdefault(MARKS, _first(different, either))
        return True

    def see_times(self, texts: pa.ChunkedArray) -> tuple[bool, bool]:
        """Exclude forms that do not fit these texts. Return whether all texts are times, and whether all
        times are dates without a time of day."""
        if not self.declared and not _are_times(DateReadings(_first_few(texts), False)).all():
            return False, False
        different, _ = distinct(texts)
        readings = DateReadings(different, self.declared)
        times = _are_times(readings)
        if not (times.any() if self.declared else times.all()):
            return False, False
        self.written = True
        for family in (ORDERS, UNITS):
            self._narrow_times(readings, family, different)
        if readings.short.any() and not self.short:
            self.short = _first(different, readings.short)
        timed = readings.plain.timed & readings.plain.ok
        timed = np.logical_or.reduce([timed, *(form.timed & form.ok for form in readings.forms.values())])
        return True, not timed.any()

    def see_zones(self, texts: pa.ChunkedArray) -> None:
        """Record whether ISO 8601 times have a time zone. The method reads only the first times, because
        these times show whether the column has time zones."""
        self.zoned = self.zoned or bool(pc.any(pc.match_substring_regex(_first_few(texts), _ZONE)).as_py())

    def _narrow_times(self, readings: DateReadings, family: tuple[Form, ...], texts: pa.StringArray) -> None:
        mine = readings.by(family)
        if not mine.any():
            return
        for form in family:
            self._rule_out(form, mine & ~readings.forms[form].ok, texts)
        for one in family:
            for other in family:
                both = readings.forms[one].ok & readings.forms[other].ok
                differ = both & (readings.forms[one].micros != readings.forms[other].micros)
                if differ.any():
                    self.opens.setdefault(family, _first(texts, differ))

    def _rule_out(self, form: Form, bad: Mask, texts: pa.StringArray) -> None:
        if bad.any():
            self.against.setdefault(form, _first(texts, bad))
            self.forms -= {form}


def _first_few(texts: pa.ChunkedArray) -> pa.StringArray:
    return pc.unique(pc.drop_null(texts.slice(0, 5 * _LOOK_FIRST)))[:_LOOK_FIRST]


def _are_numbers(texts: pa.StringArray) -> bool:
    column = pa.chunked_array([texts])
    none = [pc.equal(as_plain(column, mark, declared=False), NOT_A_NUMBER) for mark in MARKS]
    return not pc.any(pc.and_(*none)).as_py()


def _are_times(readings: DateReadings) -> Mask:
    times: Mask = readings.plain.ok | readings.by(ORDERS) | readings.by(UNITS) | readings.short
    return times


def _first(texts: pa.StringArray, where: Mask) -> str:
    return str(texts[int(np.flatnonzero(where)[0])].as_py())
