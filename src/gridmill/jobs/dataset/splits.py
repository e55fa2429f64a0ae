"""Writes SQL for the split of each row, and for the reason why a row belongs to no split. No side
effects."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from gridmill.domain.dataset import Basis, Label, Split, SplitBy
from gridmill.domain.frozen import dataclass
from gridmill.domain.remarks import NOT_KNOWN_YET
from gridmill.jobs.dataset.labels import NO_LABEL, has_time, missing_label, missing_value
from gridmill.jobs.duckdb_engine import Types, literal, quoted
from gridmill.jobs.expressions import FLOATS, LABEL_TIME, TIME, moment

REACHES = "label reaches into the next split"
AFTER = "after the end of the splits"
UNSEEN = NOT_KNOWN_YET
MISSING = "missing value"
GAP = "in the gap before a split"
APART = "in one split by time, in another by chance or entity"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitBounds:
    """The times at which the validation and test splits begin and at which the last split ends (UTC). A
    limit of a split is None if the split has no such limit.

    A row belongs to no split if its time is within `gap` before the beginning of validation or test. If rows
    are split at random or by entity, the split of a row depends on a hash of the columns that `on` names.
    `shares` contains the fractions of the rows for validation and for test.
    """

    validation_from: datetime | None = None
    test_from: datetime | None = None
    until: datetime | None = None
    gap: timedelta = timedelta(0)
    on: tuple[str, ...] = ()
    seed: int = 0
    shares: tuple[float, float] | None = None

    @property
    def starts(self) -> tuple[datetime, ...]:
        """Return the times at which splits begin, in order. The label of a row must be known before the next
        split begins."""
        starts = (self.validation_from, self.test_from, self.until)
        return tuple(start for start in starts if start is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the splits that must have rows."""
        validation, test = self.shares or (0.0, 0.0)
        more = (("validation", self.validation_from or validation), ("test", self.test_from or test))
        return ("train", *(name for name, there in more if there))


def drawn_on(split: Split, basis: Basis) -> tuple[str, ...]:
    """Return the columns whose hash selects the split of a row. The result is empty if rows are split by
    time."""
    match split.by:
        case SplitBy.RANDOM:
            return split.on or (*basis.entity, basis.time)
        case SplitBy.ENTITY:
            return split.on or basis.entity
    return ()


def split_column(bounds: SplitBounds) -> str:
    """Return SQL for the name of the split of a row."""
    if bounds.shares is None or bounds.validation_from or bounds.test_from:
        return _by_time(bounds)
    return _drawn(bounds)


def _by_time(bounds: SplitBounds) -> str:
    cases = [
        f"WHEN \"{TIME}\" >= {moment(begins)} THEN '{name}'"
        for name, begins in (("test", bounds.test_from), ("validation", bounds.validation_from))
        if begins is not None
    ]
    return f"CASE {' '.join(cases)} ELSE 'train' END" if cases else "'train'"


def _drawn(bounds: SplitBounds) -> str:
    """Return SQL that selects the split of a row by a hash. The hash of a row is the same on all machines
    and in all versions."""
    validation, test = bounds.shares or (0.0, 0.0)
    texts = [f"coalesce({quoted(name)}::VARCHAR, chr(30))" for name in bounds.on]
    text = f"concat_ws(chr(31), {', '.join((literal(str(bounds.seed)), *texts))})"
    share = f"md5_number_lower({text}) / 18446744073709551616.0"
    cases = [f"WHEN {share} < {test!r} THEN 'test'"] if test else []
    cases += [f"WHEN {share} < {test + validation!r} THEN 'validation'"] if validation else []
    return f"CASE {' '.join(cases)} ELSE 'train' END"


def dropped_column(
    label: Label | None,
    bounds: SplitBounds | None,
    types: Types,
    seen_until: datetime | None,
    required: Sequence[str] = (),
    *,
    dated: bool = False,
) -> str:
    """Return SQL for the reason why a row is dropped. The value of the SQL is null if the row is not
    dropped.

    `dated` means that the label declares the time at which it becomes known.
    """
    cases = list(_reasons(label, bounds, types, seen_until, dated=dated))
    if required:
        missing = (_missing(name, types) for name in required)
        cases.append(f"WHEN {' OR '.join(missing)} THEN '{MISSING}'")
    return f"CASE {' '.join(cases)} END" if cases else "NULL::VARCHAR"


def _missing(name: str, types: Types) -> str:
    """Return an SQL condition that is true if a required column has a missing value. The types of features
    are unknown until the query is compiled."""
    if name in types:
        return missing_value(quoted(name), types[name])
    column = quoted(name)
    return f"{column} IS NULL OR (typeof({column}) IN {FLOATS} AND {column}::VARCHAR = 'nan')"


def _reasons(
    label: Label | None, bounds: SplitBounds | None, types: Types, seen_until: datetime | None, *, dated: bool
) -> Iterator[str]:
    if bounds is not None:
        yield from _outside(bounds)
    if seen_until is not None:
        yield f"WHEN \"{LABEL_TIME}\" > {moment(seen_until)} THEN '{UNSEEN}'"
    if label is not None:
        yield f"WHEN {missing_label(label, types, dated=dated)} THEN '{NO_LABEL}'"
    if bounds is not None and has_time(label):
        yield from _reaching(bounds.starts)


def _outside(bounds: SplitBounds) -> Iterator[str]:
    """Yield the reasons why a row can belong to no split.

    SQL checks the reasons to belong to no split before all other reasons to drop a row. A row that is
    dropped for another reason still belongs to a split, and encoders are fitted on its features too.
    """
    if bounds.until is not None:
        yield f"WHEN \"{TIME}\" >= {moment(bounds.until)} THEN '{AFTER}'"
    if bounds.gap:
        yield from _between(bounds)
    if bounds.shares is not None and (bounds.validation_from or bounds.test_from):
        yield f"WHEN {_by_time(bounds)} <> {_drawn(bounds)} THEN '{APART}'"


def _between(bounds: SplitBounds) -> Iterator[str]:
    for start in (bounds.validation_from, bounds.test_from):
        if start is not None:
            inside = f'"{TIME}" >= {moment(start - bounds.gap)} AND "{TIME}" < {moment(start)}'
            yield f"WHEN {inside} THEN '{GAP}'"


def _reaching(starts: Sequence[datetime]) -> Iterator[str]:
    for start in starts:
        yield (f'WHEN "{TIME}" < {moment(start)} AND "{LABEL_TIME}" >= {moment(start)} THEN \'{REACHES}\'')
