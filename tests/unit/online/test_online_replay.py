"""A day of requests, replayed through the view while its tables change, equals the dataset that is built from
the versions that the view held at each request."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.kit.dataset_case import DatasetCase
from tests.kit.online_case import OnlineCase
from tests.oracles.dataset_cases import note_version
from tests.unit.online.test_online_same import is_close

from gridmill.domain.dataset import Aggregate, AsOfJoin, Basis, DatasetSpec, Join, Lag, Window
from gridmill.jobs.tables import plain_schema
from gridmill.online.build import ViewLimits
from gridmill.online.features import Status

DAY = datetime(2024, 3, 31)
"""On this day, clocks in Europe change to summer time."""
ZONES = (UTC, timezone(timedelta(hours=2)), timezone(timedelta(hours=-7)))
SPEC = DatasetSpec(
    basis=Basis(table="asks", time="at", entity=("shop",)),
    windows=(
        Window(
            column="amount",
            aggregates=tuple(Aggregate),
            span_seconds=3600.0,
            table="sales",
            known_at="sold",
        ),
        Window(
            column="amount",
            aggregates=(Aggregate.SUM, Aggregate.COUNT),
            span_seconds=60.0,
            table="sales",
            known_at="sold",
            prefix="late_",
        ),
        Window(column="kind", aggregates=(Aggregate.DISTINCT,), span_rows=4, table="sales", known_at="seen"),
        Window(
            column="amount", aggregates=(Aggregate.MEAN,), span_seconds=7200.0, table="sales", known_at="seen"
        ),
    ),
    lags=(Lag(column="kind", steps=(1, 3), back_seconds=(1800.0,), table="sales", known_at="sold"),),
    asof_joins=(AsOfJoin(table="prices", known_at="since", on=("shop",), within_seconds=20_000.0),),
    joins=(Join(table="shops", on=("shop",)),),
    features={"per_size": "amount_sum_1h / size", "hour": 'hour("at")'},
)
SHOPS = ("a", "b", "ä", "")
SALES = pa.schema(
    [
        ("shop", pa.string()),
        ("sold", pa.timestamp("us", "UTC")),
        ("seen", pa.timestamp("us", "UTC")),
        ("amount", pa.float64()),
        ("kind", pa.string()),
    ]
)


class Day:
    """The tables of a day, the changes of the sales, and the requests."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random, self.minute = Random(seed), 0
        self.case = DatasetCase(folder)
        self.case.give("sales", self.sales(30))
        prices = {"shop": list(SHOPS[:3]), "since": [DAY] * 3, "price": [1.0, 2.0, 3.0]}
        self.case.give("prices", pa.table(prices))
        self.case.give("shops", pa.table({"shop": list(SHOPS), "size": [1, 2, 3, 4]}))
        self.case.give("asks", self.asks([("a", DAY)]))
        for name in self.case.tables:
            note_version(self.case, name)
        self.online = OnlineCase(self.case, SPEC, limits=ViewLimits(reach_back_seconds=600.0))
        self.set_time()
        self.online.build()

    @property
    def now(self) -> datetime:
        return DAY + timedelta(minutes=self.minute)

    def set_time(self) -> None:
        self.online.now = self.now.replace(tzinfo=UTC).timestamp()

    def asks(self, requests: list[tuple[str, datetime]]) -> pa.Table:
        shops, times = zip(*requests, strict=True)
        return pa.table({"shop": list(shops), "at": pa.array(times, pa.timestamp("us", "UTC"))})

    def sales(self, count: int) -> pa.Table:
        random = self.random
        rows = []
        for _ in range(count):
            # most are new, some late, some in the future, many at the very same minute or at a border
            minute = self.minute + random.choice((0, 0, -1, -60, -120, -5, -30, 1, -random.randint(0, 300)))
            sold = DAY + timedelta(minutes=minute)
            seen = sold + timedelta(minutes=random.choice((0, 0, 7, 90)))
            amount = random.choice((1.0, 2.5, -3.0, 1e9, 1e-9, 0.0, -0.0, None, float("nan")))
            rows.append(
                {
                    "shop": random.choice((*SHOPS[:3], None)),
                    "sold": sold,
                    "seen": random.choice((seen, seen, None)),
                    "amount": amount,
                    "kind": random.choice(("x", "y", "z", None)),
                }
            )
        return pa.Table.from_pylist(rows, SALES)

    def delta(self, name: str = "sales") -> DeltaTable:
        return DeltaTable(self.case.folder / "root" / self.case.tables[name].uri)

    def write(self, name: str, table: pa.Table, mode: str = "append") -> None:
        write_deltalake(self.delta(name), table.cast(plain_schema(table.schema)), mode=mode)

    # what happens to the tables

    def append(self) -> None:
        self.write("sales", self.sales(self.random.choice((1, 10, 40))))

    def double(self) -> None:
        rows = self.delta().to_pyarrow_table()
        places = [self.random.randrange(rows.num_rows) for _ in range(5)]
        self.write("sales", rows.take(pa.array(places)))

    def correct(self) -> None:
        self.delta().update(
            predicate=f"shop = '{self.random.choice(SHOPS[:3])}'", new_values={"amount": 7.25}
        )

    def delete(self) -> None:
        kind = self.random.choice(("x", "y"))
        shop = self.random.choice(SHOPS[:3])
        self.delta().delete(f"kind = '{kind}' AND shop = '{shop}'")

    def roll_back(self) -> None:
        newest = self.delta().version()
        if newest:
            self.delta().restore(max(0, newest - self.random.choice((1, 2))))

    def return_to_an_earlier_version(self) -> None:
        version = max(0, self.delta().version() - self.random.choice((1, 3)))
        self.case.tables["sales"] = replace(self.case.tables["sales"], table_version=version)

    def load_again(self) -> None:
        self.write("sales", self.sales(25), mode="overwrite")

    def labels_arrive(self) -> None:
        self.delta().update(
            predicate="seen IS NULL", new_values={"seen": datetime(2024, 3, 31, 12, tzinfo=UTC)}
        )

    def upsert_prices(self) -> None:
        shop = self.random.choice(SHOPS[:3])
        self.delta("prices").delete(f"shop = '{shop}'")
        row = {"shop": [shop], "since": [self.now], "price": [self.random.random()]}
        self.write("prices", pa.table(row))

    def compact(self) -> None:
        self.delta().optimize.compact()

    def nothing(self) -> None:
        """A time without new rows: windows slide all the same."""

    def step(self) -> None:
        changes: list[Callable[[], None]] = [
            self.append,
            self.append,
            self.double,
            self.correct,
            self.delete,
            self.roll_back,
            self.return_to_an_earlier_version,
            self.load_again,
            self.labels_arrive,
            self.upsert_prices,
            self.compact,
            self.nothing,
        ]
        self.minute += self.random.choice((0, 1, 30, 45))
        self.set_time()
        change = self.random.choice(changes)
        change()
        for name in ("sales", "prices"):
            if not (name == "sales" and change == self.return_to_an_earlier_version):
                note_version(self.case, name)
        if self.random.random() < 0.8:
            self.online.refresh()

    def requests(self) -> list[tuple[str, datetime]]:
        moments = (timedelta(), timedelta(minutes=1), -timedelta(minutes=9), timedelta(microseconds=1))
        return [
            (self.random.choice((*SHOPS, "unknown")), self.now + self.random.choice(moments))
            for _ in range(6)
        ]

    def check(self) -> int:
        """Compare some requests with the dataset. Return the number of values that are not missing."""
        features, requests = self.online.features(), list(dict.fromkeys(self.requests()))
        rows = [
            {"shop": shop, "at": at.replace(tzinfo=UTC).astimezone(self.random.choice(ZONES)).isoformat()}
            for shop, at in requests
        ]
        made = features.features_for(rows)
        features.close()
        expected = self.dataset(requests, {name: one.number for name, one in made.held.items()})
        present = 0
        for number, (shop, at) in enumerate(requests):
            for name in made.columns.column_names:
                value, right = made.columns[name][number].as_py(), expected[shop, at][name]
                assert is_close(value, right), f"{shop!r} at {at}: {name} is {value!r}, not {right!r}"
                present += value is not None
        assert all(
            (status == Status.MISSING) == (made.columns[name][number].as_py() is None)
            for name, statuses in made.statuses.items()
            for number, status in enumerate(statuses)
        )
        return present

    def dataset(
        self, requests: list[tuple[str, datetime]], held: dict[str, int]
    ) -> dict[tuple[str, datetime], dict[str, Any]]:
        """The rows of the dataset over the versions that the view held."""
        before = dict(self.case.tables)
        for name, version in held.items():
            self.case.tables[name] = replace(before[name], table_version=version)
        self.case.give("asks", self.asks(requests))
        rows = self.case.rows(SPEC)
        self.case.tables |= before
        return {(row["shop"], row["at"].replace(tzinfo=None)): row for row in rows}  # type: ignore[misc,attr-defined]


def replay(folder: Path, seed: int, steps: int) -> int:
    """Replay a part of a day. Return the number of compared values that are not missing."""
    day, present = Day(folder, seed), 0
    for _ in range(steps):
        day.step()
        present += day.check()
    return present


def test_a_part_of_a_day_has_no_skew(tmp_path: Path) -> None:
    assert replay(tmp_path, 0, 5) > 50


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 3))
def test_a_day_of_requests_has_no_skew(seed: int, tmp_path: Path) -> None:
    assert replay(tmp_path, seed, 10) > 120


def test_a_request_does_not_depend_on_the_other_requests(tmp_path: Path) -> None:
    day = Day(tmp_path, 7)
    features = day.online.features()
    rows = [{"shop": shop, "at": at.isoformat()} for shop, at in day.requests() + day.requests()]
    whole = features.features_for(rows).columns.to_pylist()
    alone = [features.features_for([row]).columns.to_pylist()[0] for row in rows]
    features.close()
    for one, other in zip(whole, alone, strict=True):
        assert all(is_close(one[name], other[name]) for name in one)
