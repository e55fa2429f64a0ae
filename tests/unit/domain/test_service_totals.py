"""The numbers of a service in several pods: sums, counters that survive a pod, and the drift of all rows."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridmill.domain.drift import (
    MOST_REPORTED_BINS,
    Bins,
    Counts,
    DriftCounts,
    FeatureDrift,
    TrainingStatistics,
    VersionDrift,
    drift_of,
    drift_of_pods,
    no_counts,
    reported_counts,
)
from gridmill.domain.service import Service, ServiceShadow
from gridmill.domain.service_counters import MOST_ENDED, PodCounters, sum_of_shadows, with_reported
from gridmill.domain.service_features import ViewReport
from gridmill.domain.service_pods import FurtherPod
from gridmill.domain.service_shadow import without_shadow
from gridmill.domain.service_totals import as_shown, is_refused, problems_of, served_generation, totals_of
from gridmill.domain.serving import ReplicaReport, ReplicaState, ServiceReport, ServiceState, ShadowReport

LABEL = "w/m@1"
STATISTICS = TrainingStatistics(
    features=(Bins(name="temp", counts=(300, 300, 300, 100)), Bins(name="wind", counts=(500, 500))),
    prediction=Bins(name="(prediction)", counts=(400, 300, 300)),
)
Row = tuple[int, int, int]
rows_of_a_pod = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 2)), max_size=30)


def counted(rows: Sequence[Row]) -> Counts:
    """The counts of rows, of which each stands for 40 requests."""
    found = [list(one) for one in no_counts(STATISTICS)]
    for row in rows:
        for feature, place in enumerate(row):
            found[feature][place] += 40
    return tuple(map(tuple, found))


def of_pod(rows: Sequence[Row]) -> tuple[VersionDrift, DriftCounts]:
    counts = counted(rows)
    return drift_of(LABEL, STATISTICS, counts, None), reported_counts(LABEL, STATISTICS, counts)


@given(st.lists(st.lists(rows_of_a_pod, min_size=1, max_size=4), min_size=1, max_size=4))
def test_the_drift_of_all_pods_is_that_of_one_pod_with_all_rows(decisions):
    together: tuple[VersionDrift, ...] = ()
    alone: VersionDrift | None = None
    for pods in decisions:
        parts = [of_pod(rows) for rows in pods]
        together = drift_of_pods([[one] for one, _ in parts], [[one] for _, one in parts], together)
        alone = drift_of(LABEL, STATISTICS, counted([row for rows in pods for row in rows]), alone)
        assert together == (replace(alone, pods=len(pods)),)


@given(st.lists(rows_of_a_pod, min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_the_order_of_the_pods_does_not_change_the_drift(pods, random):
    parts = [of_pod(rows) for rows in pods]
    shuffled = random.sample(parts, len(parts))
    one, other = (
        drift_of_pods([[drift] for drift, _ in some], [[counts] for _, counts in some], ())
        for some in (parts, shuffled)
    )
    assert one == other


def test_pods_that_each_have_too_few_rows_have_enough_together_and_a_drift_of_half_of_them_is_seen():
    calm, drifting = [(0, 0, 0)] * 8, [(3, 0, 0)] * 8
    few = [of_pod(calm), of_pod(drifting)]
    assert [one.text for one, _ in few] == ["unknown: 320 of at least 500 rows"] * 2
    [both] = drift_of_pods([[one] for one, _ in few], [[one] for _, one in few], ())
    assert (both.rows, both.pods, "temp" in both.drifting) == (640, 2, True)
    assert "of 640 rows in 2 pods" in both.text


@pytest.mark.parametrize("counts", [[[], []], [[of_pod([])[1]], []]])
def test_without_the_counts_of_all_pods_the_drift_of_the_worst_pod_is_shown_as_such(counts):
    calm = VersionDrift(label=LABEL, rows=900, features=(FeatureDrift(name="temp", psi=0.01),))
    worse = replace(calm, rows=600, features=(FeatureDrift(name="temp", psi=0.4),), drifting=("temp",))
    [found] = drift_of_pods([[calm], [worse]], counts, ())
    assert found == replace(worse, worst_of=2)
    assert found.text == "yes: temp 0.40 (PSI of 600 rows in one pod, the worst of 2; limit 0.25)"
    assert drift_of_pods([[calm]], [[]], ()) == (calm,)


def test_pods_with_other_bins_of_a_version_are_not_added():
    drift, counts = of_pod([(0, 0, 0)] * 20)
    other = replace(counts, expected=((1, 2), (3, 4), (5, 6)))
    broken = replace(counts, counted=((1,), (2,), (3,)))
    for wrong in (other, broken):
        assert drift_of_pods([[drift], [drift]], [[counts], [wrong]], ())[0].worst_of == 2


def test_the_counts_of_a_report_have_a_bounded_size():
    assert MOST_REPORTED_BINS * 20 * 2 < 256 * 1024


def report(**fields: object) -> ServiceReport:
    base = ServiceReport(
        name="rain",
        state=ServiceState.READY,
        generation=1,
        seen_generation=1,
        address="http://10.0.0.1:80",
        host="10.0.0.1",
        port=80,
        pid=7,
        started_at=1.0,
        written_at=2.0,
        replicas=tuple(
            ReplicaReport(
                number=number,
                state=ReplicaState.READY,
                generation=1,
                memory_bytes=100,
                gpu_memory_bytes=10,
            )
            for number in (1, 2)
        ),
        wanted=2,
    )
    return replace(base, **fields)


def service(**fields: object) -> Service:
    return replace(
        Service(name="rain", model=LABEL, version=LABEL, report=report(), reported_by="a"), **fields
    )


attempts = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4), min_size=1, max_size=4
)


@given(attempts, st.randoms(use_true_random=False))
def test_reports_that_are_late_shuffled_or_doubled_are_counted_once_and_no_counter_decreases(grown, random):
    """The counters of an attempt grow; its reports arrive in any order, some of them twice."""
    sent, expected = [], [0, 0]
    for number, steps in enumerate(grown):
        restarts = lost = 0
        for more_restarts, more_lost in steps:
            restarts, lost = restarts + more_restarts, lost + more_lost
            sent.append((f"attempt-{number}", report(restarts=restarts, log_lost=lost)))
        expected = [expected[0] + restarts, expected[1] + lost]
    arriving = sent + random.choices(sent, k=5)
    random.shuffle(arriving)
    now: tuple[PodCounters, ...] = ()
    before = (0, 0)
    for attempt, one in arriving:
        now = with_reported(now, attempt, one, ())
        found = totals_of(service(counted=now))
        assert found.restarts >= before[0]
        assert found.log_lost >= before[1]
        before = (found.restarts, found.log_lost)
    assert list(before) == expected


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_a_service_whose_pods_are_replaced_often_keeps_bounded_counters(lost):
    now: tuple[PodCounters, ...] = ()
    for number, lines in enumerate(lost):
        now = with_reported(now, "stays", report(log_lost=number), ["stays", f"attempt-{number}"])
        now = with_reported(now, f"attempt-{number}", report(log_lost=lines), ["stays"])
    assert sum(one.log_lost for one in now) == sum(lost) + len(lost) - 1
    assert len(now) <= MOST_ENDED + 3


def test_memory_and_replicas_are_added_and_a_pod_that_leaves_only_keeps_its_counters():
    further = (
        FurtherPod(job="serve-2", report=report(restarts=2), reported_by="b"),
        FurtherPod(job="serve-3", report=report(restarts=5), reported_by="c", leaving=3.0),
        FurtherPod(job="serve-4"),
    )
    counted = tuple(
        PodCounters(attempt_id=name, restarts=number) for name, number in (("b", 2), ("c", 5), ("ended", 1))
    )
    found = totals_of(service(further_pods=further, counted=counted), silent={"b"})
    assert (found.ready, found.wanted, found.memory_bytes, found.gpu_memory_bytes) == (4, 4, 400, 40)
    assert found.restarts == 8
    assert [(one.job, one.is_silent, one.is_leaving) for one in found.pods] == [
        ("serve", False, False),
        ("serve-2", True, False),
        ("serve-3", False, True),
        ("serve-4", False, False),
    ]
    assert found.pods[1].reported_at == 2.0


def test_lags_are_those_of_the_worst_pod_and_the_last_change_and_failure_are_the_newest():
    fresh = ViewReport(folder="v", checked_at=90.0)
    late = ViewReport(folder="v", checked_at=50.0, behind_since=40.0)
    first = report(views=(fresh,), scaled_at=5.0, scale_reason="old", last_failure="x", last_failure_at=9.0)
    second = report(views=(late,), scaled_at=6.0, scale_reason="new", last_failure="y", last_failure_at=8.0)
    found = totals_of(service(report=first, further_pods=(FurtherPod(job="serve-2", report=second),)))
    assert (found.views_checked_at, found.views_behind_since) == (50.0, 40.0)
    assert (found.scaled_at, found.scale_reason) == (6.0, "new")
    assert (found.last_failure, found.last_failure_at) == ("x", 9.0)


def compared(differences: Sequence[float], **fields: object) -> ShadowReport:
    """The report of a shadow whose rows all differ so."""
    number = len(differences)
    base = ShadowReport(
        label="w/m@2",
        served=LABEL,
        is_ready=True,
        requests=number,
        different=number,
        difference_rows=number,
        mean_difference=sum(differences) / max(1, number),
        largest_difference=max(differences, default=0.0),
        mean_seconds=0.5 if number else 0.0,
        began=1.0,
    )
    return replace(base, **fields)


SHADOW = ServiceShadow(version="w/m@2", model="w/m@2", percent=100.0)


@given(st.lists(st.lists(st.floats(0, 100), max_size=5), min_size=1, max_size=4))
def test_the_comparison_of_a_shadow_is_that_of_one_pod_with_all_rows(pods):
    counted: tuple[PodCounters, ...] = ()
    for number, one in enumerate(pods):
        counted = with_reported(counted, f"attempt-{number}", report(shadow=compared(one)), ())
    found = totals_of(service(shadow=SHADOW, counted=counted)).shadow
    expected = compared([one for rows in pods for one in rows])
    assert found is not None
    assert found.mean_difference == pytest.approx(expected.mean_difference)
    assert found.mean_seconds == pytest.approx(expected.mean_seconds)
    same = (found.requests, found.different, found.largest_difference)
    assert same == (expected.requests, expected.different, expected.largest_difference)


def test_the_percentiles_of_a_shadow_are_those_of_the_pod_with_the_largest():
    reports = [
        compared([], p50_seconds=0.1, p99_seconds=0.5, served_p50_seconds=0.1, served_p99_seconds=0.2),
        compared([], p50_seconds=0.2, p99_seconds=0.4, served_p50_seconds=0.05, served_p99_seconds=0.3),
    ]
    found = sum_of_shadows(reports)
    assert found is not None
    assert (found.p50_seconds, found.p99_seconds) == (0.2, 0.5)
    assert (found.served_p50_seconds, found.served_p99_seconds) == (0.1, 0.3)


def test_a_shadow_that_is_compared_anew_begins_at_zero_and_a_late_report_does_not_return_to_the_old_one():
    old, new = compared([1.0] * 9), compared([2.0], began=5.0)
    counted = with_reported((), "a", report(shadow=old), ())
    counted = with_reported(counted, "a", report(shadow=new), ())
    counted = with_reported(counted, "a", report(shadow=old), ())
    found = totals_of(service(shadow=SHADOW, counted=counted)).shadow
    assert found is not None
    assert found.requests == 1
    other = replace(service(shadow=SHADOW, counted=counted), version="w/m@3")
    assert totals_of(other).shadow is None  # compared with a version that the service no longer serves
    ended = without_shadow(service(shadow=SHADOW, counted=counted), 1.0)
    assert [one.shadow for one in ended.counted] == [None]


def test_a_shadow_that_ran_in_a_pod_that_has_ended_still_counts_but_is_not_ready():
    counted = with_reported((), "ended", report(shadow=compared([1.0], problem="x")), ())
    counted = with_reported(counted, "a", report(shadow=compared([2.0], is_ready=False)), ())
    found = totals_of(service(shadow=SHADOW, counted=counted)).shadow
    assert found is not None
    assert (found.requests, found.is_ready, found.problem) == (2, False, "")


def test_the_problem_of_each_pod_counts_for_an_update_and_a_rollback():
    failing = FurtherPod(job="serve-2", report=report(problem="broken", seen_generation=3), reported_by="b")
    updated = service(generation=3, report=report(generation=3, seen_generation=3), further_pods=(failing,))
    assert problems_of(updated) == ("broken",)
    assert is_refused(updated)
    assert served_generation(updated) == 1


def test_the_counts_of_bins_are_not_shown():
    counts = (of_pod([])[1],)
    further = (FurtherPod(job="serve-2", report=report(drift_counts=counts)),)
    shown = as_shown(service(report=report(drift_counts=counts), further_pods=further))
    assert shown.report is not None
    assert shown.report.drift_counts == ()
    assert shown.further_pods[0].report == report()
