"""A table of a real PostgreSQL, filled month by month of a time zone, while all processes are killed."""

import json
import os
import signal
from contextlib import suppress
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from deltalake import DeltaTable

from tests.e2e.conftest import Place, eventually
from tests.kit.postgresql import PostgresqlServer

pytestmark = pytest.mark.e2e

HERE = ZoneInfo("Europe/Berlin")
MONTHS = 12
PIPELINE = """
pipeline: shop
parameters: {from: 2023-01-01, to: 2023-02-01}
jobs:
  sales:
    sink:
      source:
        sql:
          url: URL
          query: select id, at from sales where at >= '${from}' and at < '${to}'
  note:
    needs: [sales]
    command: >-
      echo "${from} ${to} ${due_before} ${due} ${due_before:%d.%m.} ${due:%H:%M}" > "MARKS/${from:%Y-%m}.txt";
      echo "${from:%Y-%m}" >> MARKS/all
"""
RANGE = ("--from", "2023-01-01", "--to", "2024-01-01", "--every", "1mo", "--zone", "Europe/Berlin")


def midnights() -> list[datetime]:
    """Of the first day of each month in Berlin, and of the next year's."""
    return [datetime(2023 + month // 12, month % 12 + 1, 1, tzinfo=HERE) for month in range(MONTHS + 1)]


def make_sales(server: PostgresqlServer, database: str) -> list[int]:
    """Rows every five hours from before the year to after it, and one right before and at each midnight
    between two months; the ids of those in the year."""
    server.execute("CREATE TABLE sales (id bigserial, at timestamptz NOT NULL)", database)
    server.execute(
        "INSERT INTO sales (at) SELECT * FROM generate_series(timestamptz '2022-12-20 00:00Z',"
        " timestamptz '2024-01-12 00:00Z', interval '5 hours')",
        database,
    )
    for at in midnights():
        for moment in (at - timedelta(microseconds=1), at):
            server.execute(f"INSERT INTO sales (at) VALUES ('{moment.isoformat()}')", database)
    first, *_, last = (at.isoformat() for at in midnights())
    within = f"at >= '{first}' AND at < '{last}'"
    found = server.execute(f"SELECT id FROM sales WHERE {within} ORDER BY id", database)
    return [int(str(row[0])) for row in found]


def loaded_ids(place: Place) -> list[int]:
    table = DeltaTable(place.home / "storage" / "sinks" / "shop" / "sales" / "table")
    ids: list[int] = table.to_pyarrow_table(columns=["id"])["id"].to_pylist()
    return sorted(ids)


@pytest.mark.long
def test_each_month_is_loaded_once_however_often_everybody_is_killed(
    place: Place, postgresql: PostgresqlServer
) -> None:
    database, marks = postgresql.create_database(), place.folder / "marks"
    expected = make_sales(postgresql, database)
    marks.mkdir()
    url = postgresql.url(database).replace(postgresql.password, "${env:SHOP_PASSWORD}")
    file = place.write(PIPELINE.replace("URL", url).replace("MARKS", str(marks)))
    env = {"SHOP_PASSWORD": postgresql.password}
    number, kills, begun = 20, 0, False
    while states(place) != {"done": MONTHS}:
        fault = {"GRIDMILL_FAULT": f"after-commit:{number}"} if kills < 6 else {}
        up = place.start("up", "--listen", "off", **env, **fault)
        while not begun and up.poll() is None:
            begun = place.gridmill("backfill", file, *RANGE, "--parallel", 2, **env).returncode == 0
        assert eventually(lambda up=up: up.poll() is not None or states(place) == {"done": MONTHS})
        kills, number = kills + 1, number + 7
        if kills % 2 or up.poll() is None:
            kill_all(place)
        assert kills < 20, place.gridmill("show", "backfill", "shop").stdout
    assert kills >= 4
    assert loaded_ids(place) == expected
    assert {path.stem: path.read_text().split() for path in marks.glob("*.txt")} == {
        f"{begin:%Y-%m}": [begin.isoformat(), end.isoformat()] * 2 + [f"{begin:%d.%m.}", "00:00"]
        for begin, end in zip(midnights()[:-1], midnights()[1:], strict=True)
    }
    assert set((marks / "all").read_text().split()) == {f"{at:%Y-%m}" for at in midnights()[:-1]}


def states(place: Place) -> dict[str, int]:
    """How many chunks are in each state."""
    said = place.gridmill("show", "backfill", "shop", "--json")
    if said.returncode:
        return {}
    counts: dict[str, int] = {}
    for chunk in json.loads(said.stdout)["chunks"]:
        counts[chunk["state"]] = counts.get(chunk["state"], 0) + 1
    return counts


def kill_all(place: Place) -> None:
    for pid in place.leftovers():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
