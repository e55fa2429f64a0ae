"""Changes of tables are applied to a view in batches, and definitions that nobody needs are deleted."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from tests.kit.dataset_case import DatasetCase
from tests.kit.online_case import OnlineCase

from gridmill.domain.dataset import Basis, DatasetSpec, Lag
from gridmill.online.define import RECENT_SECONDS, _remove_others
from gridmill.online.refresh import _apply_rows
from gridmill.online.source_rows import COUNT, known_rows_sql, open_sources, register
from gridmill.online.view import open_view

SPEC = DatasetSpec(
    basis=Basis(table="rows", time="at", entity=("shop",)), lags=(Lag(column="x", steps=(1,)),)
)


def test_a_batch_of_changed_rows_is_written_before_the_next_batch_is_read(tmp_path: Path) -> None:
    case = DatasetCase(tmp_path)
    times = pa.array(range(1_000_000, 7_000_000, 1_000_000), pa.timestamp("us"))
    case.give("rows", pa.table({"shop": ["a"] * 6, "at": times, "x": [float(n) for n in range(6)]}))
    online = OnlineCase(case, SPEC)
    online.build()
    (feed,) = online.plan().stored
    view = open_view(online.folder, online.plan(), writable=True)
    held: list[int] = []

    def count() -> int:
        return view.count_between(0, "a", -(2**60), 2**60)

    def batches() -> Iterator[pa.Table]:
        with open_sources(tmp_path) as engine:
            source = online.sources()["rows"]
            register(engine, source, source.rows())
            rows = engine.sql(known_rows_sql(feed)).to_arrow_table()
        for number in range(3):
            held.append(count())
            part = rows.slice(2 * number, 2)
            yield part.append_column(COUNT, pa.array([-1] * part.num_rows, pa.int64()))

    with view.writing():
        oldest = _apply_rows(view, 0, feed, batches(), cutoff=4_500_000)
    assert held == [6, 4, 2]
    assert count() == 0
    assert oldest == {"a": 1_000_000}
    view.close()


def test_a_definition_that_was_written_lately_is_not_deleted_because_its_service_may_get_it_now(
    tmp_path: Path,
) -> None:
    for name in ("definition-used", "definition-recent", "definition-old", "view-old"):
        (tmp_path / name).mkdir()
    for name in ("definition-used", "definition-old", "view-old"):
        long_ago = os.stat(tmp_path).st_mtime - 2 * RECENT_SECONDS
        os.utime(tmp_path / name, (long_ago, long_ago))
    _remove_others(tmp_path, ("services/rain/features/definition-used",))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["definition-recent", "definition-used"]
