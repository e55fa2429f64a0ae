"""How each source of a sink stands: on the command line, over HTTP, and in Python."""

import sqlite3
from datetime import UTC, datetime, timedelta

import pytest

from tests.e2e.conftest import Place

pytestmark = pytest.mark.e2e

PIPELINE = """\
pipeline: shop
jobs:
  sales:
    sink:
      source: {path: [a/*.csv, b/*.csv]}
      constraints: [{column: y, min: 0}]
  clicks:
    sink:
      source: {sql: {url: "sqlite:///shop.db", table: clicks, cursor: at}}
      columns: {at: timestamp}
"""


def test_a_line_for_each_source(place: Place) -> None:
    for folder, text in (("a", "x,y\n1,2\n3,-4\n"), ("b", "x,y\n5,6\n")):
        (place.folder / "project" / folder).mkdir(parents=True)
        (place.folder / "project" / folder / "1.csv").write_text(text)
    hour_ago = (datetime.now(UTC) - timedelta(hours=1)).replace(tzinfo=None)
    with sqlite3.connect(place.folder / "project" / "shop.db") as database:
        database.execute("CREATE TABLE clicks (at TIMESTAMP)")
        database.execute("INSERT INTO clicks VALUES (?)", (hour_ago.isoformat(),))
    file = place.write(PIPELINE)
    assert place.gridmill("run", file).returncode == 0
    tasks = {task["source"]: task for task in place.json("status", "sink")}
    assert list(tasks) == ["clicks", "a/*.csv", "b/*.csv"]
    facts = [
        (task["rows"], task["rejects"], task["position"], task["state"], task["version"])
        for task in (tasks["a/*.csv"], tasks["b/*.csv"])
    ]
    assert facts == [
        (1, 1, "1 file", "succeeded", "shop/sales@1"),
        (1, 0, "1 file", "succeeded", "shop/sales@1"),
    ]
    (place.folder / "project" / "a" / "1.csv").write_text("x,y\n1,2,3\n")
    assert place.gridmill("run", file).returncode != 0
    (task, _) = place.json("status", "sink", "shop/sales")
    assert (task["state"], task["version"], task["rows"]) == ("failed", "shop/sales@1", 1)
    assert "a/1.csv:2" in task["why"]
    assert "there is no sink" in place.gridmill("status", "sink", "shop/none").stderr
