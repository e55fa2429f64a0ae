"""The numbers of a service in several pods: they are those of all pods, and counters never decrease when a
pod ends, is replaced, or is no longer needed."""

from test_services_in_several_pods import OnRay

from gridmill.codec import to_builtins
from gridmill.domain.drift import Bins, TrainingStatistics, drift_of, reported_counts
from gridmill.domain.frozen import replace
from gridmill.domain.pod_protocol import EventType
from gridmill.domain.service import JOB, SECOND_JOB
from gridmill.domain.service_counters import ServiceTotals
from gridmill.domain.service_settings import ServiceSettings
from gridmill.domain.service_totals import reported_pods

STATISTICS = TrainingStatistics(
    features=(Bins(name="temp", counts=(500, 500)),), prediction=Bins(name="(prediction)", counts=(1000,))
)


def totals(ray: OnRay) -> ServiceTotals:
    found = ray.view().totals
    assert found is not None
    return found


def reports(ray: OnRay, job: str, **fields: object) -> None:
    """The pod of a job reports other numbers."""

    def written_at() -> float:
        return next(one.reported_at or 0.0 for one in totals(ray).pods if one.job == job)

    found = (one.report for one in reported_pods(ray.view().service) if one.job == job)
    later = written_at() + 1.0
    content = to_builtins(replace(next(filter(None, found)), written_at=later, **fields))
    execution = ray.replicas()[job]
    pod = ray.grid.world.pods[execution.pod_id]
    pod.journal_event(execution.order, ray.grid.clock.now(), EventType.REPORT, {"report": content})
    ray.until(lambda: written_at() == later)


def test_counters_are_added_and_survive_the_end_of_a_pod_and_its_replacement() -> None:
    ray = OnRay().start()
    reports(ray, JOB, log_lost=5, restarts=1)
    reports(ray, SECOND_JOB, log_lost=7)
    ray.until(lambda: totals(ray).log_lost == 12)
    ray.end_node_of(JOB)
    seen = set()

    def is_whole() -> bool:
        seen.add((totals(ray).log_lost, totals(ray).restarts))
        return ray.is_whole()

    ray.until(is_whole)
    assert seen == {(12, 1)}
    assert totals(ray).ready == totals(ray).wanted == 2
    for job in ray.replicas():
        reports(ray, job, log_lost=8)
    ray.until(lambda: totals(ray).log_lost == 5 + 8 + 8)


def test_a_pod_that_is_no_longer_needed_keeps_its_counters_in_the_sum() -> None:
    ray = OnRay().start()
    for job in (JOB, SECOND_JOB):
        reports(ray, job, log_lost=3)
    ray.until(lambda: totals(ray).log_lost == 6)
    ray.cases.update_service("rain", settings=ServiceSettings(pods=1))
    ray.until(lambda: [one.job for one in totals(ray).pods] == [JOB])
    assert ray.is_whole()
    assert totals(ray).log_lost == 6
    ray.cases.stop_service("rain")
    ray.until(lambda: ray.replicas() == {})
    assert totals(ray).log_lost == 6


def test_a_pod_that_is_not_connected_is_marked_and_its_last_numbers_stay() -> None:
    ray = OnRay().start()
    reports(ray, SECOND_JOB, log_lost=4)
    ray.until(lambda: totals(ray).log_lost == 4)
    pod_id = ray.replicas()[SECOND_JOB].pod_id
    channels = ray.cases._control.channels
    channels.by_pod.pop(pod_id)
    found = {one.job: one for one in totals(ray).pods}
    assert [found[job].is_silent for job in (JOB, SECOND_JOB)] == [False, True]
    assert found[SECOND_JOB].log_lost == 4


def test_the_drift_is_that_of_the_rows_of_all_pods_and_begins_once() -> None:
    ray = OnRay().start()

    def counts(job: str, *counted: int) -> None:
        every = (counted, (sum(counted),))
        drift = drift_of("w/m@1", STATISTICS, every, None)
        reports(ray, job, drift=(drift,), drift_counts=(reported_counts("w/m@1", STATISTICS, every),))

    counts(JOB, 200, 200)
    assert ray.view().service.drifting == ()
    counts(SECOND_JOB, 400, 0)
    [found] = totals(ray).drift
    expected = drift_of("w/m@1", STATISTICS, ((600, 200), (800,)), None)
    assert found == replace(expected, pods=2)
    counts(SECOND_JOB, 4000, 0)
    [found] = totals(ray).drift
    assert (found.rows, found.drifting) == (4400, ("temp",))
    assert [one.version for one in ray.view().service.drifting] == ["w/m@1"]
    counts(JOB, 210, 200)
    service = ray.view().service
    messages = [str(one.body.get("message")) for one in ray.grid.store.events(run_id=service.run_id)]
    assert [one for one in messages if one.startswith("drift")] == [
        "drift of w/m@1 begins: yes: temp 0.27 (PSI of 800 rows in 2 pods; limit 0.25)"
    ]
    assert {one.report is not None and one.report.drift_counts for one in reported_pods(service)} == {()}
