"""The kill test of rented machines with real processes: one of the schedules of bench/rental_processes.py."""

import pytest
from bench.rental_processes import Disaster, run_schedule, schedule_of

from gridmill.testing.cloud.namespace_machines import why_no_machines

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.skipif(bool(why_no_machines()), reason=why_no_machines() or "there are machines"),
]


def test_a_control_node_that_is_killed_after_a_call_leaves_nothing() -> None:
    assert schedule_of(2).disaster is Disaster.CALL
    outcome = run_schedule(2)
    assert outcome.problems == ()
    assert outcome.machines == 1
