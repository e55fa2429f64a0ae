"""Statistics of a sample: correlations block by block are those of all rows, in little memory."""

import tracemalloc

import numpy as np
import pyarrow as pa

from gridmill.jobs.dataset.describe import BLOCK_ROWS, SampledRows, statistics

ROWS = 3 * BLOCK_ROWS + 5


def columns(count: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    common = random.normal(size=ROWS)
    made = {f"x{k}": 1000 * k + k * common + random.normal(size=ROWS) for k in range(count)}
    for k, values in enumerate(made.values()):
        values[random.random(ROWS) < 0.1 * (k % 3)] = np.nan
    return made


def sample(given: dict[str, np.ndarray]) -> SampledRows:
    table = pa.table(given)
    made = SampledRows(schema=table.schema, columns=tuple(given), rows=ROWS)
    assert sum(batch.num_rows for batch in made.passing(table.to_batches(max_chunksize=1000))) == ROWS
    return made


def test_correlations_are_those_of_the_rows_that_have_both():
    given = columns(4) | {"same": np.full(ROWS, 3.0), "none": np.full(ROWS, np.nan)}
    found = statistics(sample(given))["correlation"]
    assert found["columns"] == list(given)
    for i, one in enumerate(given.values()):
        for j, other in enumerate(given.values()):
            both = ~np.isnan(one) & ~np.isnan(other)
            if not both.any() or not (np.ptp(one[both]) and np.ptp(other[both])):
                assert found["values"][i][j] is None
                continue
            expected = np.corrcoef(one[both], other[both])[0, 1]
            assert abs(found["values"][i][j] - expected) < 0.001


def test_the_memory_is_that_of_a_block():
    made = sample(columns(40))
    tracemalloc.start()
    try:
        statistics(made)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < ROWS * 40 * 8 * 2, "of all rows at once it is four times the sample and more"
