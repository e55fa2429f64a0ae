"""What the documentation promises of a table that is loaded from files, in plain Python.

`Table.load` is given all files that a source names now and the sink's declaration, and says what the table
must hold afterwards, or why the load must fail. It knows nothing of how Gridmill decides. Each rule names its
page.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product

from tests.oracles.values import (
    Blank,
    Cell,
    MisfitError,
    Typed,
    Value,
    convert,
    exact,
    kind_of_all,
    readable,
    widened,
    wider,
)

Row = dict[str, Value]


@dataclass(frozen=True)
class Rule:
    """A constraint of one column or, `unique`, of several. `holds` is asked of values that are there."""

    name: str
    column: str = ""
    required: bool = False
    holds: Callable[[Value], bool] = lambda value: True
    unique: tuple[str, ...] = ()


@dataclass(frozen=True)
class Declared:
    """What the declaration says of the rows. Two that differ are two declarations."""

    columns: Mapping[str, str] = field(default_factory=dict)
    select: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    add: Mapping[str, str] = field(default_factory=dict)
    nulls: tuple[str, ...] = ("", "NA", "NaN", "null")
    rules: tuple[Rule, ...] = ()
    rejects_misfits: bool = False
    max_rejects: float | None = None

    @property
    def loads_by(self) -> tuple[object, ...]:
        """The part of it that decides what is in the table."""
        rules = tuple(rule.name for rule in self.rules)
        maps = (sorted(some.items()) for some in (self.columns, self.rename, self.add))
        return (*map(tuple, maps), self.select, self.nulls, rules, self.rejects_misfits)


@dataclass(frozen=True)
class SourceFile:
    """A file as it is now. `rows` are its values by header, without those that a line of JSON leaves out.

    `lines` are where the rows begin; `modified` is None where a source keeps no time through a rename.
    `broken` is the line at which it cannot be read (0: nobody knows). `quoted`: all texts are in quotes.
    """

    name: str
    content: bytes
    modified: float | None
    form: str
    header: tuple[str, ...]
    rows: tuple[Mapping[str, Cell], ...]
    lines: tuple[int, ...] = ()
    kinds: Mapping[str, str] = field(default_factory=dict)
    broken: int | None = None
    quoted: bool = False


@dataclass(frozen=True)
class Reject:
    source: str
    row: int
    line: int | None
    reasons: frozenset[str]
    record: str
    """The row as it was read, as JSON; empty for one that was there before (that is as it was typed)."""


@dataclass(frozen=True)
class Problem:
    """Why a load fails: the error is at `place`, and says each of `words`."""

    place: str = ""
    words: tuple[str, ...] = ()


@dataclass
class Held:
    """What the table holds of a file: the content that was loaded last under that name."""

    name: str
    content: bytes
    modified: float | None
    rows: list[Row]
    rejects: list[Reject]
    numbers: list[int] = field(default_factory=list)
    """Of the rows, in the file, from 0."""


@dataclass(frozen=True)
class Loaded:
    """What a load did. Any one of `problems` is what its error may say; with none it succeeded."""

    problems: tuple[Problem, ...] = ()
    news: bool = True
    copies: tuple[str, ...] = ()
    anew: bool = False


@dataclass
class Table:
    """The table of a sink. `required` are the columns that each file must have.

    A column without any value so far has no type yet (None). It is shown as one of texts.
    """

    columns: dict[str, str | None] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    held: list[Held] = field(default_factory=list)
    declared: Declared | None = None
    copies: tuple[str, ...] = ()
    """What its newest version says of files whose rows are in it a second time."""

    @property
    def rows(self) -> list[Row]:
        return [{name: row.get(name) for name in self.columns} for one in self.held for row in one.rows]

    @property
    def rejects(self) -> list[Reject]:
        return [reject for one in self.held for reject in one.rejects]

    def load(self, files: Sequence[SourceFile], declared: Declared, wanted: Collection[str] = ()) -> Loaded:
        """Load all that is there now; `wanted` are files that the source names one by one.

        The table stays as it was where that fails (data.md, quality.md).
        """
        lacking = sorted({*wanted} - {file.name for file in files})
        if lacking:
            return Loaded(tuple(Problem(name) for name in lacking))
        change = _Change(self, sorted(files, key=lambda file: file.name), declared)
        loaded = change.apply()
        if not loaded.problems:
            self.columns, self.required = change.columns, change.required
            self.held, self.declared = sorted(change.held, key=lambda one: one.name), declared
            if loaded.news or loaded.anew:
                self.copies = loaded.copies
        return loaded

    def alike(self, files: Sequence[SourceFile]) -> "list[Table]":
        """This table, once for each answer to which of several files of the same content and time moved.

        data.md knows a moved file by these two alone.
        """
        there = {file.name: file.content for file in files}
        groups: dict[object, list[Held]] = {}
        for one in self.held:
            if one.name not in there and one.modified is not None:
                groups.setdefault((one.content, one.modified), []).append(one)
        choices = [
            combinations(same, min(len(same), sum(_is_renamed(same[0], file) for file in files)))
            for same in groups.values()
            if len(same) > 1
        ]
        return [self._first(*chosen) for chosen in product(*choices)]

    def _first(self, *chosen: tuple[Held, ...]) -> "Table":
        """The same; of the files that may have moved these have."""
        moved = [one.name for some in chosen for one in some]
        return replace(self, held=sorted(self.held, key=lambda one: one.name not in moved))


class _Change:
    def __init__(self, table: Table, files: Sequence[SourceFile], declared: Declared) -> None:
        self.table, self.files, self.declared = table, files, declared
        self.columns = dict(table.columns)
        self.required = table.required
        self.held: list[Held] = []
        self.problems: list[Problem] = []

    def apply(self) -> Loaded:
        if not self.files:
            return Loaded((Problem("", ("no",)),))
        kept, gone, fresh = self._sorted_out()
        changed = self.table.declared is not None and self.table.declared.loads_by != self.declared.loads_by
        anew = self.table.declared is None or changed or not (kept or gone)  # adr/0006 "Sinks"
        if changed and gone:
            rows, rejects = sum(len(one.rows) for one in gone), sum(len(one.rejects) for one in gone)
            # data.md "Each file is loaded once": refuses and says how many
            return Loaded(
                (
                    Problem(
                        "",
                        (f"{rows} of its rows" if rows else f"{rejects} rejected", "do not exist any more"),
                    ),
                )
            )
        if anew:
            kept, gone, fresh, self.columns = [], [], list(self.files), {}
        self.held = [replace(one, rows=[{**row} for row in one.rows]) for one in (*kept, *gone)]
        copies = tuple(file.name for file in fresh if any(file.content == one.content for one in gone))
        self._evolve(fresh, anew)
        if not self.problems:
            self._read(fresh)
        same = not any(file.rows for file in fresh) and len(self.held) == len(self.table.held)
        if same and not anew:
            self.columns, self.required = dict(self.table.columns), self.table.required
        return Loaded(tuple(self.problems), not same, copies, anew)

    def _sorted_out(self) -> tuple[list[Held], list[Held], list[SourceFile]]:
        """Files that stay as they were, also under another name; those that are gone; those to be read.

        data.md "Each file is loaded once"; sources.md "Object storage", "Files by HTTP".
        """
        now = {file.name: file for file in self.files}
        kept = [one for one in self.table.held if one.name in now and now[one.name].content == one.content]
        names = {one.name for one in kept}
        fresh = [file for file in self.files if file.name not in names]
        others = [one for one in self.table.held if one.name not in names]
        others.sort(key=lambda one: one.name not in now)  # what another one took the place of moved for sure
        for file in fresh:
            old = next((one for one in others if _is_renamed(one, file)), None)
            if old is not None:  # it takes the place of its rows
                others.remove(old)
        return kept, [one for one in others if one.name not in now], fresh

    def _evolve(self, fresh: Sequence[SourceFile], anew: bool) -> None:
        """Columns and types (quality.md "When a source's columns change")."""
        found: dict[str, str | None] = {}
        sheets = [(file, self._cells(file)) for file in fresh]
        for number, (file, (names, columns)) in enumerate(sheets):
            if file.broken is not None:
                self._problem(file, file.broken or None)
            if anew and number == 0:
                self.required = frozenset(names)
            lacking = self._needed() - set(names) | {*self.declared.rename} - {*file.header}
            if lacking and file.form != "jsonl":
                self._problem(file, None, _source_name(min(lacking), self.declared))
            for name in names:
                kind = wider(file.kinds.get(_source_name(name, self.declared)), kind_of_all(columns[name]))
                found[name] = wider(found.get(name), kind)
        if anew:
            self._unknown(fresh)
        self._settle(found, sheets)

    def _unknown(self, fresh: Sequence[SourceFile]) -> None:
        """Columns that are declared and that no line of any file has: most likely a slip of the pen."""
        if not any(file.header for file in fresh):
            return
        names = {self.declared.rename.get(name, name) for file in fresh for name in file.header}
        for name in {*self.declared.columns} - names - {*self.declared.add}:
            self.problems.append(Problem("", (_source_name(name, self.declared),)))

    def _needed(self) -> frozenset[str]:
        """What each file has to have: a declared column is not more than a type (quality.md)."""
        return frozenset(self.declared.select) - {*self.declared.add} or self.required

    def _settle(self, found: dict[str, str | None], sheets: "list[tuple[SourceFile, Cells]]") -> None:
        had = dict(self.columns)
        if not had:  # lines of JSON may lack any of them, or there are none
            found = dict.fromkeys(self.declared.select or (() if found else self.declared.columns)) | found
        for name, kind in found.items():
            declared = self.declared.columns.get(name)
            if declared:
                self.columns[name] = declared
            elif name not in had:
                self.columns[name] = kind
            elif had[name] is None or wider(had[name], kind) in ("float", "timestamp"):
                self.columns[name] = wider(had[name], kind)
        self._no_rows(found, sheets)
        for rule in self.declared.rules:
            for name in rule.unique or (rule.column,):
                bounded = not (rule.unique or rule.required)
                kind = self.columns.get(name)
                if name not in self.columns or (bounded and kind not in ("integer", "float")):
                    self.problems.append(Problem("", (name,)))
        names = self.declared.select or self.columns
        order = [*(name for name in names if name in self.columns), *self.declared.add]
        self.columns = {name: self.columns.get(name, "string") for name in order}
        for one in self.held:
            for row in one.rows:
                row.update(
                    {name: widened(row.get(name), kind, self.columns[name]) for name, kind in had.items()}
                )

    def _no_rows(self, found: dict[str, str | None], sheets: "list[tuple[SourceFile, Cells]]") -> None:
        """sources.md "A source without rows"."""
        if self.held or any(file.rows for file, _ in sheets):
            return
        had_rows = bool(self.table.rows)
        known = {name for name, kind in found.items() if kind or name in self.declared.columns}
        if had_rows or not found or found.keys() - known:
            self.problems.append(Problem("", ("no rows",)))

    def _cells(self, file: SourceFile) -> "Cells":
        """The values of each column by the table's names: `rename` first, then `select` (data.md)."""
        names = [self.declared.rename.get(name, name) for name in file.header]
        if self.declared.select:
            names = [name for name in self.declared.select if name in names]
        return names, {name: [self._cell(file, row, name) for row in file.rows] for name in names}

    def _cell(self, file: SourceFile, row: Mapping[str, Cell], name: str) -> Cell:
        cell = row.get(_source_name(name, self.declared))
        if file.form == "csv" and cell in self.declared.nulls:
            return Blank(str(cell)) if file.quoted else None
        if file.form == "csv" and isinstance(cell, str) and cell.strip() in {*self.declared.nulls, ""}:
            return Blank(cell)
        return None if isinstance(cell, Typed) and cell.value is None else cell

    def _read(self, fresh: Sequence[SourceFile]) -> None:
        """Convert and judge (quality.md "Constraints"). The first row of a key stays, files by name."""
        total = rejected = 0
        read = [(file, self._judged(file)) for file in fresh]
        self._reject_repeated(read)
        for file, held in read:
            self.held += [held] if held.rows or held.rejects else []
            total, rejected = total + len(file.rows), rejected + len(held.rejects)
        limit = self.declared.max_rejects
        if limit is not None and rejected > (limit if limit >= 1 else limit * total):
            self.problems.append(Problem("", ("reject",)))
        elif rejected and not any(one.rows for one in self.held):
            self.problems.append(Problem("", ("all",)))

    @property
    def _unique(self) -> list[Rule]:
        return [rule for rule in self.declared.rules if rule.unique]

    def _judged(self, file: SourceFile) -> Held:
        held = Held(file.name, file.content, file.modified, [], [])
        for number in range(len(file.rows)):
            row, misfits = self._typed(file, number)
            broken = [rule for rule in self.declared.rules if not rule.unique and _breaks(rule, row, misfits)]
            reasons = {rule.name for rule in broken} | {f"misfit {name}" for name in misfits}
            if reasons:
                record = json.dumps(self._record(file, file.rows[number]), sort_keys=True)
                held.rejects.append(_rejected(file, number, reasons, record))
            else:
                held.rows.append(row)
                held.numbers.append(number)
        return held

    def _reject_repeated(self, read: Sequence[tuple[SourceFile, Held]]) -> None:
        """One `unique` after the other: a row that one rejects does not count for the next (quality.md)."""
        before = [row for one in self.held for row in one.rows]
        for rule in self._unique:
            seen = Counter(_keys(rule, before))
            for file, held in read:
                repeated = [self._is_repeated(rule, row, seen) for row in held.rows]
                numbers = [number for number, bad in zip(held.numbers, repeated, strict=True) if bad]
                held.rejects += [_rejected(file, number, {rule.name}, "{}") for number in numbers]
                held.rows = [row for row, bad in zip(held.rows, repeated, strict=True) if not bad]
                held.numbers = [number for number in held.numbers if number not in numbers]

    def _is_repeated(self, rule: Rule, row: Row, seen: Counter[object]) -> bool:
        for key in _keys(rule, [row]):
            seen[key] += 1
            return seen[key] > 1
        return False

    def _record(self, file: SourceFile, row: Mapping[str, Cell]) -> dict[str, object]:
        """By the table's names; how a typed value is written, no page says."""
        if file.form == "parquet":
            return {}
        names, _ = self._cells(file)
        return {name: readable(self._cell(file, row, name)) for name in names}

    def _typed(self, file: SourceFile, number: int) -> tuple[Row, list[str]]:
        row: Row = dict(self.declared.add)
        misfits = []
        for name, kind in self.columns.items():
            if name in self.declared.add:
                continue
            try:
                cell = self._cell(file, file.rows[number], name)
                if name not in self.declared.columns and kind in ("integer", "float"):
                    _no_boolean(cell)
                row[name] = convert(cell, kind)
            except MisfitError:
                row[name] = None
                if self.declared.rejects_misfits and name in self.declared.columns:
                    misfits.append(name)
                else:
                    self._problem(file, file.lines[number] if file.lines else None, name)
        return row, misfits

    def _problem(self, file: SourceFile, line: int | None, *words: str) -> None:
        place = file.name if line is None else f"{file.name}:{line}"
        self.problems.append(Problem(place, words))


Cells = tuple[list[str], dict[str, list[Cell]]]


def _no_boolean(cell: Cell) -> None:
    """Booleans are numbers where these are declared (data.md)."""
    if isinstance(cell.value if isinstance(cell, Typed) else cell, bool):
        raise MisfitError


def _source_name(name: str, declared: Declared) -> str:
    return next((old for old, new in declared.rename.items() if new == name), name)


def _is_renamed(one: Held, file: SourceFile) -> bool:
    """data.md: its content and its time of modification tell; objects and URLs have no such time."""
    return one.modified is not None and (one.content, one.modified) == (file.content, file.modified)


def _rejected(file: SourceFile, number: int, reasons: Iterable[str], record: str) -> Reject:
    line = file.lines[number] if file.lines else None
    return Reject(file.name, number + 1, line, frozenset(reasons), record)


def _breaks(rule: Rule, row: Row, misfits: list[str]) -> bool:
    value = row.get(rule.column)
    if rule.column in misfits:  # quality.md: it is missing for the constraints
        return rule.required
    return rule.required if value is None else not rule.holds(value)


def _keys(rule: Rule, rows: Iterable[Row]) -> Iterator[tuple[object, ...]]:
    """Keys of rows that have one: a missing value breaks `required` only."""
    for row in rows:
        values = [row.get(name) for name in rule.unique]
        if None not in values:
            yield tuple(exact(value + 0.0 if isinstance(value, float) else value) for value in values)
