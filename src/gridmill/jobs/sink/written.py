"""Texts in the forms that were decided for their column, as numbers and times."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.jobs.sink.forms import MARKS, ORDERS, UNITS, Form, Forms, only
from gridmill.jobs.sink.moments import Mask, Moments, Numbers, counted, distinct
from gridmill.jobs.sink.numerals import NOT_A_NUMBER, as_plain

_TIMESTAMP = pa.timestamp("us", "UTC")
_WHOLE = r"^[+]?(-?[0-9]+)(\.0*)?$"
_EXPONENT = r"^[+-]?[0-9]*\.?[0-9]+[eE][+-]?[0-9]{1,3}$|^[+-]?[0-9]+\.[eE][+-]?[0-9]{1,3}$"


def plain_numbers(texts: pa.ChunkedArray, forms: Forms, *, declared: bool) -> pa.ChunkedArray:
    """The numbers as Arrow reads them. Where the sign before the decimals is not decided, a text must be the
    same number with either; what is none is none of Arrow's."""
    mark = only(forms, MARKS)
    if mark is not None:
        return as_plain(texts, mark, declared=declared)
    one, other = (as_plain(texts, mark, declared=declared) for mark in MARKS)
    return pc.if_else(pc.equal(one, other), one, pa.scalar(NOT_A_NUMBER, pa.string()))


def whole_numbers(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Integers, also of numbers whose decimals are zeros (100.0, 1e2). Raises ArrowInvalid."""
    try:
        return texts.cast(pa.int64())
    except pa.ArrowInvalid:
        plain = pc.replace_substring_regex(texts, _WHOLE, r"\1")
        if pc.any(pc.match_substring_regex(plain, "[.eE]")).as_py():
            different, codes = distinct(plain)
            numbers = pa.array([_whole(text) for text in different.to_pylist()], pa.string())
            plain = pa.chunked_array([numbers.take(codes)])
        return plain.cast(pa.int64())


def _whole(text: str) -> str:
    """A number in digits alone, where it is whole."""
    if not pc.match_substring_regex(pa.scalar(text), _EXPONENT).as_py():
        return text
    number = Decimal(text)
    whole = number.adjusted() < 20 and number == number.to_integral_value()
    return str(int(number)) if whole else text


def times_of(texts: pa.ChunkedArray, forms: Forms, *, dates: bool, declared: bool) -> pa.ChunkedArray:
    """Times, or `dates` without a time of day, by the forms of their column. Raises ValueError for others.

    Where a form is not decided, a text must be the same time in each that is left.
    """
    different, codes = distinct(texts)
    found = Moments(different, declared)
    micros, ok, timed = found.plain.micros, found.plain.ok, found.plain.timed
    for family in (ORDERS, UNITS):
        decided, agreed = _agreed(found, [form for form in family if form in forms])
        micros = np.where(agreed, decided, micros)
        ok = ok | agreed
        timed = timed | (
            found.by(family) & np.logical_or.reduce([found.forms[form].timed for form in family])
        )
    if not ok.all() or (dates and (timed & ok).any()):
        raise ValueError
    times = pa.array(micros, pa.int64()).cast(_TIMESTAMP).take(codes)
    return pa.chunked_array([times.cast(pa.date32()) if dates else times])


def _agreed(found: Moments, forms: list[Form]) -> tuple[Numbers, Mask]:
    """The times that are the same in all of the forms: while several are left, no other shows which it is."""
    if not forms:
        return np.zeros(len(found.texts), np.int64), np.zeros(len(found.texts), bool)
    readings = [found.forms[form] for form in forms]
    micros = readings[0].micros
    same = [one.ok & (one.micros == micros) for one in readings]
    return micros, np.logical_and.reduce(same)


def as_unit(texts: pa.ChunkedArray, unit: Form) -> pa.ChunkedArray:
    """Numbers that count since 1970. Raises ValueError for what is none."""
    different, codes = distinct(texts)
    found = counted(different, unit)
    if not found.ok.all():
        raise ValueError
    return pa.chunked_array([pa.array(found.micros, pa.int64()).cast(_TIMESTAMP).take(codes)])
