"""The last step of a prediction reads the rows of all shards in batches."""

import subprocess
import sys
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridmill.domain.training import ModelKind, Objective
from gridmill.errors import InternalError
from gridmill.jobs.model_files import ModelCard
from gridmill.jobs.prediction import finish
from gridmill.jobs.prediction.finish import sample, summarize
from gridmill.jobs.prediction.worker import part_name

CARD = ModelCard(
    kind=ModelKind.LINEAR, objective=Objective.REGRESSION, labels=("y",), encodings=(), entity=("id",)
)


def write_shards(folder: Path, keys: list[str], sizes: list[int]) -> int:
    """Write the rows of keys as shards of these sizes, and the rest as the last shard."""
    table = pa.table(
        {
            "row": np.arange(len(keys)),
            "id": pa.array(keys, pa.string()),
            "prediction": [None if number % 3 == 0 else float(number) for number in range(len(keys))],
        }
    )
    cuts = [0, *(one for one in np.cumsum(sizes).tolist() if one < len(keys)), len(keys)]
    for shard, (start, stop) in enumerate(pairwise(cuts)):
        pq.write_table(table.slice(start, stop - start), folder / part_name(shard))
    return len(cuts) - 1


@settings(max_examples=60, deadline=None)
@given(
    keys=st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 9)), min_size=1, max_size=8),
    sizes=st.lists(st.integers(1, 9), max_size=5),
    batch=st.integers(1, 5),
)
def test_the_summary_is_that_of_all_rows_together(tmp_path_factory, keys, sizes, batch):
    folder = tmp_path_factory.mktemp("result")
    rows = [key for key, count in keys for _ in range(count)]
    shards = write_shards(folder, rows, sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "SAMPLE_POINTS", 4)
        patch.setattr(finish, "BATCH_ROWS", batch)
        summary = summarize(folder, shards, np.arange(len(rows)), ("id",))
        files = [pq.read_table(folder / part_name(shard)) for shard in range(shards)]
        whole = pa.concat_tables(files)
        assert (summary.rows, summary.schema) == (whole.num_rows, whole.schema)
        assert summary.unpredicted == whole["prediction"].null_count
        assert summary.head.num_rows <= 12
        assert sample(summary.head, CARD, timedelta()) == sample(whole, CARD, timedelta())


@pytest.mark.parametrize("rows", [np.arange(9), np.arange(11), np.arange(10)[::-1]])
def test_missing_and_doubled_rows_are_found(tmp_path, rows):
    shards = write_shards(tmp_path, ["a"] * 10, [4])
    with pytest.raises(InternalError, match="of the shards are not"):
        summarize(tmp_path, shards, rows, ("id",))


SUMMARIZE = """
import sys
from pathlib import Path
import numpy as np
import pyarrow as pa
from gridmill.jobs.prediction.finish import summarize

summary = summarize(Path(sys.argv[1]), 5, np.arange(200_000), ("id",))
print(summary.rows, summary.unpredicted, pa.default_memory_pool().max_memory())
"""


def test_a_large_result_is_not_held_in_memory(tmp_path):
    """The columns need 80 MB, and the summary a small part of it."""
    text, count = "x" * 400, 40_000
    for shard in range(5):
        rows = np.arange(shard * count, (shard + 1) * count)
        columns = {"row": rows, "id": [f"{text}{one}" for one in rows], "prediction": rows / 2}
        pq.write_table(pa.table(columns), tmp_path / part_name(shard), row_group_size=5_000)
    done = subprocess.run(
        [sys.executable, "-c", SUMMARIZE, str(tmp_path)], capture_output=True, text=True, check=True
    )
    rows, unpredicted, peak_bytes = map(int, done.stdout.split())
    assert (rows, unpredicted) == (5 * count, 0)
    assert peak_bytes < 40 * 2**20
