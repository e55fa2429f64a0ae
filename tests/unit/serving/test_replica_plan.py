"""Which replicas start, drain and are killed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridmill.domain.serving import ReplicaState, ServedVersion, ServiceOrder, Upstream
from gridmill.serving.replica_plan import (
    Drain,
    Kill,
    RunningReplica,
    Start,
    decide_order,
    decide_replicas,
    pause_seconds,
    same_replica,
)

ORDER = ServiceOrder(
    name="a",
    versions=(ServedVersion(label="m@1", folder="/m"),),
    replicas=2,
    memory_bytes=1000,
    hang_seconds=5,
)
NEXT = replace(ORDER, generation=2, max_batch=7)
STARTING, READY, DRAINING = ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING


def running(
    number: int, state: ReplicaState = READY, order: ServiceOrder = ORDER, **changed
) -> RunningReplica:
    return RunningReplica(number=number, order=order, state=state, since=0.0, **changed)


def decide(order: ServiceOrder, *replicas: RunningReplica, now: float = 1.0, start_at: float = 0.0):
    return decide_replicas(order, replicas, now=now, start_at=start_at)


def test_missing_replicas_start_together_when_none_is_ready():
    assert decide(ORDER) == (Start(number=0), Start(number=1))
    assert decide(ORDER, start_at=2.0) == ()


def test_a_service_with_its_replicas_needs_nothing():
    assert decide(ORDER, running(0), running(1)) == ()
    assert decide(replace(ORDER, generation=9), running(0), running(1)) == ()


def test_an_update_starts_a_new_replica_before_it_drains_an_old_one():
    old = running(0), running(1)
    assert decide(NEXT, *old) == (Start(number=2),)
    assert decide(NEXT, *old, running(2, STARTING, NEXT)) == ()
    assert decide(NEXT, *old, running(2, READY, NEXT)) == (Start(number=3), Drain(number=1))
    assert decide(NEXT, running(0), running(1, DRAINING), running(2, READY, NEXT)) == (Start(number=3),)
    assert decide(NEXT, running(0), running(2, READY, NEXT), running(3, READY, NEXT)) == (Drain(number=0),)


def test_on_a_shared_gpu_at_most_one_replica_more_than_wanted_has_memory():
    old, new = replace(ORDER, gpu_memory_bytes=5), replace(NEXT, gpu_memory_bytes=5)
    drained = running(0, order=old), running(1, DRAINING, old), running(2, READY, new)
    assert decide(new, *drained) == ()
    assert decide(new, drained[0], drained[2]) == (Start(number=1),)
    # another limit is for replicas that start
    assert decide(replace(old, gpu_memory_bytes=7), running(0, order=old), running(1, order=old)) == ()


def test_the_last_working_order_is_served_until_the_views_of_the_next_order_are_complete():
    assert decide_order(NEXT, ORDER, lambda order: order is ORDER) is ORDER
    assert decide_order(NEXT, ORDER, lambda order: True) is NEXT
    assert decide_order(NEXT, ORDER, lambda order: False) is NEXT
    assert decide_order(NEXT, None, lambda order: False) is NEXT


def test_fewer_replicas_are_drained_from_the_highest_number():
    assert decide(replace(ORDER, replicas=1), running(0), running(1)) == (Drain(number=1),)
    assert decide(replace(ORDER, replicas=0), running(0)) == (Drain(number=0),)


@pytest.mark.parametrize(
    ("replica", "words"),
    [
        (running(0, silent_seconds=6), "no sign of life"),
        (running(0, busy_seconds=6), "one batch"),
        (running(0, memory_bytes=1300), "memory"),
        (running(0, STARTING, replace(ORDER, start_seconds=0.5)), "not ready"),
        (running(0, DRAINING, replace(ORDER, drain_seconds=-5)), "did not end"),
    ],
)
def test_a_replica_that_does_not_work_is_killed_and_replaced(replica, words):
    kill, start = decide(ORDER, replica, running(1))
    assert isinstance(kill, Kill)
    assert words in kill.reason
    assert start == Start(number=2)


def test_a_replica_above_its_memory_limit_ends_after_its_successor_is_ready():
    leaks = running(0, memory_bytes=1100)
    assert decide(ORDER, leaks, running(1)) == (Start(number=2),)
    (drain,) = decide(ORDER, leaks, running(1), running(2))
    assert drain.number == 0
    assert "1100 bytes of memory; its limit is 1000" in drain.reason


def test_an_update_with_a_memory_limit_that_is_too_low_still_replaces_the_old_replicas():
    order = replace(NEXT, replicas=1)
    assert decide(order, running(0), running(1, READY, NEXT, memory_bytes=1100)) == (
        Start(number=2),
        Drain(number=0),
    )


def test_the_first_restart_is_immediate_and_pauses_have_a_limit():
    assert pause_seconds(1) == 0
    assert 0 < pause_seconds(2) < pause_seconds(4) < pause_seconds(10_000) == 10


REPLICAS = st.lists(
    st.tuples(
        st.sampled_from([STARTING, READY, DRAINING]), st.sampled_from([ORDER, NEXT]), st.integers(0, 1400)
    ),
    max_size=6,
)


@given(REPLICAS, st.integers(0, 3))
def test_ready_replicas_are_never_fewer_than_ordered_because_of_a_drain(states, wanted):
    replicas = [
        running(number, state, order, memory_bytes=memory)
        for number, (state, order, memory) in enumerate(states)
    ]
    actions = decide(replace(NEXT, replicas=wanted), *replicas)
    ended = {one.number for one in actions if isinstance(one, Drain)}
    killed = {one.number for one in actions if isinstance(one, Kill)}
    ready = {one.number for one in replicas if one.state == READY}
    if ended & ready:
        assert len(ready - killed - ended) >= wanted
    started = [one.number for one in actions if isinstance(one, Start)]
    assert len(set(started)) == len(started)
    assert not set(started) & {one.number for one in replicas}


@given(REPLICAS, st.integers(0, 3), st.sampled_from([None, 5]))
def test_the_replicas_reach_the_order(states, wanted, gpu_memory_bytes):
    order = replace(NEXT, replicas=wanted, gpu_memory_bytes=gpu_memory_bytes)
    replicas = {
        number: running(number, state, each, memory_bytes=memory)
        for number, (state, each, memory) in enumerate(states)
    }
    for _ in range(40):
        actions = decide(order, *replicas.values())
        if not actions and not any(one.state != READY for one in replicas.values()):
            break
        for number, one in list(replicas.items()):
            if one.state == DRAINING:
                del replicas[number]
            elif one.state == STARTING:
                replicas[number] = replace(one, state=READY)
        for action in actions:
            if isinstance(action, Start):
                replicas[action.number] = running(action.number, STARTING, order)
            elif isinstance(action, Kill):
                replicas.pop(action.number, None)
            elif action.number in replicas:
                replicas[action.number] = replace(replicas[action.number], state=DRAINING)
    assert [(one.state, one.order.max_batch) for one in replicas.values()] == [(READY, 7)] * wanted


def test_a_router_is_not_replaced_when_the_ways_to_its_replicas_change():
    way = Upstream(link="tcp", attempt_id="a")
    router = replace(ORDER, upstream=way)
    assert same_replica(router, replace(router, upstream=replace(way, attempt_id="b")))
    assert same_replica(router, replace(router, further_upstreams=(way,)))
