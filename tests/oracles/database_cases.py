"""Random histories of databases: rows come, change and go while loads are killed, cut off and tried again.

After each step the sink's table is compared, value by value, with the plain rules of `databases`.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pymysql
import pytest
from deltalake.exceptions import TableNotFoundError

from gridmill.domain.artifact import Output
from gridmill.domain.sink import ColumnType, SinkSpec
from gridmill.domain.source import Source, SqlSource
from gridmill.errors import ConflictError, DataError, UnavailableError
from gridmill.jobs.sink.run import run
from tests.kit.sink_case import SinkCase
from tests.oracles.database_cursors import CURSORS, POSTGRESQL_MADE, Cursor
from tests.oracles.database_places import Database, database
from tests.oracles.database_values_cases import values_case
from tests.oracles.databases import CursorTable, Row, Stretches, WholeTable, shown
from tests.oracles.dying import STEPS, at_step, load_and_die

NAMES = ("c", "order", "at time", "Größe", "a%b", "a:b", "C")
"""Names of the cursor's column: each has something that must be quoted somewhere."""


class History:
    """A table `seen` of a database, the sink that reads it, and all rows as they are now."""

    def __init__(self, random: Random, kind: str, made: Database, folder: Path) -> None:
        self.random, self.kind, self.database = random, kind, made
        self.case = SinkCase(folder)
        self.cursor: Cursor = random.choice(CURSORS[kind])
        self.rows: dict[int, Row] = {}
        self.place = self._next = 0
        self.name = random.choice(NAMES)
        self.column = f"{made.quote}{self.name}{made.quote}"
        made.do(*(POSTGRESQL_MADE if kind == "postgresql" else ()))
        made.do(
            f"CREATE TABLE seen (id integer PRIMARY KEY, {self.column} {self.cursor.type}, v varchar(40))"
        )

    # What users do

    def change(self) -> None:
        """Something of what users do to a table, of each a little."""
        for _ in range(self.random.randint(0, 3)):
            act = self.random.choices((self.insert, self.edit, self.move, self.delete), (6, 2, 2, 1))[0]
            act()

    def insert(self) -> None:
        self.add(self._drawn())

    def several(self) -> list[Row]:
        """Rows around the newest, and beyond it."""
        self.place += 1
        return [self._new(self.place + number) for number in (-1, 0, 1, 0)]

    def add(self, rows: list[Row]) -> None:
        self.database.do(self._insertion(rows))
        self._keep(rows)

    def has(self, rows: list[Row]) -> bool:
        return rows[0].number in self.rows

    def _drawn(self) -> list[Row]:
        self.place += self.random.random() < 0.8
        return [
            self._new(self.place - self.random.choice((0, 0, 0, 1))) for _ in range(self.random.randint(1, 4))
        ]

    def _new(self, place: int) -> Row:
        self._next += 1
        return Row(self._next, self._value(place), self._text())

    def _value(self, place: int) -> Any:
        if self.random.random() < 0.06:
            return None
        return self.cursor.draw(self.random, place)

    def _text(self) -> str:
        return self.random.choice(("", "ä", "a'b", "%s", ":x", "😀")) + str(self.random.randint(0, 99))

    def _insertion(self, rows: list[Row]) -> str:
        listed = ", ".join(f"({row.number}, {self._sql(row)}, {self._quoted(row.text)})" for row in rows)
        return f"INSERT INTO seen VALUES {listed}"

    def _quoted(self, text: str) -> str:
        return "'" + text.replace("'", "''") + "'"

    def _sql(self, row: Row) -> str:
        if row.cursor is not None:
            return self.cursor.literal(row.cursor)
        return self.random.choice(("NULL", *self.cursor.missing))

    def _keep(self, rows: list[Row]) -> None:
        self.rows.update({row.number: row for row in rows})

    def edit(self) -> None:
        """Its cursor stays."""
        for row in self._some():
            changed = replace(row, text=self._text())
            self.database.do(f"UPDATE seen SET v = {self._quoted(changed.text)} WHERE id = {row.number}")
            self._keep([changed])

    def move(self) -> None:
        """Its cursor is new: it is a row of its own, as with `updated_at`."""
        for row in self._some():
            changed = replace(row, cursor=self._value(self.place + 1), text=self._text())
            self.database.do(
                f"UPDATE seen SET {self.column} = {self._sql(changed)}, v = {self._quoted(changed.text)}"
                f" WHERE id = {row.number}"
            )
            self._keep([changed])

    def delete(self) -> None:
        for row in self._some():
            self.database.do(f"DELETE FROM seen WHERE id = {row.number}")
            del self.rows[row.number]

    def _some(self) -> list[Row]:
        return self.random.sample(list(self.rows.values()), min(len(self.rows), self.random.randint(0, 2)))

    # What is loaded

    def load(self, spec: SinkSpec, before: Counter[Any], after: Counter[Any]) -> Output | None:
        """Load once: the table is `after`, or as it was where the load was ended; None then."""
        disturb = self.random.choices(("", "kill", "cut", "restart"), (60, 25, 12, 1))[0]
        step = self.random.randint(1, STEPS)
        if disturb == "kill" and load_and_die(self.case, spec, step):
            found = self.table()
            assert found in (before, after), difference(found, after)
            return None
        act = {"cut": self.database.cut, "restart": self.database.restart}.get(disturb, lambda: None)
        try:
            with at_step(step, act):
                output = run(self.case.context(spec)).outputs[0]
        except UnavailableError:
            assert disturb, "nothing disturbed it"
            assert self.table() == before
            return None
        found = self.table()
        assert found == after, difference(found, after)
        return output

    @contextmanager
    def others_work(self) -> Iterator[None]:
        """Meanwhile rows are in a transaction that ends after the load, or there are none."""
        rows = self._drawn() if self.random.random() < 0.25 else []
        commit = self.database.late(self._insertion(rows)) if rows else lambda: None
        yield
        try:
            commit()
        except (psycopg.OperationalError, pymysql.err.Error):  # the server was started anew meanwhile
            return
        self._keep(rows)

    def check_not_emptied(self, spec: SinkSpec) -> None:
        """All rows are deleted: a table does not become empty that way."""
        before = self.table()
        self.database.do("DELETE FROM seen")
        self.rows.clear()
        with pytest.raises(DataError, match="no rows"):
            run(self.case.context(spec))
        assert self.table() == before

    def check_no_table(self, spec: SinkSpec) -> None:
        """Nobody knows the types of a query that has no row."""
        with pytest.raises(DataError, match="no rows"):
            run(self.case.context(spec))

    def table(self) -> Counter[Any]:
        """The rows, with how often each is there."""
        try:
            table = self.case.table().to_pylist()
        except TableNotFoundError:
            return Counter()
        return Counter((row["id"], shown(row[self.name]), row["v"]) for row in table)

    def expected(self, rows: list[Row]) -> Counter[Any]:
        stored = self.cursor.stored
        return Counter(
            (row.number, shown(None if row.cursor is None else stored(row.cursor)), row.text) for row in rows
        )

    def source(self, query: str, **more: Any) -> SinkSpec:
        where = {"query": query} if query else {"table": "seen"}
        return SinkSpec(source=Source(sql=SqlSource(url=self.database.url, **where, **more)))


def difference(found: Counter[Any], wanted: Counter[Any]) -> str:
    return f"lost: {list((wanted - found).elements())}, too many: {list((found - wanted).elements())}"


def cursor_case(history: History) -> None:
    """A table or a query with a cursor."""
    random, cursor = history.random, history.cursor
    as_query = cursor.in_query and random.random() < 0.4
    query = "SELECT * FROM seen WHERE id > 0" if as_query else ""
    model = CursorTable(order=cursor.order)
    lag = random.choice((None, *cursor.lags))
    history.insert()
    for _ in range(random.randint(4, 8)):
        history.change()
        if random.random() < 0.1:
            lag = random.choice((None, *cursor.lags))
        spec = history.source(query, cursor=history.name, lag=None if lag is None else float(lag))
        if model.rows and history.kind != "sqlite" and random.random() < 0.2:
            model = load_while_rows_come(history, model, spec)
            continue
        rows = list(history.rows.values())
        after = deepcopy(model)
        after.load(rows, None if lag is None else Decimal(lag))
        if query and not after.rows:
            history.check_no_table(spec)
            continue
        with history.others_work():
            output = history.load(spec, history.expected(model.rows), history.expected(after.rows))
        if output is not None:
            assert output.details["unseen"] == after.not_seen(rows), output.details["unseen"]
        if output is not None or history.table() == history.expected(after.rows):
            model = after


def load_while_rows_come(history: History, model: CursorTable, spec: SinkSpec) -> CursorTable:
    """A transaction of others ends while the load reads: it sees all of its rows or none."""
    rows, new = list(history.rows.values()), history.several()
    sql = spec.source.sql
    lag = None if sql is None or sql.lag is None else Decimal(str(sql.lag))
    without, beside = deepcopy(model), deepcopy(model)
    without.load(rows, lag)
    beside.load([*rows, *new], lag)
    with at_step(history.random.randint(1, STEPS // 2), partial(history.add, new)):
        run(history.case.context(spec))
    if not history.has(new):
        history.add(new)
    found, wanted = history.table(), [history.expected(one.rows) for one in (without, beside)]
    assert found in wanted, difference(found, wanted[1])
    return beside if found == wanted[1] else without


def whole_case(history: History) -> None:
    """Without a cursor: the table is what the database holds."""
    random, model = history.random, WholeTable()
    history.cursor = replace(history.cursor, missing=())
    query = "SELECT * FROM seen" if history.cursor.in_query and random.random() < 0.4 else ""
    spec = history.source(query)
    history.insert()
    changed, version = True, -1
    for _ in range(random.randint(3, 6)):
        history.change() if random.random() < 0.7 else None
        if random.random() < 0.1 and model.rows:
            history.check_not_emptied(spec)
        if not history.rows:
            history.insert()
        after = list(history.rows.values())
        changed = after != model.rows or changed
        output = history.load(spec, history.expected(model.rows), history.expected(after))
        if output is not None:
            assert changed or output.table_version == version, "nothing changed, and there is a new version"
            version, changed = output.table_version, False
        if output is not None or history.table() == history.expected(after):
            model.load(after)


def stretch_case(history: History) -> None:
    """Chunks of time, again and again, in any order: each replaces its own rows."""
    random, model = history.random, Stretches()
    times = [one for one in CURSORS[history.kind] if one.type.split("(")[0].lower() in _TIMES]
    history.cursor = replace(random.choice(times), missing=())
    history.database.do(
        "DROP TABLE seen",
        f"CREATE TABLE seen (id integer PRIMARY KEY, {history.column} {history.cursor.type}, v varchar(40))",
    )
    column = history.column.replace("%", "%")
    query = f"SELECT * FROM seen WHERE {column} >= '${{from}}' AND {column} < '${{to}}'"
    named = {history.name: ColumnType.DATE if history.cursor.type.lower() == "date" else ColumnType.TIMESTAMP}
    history.insert()
    for _ in range(random.randint(5, 9)):
        history.change()
        begins, ends, bounds = _stretch(history)
        rows = list(history.rows.values())
        spec = replace(history.source(query, parameters=bounds), columns={"id": ColumnType.INTEGER, **named})
        spec = replace(spec, columns={**spec.columns, "v": ColumnType.STRING})
        before = history.expected(model.rows)
        if model.is_refused(begins, ends):
            with pytest.raises(ConflictError):
                run(history.case.context(spec))
            assert history.table() == before
            continue
        after = deepcopy(model)
        after.load(begins, ends, rows)
        wanted = history.expected(after.rows)
        output = history.load(spec, before, wanted)
        if output is None and before == wanted:  # nobody can see whether it was loaded
            run(history.case.context(spec))
        if output is not None or history.table() == wanted:
            model = after


_TIMES = ("date", "datetime", "timestamp", "timestamptz", "timestamp null")


def _stretch(history: History) -> tuple[datetime, datetime, dict[str, str]]:
    """A chunk of a day or of hours around the values; its bounds as a backfill writes them."""
    random = history.random
    first = min(
        (_moment(row.cursor) for row in history.rows.values() if row.cursor), default=datetime(2024, 4, 1)
    )
    day = datetime(first.year, first.month, first.day, tzinfo=UTC)
    if history.cursor.type.lower() == "date" or random.random() < 0.3:
        begins = day + timedelta(days=random.randint(-1, 3))
        ends = begins + timedelta(days=random.choice((1, 1, 1, 3)))
        return begins, ends, {"from": f"{begins:%Y-%m-%d}", "to": f"{ends:%Y-%m-%d}"}
    begins = day + timedelta(hours=random.randint(20, 30))
    ends = begins + timedelta(hours=random.choice((1, 1, 2)))
    zone = timezone(timedelta(minutes=random.choice((0, 60, 120, 345, -210))))
    if random.random() < 0.5:
        return begins, ends, {"from": f"{begins:%Y-%m-%dT%H:%M:%S}", "to": f"{ends:%Y-%m-%dT%H:%M:%S}"}
    return (
        begins,
        ends,
        {"from": begins.astimezone(zone).isoformat(), "to": ends.astimezone(zone).isoformat()},
    )


def _moment(cursor: date | datetime) -> datetime:
    return datetime(cursor.year, cursor.month, cursor.day)


def history_case(kind: str, seed: int, folder: Path) -> None:
    """One database, one history."""
    random = Random(seed)
    act: Callable[[History], None]
    with database(kind, random, folder) as made:
        if random.random() < 0.25:
            values_case(random, kind, made, folder)
            return
        act = random.choices((cursor_case, whole_case, stretch_case), (6, 1, 2))[0]
        act(History(random, kind, made, folder))


postgresql = partial(history_case, "postgresql")
mariadb = partial(history_case, "mariadb")
sqlite = partial(history_case, "sqlite")
