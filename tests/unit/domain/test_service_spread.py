"""The number of pods of a service that a rate needs, against a choice that tries all nodes and replicas."""

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.domain.test_service_size import calibrated

from gridmill.domain.amounts import GIB, MIB, Amounts
from gridmill.domain.service_settings import MOST_PODS
from gridmill.domain.service_size import (
    LEAST_CPUS,
    MOST_REPLICAS,
    Calibration,
    memory_for,
    with_pods,
)
from gridmill.domain.service_spread import (
    PodRooms,
    fewest_pods,
    most_rate_in,
    size_by_rate,
    size_in_pods,
)
from gridmill.errors import CapacityError

ROOMS = st.lists(
    st.builds(
        lambda cpus, memory: Amounts(cpus=cpus / 4, memory_bytes=memory * 100 * MIB),
        st.integers(0, 24),
        st.integers(0, 30),
    ),
    max_size=4,
)
BOTH = st.builds(
    lambda free, held: PodRooms(
        free=tuple(free), held=tuple(held[:2]), empty=Amounts(cpus=4, memory_bytes=GIB), site="lab"
    ),
    ROOMS,
    ROOMS,
)
CALIBRATIONS = st.builds(
    calibrated, st.floats(0, 0.02), st.floats(1e-3, 0.02), st.integers(10 * MIB, 300 * MIB)
)


def tried(calibration: Calibration, rate: float, rooms: PodRooms) -> tuple[int, int] | None:
    """The smallest number of pods, and then of replicas in each, by trying every set of nodes."""
    for pods in range(1, len(rooms.held) + len(rooms.free) + 1):
        staying = rooms.held[:pods]
        for replicas in range(1, MOST_REPLICAS + 1):
            if pods * replicas * calibration.rate_per_replica < rate * (1 - 1e-9):
                continue
            work = rate / pods * calibration.cpu_seconds / 0.7
            cpus = math.ceil(max(min(work, replicas), LEAST_CPUS * replicas) * 20 - 1e-6) / 20
            memory = memory_for(replicas, calibration.limit_bytes, calibration.parent_bytes)
            needed = Amounts(cpus=cpus, memory_bytes=memory)
            for nodes in combinations(rooms.free, pods - len(staying)):
                if all(needed.fits_in(room) for room in (*staying, *nodes)):
                    return pods, replicas
    return None


@given(CALIBRATIONS, st.floats(0.1, 4000), BOTH)
def test_the_choice_is_the_smallest_number_of_pods_and_then_of_replicas(calibration, rate, rooms):
    expected = tried(calibration, rate, rooms)
    assert fewest_pods(calibration, rate, rooms) == (expected or (0, 0))[0]
    if expected is None:
        with pytest.raises(CapacityError, match="cannot serve"):
            size_by_rate(calibration, rate, rooms, "x")
        return
    size = size_by_rate(calibration, rate, rooms, "x")
    assert (size.pods, size.replicas, size.rate) == (*expected, rate)
    assert size.most_rate >= math.floor(rate)
    assert 0 < size.p99_seconds < math.inf
    assert size.pods == 1 or size.why[0].startswith(f"{size.pods} pods, each on a node of its own: x can ")


@given(CALIBRATIONS, BOTH, st.integers(1, 6))
def test_the_largest_rate_of_some_pods_is_served_and_no_larger_one(calibration, rooms, pods):
    most = most_rate_in(calibration, rooms, pods)

    def is_served(rate: float) -> bool:
        try:
            return size_in_pods(calibration, rate, 0, None, pods, rooms, "x").pods == pods
        except CapacityError:
            return False

    if len(rooms.free) + len(rooms.held) < pods:
        assert most == 0  # there are fewer nodes than pods
        return
    assert most == 0 or is_served(most)
    assert not is_served(most + 1)


@given(CALIBRATIONS, st.floats(100, 9000), BOTH)
def test_a_refusal_names_the_smallest_number_of_nodes_that_are_missing(calibration, rate, rooms):
    numbers = range(MOST_PODS + 1)
    missing = next((n for n in numbers if fewest_pods(calibration, rate, rooms.with_nodes(n))), None)
    if missing == 0:
        return
    with pytest.raises(CapacityError) as refused:
        size_by_rate(calibration, rate, rooms, "x")
    named = refused.value.hint.partition(" more node")[0]
    assert named == str(missing) if missing else f"at most {MOST_PODS} pods" in refused.value.hint


def of(*nodes: tuple[float, float], held: tuple[tuple[float, float], ...] = ()) -> PodRooms:
    free, here = (
        tuple(Amounts(cpus=cpus, memory_bytes=int(memory * GIB)) for cpus, memory in some)
        for some in (nodes, held)
    )
    return PodRooms(free=free, held=here, empty=Amounts(cpus=2, memory_bytes=4 * GIB), site="lab")


REPLICA = calibrated(fixed=0.0, each=0.001)
"""A replica serves 700 requests/s, which need one CPU."""


def test_a_refusal_shows_the_rate_of_all_nodes_and_what_is_missing():
    with pytest.raises(CapacityError) as refused:
        size_by_rate(REPLICA, 9000.0, of((2, 4), (2, 4), (2, 4)), "resource far")
    assert refused.value.message == (
        "resource far cannot serve 9,000 requests/s of w/m@1; it can serve 4,200 requests/s in up to 3 pods, "
        "one on each node of site lab that has room"
    )
    assert refused.value.hint.startswith(
        "4 more nodes with 2 CPUs and 4 GiB for a pod are missing, together 8 CPUs. Use a lower --rate"
    )


def test_pods_of_a_running_service_stay_on_their_nodes_and_limit_the_size_of_all():
    assert size_by_rate(REPLICA, 1400.0, of((2, 4)), "x").pods == 1
    # the first pod has one CPU, so that each of two pods has one replica
    size = size_by_rate(REPLICA, 1400.0, of((2, 4), held=((1, 4),)), "x")
    assert (size.pods, size.replicas, size.cpus) == (2, 1, 1)
    with pytest.raises(CapacityError):
        size_by_rate(REPLICA, 1500.0, of((2, 4), held=((1, 4),)), "x")


def test_a_number_of_pods_that_a_user_chooses_is_checked_against_the_rate():
    rooms = of((2, 4), (2, 4), (2, 4))
    assert size_in_pods(REPLICA, 700.0, 0, None, 3, rooms, "x").pods == 3
    with pytest.raises(CapacityError) as refused:
        size_in_pods(REPLICA, 3000.0, 0, None, 2, rooms, "resource far")
    assert refused.value.message == (
        "resource far cannot serve 3,000 requests/s of w/m@1 in 2 pods; it can serve 2,800 requests/s in them"
    )
    assert refused.value.hint == "Use --pods 3, or --pods 0 to let Gridmill choose the number."
    with pytest.raises(
        CapacityError, match="1 replica of w/m@1 in each of 2 pods can serve 1,400 requests/s"
    ):
        size_in_pods(REPLICA, 1500.0, 1, None, 2, rooms, "x")
    ranged = size_in_pods(REPLICA, 0.0, 2, 1, 2, rooms, "x")
    assert (ranged.pods, ranged.replicas, ranged.most_rate) == (2, 2, 2800)
    assert with_pods(ranged, 3).most_rate == 4200
    # the number of nodes is checked elsewhere, because some clusters add nodes
    assert size_in_pods(REPLICA, 5000.0, 0, None, 4, rooms, "x").replicas == 2


def test_one_pod_at_other_sites_is_refused_with_the_reason():
    rooms = PodRooms(free=(Amounts(cpus=2, memory_bytes=4 * GIB),), why_one="At a farm, one.")
    with pytest.raises(
        CapacityError, match=r"x cannot serve 1,500 requests/s of w/m@1; it can serve 1,400 "
    ) as refused:
        size_by_rate(REPLICA, 1500.0, rooms, "x")
    assert refused.value.hint.endswith("stop other services. At a farm, one.")
