"""A real service whose features come from a view: the view is built before the first answer and follows its
tables, and a day of requests equals the dataset."""

import os
import signal
import time
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from gridmill.domain.dataset import Aggregate, AsOfJoin, Basis, DatasetSpec, Join, Lag, Window
from gridmill.domain.service_features import ViewReport, ViewStatus
from gridmill.online.view import current_file, has_file
from gridmill.serving.service_files import write_views
from tests.kit.dataset_case import DatasetCase
from tests.kit.keyed_service import keyed_order, view_orders
from tests.kit.online_case import OnlineCase
from tests.kit.services import Service, wait_for
from tests.oracles.dataset_cases import note_version
from tests.unit.online.test_online_same import is_close

pytestmark = pytest.mark.e2e
DAY = datetime(2024, 3, 31)
BEGIN_US = 1_711_843_200_000_000
"""DAY in microseconds since 1970."""
SPEC = DatasetSpec(
    basis=Basis(table="asks", time="at", entity=("shop",)),
    windows=(
        Window(
            column="amount",
            aggregates=(Aggregate.SUM, Aggregate.COUNT, Aggregate.MAX, Aggregate.LAST, Aggregate.STD),
            span_seconds=3600.0,
            table="sales",
            known_at="sold",
        ),
        Window(column="amount", aggregates=(Aggregate.MEAN,), span_rows=3, table="sales", known_at="sold"),
    ),
    lags=(Lag(column="amount", steps=(1, 2), table="sales", known_at="sold"),),
    asof_joins=(AsOfJoin(table="prices", known_at="since", on=("shop",)),),
    joins=(Join(table="shops", on=("shop",)),),
    features={"per_size": "amount_sum_1h / size", "twice": "2 * x", "hour": 'hour("at")'},
)
SHOPS = ("a", "b", "c")
TIME = pa.timestamp("us", "UTC")


class Shop:
    """The tables of a day, and a service for requests about its shops."""

    def __init__(self, folder: Path) -> None:
        self.random = Random(1)
        self.case = DatasetCase(folder)
        self.case.give("sales", self.sales(60, 0, 12))
        prices = {"shop": list(SHOPS), "since": [DAY] * 3, "price": [1.0, 2.0, 3.0]}
        self.case.give("prices", pa.table(prices))
        self.case.give("shops", pa.table({"shop": list(SHOPS), "size": [1, 2, 3]}))
        self.case.give("asks", self.asks([("a", 0, 1.0)]))
        for name in self.case.tables:
            note_version(self.case, name)
        self.online = OnlineCase(self.case, SPEC)
        self.folder = folder / "service"
        self.folder.mkdir()
        order = keyed_order(self.online)
        self.order()
        self.service = Service(self.folder, order)

    def order(self) -> None:
        write_views(self.folder, view_orders(self.online, time.time()))

    def asks(self, asked: list[tuple[str, int, float]]) -> pa.Table:
        shops, minutes, values = zip(*asked, strict=True)
        times = pa.array([BEGIN_US + one * 60_000_000 for one in minutes], TIME)
        return pa.table({"shop": list(shops), "at": times, "x": list(values)})

    def sales(self, count: int, first_hour: int, last_hour: int) -> pa.Table:
        random = self.random
        minutes = [random.randrange(first_hour * 60, last_hour * 60) for _ in range(count)]
        return pa.table(
            {
                "shop": [random.choice((*SHOPS, None)) for _ in range(count)],
                "sold": pa.array([BEGIN_US + one * 60_000_000 for one in minutes], TIME),
                "amount": [random.choice((1.0, 2.5, -3.0, 0.1, None)) for _ in range(count)],
            }
        )

    def append(self, rows: pa.Table) -> None:
        write_deltalake(self.case.folder / "root" / self.case.tables["sales"].uri, rows, mode="append")
        note_version(self.case, "sales")
        self.order()

    def delete(self, shop: str) -> None:
        DeltaTable(self.case.folder / "root" / self.case.tables["sales"].uri).delete(f"shop = '{shop}'")
        note_version(self.case, "sales")
        self.order()

    def view(self) -> ViewReport | None:
        views = self.service.report().views
        return views[0] if views else None

    def wait_fresh(self) -> None:
        wanted = f"w/sales@{self.case.tables['sales'].table_version}"
        wait_for("the view", lambda: (view := self.view()) and view.held.get("sales") == wanted)

    def ask(self, asked: list[tuple[str, int, float]]) -> list[dict[str, Any]]:
        """The features of requests, which are sent in one body."""
        rows = [
            {"shop": shop, "x": x, "at": (DAY + timedelta(minutes=minute)).isoformat()}
            for shop, minute, x in asked
        ]
        status, answer = self.service.call("/predict?features=values", {"rows": rows})
        assert status == 200, answer
        assert answer["features"]["view"]["sales"] == self.case.tables["sales"].table_version
        values: list[dict[str, Any]] = answer["features"]["values"]
        return values

    def check(self, asked: list[tuple[str, int, float]], *, at_once: int) -> None:
        """Compare the features of requests with the dataset from the versions that the view holds."""
        self.case.give("asks", self.asks(asked))
        rows = {(row["shop"], row["at"]): row for row in self.case.rows(SPEC)}
        stamp = {minute: pa.scalar(BEGIN_US + 60_000_000 * minute, TIME).as_py() for _, minute, _ in asked}
        for at in range(0, len(asked), at_once):
            part = asked[at : at + at_once]
            for (shop, minute, _), made in zip(part, self.ask(part), strict=True):
                expected = rows[shop, stamp[minute]]
                for name, value in made.items():
                    assert is_close(value, expected[name]), (shop, minute, name, value, expected[name])


def requests_of_a_day(random: Random) -> list[tuple[str, int, float]]:
    return [(random.choice(SHOPS), minute, random.random()) for minute in range(5, 24 * 60, 20)]


def test_a_day_of_requests_to_a_service_equals_the_dataset(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.service:
        day = requests_of_a_day(shop.random)
        shop.check(day, at_once=1)
        shop.append(shop.sales(40, 6, 24))
        shop.wait_fresh()
        shop.random.shuffle(day)
        shop.check(day, at_once=7)
        shop.delete("b")
        shop.wait_fresh()
        shop.check(day, at_once=len(day))


def test_the_view_follows_its_tables_and_survives_kills_and_damage(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.service:
        view = shop.view()
        assert view is not None
        assert (view.state, view.is_complete, set(view.held)) == (
            ViewStatus.FRESH,
            True,
            {"sales", "prices", "shops"},
        )
        asked = [("a", 24 * 60 - 1, 1.0)]
        before = shop.ask(asked)[0]["amount_count_1h"]
        shop.append(shop.sales(10_000, 23, 24))
        shop.wait_fresh()
        assert shop.ask(asked)[0]["amount_count_1h"] > before + 1000
        # a process that is killed is started again, and applies what it missed
        keeper = keeper_pid(shop.service.parent.pid)
        os.kill(keeper, signal.SIGKILL)
        shop.append(shop.sales(100, 23, 24))
        shop.wait_fresh()
        assert keeper_pid(shop.service.parent.pid) != keeper
        # a replica that finds damage refuses requests until the view is built again
        path = current_file(shop.online.folder)
        for part in path.parent.glob(f"{path.name}*"):
            part.write_bytes(b"x" * part.stat().st_size)
        wait_for("another view", lambda: try_it(shop) == 200 and current_file(shop.online.folder) != path)
        assert shop.ask(asked)[0]["amount_count_1h"] > before + 1000
        for part in shop.online.folder.iterdir():
            part.unlink()
        wait_for("a view", lambda: has_file(shop.online.folder) and try_it(shop) == 200)
        assert shop.ask(asked)[0]["amount_count_1h"] > before + 1000
        keeper = keeper_pid(shop.service.parent.pid)
    assert not Path(f"/proc/{keeper}").exists()


def try_it(shop: Shop) -> int:
    """The status of a request, which is 503 while the view is damaged."""
    status, answer = shop.service.call("/predict", {"rows": [{"shop": "a", "x": 1.0}]})
    assert status in (200, 503), answer
    return status


def keeper_pid(parent: int) -> int:
    """The process that keeps the view of a service."""

    def find() -> int | None:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if b"gridmill.serving.view_keeper" in words and str(parent).encode() in words:
                    return int(entry.name)
        return None

    found: int = wait_for("the process of the view", find)
    return found


def test_a_view_that_cannot_be_built_is_a_problem_of_the_service(tmp_path: Path) -> None:
    tables = DatasetCase(tmp_path)
    tables.give("temps", pa.table({"id": [1], "at": pa.array([BEGIN_US], TIME), "x": [1.0]}))
    note_version(tables, "temps")
    spec = DatasetSpec(
        basis=Basis(table="temps", time="at", entity=("id",)), lags=(Lag(column="x", steps=(1,)),)
    )
    case = OnlineCase(tables, spec)
    order, folder = keyed_order(case), tmp_path / "service"
    folder.mkdir()
    log = tmp_path / "root" / tables.tables["temps"].uri / "_delta_log"
    log.rename(tmp_path / "moved")
    write_views(folder, view_orders(case, time.time()))
    service = Service(folder, order)
    try:
        wait_for("a report", (folder / "report.json").exists)
        report = wait_for("the problem", lambda: (one := service.report()).problem and one)
        assert "the view of w/m@1 cannot be built" in report.problem
        assert report.state == "failed"
        (tmp_path / "moved").rename(log)
        service.wait_ready()
    finally:
        service.stop()
