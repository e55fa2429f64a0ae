"""Sizes of services on rented machines: what fits, and what is missing."""

from hypothesis import given
from hypothesis import strategies as st

from gridmill.domain.amounts import GIB, MIB, Amounts
from gridmill.domain.service_measuring import SizeRequest, amounts_needed, fitting_size
from gridmill.domain.service_size import (
    MOST_REPLICAS,
    Calibration,
    LoadPoint,
    amounts_for,
    replicas_for,
    size_for_rate,
)
from gridmill.errors import CapacityError


def calibration_of(rate: float, cpu_seconds: float, replica_bytes: int) -> Calibration:
    points = (
        LoadPoint(
            connections=1,
            rate_per_second=rate / 2,
            mean_seconds=2 / rate,
            p99_seconds=3 / rate,
            cpu_seconds=cpu_seconds,
        ),
        LoadPoint(
            connections=8,
            rate_per_second=rate,
            mean_seconds=8 / rate,
            p99_seconds=9 / rate,
            cpu_seconds=cpu_seconds,
        ),
    )
    return Calibration(
        version="w/m@1", machine="m.small at site aws", points=points, replica_bytes=replica_bytes
    )


CALIBRATIONS = st.builds(
    calibration_of,
    st.floats(min_value=0.2, max_value=5000),
    st.floats(min_value=0.0001, max_value=0.5),
    st.integers(min_value=MIB, max_value=GIB),
)
ROOMS = st.builds(
    Amounts,
    cpus=st.floats(min_value=0.0, max_value=96.0),
    memory_bytes=st.integers(min_value=0, max_value=64 * GIB),
)


def most_by_search(calibration: Calibration, room: Amounts) -> float:
    """The largest rate of each number of replicas, found by halving, without the functions of the module."""
    best = 0.0
    for replicas in range(1, MOST_REPLICAS + 1):
        low, high = 0.0, replicas * calibration.rate_per_replica
        if not amounts_for(calibration, low, replicas).fits_in(room):
            continue
        for _ in range(60):
            middle = (low + high) / 2
            fits = amounts_for(calibration, middle, replicas).fits_in(room)
            low, high = (middle, high) if fits else (low, middle)
        best = max(best, low)
    return best


@given(CALIBRATIONS, ROOMS, st.floats(min_value=0.01, max_value=200_000))
def test_a_rate_gets_the_size_that_fits_and_a_shortage_says_what_is_missing(
    calibration: Calibration, room: Amounts, rate: float
) -> None:
    request = SizeRequest(rate=rate)
    try:
        size, scaling = fitting_size(calibration, request, room)
    except CapacityError:
        # at most one request per second, or nothing, would have been possible
        assert most_by_search(calibration, room) <= 1 + 1e-6
        return
    assert scaling is None
    assert size.amounts.fits_in(room)
    assert size.machine == calibration.machine
    assert size.rate <= rate
    assert replicas_for(calibration, size.rate) <= size.replicas
    if size.shortage:
        assert size.rate < rate
        assert size.rate > most_by_search(calibration, room) - 1 - 1e-6, "at most one request/s is lost"
    else:
        assert size.rate == rate
        assert size_for_rate(calibration, rate).amounts == size.amounts


@given(CALIBRATIONS, ROOMS, st.integers(1, MOST_REPLICAS), st.booleans(), st.floats(0, 20_000))
def test_a_number_or_a_range_of_replicas_is_cut_to_what_fits(
    calibration: Calibration, room: Amounts, replicas: int, is_range: bool, rate: float
) -> None:
    request = SizeRequest(rate=rate, replicas=replicas, least_replicas=1 if is_range else None)
    try:
        size, scaling = fitting_size(calibration, request, room)
    except CapacityError:
        return
    assert size.amounts.fits_in(room)
    assert size.replicas <= replicas
    assert bool(size.shortage) == (size.replicas < replicas or size.rate < rate)
    assert (scaling is not None) == is_range
    if scaling is not None:
        assert 1 == scaling.least <= scaling.most == size.replicas


@given(CALIBRATIONS, st.floats(min_value=0.01, max_value=20_000), st.integers(0, 8))
def test_the_amounts_that_a_request_needs_are_enough_for_it(
    calibration: Calibration, rate: float, replicas: int
) -> None:
    request = SizeRequest(
        rate=rate, replicas=0 if replicas == 0 else max(replicas, replicas_for(calibration, rate))
    )
    needed = amounts_needed(calibration, request)
    if needed is None:
        assert replicas_for(calibration, rate) > MOST_REPLICAS
        return
    size, _ = fitting_size(calibration, request, needed)
    assert (size.shortage, size.rate) == ("", rate)
