"""How many replicas a service has: by the rate and the latency of its requests, with hysteresis."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridmill.domain.serving import Scaling
from gridmill.serving.autoscale import (
    SAMPLE_SECONDS,
    SETTLE_SECONDS,
    UP_SECONDS,
    LoadSample,
    Wish,
    decide_scale,
    first_wish,
    highest_rate,
    history_seconds,
)
from gridmill.serving.metrics import BOUNDS

SCALING = Scaling(least=1, most=8, rate_per_replica=100.0, slow_seconds=0.2, down_seconds=60, idle_seconds=90)
TO_ZERO = Scaling(**{**{name: getattr(SCALING, name) for name in SCALING.__slots__}, "least": 0})
QUICK, SLOW = BOUNDS.index(0.01), BOUNDS.index(1.0)


def samples(rates, *, place: int = QUICK, refused_share: float = 0.0) -> list[LoadSample]:
    """One sample at the begin, and one after each interval with this rate."""
    made, requests, counts = [LoadSample(at=0.0, durations=(0,) * 15)], 0.0, [0] * 15
    for number, rate in enumerate(rates, start=1):
        requests += rate * SAMPLE_SECONDS
        counts[place] = round(requests)
        refused = round(requests * refused_share)
        made.append(
            LoadSample(
                at=number * SAMPLE_SECONDS,
                answered=round(requests) - refused,
                refused=refused,
                durations=tuple(counts),
            )
        )
    return made


def decide(scaling: Scaling, taken: list[LoadSample], wanted: int, changed_at: float = 0.0) -> Wish:
    return decide_scale(scaling, taken, wanted, changed_at=changed_at, now=taken[-1].at)


def constant(rate: float, seconds: float = 120.0, **more) -> list[LoadSample]:
    return samples([rate] * int(seconds / SAMPLE_SECONDS), **more)


def test_replicas_are_added_at_once_by_the_rate_of_the_last_seconds():
    wish = decide(SCALING, constant(350, UP_SECONDS), 1)
    assert (wish.replicas, wish.reason) == (
        4,
        "350 requests/s need 4 replicas: one serves 100 requests/s",
    )
    assert decide(SCALING, constant(10_000), 2).replicas == 8
    assert decide(SCALING, constant(350, 1.0), 1) == Wish(replicas=1)


def test_replicas_are_removed_only_after_a_quiet_time_and_with_room_for_the_rest():
    busy, quiet = [350] * 20, [120] * 240
    assert decide(SCALING, samples(busy + quiet), 4) == Wish(
        replicas=2, reason="at most 120 requests/s for 60 s"
    )
    assert decide(SCALING, samples(busy + quiet), 4, changed_at=100.0) == Wish(replicas=4)
    # a peak of five seconds within the quiet time counts
    assert decide(SCALING, samples(quiet + [350] * 12 + [120] * 60), 4) == Wish(replicas=4)
    # 90 of 100 requests/s would be more than 80 % of one replica
    assert decide(SCALING, constant(90), 2) == Wish(replicas=2)
    assert decide(SCALING, constant(79), 2).replicas == 1


def test_slow_answers_and_refused_requests_add_one_replica_after_the_last_change_has_had_its_effect():
    slow = constant(50, place=SLOW)
    assert decide(SCALING, slow, 2) == Wish(
        replicas=3, reason="1 % of the requests took more than 500 ms; the limit is 200 ms"
    )
    late = slow[-1].at - SETTLE_SECONDS + 1
    assert decide(SCALING, slow, 2, changed_at=late) == Wish(replicas=2)
    # no replica is removed while requests are slow
    assert decide(SCALING, slow, 8) == Wish(replicas=8)
    refused = decide(SCALING, constant(50, refused_share=0.5), 2)
    assert (refused.replicas, "were refused" in refused.reason) == (3, True)


def test_a_service_without_requests_ends_its_last_replica_if_zero_is_permitted():
    idle = samples([50] * 10 + [0] * 200)
    assert decide(TO_ZERO, idle, 1) == Wish(replicas=0, reason="no request for 90 s")
    assert decide(SCALING, idle, 1) == Wish(replicas=1)
    assert decide(TO_ZERO, samples([50] * 10 + [0] * 100 + [2] + [0] * 100), 1) == Wish(replicas=1)
    # the parent process wakes a service; the rate cannot
    assert decide(TO_ZERO, idle, 0) == Wish(replicas=0)


@pytest.mark.parametrize(("given", "least", "expected"), [(0, 0, 1), (3, 0, 3), (1, 2, 2), (99, 0, 8)])
def test_an_order_begins_with_at_least_one_replica_within_its_range(given, least, expected):
    scaling = Scaling(least=least, most=8, rate_per_replica=1.0)
    assert first_wish(scaling, given).replicas == expected


RATES = st.lists(st.floats(0, 2000), min_size=1, max_size=300)


@given(RATES, st.integers(0, 10), st.sampled_from([SCALING, TO_ZERO]), st.floats(0, 150))
def test_the_number_stays_within_its_range_and_changes_only_with_a_reason(rates, wanted, scaling, changed_at):
    taken = samples(rates)
    wish = decide(scaling, taken, wanted, min(changed_at, taken[-1].at))
    assert scaling.least <= wish.replicas <= scaling.most
    assert bool(wish.reason) == (wish.replicas != wanted)
    if scaling.least <= wanted and wish.replicas < min(wanted, scaling.most):
        assert taken[-1].at - min(changed_at, taken[-1].at) >= scaling.down_seconds


@given(st.floats(1, 790), st.integers(1, 8))
def test_under_a_constant_rate_the_number_settles_and_is_enough(rate, wanted):
    taken = constant(rate, history_seconds(SCALING) + 5)
    first = decide(SCALING, taken, wanted).replicas
    assert first >= math.ceil(rate * 0.99 / SCALING.rate_per_replica)
    assert first <= max(wanted, math.ceil(rate * 1.01 / SCALING.rate_per_replica))
    assert decide(SCALING, taken, first).replicas == first


@given(RATES)
def test_the_highest_rate_is_that_of_all_windows(rates):
    taken = samples(rates)
    windows = [
        (late.requests - early.requests) / (late.at - early.at)
        for place, early in enumerate(taken)
        for late in taken[place + 1 :]
        if abs(late.at - early.at - UP_SECONDS) < SAMPLE_SECONDS / 2
    ]
    if windows:
        assert highest_rate(taken) >= max(windows) - 1e-6
        assert (
            highest_rate(taken) <= max(b.requests - a.requests for a, b in pairwise(taken)) / SAMPLE_SECONDS
        )
