"""Random tables of all types of a database, judged by the plain rules of `database_values`."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from gridmill.domain.sink import ColumnType, SinkSpec
from gridmill.domain.source import Source, SqlSource
from gridmill.errors import DataError
from gridmill.jobs.sink.run import run
from tests.kit.sink_case import SinkCase
from tests.oracles.database_places import Database
from tests.oracles.database_values import MARIADB, POSTGRESQL, POSTGRESQL_MADE, SQLITE, Kind
from tests.oracles.databases import shown

KINDS = {"postgresql": POSTGRESQL, "mariadb": MARIADB, "sqlite": SQLITE}

Column = tuple[bool, list[str], list[object]]
"""Whether it is declared `string`, its values in SQL, and what they become."""


def _column(random: Random, kind: Kind, rows: int) -> Column:
    as_text = bool(kind.texts) and random.random() < 0.3
    given = [
        random.choice(kind.texts if as_text else kind.values) if random.random() < 0.85 else ("NULL", None)
        for _ in range(rows)
    ]
    values: list[object] = [value for _, value in given]
    return as_text, [sql for sql, _ in given], values if as_text else kind.rule(values)


def values_case(random: Random, kind: str, made: Database, folder: Path) -> None:
    """A table of some columns and rows; sometimes with one value that is refused."""
    as_query = random.random() < 0.4
    kinds = [one for one in KINDS[kind] if one.in_query or not as_query]
    chosen = random.sample(kinds, min(len(kinds), random.randint(3, 12)))
    count = random.randint(1, 5)
    drawn = [_column(random, one, count) for one in chosen]
    refused = [number for number, one in enumerate(chosen) if one.refused and not drawn[number][0]]
    words = ("", "")
    if refused and random.random() < 0.5:
        number = random.choice(refused)
        value, written = random.choice(chosen[number].refused)
        drawn[number][1][random.randrange(count)] = value
        words = (f"column 'c{number}'", repr(written))
    made.do(*(POSTGRESQL_MADE if kind == "postgresql" else ()))
    if any(words):
        with pytest.raises(DataError) as caught:
            _loaded(chosen, drawn, made, folder, as_query=as_query)
        assert all(one in str(caught.value) for one in words), f"{words}: {caught.value}"
        assert "string" in caught.value.hint
    else:
        _compare(_loaded(chosen, drawn, made, folder, as_query=as_query), chosen, drawn)


def _loaded(
    kinds: list[Kind], drawn: list[Column], made: Database, folder: Path, *, as_query: bool
) -> SinkCase:
    """A sink's table of these columns."""
    columns = ", ".join(f"c{number} {one.type}" for number, one in enumerate(kinds))
    made.do(f"CREATE TABLE kinds (n integer, {columns})")
    for row in range(len(drawn[0][1])):
        made.do(f"INSERT INTO kinds VALUES ({row}, {', '.join(sql[row] for _, sql, _ in drawn)})")
    where = {"query": "SELECT * FROM kinds"} if as_query else {"table": "kinds"}
    declared = {f"c{number}": ColumnType.STRING for number, (as_text, _, _) in enumerate(drawn) if as_text}
    case = SinkCase(folder)
    run(case.context(SinkSpec(source=Source(sql=SqlSource(url=made.url, **where)), columns=declared)))
    return case


def every_value(kind: str, made: Database, folder: Path) -> None:
    """All values of all types in one table, and what they are where they are declared `string` in another."""
    made.do(*(POSTGRESQL_MADE if kind == "postgresql" else ()))
    for as_text in (False, True):
        for as_query in (False, True):
            kinds = [
                one for one in KINDS[kind] if (one.in_query or not as_query) and (one.texts or not as_text)
            ]
            count = max((len(one.texts if as_text else one.values) for one in kinds), default=0)
            drawn = [_filled(one, count, as_text=as_text) for one in kinds]
            if kinds:
                made.do("DROP TABLE IF EXISTS kinds")
                case = _loaded(kinds, drawn, made, folder / f"{as_text}-{as_query}", as_query=as_query)
                _compare(case, kinds, drawn)


def late_values(kind: str, made: Database, folder: Path) -> None:
    """An empty table, then one row without values, then all values: their types are those of the columns."""
    made.do(*(POSTGRESQL_MADE if kind == "postgresql" else ()))
    kinds = [one for one in KINDS[kind] if one.type not in ("", "DATETIME")]  # of any type, numbers as times
    rows = max(len(one.values) for one in kinds)
    drawn = [_filled(one, rows, as_text=False, within_64_bits=True) for one in kinds]
    drawn = [(as_text, ["NULL", *given], [None, *values]) for as_text, given, values in drawn]
    columns = ", ".join(f"c{number} {one.type}" for number, one in enumerate(kinds))
    made.do(f"CREATE TABLE kinds (n integer, {columns})")
    case = SinkCase(folder)
    spec = SinkSpec(source=Source(sql=SqlSource(url=made.url, table="kinds", cursor="n")))
    run(case.context(spec))
    for row in range(rows + 1):
        made.do(f"INSERT INTO kinds VALUES ({row}, {', '.join(sql[row] for _, sql, _ in drawn)})")
        if row in (0, rows):
            run(case.context(spec))
    _compare(case, kinds, drawn)


def _filled(kind: Kind, rows: int, *, as_text: bool, within_64_bits: bool = False) -> Column:
    """All values, from the first again until there are so many."""
    values: Sequence[tuple[str, object]] = kind.texts if as_text else kind.values
    if within_64_bits:
        values = [one for one in values if not isinstance(one[1], int) or -(2**63) <= one[1] < 2**63]
    given = [values[row % len(values)] for row in range(rows)]
    found = [value for _, value in given]
    return as_text, [sql for sql, _ in given], found if as_text else kind.rule(found)


def _compare(case: SinkCase, kinds: list[Kind], drawn: list[Column]) -> None:
    rows = sorted(case.table().to_pylist(), key=lambda row: int(row["n"]))
    wrong = []
    for number, (kind, (as_text, given, wanted)) in enumerate(zip(kinds, drawn, strict=True)):
        got = [row[f"c{number}"] for row in rows]
        if [shown(value) for value in got] != [shown(value) for value in wanted]:
            wrong.append(f"{kind.type}{' as string' * as_text} {given}: {got}, not {wanted}")
    assert not wrong, "\n".join(wrong)
