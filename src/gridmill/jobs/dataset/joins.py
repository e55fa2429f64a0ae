"""Ordinary and as-of joins as SQL. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gridmill.jobs.dataset.asked import Asked, Newest, Theirs, nulls_first
from gridmill.jobs.dataset.labels import own_known
from gridmill.jobs.dataset.names import Types, check_comparable, find_column, refuse_duplicates
from gridmill.jobs.dataset.sqltext import TIME, Scope, interval, quote_all, sql_text
from gridmill.jobs.engine import quoted
from gridmill.model.dataset import AsOfJoin, Basis, DatasetSpec, Join, Label


@dataclass(slots=True)
class Joined:
    """Columns that joins add (name -> SQL; empty: they are there already), and the text after FROM."""

    columns: dict[str, str] = field(default_factory=dict)
    joins: list[str] = field(default_factory=list)

    def add(self, columns: Mapping[str, str], join: str = "") -> None:
        """One more join, if there is one. Raises InputError for a column that is there already."""
        for name, sql in columns.items():
            refuse_duplicates((*self.columns, name))
            self.columns[name] = sql
        self.joins += [join] if join else []


def join_all(
    spec: DatasetSpec,
    basis: Basis,
    tables: Mapping[str, Types],
    before: str,
    scope: Scope,
    asked: Asked | None = None,
) -> Joined:
    """The declared joins of `before`; as-of joins go to what is `asked`, where that is given.

    Raises InputError.
    """
    made = Joined()
    for number, join in enumerate(spec.joins, start=1):
        _ordinary(made, join, f"j{number}", basis, tables, before)
    asofs = (part for asof in spec.asof_joins for part in _by_clock(asof, spec.label, basis, tables))
    for number, asof in enumerate(asofs, start=1):
        if asked is not None:
            asked.theirs.append(_asked(made, asof, tables, scope))
        else:
            _as_of(made, asof, f"a{number}", basis, tables, before, scope)
    return made


def _by_clock(
    asof: AsOfJoin, label: Label | None, basis: Basis, tables: Mapping[str, Types]
) -> Iterator[AsOfJoin]:
    """The join; where it brings the rows' own labels, known late, these apart: known when both say so."""
    mine = asof.table == basis.table and not asof.exempt
    known = own_known(label, basis) if label is not None and mine else ""
    added = _added_as_of(asof, tables)
    late = tuple(name for name in added if known and label is not None and name in label.sources)
    others = tuple(name for name in added if name not in late)
    if others or not late:
        yield replace(asof, columns=others)
    if late:
        told = f"({sql_text(asof.known_at)})::TIMESTAMP"
        later = f"CASE WHEN {told} >= {known} THEN {told} WHEN {told} < {known} THEN {known} END"
        yield replace(asof, columns=late, known_at=later)


def _asked(made: Joined, asof: AsOfJoin, tables: Mapping[str, Types], scope: Scope) -> Theirs:
    added = _added_as_of(asof, tables)
    named = {f"{asof.prefix}{name}": name for name in added}
    made.add(dict.fromkeys(named, ""))
    listed = ", ".join(quote_all(dict.fromkeys((*asof.on, *added, "__known"))))
    return Theirs(
        sql=f"SELECT {listed} FROM ({_with_known(asof)})",
        on=asof.on,
        order=nulls_first(added),
        newest=(Newest(columns=named, within_seconds=asof.within_seconds),),
        after=scope.after,
    )


def _with_known(asof: AsOfJoin) -> str:
    return f'SELECT *, ({sql_text(asof.known_at)})::TIMESTAMP AS "__known" FROM {quoted(asof.table)}'


def _ordinary(
    made: Joined, join: Join, alias: str, basis: Basis, tables: Mapping[str, Types], before: str
) -> None:
    added = _added(join.columns, (*join.on, join.known_at or ""), tables[join.table], join.table, "joins")
    same = _same(join.on, basis, tables, join.table, alias, before, "joins")
    values = {name: f"{alias}.{quoted(name)}" for name in added}
    table = quoted(join.table)
    if join.known_at is not None:
        table = f'(SELECT *, ({sql_text(join.known_at)})::TIMESTAMP AS "__known" FROM {table})'
        before_it = f'{alias}."__known" < {before}."{TIME}"'
        values = {name: f"CASE WHEN {before_it} THEN {sql} END" for name, sql in values.items()}
    made.add(
        {f"{join.prefix}{name}": sql for name, sql in values.items()},
        f"LEFT JOIN {table} AS {alias} ON {' AND '.join(same)}",
    )


def _as_of(
    made: Joined,
    asof: AsOfJoin,
    alias: str,
    basis: Basis,
    tables: Mapping[str, Types],
    before: str,
    scope: Scope,
) -> None:
    added = _added_as_of(asof, tables)
    same = _same(asof.on, basis, tables, asof.table, alias, before, "asof_joins")
    earlier = f'{before}."{TIME}" > {alias}."__known"'
    types = tables[basis.table]
    alike = asof.on == basis.entity and all(types[name] == tables[asof.table][name] for name in asof.on)
    where = scope.bucket(asof.on) if alike else ()
    made.add(
        {f"{asof.prefix}{name}": _within(asof, alias, name, before) for name in added},
        f"ASOF LEFT JOIN (\n{_newest(asof, added, where)}\n) AS {alias} ON {' AND '.join((*same, earlier))}",
    )


def _added(
    columns: Sequence[str], keys: Iterable[str], types: Types, table: str, field_: str
) -> tuple[str, ...]:
    for name in columns:
        find_column(name, types, table, field_)
    return tuple(columns) or tuple(name for name in types if name not in set(keys))


def _added_as_of(asof: AsOfJoin, tables: Mapping[str, Types]) -> tuple[str, ...]:
    return _added(asof.columns, (*asof.on, asof.known_at), tables[asof.table], asof.table, "asof_joins")


def _same(
    on: Sequence[str],
    basis: Basis,
    tables: Mapping[str, Types],
    table: str,
    alias: str,
    before: str,
    field_: str,
) -> list[str]:
    for name in on:
        left = find_column(name, tables[basis.table], basis.table, field_)
        right = find_column(name, tables[table], table, field_)
        check_comparable(name, (basis.table, left), (table, right))
    return [f"{before}.{quoted(name)} = {alias}.{quoted(name)}" for name in on]


def _newest(asof: AsOfJoin, added: Sequence[str], where: Sequence[str]) -> str:
    """One row per key and moment: of several known at once the one whose values are last in order."""
    keys = quote_all(asof.on)
    last = ", ".join(f"{quoted(name)} DESC" for name in added) or '"__known"'
    by = ", ".join((*keys, '"__known"'))
    columns = list(dict.fromkeys((*keys, *quote_all(added))))
    return "\n".join(
        (
            f"    SELECT {', '.join((*columns, chr(34) + '__known' + chr(34)))}",
            f"    FROM ({_with_known(asof)})",
            f"    WHERE {' AND '.join((chr(34) + '__known' + chr(34) + ' IS NOT NULL', *where))}",
            f"    QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY {last}) = 1",
        )
    )


def _within(asof: AsOfJoin, alias: str, name: str, before: str) -> str:
    value = f"{alias}.{quoted(name)}"
    if asof.within_seconds is None:
        return value
    oldest = f'{before}."{TIME}" - {interval(asof.within_seconds)}'
    return f'CASE WHEN {alias}."__known" >= {oldest} THEN {value} END'
