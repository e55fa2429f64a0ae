"""The part of a GPU that a service gets by the measured GPU memory of its version, compared with all ways to
place services on GPUs."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridmill.domain.amounts import GIB, MIB, pick
from gridmill.domain.frozen import replace
from gridmill.domain.gpu_sharing import (
    GpuClaim,
    GpuMeasurement,
    GpuNeed,
    GpuRoom,
    HeldShares,
    SharingService,
    check_change,
    claim_after,
    claim_for,
    gpu_lines,
    gpu_room,
    least_for,
    measurement_for,
    shares_needed,
)
from gridmill.errors import CapacityError


def measured(replica_bytes: int, gpu_bytes: int = 24 * GIB, max_batch: int = 256) -> GpuMeasurement:
    return GpuMeasurement(replica_bytes=replica_bytes, gpu_bytes=gpu_bytes, max_batch=max_batch)


def room(*held: HeldShares, workers: int = 1, gpus: int = 1, shares: int = 24) -> GpuRoom:
    return gpu_room("servers", 24, shares, workers=workers, gpus=gpus, held=held)


def need(
    replicas: int,
    known: GpuMeasurement | None,
    version: str = "w/m@1",
    at_least: GpuMeasurement | None = None,
) -> GpuNeed:
    return GpuNeed(versions=(version,), replicas=replicas, max_batch=256, measured=known, at_least=at_least)


SMALL = measured(800 * MIB)
"""A replica may use 1000 MiB, a little less than a share of 1 GiB."""


def test_a_service_gets_its_replicas_and_one_more_and_is_refused_with_the_numbers() -> None:
    assert claim_for("rain", need(2, SMALL), room()).shares == 3
    held = (HeldShares(service="hail", shares=20, pod_id="p0", gpu=0), HeldShares(service="fog", shares=2))
    with pytest.raises(CapacityError) as refused:
        claim_for("rain", need(2, SMALL), room(*held))
    assert refused.value.message == (
        "service 'rain' does not fit on a GPU of resource 'servers': 2 replicas of w/m@1 and one more for "
        "updates need 2.9 GiB (1000 MiB each; 800 MiB measured), and 2 GiB of 24 GiB are free. "
        "In use: hail 20 GiB, fog 2 GiB."
    )
    assert "Start fewer replicas" in refused.value.hint
    assert "steps of 1 GiB" in refused.value.hint
    assert claim_for("rain", need(1, SMALL), room(*held)).shares == 2


def test_a_version_that_was_not_measured_gets_all_free_shares_and_keeps_what_it_needs() -> None:
    held = HeldShares(service="hail", shares=20, pod_id="p0", gpu=0)
    claim = claim_for("rain", need(2, None), room(held))
    assert claim.shares == 4
    assert claim_after(claim, SMALL, 2).shares == 3
    assert claim_after(claim, SMALL, 9).shares == 4
    full = HeldShares(service="fog", shares=4, pod_id="p0", gpu=0)
    with pytest.raises(CapacityError, match=r"w/m@1 was not measured .* In use: hail 20 of 24 shares"):
        claim_for("rain", need(1, None), room(held, full))


def test_a_service_without_room_for_an_update_gets_the_whole_worker_and_says_so() -> None:
    large = measured(12 * GIB)
    claim = claim_for("rain", need(1, large), room())
    assert claim.shares == 24
    (line,) = gpu_lines([SharingService(name="rain", claim=claim, measured=large, replicas=1)])
    assert "an update needs 30 GiB, so stop the service before it" in line
    with pytest.raises(CapacityError, match="has 24 GiB of GPU memory, and 1 replica of w/m@2"):
        check_change("rain", claim, need(1, large), need(1, large, "w/m@2"))
    with pytest.raises(CapacityError, match="does not fit"):
        claim_for("rain", need(2, large), room())


def test_workers_and_gpus_are_divided_separately() -> None:
    held = (
        HeldShares(service="a", shares=20, pod_id="p0", gpu=1),
        HeldShares(service="b", shares=10, pod_id="elsewhere", gpu=0, on_resource=False),
    )
    assert room(*held, workers=2, gpus=2).free == 14
    assert room(*held, workers=1, gpus=2).free == 4
    # a quarter of a GPU for each worker
    assert room(workers=4, gpus=1, shares=6).free == 6


def test_a_replica_may_use_a_quarter_more_than_was_measured_or_its_part_of_the_shares() -> None:
    claim = GpuClaim(shares=6, gpu_shares=24)
    assert need(2, SMALL).limit(claim, 24 * GIB) == 1000 * MIB
    assert need(2, None).limit(claim, 24 * GIB) == 2 * GIB
    assert need(2, measured(4 * GIB)).limit(claim, 24 * GIB) == 3 * GIB
    two = replace(need(2, measured(GIB)), versions=("w/m@1", "w/m@2"))
    assert two.limit(claim, 24 * GIB) == 2 * two.version_limit(claim, 24 * GIB) == 2.5 * GIB


def test_a_measurement_with_a_smaller_batch_is_not_used() -> None:
    records = [{"w/m@1": measured(GIB, max_batch=32)}, {"w/m@1": measured(2 * GIB), "w/m@2": SMALL}]
    assert measurement_for(records, "w/m@1", 256) == measured(2 * GIB)
    assert measurement_for(records, "w/m@1", 512) is None
    assert measurement_for(records, "w/m@3", 1) is None
    # a batch of 16 rows needs at most what was measured with 32
    assert measurement_for(records, "w/m@1", 16) == measured(GIB, max_batch=32)
    assert least_for(records, "w/m@1", 512) == measured(2 * GIB)
    assert least_for(records, "w/m@1", 256) == measured(GIB, max_batch=32)
    assert least_for(records, "w/m@1", 32) is None


def test_a_batch_that_was_not_measured_needs_at_least_what_a_smaller_one_needs() -> None:
    held = HeldShares(service="hail", shares=20, pod_id="p0", gpu=0)
    assert claim_for("rain", need(2, None, at_least=SMALL), room(held)).shares == 4
    with pytest.raises(
        CapacityError, match=r"4 replicas of w/m@1 and one more for updates need at least 4\.9 GiB"
    ):
        claim_for("rain", need(4, None, at_least=SMALL), room(held))


def test_the_saving_counts_the_gpus_on_which_the_services_run() -> None:
    def service(name: str, gpu: int | None, known: GpuMeasurement | None = SMALL) -> SharingService:
        claim = GpuClaim(shares=3, gpu_shares=24, gpu=gpu)
        return SharingService(name=name, claim=claim, measured=known, replicas=2)

    assert gpu_lines([service("rain", 0), service("hail", 0), service("fog", 1, None)]) == (
        "GPU memory of rain: 3 GiB of 24 GiB: 2 replicas and one more for updates, 1000 MiB each (800 MiB "
        "measured)",
        "GPU memory of hail: 3 GiB of 24 GiB: 2 replicas and one more for updates, 1000 MiB each (800 MiB "
        "measured)",
        "GPU memory of fog: 3 of 24 shares of a GPU; its GPU memory was not measured yet",
        "3 services share 2 GPUs: saves 1 GPU compared with one GPU for each service",
    )
    assert len(gpu_lines([service("rain", 0), service("hail", None)])) == 2
    assert gpu_lines([]) == ()


SERVICES = st.lists(st.tuples(st.integers(1, 9 * 1024), st.integers(1, 4)), max_size=6)


@given(services=SERVICES, gpu_shares=st.sampled_from([2, 8, 24, 100]), gpus=st.integers(1, 2))
def test_admitted_services_fit_in_any_update_and_a_refused_one_has_no_place(
    services: list[tuple[int, int]], gpu_shares: int, gpus: int
) -> None:
    """Services start one after another and are placed as the control node places them."""
    size = 16 * GIB
    held: list[HeldShares] = []
    needs: list[int] = []
    for number, (mebibytes, replicas) in enumerate(services):
        one = measured(mebibytes * MIB, size)
        needed = (replicas + 1) * one.limit_bytes
        now = gpu_room("servers", gpu_shares, gpu_shares, workers=gpus, gpus=gpus, held=held)
        free = [
            gpu_shares * gpu + share
            for gpu in range(gpus)
            for share in range(gpu_shares - sum(other.shares for other in held if other.gpu == gpu))
        ]
        try:
            claim = claim_for(f"s{number}", need(replicas, one), now)
        except CapacityError:
            # in steps of a share, no GPU has room for it
            steps = max(1, -(-needed * gpu_shares // size))
            assert all(
                steps + sum(other.shares for other in held if other.gpu == gpu) > gpu_shares
                for gpu in range(gpus)
            )
            continue
        numbers = pick(free, claim.shares, gpu_shares)
        assert numbers is not None
        gpu = numbers[0] // gpu_shares
        held.append(HeldShares(service=f"s{number}", shares=claim.shares, pod_id=f"p{gpu}", gpu=gpu))
        needs.append(needed if needed <= size else replicas * one.limit_bytes)
    for gpu in range(gpus):
        together = sum(need for need, one in zip(needs, held, strict=True) if one.gpu == gpu)
        assert together <= size


@given(services=SERVICES, gpu_shares=st.sampled_from([4, 24]))
def test_services_that_wait_for_their_start_leave_the_room_that_some_placement_leaves(
    services: list[tuple[int, int]], gpu_shares: int
) -> None:
    """What is left after services without a place is what is left after one of all their placements."""
    shares = [shares_needed(measured(size * MIB), replicas, gpu_shares) for size, replicas in services]
    waiting = tuple(
        HeldShares(service=f"s{n}", shares=one) for n, one in enumerate(shares) if one <= gpu_shares
    )
    left = gpu_room("servers", gpu_shares, gpu_shares, workers=2, gpus=2, held=waiting).gpus
    possible = set()
    for places in product((0, 1, None), repeat=len(waiting)):
        free = [gpu_shares, gpu_shares]
        for one, place in zip(waiting, places, strict=True):
            if place is not None:
                free[place] -= one.shares
        if min(free) >= 0:
            possible.add(tuple(free))
    assert tuple(left) in possible


@given(
    size=st.integers(1, 80 * 1024),
    replicas=st.integers(1, 64),
    gpu_shares=st.integers(2, 100),
    part=st.integers(1, 80),
)
def test_shares_are_the_smallest_whole_number_that_is_enough(
    size: int, replicas: int, gpu_shares: int, part: int
) -> None:
    one = measured(size * MIB, part * GIB)
    needed, shares = (replicas + 1) * one.limit_bytes, shares_needed(one, replicas, gpu_shares)
    assert shares * one.gpu_bytes >= needed * gpu_shares
    assert shares == 1 or (shares - 1) * one.gpu_bytes < needed * gpu_shares
