"""How an attempt ended whose pod is gone, by what its site saw."""

import pytest

from gridmill.control.ticks.observe import lost_with
from gridmill.domain.amounts import Amounts
from gridmill.domain.resource import MeasuredUse
from gridmill.domain.run import Attempt
from gridmill.domain.states import AttemptState, Cause
from gridmill.ports.site import PodReport, PodStatus


@pytest.mark.parametrize(
    ("alone", "state", "cause", "peak"),
    [(True, AttemptState.FAILED, Cause.MEMORY, 7), (False, AttemptState.LOST, Cause.SHORTAGE, 0)],
)
def test_of_several_jobs_in_a_pod_that_ran_out_of_memory_none_is_learned_from(alone, state, cause, peak):
    attempt = Attempt(
        id="p-1.j.1",
        job_run_id="p-1.j",
        run_id="p-1",
        project="",
        deployment_id="r-1",
        pod_id="r-1.0",
        given=Amounts(),
        token="t",
        placed=0.0,
        state=AttemptState.RUNNING,
    )
    use = MeasuredUse(peak_memory_bytes=7)
    report = PodReport(status=PodStatus.GONE, message="OUT_OF_MEMORY", cause=Cause.MEMORY, use=use)
    outcome = lost_with(attempt, report, 1.0, alone=alone)
    assert (outcome.state, outcome.cause) == (state, cause)
    assert outcome.use is not None
    assert outcome.use.peak_memory_bytes == peak
