"""Random tables and declarations of datasets, for the comparison with the brute-force dataset.

Left out, as the documentation does not decide it: a `known_at` before the row's own time, a missing one of
the basis, lags and windows of rows over labels that can be missing, columns whose value is `OneOf` in
expressions, `required` and encoders.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from random import Random
from typing import Any

from gridmill.domain.dataset import (
    Aggregate,
    AsOfJoin,
    Basis,
    DatasetSpec,
    Encoder,
    Join,
    Label,
    LabelRule,
    Lag,
    Method,
    Split,
    SplitBy,
    Window,
)
from gridmill.errors import InputError
from tests.oracles.dataset_values import Near, Row, comparable
from tests.oracles.datasets import Expression, Tables

START = datetime(2020, 1, 1)
MINUTE = timedelta(minutes=1)
TINY = timedelta(microseconds=1)
KINDS = {
    "obs": {
        "e": "text",
        "f": "text",
        "t": "time",
        "x": "float",
        "y": "float",
        "n": "int",
        "c": "text",
        "g": "text",
        "b": "bool",
        "d": "date",
        "k": "time",
        "id": "int",
    },
    "news": {"e": "text", "c": "text", "m": "time", "v": "float", "w": "int", "s": "text", "u": "time"},
    "exits": {"e": "text", "f": "text", "h": "time", "z": "float"},
    "fixed": {"c": "text", "r": "float", "q": "text"},
    "dated": {"c": "text", "since": "time", "p": "float", "o": "int"},
}
NUMBERS = ("float", "int", "bool")
SPANS = (60.0, 120.0, 300.0, 1800.0, 3600.0, 86_400.0)
TEXTS = ("a", "b", "B", "ä", "", "a b", "10", "9")


@dataclass
class Drawn:
    """A case: its tables, its declaration, and how rows can be cut into loads that follow each other."""

    tables: dict[str, list[Row]]
    spec: DatasetSpec
    expressions: dict[str, Expression] = field(default_factory=dict)

    @property
    def read(self) -> Tables:
        return Tables(rows=self.tables, expressions=self.expressions)


def draw_case(random: Random) -> Drawn:
    return _Draw(random).case()


class _Draw:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.expressions: dict[str, Expression] = {}
        self.names: set[str] = set()
        self.certain: dict[str, str] = {}
        """Features with one right value, and their kinds."""

    def maybe(self, chance: float) -> bool:
        return self.random.random() < chance

    def some(self, values: Sequence[Any], most: int = 3) -> tuple[Any, ...]:
        return tuple(self.random.sample(list(values), self.random.randint(1, min(most, len(values)))))

    # Tables

    def rows(self, table: str, count: int) -> list[Row]:
        kinds = KINDS[table]
        moods = {name: self.random.choice(MOODS) for name in kinds}
        missing = self.random.choice((0.0, 0.1, 0.4))
        rows = [
            {name: self.value(kind, moods[name], missing) for name, kind in kinds.items()}
            for _ in range(count)
        ]
        return rows

    def value(self, kind: str, mood: str, missing: float) -> Any:
        random = self.random
        if self.maybe(missing):
            return None
        match kind:
            case "float":
                return random.choice(FLOATS[mood])(random)
            case "int":
                return random.choice(INTEGERS[mood])(random)
            case "text":
                return random.choice(TEXTS)
            case "bool":
                return self.maybe(0.5)
            case "date":
                return date(2020, 1, 1) + timedelta(days=random.randint(0, 3))
        return self.time()

    def time(self) -> datetime:
        moment = START + MINUTE * self.random.randint(0, self.minutes)
        return moment + self.random.choice((TINY, -TINY)) if self.maybe(0.05) else moment

    def tables(self) -> dict[str, list[Row]]:
        random = self.random
        self.minutes = random.choice((5, 30, 200, 3000))
        count = random.choice((3, 12, 30, 60))
        tables = {
            "obs": self.rows("obs", count),
            "news": self.rows("news", random.choice((1, 10, 40))),
            "exits": self.rows("exits", random.choice((1, 10, 30))),
            "fixed": self.rows("fixed", 5),
            "dated": self.rows("dated", 5),
        }
        entities = random.sample(TEXTS, random.randint(1, 5))
        without_place = random.choice((0.0, 0.1))
        late = random.choice((0.0, 1.0, 60.0))
        for name in ("obs", "news", "exits"):
            for row in tables[name]:
                row["e"] = None if self.maybe(without_place) else random.choice(entities)
        for number, row in enumerate(tables["obs"]):
            row["id"] = number
            row["f"] = random.choice(entities[:2])
            row["t"] = None if self.maybe(without_place) else row["t"] or self.time()
            row["k"] = (row["t"] or self.time()) + MINUTE * random.randint(0, 5) * late
        for name in ("fixed", "dated"):
            unique = {row["c"]: row for row in tables[name]}
            tables[name] = list(unique.values())
        tables["obs"][0] |= {"t": tables["obs"][0]["t"] or START, "e": tables["obs"][0]["e"] or "a"}
        for name in ("obs", "news", "exits"):
            if self.maybe(0.2):
                tables[name] += [dict(row) for row in self.some(tables[name])]
            random.shuffle(tables[name])
        return tables

    # Declarations

    def case(self) -> Drawn:
        self.rows_of = self.tables()
        self.basis = self.draw_basis()
        self.label = self.draw_label()
        own = self.basis.columns or tuple(KINDS["obs"])
        hidden = self.label.sources if self.label is not None and self.label.is_own else ()
        places = (*self.basis.entity, self.basis.time)
        self.certain = {n: KINDS["obs"][n] for n in own if n not in (*hidden, *places)}
        self.names = {*own, *KINDS["obs"], "split"}
        self.names |= {self.label.name} if self.label is not None else set()
        spec = DatasetSpec(
            basis=self.basis,
            label=self.label,
            joins=tuple(self.many(self.draw_join, 0.4)),
            asof_joins=tuple(self.many(self.draw_asof, 0.6)),
            lags=tuple(self.many(self.draw_lag, 0.8)),
            windows=tuple(self.many(self.draw_window, 1.6)),
        )
        features = dict(self.many(self.draw_feature, 0.5))
        spec = replace(spec, features=features, split=self.draw_split())
        if self.certain and self.maybe(0.2):
            spec = replace(spec, required=self.some(sorted(self.certain), 2))
        spec = replace(spec, encoders=tuple(self.many(self.draw_encoder, 0.5)))
        self.lose_clocks()
        return Drawn(tables=self.rows_of, spec=spec, expressions=self.expressions)

    def lose_clocks(self) -> None:
        """Some rows of some bases are never known. Drawn last, so that all else is as it was without it."""
        if self.basis.known_at is not None or self.maybe(0.7):
            return
        never = {row["id"] for row in self.rows_of["obs"] if self.maybe(0.15)}
        for row in self.rows_of["obs"]:
            row["k"] = None if row["id"] in never else row["k"]

    def many(self, draw: Callable[[int], Any], mean: float) -> list[Any]:
        count = sum(self.maybe(mean / 3) for _ in range(3))
        return [one for number in range(count) if (one := draw(number)) is not None]

    def draw_basis(self) -> Basis:
        columns: tuple[str, ...] = ()
        if self.maybe(0.4):
            columns = ("id", *self.some(("x", "y", "n", "c", "b", "d"), 4))
        entity = self.random.choice((("e",), ("e",), ("e",), ("e", "f"), ()))
        known_at = self.known_at("obs", "k") if self.maybe(0.2) else None
        return Basis(table="obs", time="t", entity=entity, columns=columns, known_at=known_at)

    def known_at(self, table: str, column: str) -> str:
        """A column, or an expression that is later."""
        if self.maybe(0.6):
            return column
        minutes = self.random.choice((1, 5, 60))
        text = f"{column} + INTERVAL {minutes} MINUTE"
        self.expressions[text] = lambda row: row[column] and row[column] + MINUTE * minutes
        return text

    def is_free(self, names: Sequence[str]) -> bool:
        """Whether no other feature has one of these names; they are taken then."""
        if any(name in self.names for name in names):
            return False
        self.names |= set(names)
        return True

    def draw_join(self, number: int) -> Join | None:
        table = self.random.choice(("fixed", "dated"))
        kinds = KINDS[table]
        columns = self.some([name for name in kinds if name not in ("c", "since")], 2)
        prefix = f"j{number}_"
        exempt = table == "dated" and self.maybe(0.3)
        known_at = "since" if table == "dated" and not exempt else None
        self.certain |= {prefix + name: kinds[name] for name in columns}
        return Join(table=table, on=("c",), columns=columns, prefix=prefix, known_at=known_at, exempt=exempt)

    def draw_asof(self, number: int) -> AsOfJoin | None:
        prefix = f"a{number}_"
        within = self.random.choice((None, None, *SPANS))
        if self.maybe(0.25):
            columns = self.some(("x", "n", "b", "d"))
            on = self.random.choice((("e",), ("c",), ()))
            table, known_at = "obs", self.known_at("obs", "k")
        else:
            columns = self.some(("v", "w", "s", "u"))
            on = self.random.choice((("e",), ("e",), ("c",), ("e", "c"), ()))
            table, known_at = "news", self.known_at("news", "m")
        self.certain |= {prefix + name: KINDS[table][name] for name in columns}
        return AsOfJoin(
            table=table, known_at=known_at, on=on, columns=columns, prefix=prefix, within_seconds=within
        )

    def looked_at(self, number: int, letter: str) -> dict[str, Any]:
        """Where a window or lag looks: at the entity's own rows, by another key, at values known late, at
        another table, at earlier labels."""
        label, random = self.label, self.random
        kind = random.choice(("own", "own", "own", "key", "late", "table", "table", "label", "source"))
        prefix = f"{letter}{number}_"
        if kind == "label" and label is not None and label.name == "ahead" and label.next_rows is None:
            keyed = {"on": random.choice(((), ("c",)))} if self.basis.entity else {}
            return {"column": label.name, "prefix": prefix, "kind": "label", **keyed}
        if kind == "source" and label is not None and label.table is None:
            known = {"known_at": "k"} if self.maybe(0.3) else {}
            return {"column": random.choice(label.sources), "prefix": prefix, **known}
        if kind == "table":
            table = random.choice(("news", "exits"))
            column = random.choice(("v", "w", "s", "u") if table == "news" else ("z",))
            on = ("e",) if table == "exits" else random.choice((("e",), ("c",), ("e", "c")))
            known_at = self.known_at(table, "m" if table == "news" else "h")
            return {"column": column, "table": table, "on": on, "known_at": known_at, "prefix": prefix}
        column = random.choice(("x", "y", "n", "c", "b", "d"))
        if kind == "key":
            return {"column": column, "on": random.choice((("c",), ("f",), ("c", "f"))), "prefix": prefix}
        if kind == "late":
            return {"column": column, "known_at": self.known_at("obs", "k"), "prefix": prefix}
        return {"column": column}

    def kind_of(self, where: dict[str, Any]) -> str:
        if where.get("kind") == "label":
            label = self.label
            assert label is not None
            if label.table is not None:
                return {LabelRule.ANY: "bool", LabelRule.COUNT: "int"}.get(
                    label.outcome or LabelRule.SUM, "float"
                )
            return KINDS["obs"][label.sources[0]]
        return KINDS[where.get("table", "obs")][where["column"]]

    def draw_window(self, number: int) -> Window | None:
        where = self.looked_at(number, "w")
        kind, of_label = self.kind_of(where), where.pop("kind", None)
        names = [Aggregate.COUNT, Aggregate.MIN, Aggregate.MAX, Aggregate.LAST, Aggregate.DISTINCT]
        names += [Aggregate.SUM, Aggregate.MEAN, Aggregate.STD] if kind in NUMBERS else []
        chosen = self.some(names, 8)
        if self.maybe(0.6) or self.can_be_missing(of_label):
            window = Window(aggregates=chosen, span_seconds=self.random.choice(SPANS), **where)
        else:
            window = Window(aggregates=chosen, span_rows=self.random.choice((1, 2, 3, 10)), **where)
        span = window.span_seconds or window.span_rows
        return (
            window if self.is_free([f"{window.prefix}{window.column}{one}{span}" for one in chosen]) else None
        )

    def can_be_missing(self, of_label: str | None) -> bool:
        return of_label is not None and self.label is not None and not self.label.is_own

    def draw_lag(self, number: int) -> Lag | None:
        where = self.looked_at(number, "l")
        if self.can_be_missing(where.pop("kind", None)):
            return None
        steps = self.some((1, 2, 3, 7)) if self.maybe(0.7) else ()
        backs = self.some(SPANS, 2) if not steps or self.maybe(0.3) else ()
        lag = Lag(steps=steps, back_seconds=backs, **where)
        return lag if self.is_free([f"{lag.prefix}{lag.column}{one}" for one in (*steps, *backs)]) else None

    def draw_feature(self, number: int) -> tuple[str, str] | None:
        numbers = sorted(name for name, kind in self.certain.items() if kind == "float")
        if not numbers:
            return None
        one, other = self.random.choice(numbers), self.random.choice(numbers)
        text, value = self.random.choice(FEATURES)
        text = text.replace("{A}", one).replace("{Z}", other)
        self.expressions[text] = lambda row: value(row[one], row[other])
        self.certain[f"feature{number}"] = "bool" if value in (_is_more, _is_null) else "float"
        return f"feature{number}", text

    def draw_label(self) -> Label | None:
        random, kind = self.random, self.random.choice(LABELS)
        delay = random.choice((None, None, *SPANS[:4]))
        known_at = self.known_at("obs", "k") if self.maybe(0.2) else None
        clock = {"delay_seconds": delay, "known_at": known_at, "name": "ahead"}
        match kind:
            case "own":
                column = random.choice(("x", "n", "b", "g"))
                return Label(column=column, **clock | {"name": random.choice(("ahead", "ahead", column))})
            case "horizon":
                return Label(column=self.later(), horizon_seconds=random.choice(SPANS[:3]), **clock)
            case "steps":
                return Label(column=self.later(), steps=random.randint(1, 3), **clock)
            case "rows":
                return Label(columns=self.some(("x", "y", "n"), 2), next_rows=random.randint(1, 3), **clock)
            case "events":
                outcome = random.choice(list(LabelRule))
                column = None if outcome in (LabelRule.ANY, LabelRule.COUNT) else "z"
                return Label(
                    table="exits",
                    on=random.choice((("e",), ("e", "f"), ("f",))) if self.basis.entity else ("f",),
                    known_at=self.known_at("exits", "h"),
                    horizon_seconds=random.choice(SPANS[:5]),
                    outcome=outcome,
                    column=column,
                    delay_seconds=delay,
                    known_until=random.choice((None, "basis", self.time().isoformat())),
                    name="ahead",
                )
        return None

    def later(self) -> str:
        return self.random.choice(("x", "y", "n", "b", "g"))

    def draw_split(self) -> Split | None:
        random = self.random
        times = sorted({row["t"] for row in self.rows_of["obs"] if row["t"] is not None})
        kind = random.choice(("none", "times", "times", "shares", "random", "entity"))
        between = sorted(self.some(times[1:], 2)) if len(times) > 2 else []
        begins = dict(
            zip(("validation_from", "test_from"), (one.isoformat() for one in between), strict=False)
        )
        if len(between) == 1 and self.maybe(0.5):
            begins = {"test_from": between[0].isoformat()}
        until = random.choice(times)
        if self.maybe(0.2) and until > START and all(one < until for one in between):
            begins["until"] = until.isoformat()
        gap = {"gap_seconds": random.choice(SPANS[:4])} if self.maybe(0.2) else {}
        shares = {"test": random.choice((0.2, 0.4))} | ({"validation": 0.2} if self.maybe(0.5) else {})
        match kind:
            case "times":
                return self.checked(Split(**begins, **gap)) if between else None
            case "shares":
                return Split(**shares, **gap) if len(times) > 4 else None
            case "random" | "entity":
                by = SplitBy.ENTITY if kind == "entity" and self.basis.entity else SplitBy.RANDOM
                on = random.choice(((), (), ("c",), ("f",)))
                timed = {**begins, **gap} if between and self.maybe(0.3) else {}
                return self.checked(Split(by=by, on=on, seed=random.randint(0, 2), **timed, **shares))
        return None

    def checked(self, split: Split) -> Split:
        """The split, without a gap that is too long."""
        try:
            split.check()
        except InputError:
            return replace(split, gap_seconds=None)
        return split

    def draw_encoder(self, number: int) -> Encoder | None:
        random, label = self.random, self.label
        kinds = {"float": NUMERIC, "text": CATEGORIES}
        columns = sorted(name for name, kind in self.certain.items() if kind in kinds)
        if not columns:
            return None
        column = random.choice(columns)
        method = random.choice(kinds[self.certain[column]])
        if method is Method.TARGET and not self.is_for_target(label):
            return None
        keep = method in CATEGORIES[1:] and self.maybe(0.5)
        if method not in (*NUMERIC[:3], *NUMERIC[3:], Method.MOST_FREQUENT):
            del self.certain[column]  # of a column that is gone, or encoded twice, nothing more can be made
        return Encoder(
            columns=(column,),
            method=method,
            keep=keep,
            value=-7.0 if method is Method.CONSTANT else None,
            most=random.choice((1, 2, 32)),
            smoothing=random.choice((0.0, 1.0, 20.0)),
        )

    def is_for_target(self, label: Label | None) -> bool:
        """Whether the label is one number that no scaler changes."""
        if label is None or label.next_rows is not None:
            return False
        if label.table is not None:
            return True
        kind = KINDS["obs"][label.sources[0]]
        return kind == "bool" or (label.is_own and kind == "float")


LABELS = ("none", "own", "own", "horizon", "horizon", "steps", "rows", "events", "events")
CATEGORIES = (Method.MOST_FREQUENT, Method.ONEHOT, Method.ORDINAL, Method.FREQUENCY, Method.TARGET)
NUMERIC = (
    Method.STANDARD,
    Method.MINMAX,
    Method.ROBUST,
    Method.MEAN,
    Method.MEDIAN,
    Method.CONSTANT,
)

MOODS = ("plain", "plain", "mixed", "special")
_small: Callable[[Random], float] = lambda random: float(random.randint(-5, 5))  # noqa: E731
_real: Callable[[Random], float] = lambda random: random.gauss(0, 1)  # noqa: E731
_far: Callable[[Random], float] = lambda random: 1e6 + random.gauss(0, 1)  # noqa: E731
_huge: Callable[[Random], float] = lambda random: random.gauss(0, 1) * 10.0 ** random.randint(-100, 100)  # noqa: E731
_special: Callable[[Random], float] = lambda random: random.choice((math.nan, math.inf, -math.inf, -0.0))  # noqa: E731
FLOATS = {
    "plain": (_small, _real),
    "mixed": (_small, _far, _huge, _huge),
    "special": (_small, _small, _small, _special),
}
_digit: Callable[[Random], int] = lambda random: random.randint(-5, 5)  # noqa: E731
_wide: Callable[[Random], int] = lambda random: 2**53 + random.randint(-2, 2)  # noqa: E731
_widest: Callable[[Random], int] = lambda random: random.choice((2**63 - 1, -(2**63), 2**63 - 2, 2**62 + 1))  # noqa: E731
INTEGERS = {"plain": (_digit,), "mixed": (_digit, _wide), "special": (_wide, _widest)}


def _size(value: Any) -> float:
    return float(getattr(value, "scale", abs(value)))


def _twice_more(one: Any, other: Any) -> Any:
    if one is None:
        return None
    return Near(one * 2 + (other or 0.0), 2 * _size(one) + _size(other or 0.0))


def _difference(one: Any, other: Any) -> Any:
    return None if one is None or other is None else Near(one - other, _size(one) + _size(other))


def _is_more(one: Any, other: Any) -> Any:
    return None if one is None or other is None else comparable(float(one)) > comparable(float(other))


def _is_null(one: Any, other: Any) -> Any:
    return one is None


def _positive(one: Any, other: Any) -> Any:
    return one if one is not None and comparable(float(one)) > comparable(0.0) else None


FEATURES: tuple[tuple[str, Callable[[Any, Any], Any]], ...] = (
    ("{A} * 2 + coalesce ( {Z} , 0 )", _twice_more),
    ("{A} - {Z}", _difference),
    ("{A} > {Z}", _is_more),
    ("{A} IS NULL", _is_null),
    ("CASE WHEN {A} > 0 THEN {A} END", _positive),
)
