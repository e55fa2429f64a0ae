"""GPUs that are shared: who gets which of them, and what a job is told."""

from dataclasses import replace

import pytest
from tests.unit.farm.test_farm_rules import lodging, order

from gridmill.domain.amounts import Amounts, devices_of, pick, share_of
from gridmill.domain.gang import Gang, GangMember
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.site import Node
from gridmill.errors import CapacityError, InputError
from gridmill.farm.admission import admit, check_size, free
from gridmill.pod.program import devices
from gridmill.settings import read_settings


@pytest.mark.parametrize(
    ("free", "count", "shares", "found"),
    [
        (range(4), 2, 1, (0, 1)),
        ((1, 3), 1, 1, (1,)),
        ((1,), 2, 1, None),
        ((), 0, 4, ()),
        (range(8), 1, 4, (0,)),
        ((2, 3, 4, 5, 6, 7), 1, 4, (2,)),  # the one with the least left
        ((3, 6, 7), 2, 4, (6, 7)),  # both of one
        ((3, 7), 2, 4, None),  # never half of one and half of another
        (range(2, 8), 4, 4, (4, 5, 6, 7)),
        (range(12), 5, 4, tuple(range(8))),  # more than one is whole ones
        (range(1, 8), 8, 4, None),
    ],
)
def test_which(free, count, shares, found):
    assert pick(free, count, shares) == found


def test_what_a_share_is():
    assert devices_of((4, 5), 4) == (1,)
    assert share_of((4, 5), 4) == 0.5
    assert share_of(tuple(range(8)), 4) == 1
    assert share_of((), 4) == 1


def test_a_farms_gpu_is_shared_by_as_many_as_its_owner_says():
    nodes = (Node(name="a", capacity=Amounts(cpus=9, memory_bytes=2**40, gpus=4)),)
    asked = [lodging(n, order(f"d{n}.0", gpus=gpus)) for n, gpus in enumerate((1, 2, 2))]
    admitted = admit(asked, nodes, 0.0, shares=2)
    assert [one.placements[0].gpus for one in admitted] == [(0,), (2, 3)]
    with pytest.raises(CapacityError):
        check_size(lodging(1, order("d.0", gpus=5)), nodes, shares=2)


def an_order(numbers):
    return AttemptOrder(
        attempt_id="p-1.j.1",
        token="t",
        run_id="p-1",
        pipeline="p",
        job=Job(name="j", command=CommandSpec(run="true")),
        given=Amounts(cpus=1, memory_bytes=1, gpus=len(numbers)),
        root="/r",
        output_uri="o",
        gpu_indices=numbers,
    )


@pytest.mark.parametrize(
    ("numbers", "own", "visible", "share"),
    [((0,), "5", "1", "0.25"), ((0, 1), "6,7", "1", "0.5"), ((4, 5, 6, 7), "", "1", None)],
)
def test_a_job_sees_its_gpu_and_is_told_its_share(numbers, own, visible, share):
    told = devices(an_order(numbers), {"GRIDMILL_GPUS": own, "GRIDMILL_POD_GPU_SHARES": "4"})
    assert told["CUDA_VISIBLE_DEVICES"] == visible
    assert told.get("GRIDMILL_GPU_SHARE") == share
    assert ("XLA_PYTHON_CLIENT_MEM_FRACTION" in told) == (share is not None)


@pytest.mark.parametrize(("own", "numbers", "visible"), [("MIG-a,MIG-b", (1,), "MIG-b"), ("GPU-x", (), "")])
def test_gpus_may_have_names(own, numbers, visible):
    assert devices(an_order(numbers), {"GRIDMILL_GPUS": own})["CUDA_VISIBLE_DEVICES"] == visible


def test_workers_of_a_gang_get_whole_gpus():
    base = {"GRIDMILL_POD_GPU_SHARES": "4"}
    two = tuple(GangMember(rank=k, host="h", address="h", port=1, gpus=(2 * k, 2 * k + 1)) for k in range(2))
    with pytest.raises(
        InputError, match="workers of a gang cannot share a GPU, and 2 is not a whole number of GPUs"
    ):
        devices(replace(an_order((0, 1)), gang=Gang(id="g", rank=0, members=two)), base)
    whole = tuple(replace(one, gpus=tuple(range(4 * one.rank, 4 * one.rank + 4))) for one in two)
    told = devices(replace(an_order((0, 1, 2, 3)), gang=Gang(id="g", rank=0, members=whole)), base)
    assert told["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "GRIDMILL_GPU_SHARE" not in told


def test_gpus_that_were_numbered_otherwise_stay_promised():
    nodes = (Node(name="a", capacity=Amounts(cpus=9, memory_bytes=2**40, gpus=4)),)
    (one,) = admit([lodging(1, order("d.0", gpus=1))], nodes, 0.0, shares=2)
    assert free((one,), nodes, shares=2)["a"].gpus == (1, 2, 3)
    grown = (replace(nodes[0], capacity=replace(nodes[0].capacity, gpus=8)),)
    assert free((one,), grown, shares=4)["a"].gpus == (4, 5, 6, 7)


def test_a_gpu_is_at_least_itself():
    assert read_settings({"GRIDMILL_GPU_SHARES": "4"}).gpu_shares == 4
    with pytest.raises(InputError, match="'0' is not a whole number of at least 1"):
        read_settings({"GRIDMILL_GPU_SHARES": "0"})
