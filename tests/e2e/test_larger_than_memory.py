"""Datasets larger than the memory they are made in: the kernel holds the limit; the first try keeps to it."""

from pathlib import Path
from typing import Any

import duckdb
import pytest

from gridmill.domain.amounts import MIB
from tests.e2e.conftest import Place
from tests.kit.slurm import has_memory_cgroups

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not has_memory_cgroups(), reason="needs memory cgroups (v1) that root may write"),
]

MEMORY_MIB, ROWS, COLUMNS, ENTITIES = 496, 1_500_000, 40, 1000
VALUES = ", ".join(f"range * {number}.5e0 as x{number}" for number in range(1, COLUMNS + 1))
PIPELINE = f"""
pipeline: large
resources:
  small: {{type: dataset, memory: {MEMORY_MIB}MiB, cpus: 2}}
jobs:
  wide:
    resource: small
    dataset:
      tables: []
      sql: >
        select range % {ENTITIES} as e, {VALUES},
          make_timestamp(1600000000000000 + range // {ENTITIES} * 3600000000) as t
        from range({ROWS}) order by range
  past:
    resource: small
    dataset:
      basis: {{table: wide, time: t, entity: e}}
      windows: [{{column: x1, aggregates: [mean], span: 2h}}]
      lags: [{{column: x40, steps: [1]}}]
"""
EXPECTED = f"""
SELECT count(*), sum(x1), count(*) FILTER (
    x1 >= 1.5 * {ENTITIES} AND x40_lag_1 = x40 - 40.5 * {ENTITIES}
    AND x1_mean_2h = x1 - 1.5 * {ENTITIES} * if(x1 < 3.0 * {ENTITIES}, 1.0, 1.5))
FROM read_parquet($files)
"""


@pytest.mark.long
def test_each_is_made_at_the_first_try(place: Place):
    assert ROWS * (COLUMNS + 4) * 8 > MEMORY_MIB * MIB, "with entity, time and what is made of the past"
    view = place.json("run", place.write(PIPELINE), timeout=900)
    attempts = {one["job"]["job"]["name"]: one["attempts"] for one in view["jobs"]}
    for name, made in attempts.items():
        assert [each["state"] for each in made] == ["succeeded"], (name, made)
        assert made[0]["use"]["peak_memory_bytes"] < MEMORY_MIB * MIB, name
    assert rows_of(place, view) == (ROWS, 1.5 * ROWS * (ROWS - 1) / 2, ROWS - ENTITIES)


def rows_of(place: Place, view: dict[str, Any]) -> tuple[Any, ...]:
    """How many rows there are, the sum of one column, and how many rows know their earlier ones."""
    (past,) = (one for one in view["jobs"] if one["job"]["job"]["name"] == "past")
    folder: Path = place.home / "storage" / past["artifacts"][0]["output"]["uri"]
    with duckdb.connect() as engine:
        [found] = engine.execute(EXPECTED, {"files": f"{folder}/*.parquet"}).fetchall()
    return found
