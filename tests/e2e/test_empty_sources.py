"""A continuous pipeline over a source that holds nothing yet: nothing fails, and all runs once rows come."""

import signal
import sqlite3
from contextlib import closing

import pytest

from gridmill.domain.artifact import Artifact
from gridmill.domain.run import Run
from gridmill.domain.states import RunState
from gridmill.stores.sql import make
from tests.e2e.conftest import PATIENCE_SECONDS, Place, eventually

pytestmark = pytest.mark.e2e

PIPELINE = """\
pipeline: shop
schedule: {continuous: {check: 0.5s}}
jobs:
  sales:
    sink: {source: {sql: {url: "sqlite:///shop.db", table: sales, cursor: id}}}
  data:
    dataset:
      basis: {table: sales, time: sold, entity: [shop]}
      features: {hour: hour(sold)}
      label: {column: price, steps: 1}
      split: {validation_from: "2024-01-21", test_from: "2024-01-26"}
  model:
    training: {dataset: data, model: linear}
"""


def change(place: Place, *statements: str) -> None:
    with sqlite3.connect(place.folder / "project" / "shop.db") as database:
        for statement in statements:
            database.execute(statement)
    database.close()


def ended(place: Place) -> list[Run]:
    with closing(make(place.home / "store.db")) as store:
        return [record.noun for record in store.list(Run) if record.noun.ended]


def has_model(place: Place) -> bool:
    with closing(make(place.home / "store.db")) as store:
        return bool(store.list(Artifact, parent="shop/model"))


def jobs(place: Place, run: str) -> dict[str, tuple[str, str]]:
    """State and message of each job."""
    found = place.json("show", "run", run)["jobs"]
    return {one["job"]["job"]["name"]: (one["job"]["state"], one["job"]["message"]) for one in found}


def test_jobs_behind_an_empty_table_are_skipped_until_there_are_rows(place: Place) -> None:
    file = place.write(PIPELINE)
    change(place, "CREATE TABLE sales (id INTEGER, shop TEXT, sold TIMESTAMP, price DOUBLE)")
    assert place.gridmill("apply", "-f", file).returncode == 0
    server = place.start("up", "--listen", "off")
    assert eventually(lambda: len(ended(place)) >= 2)
    first, second = sorted(ended(place), key=lambda run: run.order)[:2]
    assert (first.state, first.message) == (RunState.SUCCEEDED, "2 skipped, 1 succeeded")
    assert (second.state, second.message) == (RunState.SUCCEEDED, "2 skipped, 1 unchanged")
    found = jobs(place, first.id)
    assert found["data"] == ("skipped", "no rows yet in `sales`: the job runs when there are some")
    assert found["model"] == ("skipped", "needs `data` skipped")
    rows = ((n, f"2024-01-{n:02}", float(n % 7)) for n in range(1, 31))
    change(place, *(f"INSERT INTO sales VALUES ({n}, 'a', '{day}', {price})" for n, day, price in rows))
    assert eventually(lambda: has_model(place))
    assert {run.state for run in ended(place)} == {RunState.SUCCEEDED}
    server.send_signal(signal.SIGTERM)
    server.wait(PATIENCE_SECONDS)


def test_a_run_by_hand_fails_and_says_so(place: Place) -> None:
    file = place.write(PIPELINE.partition("  model:\n")[0])
    change(place, "CREATE TABLE sales (id INTEGER, shop TEXT, sold TIMESTAMP, price DOUBLE)")
    done = place.gridmill("run", file)
    assert done.returncode == 1
    assert "table 'sales' has no rows" in done.stdout + done.stderr
