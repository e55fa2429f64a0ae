"""Many readers of a large run, scaled down: bounded memory, no failed request, a run that continues."""

import pytest
from bench import readers
from bench.measure import Series

JOBS, CLIENTS, KEPT = 1_000, 60, 500
MIB = 2**20


@pytest.mark.long
def test_the_control_node_serves_many_readers_of_a_large_run_within_bounded_memory():
    rate, most, clients = readers.measured(JOBS, CLIENTS, KEPT)
    assert clients is not None
    assert clients.failed == 0
    assert len(clients.status) >= CLIENTS / 2
    assert rate > 1
    assert most < 200 * MIB


def test_the_rows_hold_what_was_measured_against_the_targets():
    rows = readers.results(Series([100.0]), Series([95.0]), [0.01] * 99 + [0.2], 200 * MIB, 260 * MIB)
    assert [(row.value, row.met) for row in rows if row.met is not None] == [
        (10.0, True),
        (pytest.approx(10.0), True),
        (200.0, True),
        (0.95, True),
        (260.0, False),
    ]
