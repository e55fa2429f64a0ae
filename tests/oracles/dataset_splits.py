"""Which split each row of a dataset is in, and why rows are dropped; from the section Split of
docs/reference/pipeline.md and the table of docs/how-to/data.md ("Build a dataset").

How `random` and `entity` draw is not documented beyond the columns that they go by: `drawn` says what was
drawn for a key.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from gridmill.model.dataset import DatasetSpec, Split, SplitBy
from tests.oracles.datasets import Made

ORDER = ("train", "validation", "test")
Drawn = Callable[[tuple[Any, ...]], str | None]


def place(split: Split, time: datetime, begins: tuple[datetime | None, datetime | None]) -> str:
    """`train` before `validation_from` ≤ validation before `test_from` ≤ test (Split)."""
    validation_from, test_from = begins
    if test_from is not None and time >= test_from:
        return "test"
    return "validation" if validation_from is not None and time >= validation_from else "train"


def begins_of(split: Split, made: Sequence[Made]) -> tuple[datetime | None, datetime | None]:
    """The times at which validation and test begin; shares are of the time span of all rows (Split)."""
    validation_from, test_from = split.times
    if split.by != SplitBy.TIME or not made:
        return validation_from, test_from
    first, last = min(one.time for one in made), max(one.time for one in made)
    test, validation = split.test or 0.0, split.validation or 0.0
    if split.test is not None:
        test_from = _at(first, last, 1 - test)
    if split.validation is not None:
        validation_from = _at(first, last, 1 - test - validation)
    return validation_from, test_from


def _at(first: datetime, last: datetime, share: float) -> datetime:
    return first + timedelta(microseconds=round((last - first) / timedelta(microseconds=1) * share))


def key_of(spec: DatasetSpec, made: Made) -> tuple[Any, ...]:
    """The columns that a drawn split goes by (Split, `by`)."""
    assert spec.basis is not None and spec.split is not None
    if spec.split.by == SplitBy.ENTITY:
        names = spec.split.on or spec.basis.entity
    else:
        names = spec.split.on or (*spec.basis.entity, spec.basis.time)
    return tuple(made.source[name] for name in names)


def split_rows(spec: DatasetSpec, made: Sequence[Made], drawn: Drawn) -> None:
    """Set `split` and the reasons of rows that are in none."""
    split = spec.split
    if split is None:
        return
    begins = begins_of(split, made)
    for one in made:
        by_time = place(split, one.time, begins)
        one.split = by_time
        if split.end is not None and one.time >= split.end:
            one.reasons.add("until")
        if split.by != SplitBy.TIME:
            one.split = drawn(key_of(spec, one)) or by_time
            if begins != (None, None) and one.split != by_time:
                one.reasons.add("disagree")
        if one.label_known is not None and begins != (None, None):
            known = place(split, one.label_known, begins)
            if ORDER.index(known) > ORDER.index(by_time):
                one.reasons.add("later split")
