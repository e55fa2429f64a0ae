"""What is told of columns: the same of few and of many, and of many in little memory."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa

from gridmill.jobs.column_stats import TOLD_AT_ONCE, describe

MEASURED = """
import sys
from pathlib import Path
from tests.unit.jobs.test_facts import high_water_mib, table_of, told_of
table = table_of(250)
before = high_water_mib()
assert len(told_of(table, Path(sys.argv[1]))) == 250
print(high_water_mib() - before)
"""


def high_water_mib() -> int:
    """The most memory that this process ever held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def table_of(columns: int) -> pa.Table:
    return pa.table({f"x{number}": [float(number), None, 2.0 * number] for number in range(columns)})


def told_of(table: pa.Table, work: Path):
    given = SimpleNamespace(memory_bytes=2**30)
    context = SimpleNamespace(work=work, threads=1, order=SimpleNamespace(given=given))
    return describe(context, {"file": table.to_reader()}, table.column_names, table.schema)


def test_of_many_columns_the_same_is_told_as_of_few(tmp_path: Path):
    told = told_of(table_of(2 * TOLD_AT_ONCE + 1), tmp_path)
    assert list(told) == [f"x{number}" for number in range(2 * TOLD_AT_ONCE + 1)]
    last = told[f"x{2 * TOLD_AT_ONCE}"]
    assert (last["nulls"], last["distinct"]) == (1, 2)
    assert (last["min"], last["max"], last["mean"]) == (32.0, 64.0, 48.0)


def test_many_columns_take_little_memory_though_each_has_a_state_to_finish(tmp_path: Path):
    command = (sys.executable, "-c", MEASURED, str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 300, "MiB; all at once they took 570"
