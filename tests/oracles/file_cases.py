"""Random histories of files, loaded step by step by a sink and compared with what the documentation promises.

Some loads are killed on their way and done again; the table must then be as if nothing had happened.
"""

import json
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from copy import deepcopy
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any, Protocol

from deltalake import DeltaTable

from gridmill.domain.artifact import Output
from gridmill.domain.sink import ColumnType, Constraint, OnMisfit, SinkSpec
from gridmill.domain.source import Source
from gridmill.errors import GridmillError
from gridmill.jobs.sink.run import run
from tests.kit.sink_case import TABLE, SinkCase
from tests.oracles.file_history import History
from tests.oracles.files import Declared, Loaded, Problem, Reject, Rule, SourceFile, Table
from tests.oracles.kills import Kill, killed
from tests.oracles.values import exact

ARROW = {
    "integer": "int64",
    "float": "double",
    "boolean": "bool",
    "date": "date32[day]",
    "timestamp": "timestamp[us, tz=UTC]",
    "string": "string",
}


class Place(Protocol):
    """Where the files of a source are; `prefix` is what their names begin with."""

    prefix: str

    def show(self, files: Sequence[SourceFile]) -> None:
        """Make the source hold these files and no other."""

    def source(self, history: History) -> dict[str, Any]:
        """What the declaration says of it."""


class Folder:
    """Files of this machine. A file that gets another name is moved, and so keeps its time."""

    prefix = "in/"

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "in"
        self.folder.mkdir()

    def show(self, files: Sequence[SourceFile]) -> None:
        for path in self.folder.iterdir():
            path.unlink()
        for file in files:
            path = self.folder / file.name
            path.write_bytes(file.content)
            assert file.modified is not None
            os.utime(path, (file.modified, file.modified))

    def source(self, history: History) -> dict[str, Any]:
        return {"path": f"in/*{history.style.suffix}"}


class Trial:
    """One history, what the table should hold, and the sink that is tried."""

    def __init__(self, folder: Path, place: Place, history: History, random: Random) -> None:
        self.place, self.history, self.random = place, history, random
        self.sink = SinkCase(folder)
        self.declared = self._drawn_declaration()
        self.expected = [Table()]
        """What the table may hold: more than one where nobody knows whether a killed load was committed."""
        self.versions: dict[int, Counter[object]] = {}
        self.output: Output | None = None

    def step(self) -> None:
        self.history.step()
        if self.random.random() < 0.08:
            self.declared = self._drawn_declaration()
            self.history.log.append(f"declare {self.declared}")
        self.place.show(self.history.now)
        self.history.log.append("load")
        if self.random.random() < 0.25:
            self._killed()
        self._compare(*self._after())

    def _after(self) -> tuple[list[Table], list[Loaded]]:
        """What each possible table would be after a load, and what that would say."""
        now = self.history.now
        self.expected = [alike for table in self.expected for alike in table.alike(now)]
        after = [deepcopy(table) for table in self.expected]
        return after, [table.load(now, self.declared, self.history.wanted) for table in after]

    def _compare(self, after: list[Table], loads: list[Loaded]) -> None:
        """The table is what one of the possible tables became; all that it may be stay possible."""
        version = self.output.table_version if self.output else None
        error = None
        try:
            with redirect_stdout(StringIO()):
                self.output = run(self.sink.context(self.spec())).outputs[0]
        except GridmillError as caught:
            error = caught
        differences, possible = [], []
        for before, table, loaded in zip(self.expected, after, loads, strict=True):
            difference = self._difference(before, table, loaded, version, error)
            if difference:
                differences.append(difference)
            elif table not in possible:
                possible.append(table)
        if possible:
            differences = [self._wrong_past(possible[0])] if error is None else []
        if any(differences):
            told = [*differences, f"declared {self.declared}", *self.history.log[-25:]]
            raise AssertionError("\n".join(told))
        self.expected = possible

    def _difference(
        self, before: Table, table: Table, loaded: Loaded, version: int | None, error: GridmillError | None
    ) -> str:
        if error is not None:
            wrong = self._wrong_error(loaded.problems, error)
            return wrong or self._wrong_rows(before, "after the error")
        if loaded.problems:
            return f"loaded, though {loaded.problems}"
        assert self.output is not None
        return self._wrong_rows(table, "after the load") or self._wrong_output(table, loaded, version)

    def _wrong_error(self, problems: Sequence[Problem], error: GridmillError) -> str:
        said = f"{error.message} {error.hint}"
        for problem in problems:
            place = problem.place.partition(":")
            at = error.place.removeprefix(self.place.prefix)
            there = at.startswith(problem.place) or (not place[2] and at.startswith(place[0]))
            if there and all(word in said for word in problem.words):
                return ""
        return f"{type(error).__name__} at {error.place!r}: {said}\nexpected {problems[:6] or 'no error'}"

    def _wrong_rows(self, table: Table, when: str) -> str:
        if not (self.sink.folder / "root" / TABLE / "_delta_log").exists():
            return f"there is no table {when}" if table.declared else ""
        found = DeltaTable(self.sink.folder / "root" / TABLE).to_pyarrow_table()
        types = {one.name: str(one.type) for one in found.schema}
        wanted = {name: ARROW[kind or "string"] for name, kind in table.columns.items()}
        spare = {
            name: types.pop(name) for name in [*types] if name not in wanted and when != "after the load"
        }
        first = (
            self.output is not None and self.output.table_version == 1 and self.history.style.form != "jsonl"
        )
        same = [*types.items()] == [*wanted.items()] if first else types == wanted
        if table.declared and not same:
            return f"types {when}: {types}, not {wanted}"
        rows = [{name: row[name] for name in row if name not in spare} for row in found.to_pylist()]
        return _different(f"rows {when}", _counted(rows), _counted(table.rows))

    def _wrong_output(self, table: Table, loaded: Loaded, version: int | None) -> str:
        output = self.output
        assert output is not None
        if output.rows != len(table.rows):
            return f"it says {output.rows} rows of {len(table.rows)}"
        if version is not None and not loaded.news and not loaded.anew and output.table_version != version:
            return f"version {output.table_version} after {version}, though nothing is new"
        rejects = Counter(map(_reject_of, self.sink.rejects(output)))
        wrong = _different("rejects", rejects, Counter(map(_rejected, table.rejects)))
        copies = sorted(name.removeprefix(self.place.prefix) for name in output.details.get("copies", ()))
        said = [sorted(table.copies)]
        if version is None:  # a killed load may have made the version and not said so
            said.append(sorted(loaded.copies))
        return wrong or ("" if copies in said else f"copies {copies}, not one of {said}")

    def _wrong_past(self, table: Table) -> str:
        """Each version stays readable as it was (data.md)."""
        output = self.output
        assert output is not None
        assert output.table_version is not None
        self.versions.setdefault(output.table_version, _counted(table.rows))
        version = self.random.choice(sorted(self.versions))
        return _different(
            f"version {version}", _counted(self.sink.table(version).to_pylist()), self.versions[version]
        )

    def _killed(self) -> None:
        """A load that ends somewhere on its way; whether it was committed is not known."""
        kill = Kill(self.random.randint(1, 400), self.random.random() < 0.5)
        after, loads = self._after()
        self.history.log.append(f"killed at {kill}")
        if not killed(kill, self.sink.context(self.spec())):
            return
        both = [
            *self.expected,
            *(table for table, loaded in zip(after, loads, strict=True) if not loaded.problems),
        ]
        wrong = [self._wrong_rows(table, "after the kill") for table in both]
        assert "" in wrong, "\n".join([*self.history.log, *wrong])
        self.expected = both
        self.output = None
        if self.random.random() < 0.4:
            self.history.step()
            self.place.show(self.history.now)

    def spec(self) -> SinkSpec:
        style, declared = self.history.style, self.declared
        csv = {"delimiter": style.delimiter} if style.form == "csv" else {}
        source = Source(**self.place.source(self.history), nulls=declared.nulls, **csv)
        return SinkSpec(
            source=source,
            columns={name: ColumnType(kind) for name, kind in declared.columns.items()},
            select=declared.select,
            rename=dict(declared.rename),
            add=dict(declared.add),
            constraints=tuple(map(_constraint, declared.rules)),
            on_misfit=OnMisfit.REJECT if declared.rejects_misfits else OnMisfit.FAIL,
            max_rejects=declared.max_rejects,
        )

    def _drawn_declaration(self) -> Declared:
        """Of the columns that the first files have."""
        random, columns = self.random, [one for one in self.history.columns if not one.name.startswith("x")]
        rename = {one.name: f"r{one.name}" for one in columns if random.random() < 0.1}
        typed = {}
        for one in columns:
            if random.random() < 0.25:
                text = one.flavour not in self.history.no_texts and random.random() < 0.3
                typed[rename.get(one.name, one.name)] = "string" if text else one.kind
        if not typed and random.random() < 0.3:
            typed = {rename.get(one.name, one.name): one.kind for one in columns}
        names = [rename.get(one.name, one.name) for one in columns]
        select = tuple(random.sample(names, len(names) - 1)) if random.random() < 0.15 else ()
        select = tuple(dict.fromkeys((*select, *typed))) if select else ()
        rules = _drawn_rules(
            random, "id" if typed.get("id", "integer") == "integer" else "", select or tuple(names)
        )
        return Declared(
            typed,
            select,
            rename,
            {"extra": "é"} if random.random() < 0.1 else {},
            self.history.style.nulls,
            rules,
            random.random() < 0.5,
            random.choice([None, None, 0, 0.5, 3]) if rules else None,
        )


def _drawn_rules(random: Random, whole: str, names: Sequence[str]) -> tuple[Rule, ...]:
    rules = []
    if whole in names and random.random() < 0.4:
        rules.append(Rule("id from -50", "id", holds=lambda value: isinstance(value, int) and value >= -50))
    if whole in names and random.random() < 0.3:
        rules.append(Rule("id once", unique=("id",)))
    others = [name for name in names if name.startswith("c")]
    if others and random.random() < 0.3:
        rules.append(Rule("there", random.choice(others), required=True))
    if len(others) > 1 and random.random() < 0.2:
        rules.append(Rule("pair once", unique=tuple(random.sample(others, 2))))
    return tuple(rules)


def _constraint(rule: Rule) -> Constraint:
    if rule.unique:
        return Constraint(name=rule.name, unique=rule.unique)
    if rule.required:
        return Constraint(name=rule.name, column=rule.column, required=True)
    return Constraint(name=rule.name, column=rule.column, min=-50)


def _counted(rows: Sequence[dict[str, Any]]) -> Counter[object]:
    return Counter(tuple(sorted((name, exact(value)) for name, value in row.items())) for row in rows)


def _different(what: str, found: Counter[object], wanted: Counter[object]) -> str:
    if found == wanted:
        return ""
    extra, missing = list((found - wanted).elements()), list((wanted - found).elements())
    more, less = (f"{len(some)}, as {str(some[:3])[:600]}" for some in (extra, missing))
    return f"{what}: too many are {more}\n   missing are {less}"


def _reject_of(row: dict[str, Any]) -> object:
    reasons = tuple(sorted({_named(reason) for reason in row["reasons"]}))
    twice = row["line"] is None or any("once" in reason for reason in reasons)
    record = "{}" if twice else _record(row["record"])
    return row["row"], row["line"], reasons, record


def _record(text: str) -> str:
    """In one form: in JSON 12 and 12.0 are the same, a number beside texts is one of them, and a value that
    is not there is missing."""
    there = {name: _number(value) for name, value in json.loads(text).items() if value is not None}
    return json.dumps(there, sort_keys=True)


def _number(value: object) -> object:
    """As a number, where it is one."""
    try:
        return str(value).lower() if value is None or isinstance(value, bool) else float(str(value))
    except ValueError:
        return value


def _named(reason: str) -> str:
    return "misfit" if "of type" in reason else reason


def _rejected(reject: Reject) -> object:
    reasons = {"misfit" if reason.startswith("misfit ") else reason for reason in reject.reasons}
    return reject.row, reject.line, tuple(sorted(reasons)), _record(reject.record)


def case(seed: int, folder: Path) -> None:
    """One history of files of this machine."""
    random = Random(seed)
    trial = Trial(folder, Folder(folder), History(random), random)
    for _ in range(random.randint(5, 10)):
        trial.step()
