"""The size of a service from a calibration, and the expected latency against a simulated queue."""

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridmill.domain.amounts import GIB, MIB, Amounts
from gridmill.domain.service_size import (
    LEAST_CPUS,
    MOST_REPLICAS,
    TARGET_SHARE,
    BatchTime,
    Calibration,
    LoadPoint,
    ServiceSize,
    batch_time,
    cpus_for,
    expected_p99,
    fits,
    latency_quantile,
    memory_for,
    most_rate,
    most_replicas,
    replicas_for,
    scaling_of,
    sharing_lines,
    size_for_range,
)
from gridmill.domain.service_spread import PodRooms, size_by_rate
from gridmill.errors import CapacityError


def calibrated(fixed: float = 0.001, each: float = 0.0005, replica: int = 100 * MIB) -> Calibration:
    """A replica whose batch of n requests takes `fixed` + n x `each` seconds."""
    points = tuple(
        LoadPoint(
            connections=n,
            rate_per_second=n / (fixed + n * each),
            mean_seconds=fixed + n * each,
            p99_seconds=fixed + n * each,
            cpu_seconds=fixed / n + each,
        )
        for n in (1, 2, 4, 8, 16, 32, 64)
    )
    return Calibration(
        version="w/m@1", machine="x", points=points, replica_bytes=replica, parent_bytes=40 * MIB
    )


def simulated_p99(times: BatchTime, rate: float, requests: int = 40_000, seed: int = 1) -> float:
    """The 99th percentile of the latency of Poisson arrivals at a server that computes batches."""
    random, arrivals, now = Random(seed), [], 0.0
    for _ in range(requests):
        now += random.expovariate(rate)
        arrivals.append(now)
    latencies, free, place = [], 0.0, 0
    while place < requests:
        begin = max(free, arrivals[place])
        end = place
        while end < requests and arrivals[end] <= begin:
            end += 1
        free = begin + times.of(end - place)
        latencies += [free - arrival for arrival in arrivals[place:end]]
        place = end
    return sorted(latencies)[int(0.99 * requests)]


CASES = [
    (fixed, each, load)
    for fixed, each in ((0.001, 0.0001), (0.0001, 0.001), (0.005, 0.0005), (0.0, 0.002), (0.02, 0.00001))
    for load in (0.001, 0.05, 0.3, 0.5, 0.7, 0.85)
]


@pytest.mark.parametrize(("fixed", "each", "load"), CASES)
def test_the_expected_latency_is_near_that_of_a_simulated_queue_and_seldom_below_it(fixed, each, load):
    times = BatchTime(fixed_seconds=fixed, request_seconds=each)
    rate = load / max(each, fixed / 20)
    expected, simulated = latency_quantile(times, rate), simulated_p99(times, rate)
    assert 0.85 * simulated <= expected <= 2.0 * simulated, (expected, simulated)


@given(st.floats(1e-5, 0.1), st.floats(1e-6, 0.05), st.floats(0, 0.9), st.floats(0, 0.09))
def test_the_expected_latency_grows_with_the_rate_and_is_at_least_a_batch_of_one(fixed, each, load, more):
    times = BatchTime(fixed_seconds=fixed, request_seconds=each)
    first, second = latency_quantile(times, load / each), latency_quantile(times, (load + more) / each)
    assert times.of(1) - 1e-12 <= first <= second * (1 + 1e-9)
    assert latency_quantile(times, 1 / each * 1.0001) == math.inf


@given(st.floats(0, 0.1), st.floats(1e-6, 0.05))
def test_the_fixed_time_and_the_time_of_a_request_are_found_again(fixed, each):
    times = batch_time(calibrated(fixed, each))
    assert times.fixed_seconds == pytest.approx(fixed, abs=1e-6, rel=1e-3)
    assert times.request_seconds == pytest.approx(each, abs=1e-9, rel=1e-3)


def test_the_latency_includes_the_noise_of_single_requests():
    quiet = calibrated()
    first, *rest = quiet.points
    noisy = Calibration(
        version="w/m@1",
        machine="x",
        points=(
            LoadPoint(**{n: getattr(first, n) for n in first.__slots__} | {"p99_seconds": 0.0115}),
            *rest,
        ),
        replica_bytes=1,
    )
    assert expected_p99(noisy, 10) - expected_p99(quiet, 10) == pytest.approx(0.01)


ROOMS = st.builds(
    lambda cpus, memory: Amounts(cpus=cpus, memory_bytes=int(memory * GIB)),
    st.floats(0, 32),
    st.floats(0, 16),
)
CALIBRATIONS = st.builds(calibrated, st.floats(0, 0.02), st.floats(1e-4, 0.02), st.integers(10 * MIB, GIB))


def in_one_pod(calibration: Calibration, rate: float, room: Amounts) -> ServiceSize:
    """The size for the rate where a service has one pod."""
    return size_by_rate(calibration, rate, PodRooms(free=(room,), empty=room), "x")


def brute_force(calibration: Calibration, rate: float, room: Amounts) -> int | None:
    """The smallest number of replicas that serves the rate in the room, by trying all."""
    for replicas in range(1, MOST_REPLICAS + 1):
        each = max(one.rate_per_second for one in calibration.points) * TARGET_SHARE
        if replicas * each < rate * (1 - 1e-9):
            continue
        work = rate * max(one.cpu_seconds for one in calibration.points) / TARGET_SHARE
        cpus = max(min(work, replicas), LEAST_CPUS * replicas)
        memory = memory_for(replicas, calibration.limit_bytes, calibration.parent_bytes)
        rounded = math.ceil(cpus * 20 - 1e-6) / 20
        return replicas if rounded <= room.cpus + 1e-9 and memory <= room.memory_bytes else None
    return None


@given(CALIBRATIONS, st.floats(0.1, 5000), ROOMS)
def test_a_size_has_the_fewest_replicas_that_serve_the_rate_or_is_refused(calibration, rate, room):
    expected = brute_force(calibration, rate, room)
    assert fits(calibration, rate, room) == (expected is not None)
    if expected is None:
        with pytest.raises(CapacityError):
            in_one_pod(calibration, rate, room)
        return
    size = in_one_pod(calibration, rate, room)
    assert (size.replicas, size.rate) == (expected, rate)
    assert size.amounts.fits_in(room)
    assert size.most_rate >= math.floor(rate)
    assert 0 < size.p99_seconds < math.inf


@given(CALIBRATIONS, ROOMS)
def test_a_refusal_names_the_largest_rate_that_is_not_refused(calibration, room):
    most = most_rate(calibration, room)
    assert most == 0 or fits(calibration, most, room)
    assert most + 1 > MOST_REPLICAS * calibration.rate_per_replica or not fits(calibration, most + 1, room)
    with pytest.raises(CapacityError, match=r"it can serve [\d,.]+ requests/s"):
        in_one_pod(calibration, most + 1 + MOST_REPLICAS * calibration.rate_per_replica, room)


@given(CALIBRATIONS, ROOMS, st.integers(1, MOST_REPLICAS))
def test_a_range_is_admitted_for_its_largest_number(calibration, room, most):
    if most > most_replicas(calibration, room):
        with pytest.raises(CapacityError, match="has room for"):
            size_for_range(calibration, 0.0, most, room, "x")
        return
    size = size_for_range(calibration, 0.0, most, room, "x")
    assert size.replicas == most
    assert size.cpus == cpus_for(calibration, most * calibration.rate_per_replica, most)


def test_a_rate_above_the_largest_number_of_replicas_is_refused_with_the_rate_that_they_serve():
    calibration = calibrated()
    room = Amounts(cpus=64, memory_bytes=64 * GIB)
    with pytest.raises(
        CapacityError, match=r"2 replicas of w/m@1 can serve 2,715 requests/s, not 9,000"
    ) as got:
        size_for_range(calibration, 9000.0, 2, room, "x")
    assert got.value.hint == f"Allow more replicas: --replicas 1..{replicas_for(calibration, 9000)}"


def test_a_measurement_on_a_busy_machine_is_named_among_the_reasons():
    room = Amounts(cpus=4, memory_bytes=8 * GIB)
    idle, busy = calibrated(), calibrated()
    slow = tuple(replace(one, rate_per_second=one.rate_per_second / 2) for one in busy.points)
    assert not any("--measure-again" in why for why in in_one_pod(idle, 5.0, room).why)
    assert any("--measure-again" in why for why in in_one_pod(replace(busy, points=slow), 5.0, room).why)


def test_the_terms_of_scaling_follow_from_the_calibration():
    terms = scaling_of(calibrated(), 0, 4)
    assert (terms.least, terms.most) == (0, 4)
    assert terms.rate_per_replica == pytest.approx(0.7 * 64 / 0.033)
    assert terms.slow_seconds > expected_p99(calibrated(), terms.rate_per_replica)


def test_services_that_share_a_resource_show_what_they_save():
    room = Amounts(cpus=4, memory_bytes=8 * GIB)
    sizes = [in_one_pod(calibrated(replica=60 * MIB), 50.0, room) for _ in range(3)]
    (line,) = sharing_lines("servers", sizes, 192 * MIB)
    assert line.startswith("3 services on servers: 0.45 CPUs and 960 MiB by measurement, in the same pods; ")
    assert "saves 2.55 CPUs and 192 MiB" in line
    assert sharing_lines("servers", [], 192 * MIB) == ()
