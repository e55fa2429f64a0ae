"""Parses texts as times. Some forms of dates have a single meaning, and other forms are ambiguous.

Every text is read in each possible way (`DateReadings`). The reading `plain` is for forms with a single
meaning, and each ambiguous `Form` has a reading of its own. Another module decides which form the texts of a
column have. A time without a zone is read as UTC.
"""

from collections.abc import Mapping
from dataclasses import field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gridmill.domain.frozen import dataclass
from gridmill.jobs.sink.value_forms import ORDERS, UNITS, Form

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_NAME = (
    r"(?P<name>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|"
    r"oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_WEEKDAY = (
    r"(?:(?P<weekday>mon(?:day)?|tue(?:s(?:day)?)?|wed(?:nesday)?|thu(?:r(?:s(?:day)?)?)?|fri(?:day)?|"
    r"sat(?:urday)?|sun(?:day)?)\.?,? +)?"
)
_DAY = r"(?P<day>\d{1,2})"
_YEAR = r"(?P<year>\d{4})"
_ZONE = r" ?(?P<zone>z|utc|gmt|ut|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?"
_CLOCK = (
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,](?P<fraction>\d+))?)?)?"
    r" ?(?P<half>[ap]\.?m\.?)?" + _ZONE
)
_TIME = rf"(?:(?:,? *t|:|,? +(?:at +)?){_CLOCK})?$"
_BASIC = rf"t(?P<hour>\d{{2}})(?P<minute>\d{{2}})(?:(?P<second>\d{{2}})(?:[.,](?P<fraction>\d+))?)?{_ZONE}$"

_PLAIN = (
    rf"^{_YEAR}(?P<before>[-/])(?P<month>\d{{1,2}})(?P<after>[-/]){_DAY}{_TIME}",
    # two digits each, because with fewer digits the text may be a version number
    rf"^{_YEAR}\.(?P<month>\d{{2}})\.(?P<day>\d{{2}}){_TIME}",
    rf"^{_WEEKDAY}{_NAME}\.?[ -]+{_DAY}(?:st|nd|rd|th)?(?:,? +|-){_YEAR}{_TIME}",
    rf"^{_WEEKDAY}{_DAY}(?:st|nd|rd|th|\.)?(?P<before>[ /-]*){_NAME}\.?,?(?P<after>[ /-]*){_YEAR}{_TIME}",
    rf"^{_YEAR}(?P<before>[ /-]){_NAME}(?P<after>[ /-]){_DAY}{_TIME}",
    rf"^{_WEEKDAY}{_NAME} +{_DAY} +{_CLOCK} +{_YEAR}$",
    rf"^{_YEAR}-w(?P<week>\d{{2}})-(?P<number>[1-7]){_TIME}",
    rf"^{_YEAR}w(?P<week>\d{{2}})(?P<number>[1-7])(?:{_BASIC[:-1]})?$",
    rf"^{_YEAR}(?P<month>\d{{2}})(?P<day>\d{{2}}){_BASIC}",
)
_DECLARED = (rf"^{_YEAR}-(?P<ordinal>\d{{3}}){_TIME}",)
"""Forms of times that texts which are not times can have too. Texts in these forms are times only if the
column is declared as times."""
_ORDERED = rf"^(?P<one>\d{{1,2}})(?P<before>[-/.])(?P<other>\d{{1,2}})(?P<after>[-/.]){_YEAR}{_TIME}"
_SHORT = (
    r"^\d{1,2}([-/.])\d{1,2}[-/.]\d{2}(?:[ t,].*)?$",
    rf"^\d{{1,2}}[ /-]*{_NAME}\.?,?[ /-]*'?\d{{2}}(?:[ ,].*)?$",
    rf"^{_NAME}\.? +\d{{1,2}},? +'?\d{{2}}$",
)
"""Forms of dates whose years have two digits."""
_COMPACT = (
    r"^(?P<year>(?:19|20)\d{2})(?P<month>\d{2})(?P<day>\d{2})"
    r"(?:(?P<hour>\d{2})(?P<minute>\d{2})(?P<second>\d{2})?)?$"
)
_COUNT = r"^(?P<sign>-?)(?P<whole>\d+)(?:\.(?P<fraction>\d+))?$"
_UNITS: Mapping[Form, tuple[int, int]] = {
    Form.SECONDS: (9, 10**6),
    Form.MILLISECONDS: (12, 10**3),
    Form.MICROSECONDS: (15, 1),
    Form.NANOSECONDS: (18, 0),
}
"""For each time unit, the smallest number of digits of a time between 1973 and 2286, and the length of the
unit in microseconds."""
_LARGEST = str(2**63 - 1)
_MOST_BYTES = 64
"""The length in bytes of the longest text that can be a time."""
_DAY_MICROSECONDS = 24 * 3600 * 10**6
_LIMITS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The first and the last time of the years 1 to 9999."""


@dataclass(slots=True)
class DateReading:
    """A way to read the texts as times: microseconds since 1970 for the texts for which `ok` is true.
    `timed` means that the texts contain a time of day."""

    micros: Numbers
    ok: Mask
    timed: Mask


@dataclass(slots=True)
class DateReadings:
    """All ways to read texts as times. The texts contain no null.

    `declared` means that the column is declared to contain times. A text can have a plain reading, several
    readings (by the order of its parts, or by its unit), or no reading. `short` is true for texts whose year
    has two digits.
    """

    texts: pa.StringArray
    declared: bool
    plain: DateReading = field(init=False)
    forms: dict[Form, DateReading] = field(default_factory=dict, init=False)
    short: Mask = field(init=False)

    def __post_init__(self) -> None:
        long = pc.greater(pc.binary_length(self.texts), _MOST_BYTES)
        self.texts = pc.utf8_lower(pc.if_else(long, "", self.texts))
        self.plain = self._first(_PLAIN + (_DECLARED if self.declared else ()))
        nothing = self._nothing()
        self.forms = dict.fromkeys((*ORDERS, *UNITS), nothing)
        self.short = np.zeros(len(self.texts), bool)
        if not self.plain.ok.all():
            self._read_ordered()
            if self.declared:
                self._read_numbers()
            for pattern in _SHORT:
                self.short |= as_mask(pc.match_substring_regex(self.texts, pattern))
            self.short &= ~self.plain.ok

    def by(self, family: tuple[Form, ...]) -> Mask:
        """Return whether each text can be read in a form of the family."""
        mask: Mask = np.logical_or.reduce([self.forms[form].ok for form in family])
        return mask

    def _nothing(self) -> DateReading:
        none = np.zeros(len(self.texts), bool)
        return DateReading(np.zeros(len(self.texts), np.int64), none, none)

    def _first(self, patterns: tuple[str, ...]) -> DateReading:
        """Return the reading of each text by the first pattern that fits it."""
        result = self._nothing()
        result = DateReading(result.micros, result.ok.copy(), result.timed.copy())
        for pattern in patterns:
            if result.ok.all():
                break
            _fill(result, _DateParts.of(self.texts, pattern).reading())
        return result

    def _read_ordered(self) -> None:
        parts = _DateParts.of(self.texts, _ORDERED)
        for form, (day, month) in zip(ORDERS, (("one", "other"), ("other", "one")), strict=True):
            self.forms[form] = parts.renamed({day: "day", month: "month"}).reading()

    def _read_numbers(self) -> None:
        self.forms[Form.DIGITS] = _DateParts.of(self.texts, _COMPACT).reading()
        parts = _DateParts.of(self.texts, _COUNT)
        for form, (digits, factor) in _UNITS.items():
            length = pc.binary_length(parts.groups["whole"]).to_numpy(zero_copy_only=False)
            ok = parts.there & ((length == digits) | (length == digits + 1)) & ~self._is_date_of_digits
            self.forms[form] = _counted(parts, ok, factor)

    @property
    def _is_date_of_digits(self) -> Mask:
        """Return whether each number of 8 or 14 digits is a date.

        Numbers of 8 or 14 digits are not read as seconds, because the seconds would be times in 1970 or
        after 2600.
        """
        length = pc.binary_length(self.texts)
        return self.forms[Form.DIGITS].ok & as_mask(pc.is_in(length, pa.array([8, 14], pa.int32())))


def _fill(reading: DateReading, more: DateReading) -> None:
    new = more.ok & ~reading.ok
    reading.micros = np.where(new, more.micros, reading.micros)
    reading.timed = np.where(new, more.timed, reading.timed)
    reading.ok = reading.ok | more.ok


def as_mask(array: pa.Array | pa.ChunkedArray) -> Mask:
    """Return for each value whether it is true. A null value counts as false."""
    mask: Mask = pc.fill_null(array, False).to_numpy(zero_copy_only=False)
    return mask


@dataclass(slots=True)
class _DateParts:
    """The named groups that a regular expression finds in each text. A group that does not occur in a text
    is empty."""

    groups: Mapping[str, pa.Array]
    there: Mask

    @classmethod
    def of(cls, texts: pa.StringArray, pattern: str) -> "_DateParts":
        found = pc.extract_regex(texts, pattern)
        names = [item.name for item in found.type]
        groups = {name: pc.fill_null(pc.struct_field(found, name), "") for name in names}
        return cls(groups, as_mask(pc.is_valid(found)))

    def renamed(self, names: Mapping[str, str]) -> "_DateParts":
        return _DateParts({names.get(name, name): group for name, group in self.groups.items()}, self.there)

    def is_there(self, name: str) -> Mask:
        if name not in self.groups:
            return np.zeros(len(self.there), bool)
        return as_mask(pc.not_equal(self.groups[name], ""))

    def number(self, name: str, default: int = 0) -> Numbers:
        if name not in self.groups:
            return np.full(len(self.there), default, np.int64)
        filled = pc.if_else(pc.equal(self.groups[name], ""), str(default), self.groups[name])
        result: Numbers = filled.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return result

    def reading(self) -> DateReading:
        """Return the times of the texts whose parts are all within their ranges."""
        days, ok = self._days()
        micros, in_day = self._clock()
        total = days * _DAY_MICROSECONDS + micros
        ok = self.there & ok & in_day & self._is_even() & (total >= _LIMITS[0]) & (total <= _LIMITS[1])
        return DateReading(np.where(ok, total, 0), ok, self.is_there("hour"))

    def _is_even(self) -> Mask:
        """Return whether the same separator comes before and after the middle part of each date."""
        if "before" not in self.groups:
            return np.ones(len(self.there), bool)
        return as_mask(pc.equal(self.groups["before"], self.groups["after"]))

    def _days(self) -> tuple[Numbers, Mask]:
        year = self.number("year", 1)
        if "week" in self.groups:
            return _of_week(year, self.number("week", 1), self.number("number", 1))
        if "ordinal" in self.groups:
            start, last = _year_days(year), _year_days(year + 1)
            days = start + self.number("ordinal", 1) - 1
            return days, (days >= start) & (days < last)
        month = self._month()
        within = (month >= 1) & (month <= 12) & (year >= 1)
        months = (year - 1970) * 12 + np.where(within, month, 1) - 1
        start, end = _month_days(months), _month_days(months + 1)
        days = start + self.number("day", 1) - 1
        ok = within & (days >= start) & (days < end)
        return days, ok & self._is_weekday(days)

    def _month(self) -> Numbers:
        if "name" not in self.groups:
            return self.number("month", 1)
        names = pc.utf8_slice_codeunits(self.groups["name"], 0, 3)
        month_index = pc.index_in(names, pa.array(_MONTHS))
        month: Numbers = pc.fill_null(month_index, -1).to_numpy(zero_copy_only=False).astype(np.int64) + 1
        return month

    def _is_weekday(self, days: Numbers) -> Mask:
        """Return whether the weekday that the text names is the weekday of the date."""
        if "weekday" not in self.groups:
            return np.ones(len(days), bool)
        names = pc.utf8_slice_codeunits(self.groups["weekday"], 0, 3)
        number = pc.fill_null(pc.index_in(names, pa.array(_DAYS)), -1).to_numpy(zero_copy_only=False)
        # 3 is added, because day 0, which is 1 January 1970, was a Thursday
        right: Mask = (number < 0) | ((days + 3) % 7 == number)
        return right

    def _clock(self) -> tuple[Numbers, Mask]:
        hour, minute, second = self.number("hour"), self.number("minute"), self.number("second")
        half = self.is_there("half")
        ok = (hour < 24) & (minute < 60) & (second < 60) & ~(half & ((hour < 1) | (hour > 12)))
        ok &= self.is_there("minute") | half | ~self.is_there("hour") | self._is_iso_hour()
        if half.any():
            late = as_mask(pc.starts_with(self.groups["half"], "p"))
            hour = np.where(half, hour % 12 + 12 * late, hour)
        seconds = hour * 3600 + minute * 60 + second
        return seconds * 10**6 + self._fraction(6) - self._offset() * 60 * 10**6, ok

    def _is_iso_hour(self) -> Mask:
        """Return whether each text is a time with only an hour, which ISO 8601 allows: 2024-01-01T10."""
        if "hour" not in self.groups or "before" not in self.groups or "name" in self.groups:
            return np.zeros(len(self.there), bool)
        two = as_mask(pc.equal(pc.binary_length(self.groups["hour"]), 2))
        return two & as_mask(pc.equal(self.groups["before"], "-"))

    def _fraction(self, digits: int) -> Numbers:
        """Return the fraction of a second in each text, with this number of digits. Further digits of the
        fraction are cut off."""
        if "fraction" not in self.groups:
            return np.zeros(len(self.there), np.int64)
        cut = pc.utf8_slice_codeunits(self.groups["fraction"], 0, digits)
        padded = pc.utf8_rpad(cut, width=digits, padding="0")
        result: Numbers = padded.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return result

    def _offset(self) -> Numbers:
        """Return the offset of each time in minutes ahead of UTC."""
        zoned = self.is_there("zone")
        if not zoned.any():
            return np.zeros(len(self.there), np.int64)
        digits = pc.replace_substring_regex(self.groups["zone"], "[^0-9]", "")
        padded = pc.utf8_rpad(digits, width=4, padding="0").cast(pa.int64()).to_numpy(zero_copy_only=False)
        behind = as_mask(pc.starts_with(self.groups["zone"], "-"))
        minutes: Numbers = np.where(behind, -1, 1) * (padded // 100 * 60 + padded % 100)
        return minutes


def counted(texts: pa.StringArray, unit: Form) -> DateReading:
    """Read numbers of any size as times that count `unit` since 1970."""
    if unit == Form.DIGITS:
        return _DateParts.of(texts, _COMPACT).reading()
    parts = _DateParts.of(texts, _COUNT)
    most = 19 if unit == Form.NANOSECONDS else _UNITS[unit][0] + 3
    length = pc.binary_length(parts.groups["whole"]).to_numpy(zero_copy_only=False)
    return _counted(parts, parts.there & (length <= most), _UNITS[unit][1])


def _counted(parts: _DateParts, ok: Mask, factor: int) -> DateReading:
    """Convert numbers that count a time unit since 1970 to microseconds since 1970. The factor 0 means
    nanoseconds, which are divided by 1000."""
    digits = parts.groups["whole"]
    beyond = pc.and_(pc.greater_equal(pc.binary_length(digits), len(_LARGEST)), pc.greater(digits, _LARGEST))
    ok = ok & ~as_mask(beyond)
    whole = pc.if_else(pa.array(ok), digits, "0").cast(pa.int64()).to_numpy()
    fraction = np.where(ok, parts._fraction(6), 0)
    micros = whole // 1000 if factor == 0 else whole * factor + fraction * factor // 10**6
    negative = as_mask(pc.equal(parts.groups["sign"], "-"))
    micros = np.where(negative, -micros, micros)
    ok = ok & (micros >= _LIMITS[0]) & (micros <= _LIMITS[1])
    return DateReading(micros, ok, ok)


def _month_days(months: Numbers) -> Numbers:
    """Return the first day of each month, in days since 1970. `months` are numbers of months since 1970."""
    days: Numbers = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    return days


def _year_days(year: Numbers) -> Numbers:
    return _month_days((year - 1970) * 12)


def _of_week(year: Numbers, week: Numbers, number: Numbers) -> tuple[Numbers, Mask]:
    """Return the day of each week date. In ISO 8601, week 1 of a year contains the first Thursday of the
    year."""
    first = _first_monday(year)
    days = first + (week - 1) * 7 + number - 1
    return days, (week >= 1) & (days < _first_monday(year + 1)) & (year >= 1)


def _first_monday(year: Numbers) -> Numbers:
    fourth = _year_days(year) + 3
    return fourth - (fourth + 3) % 7


def distinct(column: pa.ChunkedArray) -> tuple[pa.StringArray, pa.Array]:
    """Return the distinct texts of a column without null, and for each row the index of its text."""
    codes = column.combine_chunks().dictionary_encode()
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.chunk(0) if codes.num_chunks else pa.array([], pa.string()).dictionary_encode()
    return codes.dictionary, codes.indices
