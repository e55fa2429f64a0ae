"""Which split each row of a dataset is in, and why rows are dropped; from the section Split of
docs/reference/pipeline.md and the table of docs/how-to/data.md ("Build a dataset").

A label that is known from `until` on is in no split either.
"""

from collections.abc import Sequence
from datetime import datetime
from hashlib import md5
from typing import Any

from gridmill.domain.dataset import DatasetSpec, Split, SplitBy
from tests.oracles.datasets import Made


def place(time: datetime, begins: tuple[datetime | None, datetime | None]) -> str:
    """`train` before `validation_from` ≤ validation before `test_from` ≤ test (Split)."""
    validation_from, test_from = begins
    if test_from is not None and time >= test_from:
        return "test"
    return "validation" if validation_from is not None and time >= validation_from else "train"


def begins_of(split: Split, times: Sequence[datetime]) -> tuple[datetime | None, datetime | None]:
    """The times at which validation and test begin; shares are of the time span, up to `until` (Split)."""
    validation_from, test_from = split.times
    if split.by != SplitBy.TIME:
        return validation_from, test_from
    first, last = min(times), max(times)
    last = min(last, split.end or last)
    if split.test is not None:
        test_from = last - split.test * (last - first)
    if split.validation is not None:
        validation_from = (test_from or last) - split.validation * (last - first)
    return validation_from, test_from


def key_of(spec: DatasetSpec, made: Made) -> tuple[Any, ...]:
    """The columns that a drawn split goes by (Split, `by`)."""
    assert spec.basis is not None
    assert spec.split is not None
    if spec.split.by == SplitBy.ENTITY:
        names = spec.split.on or spec.basis.entity
    else:
        names = spec.split.on or (*spec.basis.entity, spec.basis.time)
    return tuple(made.source[name] for name in names)


def drawn_split(split: Split, key: Sequence[Any]) -> str:
    """ "By a hash ... the same on every machine and in every version" (ADR 10): MD5 of the seed and the key's
    texts, of which the lower half is a share of 2^64."""
    texts = [str(split.seed), *("\x1e" if value is None else text_of(value) for value in key)]
    digest = md5("\x1f".join(texts).encode()).digest()
    share = int.from_bytes(digest[8:], "little") / 2**64
    test, validation = split.test or 0.0, split.validation or 0.0
    if share < test:
        return "test"
    return "validation" if share < test + validation else "train"


def text_of(value: Any) -> str:
    """A value as text; a fraction of a second ends with its last digit that is not 0."""
    if isinstance(value, datetime):
        text = value.isoformat(sep=" ")
        return text.rstrip("0") if value.microsecond else text
    return str(value)


def split_rows(spec: DatasetSpec, made: Sequence[Made], times: Sequence[datetime]) -> None:
    """Set `split` and the reasons of rows that are in none; `times` are those of the basis's table."""
    split = spec.split
    if split is None:
        return
    begins = begins_of(split, times)
    starts = [one for one in (*begins, split.end) if one is not None]
    for one in made:
        one.split = place(one.time, begins)
        if split.end is not None and one.time >= split.end:
            one.reasons.add("until")
        if any(start - split.gap <= one.time < start for start in begins if start is not None):
            one.reasons.add("gap")
        if split.by != SplitBy.TIME:
            drawn = drawn_split(split, key_of(spec, one))
            if begins == (None, None):
                one.split = drawn
            elif one.split != drawn:
                one.reasons.add("disagree")
        known = one.label_known
        if known is not None and any(one.time < start <= known for start in starts):
            one.reasons.add("later split")
