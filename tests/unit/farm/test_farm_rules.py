"""What a farm decides, without a farm: who has room, whose lease is over, who may join, who is who."""

from dataclasses import replace

import pytest

from gridmill.domain.amounts import Amounts
from gridmill.domain.farm_protocol import FARM_PROTOCOL, DeployRequest, QueuedDeployment, check_versions
from gridmill.domain.pod_protocol import PodOrder
from gridmill.domain.site import GpuSlot, Node
from gridmill.errors import CapacityError, ConflictError, InputError
from gridmill.farm.admission import admit, check_size, free, gpu_slots, queued
from gridmill.farm.deployment import (
    AttemptRecord,
    TenantDeployment,
    TenantDeploymentState,
    check_deploy,
    check_id,
    expired,
    expired_results,
    forgotten,
    left_behind,
)
from gridmill.farm.join import JoinRateLimiter
from gridmill.farm.main import orders
from gridmill.farm.tenant import Invitation, Tenant, authorised, check_name, hash_of, invited

NODES = (
    Node(name="a", capacity=Amounts(cpus=8, memory_bytes=80, gpus=2)),
    Node(name="b", capacity=Amounts(cpus=8, memory_bytes=80, gpus=2)),
)


def order(pod: str, *, gpus: int = 0, memory: int = 10, node: str = "", pinned: bool = False) -> PodOrder:
    return PodOrder(
        pod_id=pod,
        deployment_id=pod.rpartition(".")[0],
        type="command",
        secret="s",
        home="",
        link="",
        capacity=Amounts(cpus=1, memory_bytes=memory, gpus=gpus),
        keep_seconds=1,
        node=node,
        pinned=pinned,
    )


def lodging(number: int, *given: PodOrder, tenant: str = "home", state: str = "waiting") -> TenantDeployment:
    return TenantDeployment(
        id=given[0].deployment_id,
        tenant=tenant,
        number=number,
        request=DeployRequest(orders=given, lease_seconds=100),
        since=0,
        state=TenantDeploymentState(state),
    )


def test_gpus_are_given_to_one_pod_at_a_time() -> None:
    first, second, third = (lodging(n, order(f"d{n}.0", gpus=2), tenant=f"s{n}") for n in (1, 2, 3))
    admitted = admit((third, first, second), NODES, 5.0)
    assert [(one.id, [(b.node, b.gpus) for b in one.placements]) for one in admitted] == [
        ("d1", [("a", (0, 1))]),
        ("d2", [("b", (0, 1))]),
    ]
    half = admit((lodging(1, order("d1.0", gpus=1)), lodging(2, order("d2.0", gpus=1))), NODES, 5.0)
    assert [berth.gpus for one in half for berth in one.placements] == [(0,), (1,)]
    assert orders(half[1])[0].settings == {"gpus": "1"}
    assert orders(half[1])[0].node == "a"


def test_who_asked_first_is_not_overtaken() -> None:
    large = lodging(2, *(order(f"big.{n}", gpus=2) for n in range(2)))
    holds = admit((lodging(1, order("d.0", gpus=1)),), NODES, 0.0)[0]
    small = lodging(3, order("small.0"))
    assert admit((holds, large, small), NODES, 0.0) == ()
    assert [one.id for one in admit((large, small), NODES, 0.0)] == ["big", "small"]


def test_what_fits_nowhere_holds_nobody_up_and_is_refused() -> None:
    never = lodging(1, order("never.0", memory=1000))
    assert [one.id for one in admit((never, lodging(2, order("d.0"))), NODES, 0.0)] == ["d"]
    with pytest.raises(CapacityError, match="the farm is too small for"):
        check_size(never, NODES)


def test_a_pinned_pod_is_where_it_was_asked_for() -> None:
    wished = lodging(1, order("d.0", node="b"), order("d.1", node="b", pinned=True))
    assert [berth.node for berth in admit((wished,), NODES, 0.0)[0].placements] == ["b", "b"]
    elsewhere = lodging(1, order("d.0", node="gone", pinned=True))
    assert admit((elsewhere,), NODES, 0.0) == ()


def test_room_comes_back_when_a_deployment_is_gone() -> None:
    (held,) = admit((lodging(1, order("d.0", gpus=2)),), NODES, 0.0)
    assert free((held,), NODES)["a"].gpus == ()
    assert free((held.to(TenantDeploymentState.GONE, 1.0),), NODES)["a"].gpus == (0, 1)


def test_a_lease_ends_when_nothing_is_heard() -> None:
    up = lodging(1, order("d.0"), state="up")
    assert expired((up,), {"home": 50.0}, 149.0) == ()
    assert expired((up,), {"home": 50.0}, 150.0) == (up,)
    assert expired((up,), {}, 1e9) == ()  # nobody could be heard before the controller came up


def test_what_nobody_fetches_is_lost_after_its_time() -> None:
    gone = lodging(1, order("d.0")).to(TenantDeploymentState.GONE, 10.0)
    assert expired_results((gone,), 60.0, 69.0) == ()
    assert expired_results((gone,), 60.0, 70.0) == (gone,)
    ended = gone.ended(10.0)
    assert ended.request.orders[0].secret == ""
    assert forgotten((ended,), 100.0) == ()
    assert forgotten((ended,), 1e6) == (ended,)


def test_what_was_carried_for_attempts_of_pods_that_are_gone_is_left_behind() -> None:
    works = tuple(
        AttemptRecord(attempt_id=name, tenant="home", time=10.0, pod_id=pod)
        for name, pod in (("a", "up.0"), ("b", "gone.0"))
    )
    works += (AttemptRecord(attempt_id="c", tenant="away", time=10.0),)
    up = lodging(1, order("up.0"), state="up")
    gone = lodging(2, order("gone.0")).to(TenantDeploymentState.GONE, 30.0)
    assert [one.attempt_id for one in left_behind(works, (up, gone), 60.0, 75.0)] == ["c"]
    assert [one.attempt_id for one in left_behind(works, (up, gone), 60.0, 90.0)] == ["b", "c"]


@pytest.mark.parametrize("state", ["waiting", "starting", "up"])
def test_what_is_still_carried_for_an_attempt_is_not_left_behind(state: str) -> None:
    coming = (AttemptRecord(attempt_id="a", tenant="home", time=0.0),)
    assert left_behind(coming, (lodging(1, order("d.0"), state=state),), 60.0, 9e9) == ()
    over = lodging(1, order("d.0")).to(TenantDeploymentState.GONE, 10.0)
    assert left_behind(coming, (over,), 60.0, 60.0) == coming


def test_a_pod_is_told_its_lease() -> None:
    (held,) = admit((lodging(1, replace(order("d.0"), lease_seconds=9e9)),), NODES, 0.0)
    assert [one.lease_seconds for one in orders(held)] == [100]
    assert [one.lease_seconds for one in orders(replace(held, placements=()))] == [100]


def test_ids_and_names_are_no_paths() -> None:
    for wrong in ("../x", "a/b", "", "a..b", "\x00", "x" * 300, ".hidden"):
        with pytest.raises(InputError):
            check_id(wrong)
        with pytest.raises(InputError):
            check_name(wrong)


def test_a_pod_is_of_one_deployment() -> None:
    with pytest.raises(ConflictError):
        check_deploy(lodging(2, order("d.0")), [lodging(1, order("d.0"))])
    with pytest.raises(InputError, match="two orders"):
        check_deploy(lodging(2, order("d.0"), order("d.0")), [])
    with pytest.raises(InputError, match="another deployment"):
        check_deploy(lodging(2, order("d.0"), order("e.0")), [])


def test_an_invitation_holds_until_it_expires() -> None:
    one = Invitation(hash=hash_of("secret"), expires=100.0)
    assert invited([one], "secret", 99.0) == one
    assert invited([one], "secret", 100.0) is None
    assert invited([one], "wrong", 0.0) is None
    assert invited([one], "\ud800", 0.0) is None


def test_certificate_and_token_are_of_the_same_tenant() -> None:
    a, b = (
        Tenant(name=name, certificate=name * 64, token_hash=hash_of(name), version="0.1.0", added=0)
        for name in "ab"
    )
    assert authorised([a, b], "a" * 64, "a") == a
    assert authorised([a, b], "a" * 64, "b") is None
    assert authorised([a, b], "", "a") is None
    nobody = Tenant(name="n", certificate="", token_hash=hash_of("n"), version="0.1.0", added=0)
    assert authorised([nobody], "", "n") is None


def test_ten_wrong_secrets_a_minute() -> None:
    tries = JoinRateLimiter()
    for _ in range(10):
        assert tries.allows("caller", 0.0)
        tries.failed("caller", 0.0)
    assert not tries.allows("caller", 59.0)
    assert tries.allows("another", 59.0)
    assert tries.allows("caller", 60.0)


@pytest.mark.parametrize(
    ("tenant", "farm", "fits"),
    [
        ("1.4.0", "1.4.9", True),
        ("1.5.0", "1.4.0", True),
        ("1.6.0", "1.4.0", False),
        ("1.3.0", "1.4.0", False),
        ("2.4.0", "1.4.0", False),
        ("rubbish", "1.4.0", False),
        ("1.²", "1.4.0", False),
    ],
)
def test_a_farm_may_be_one_minor_version_older(tenant: str, farm: str, fits: bool) -> None:
    if fits:
        return check_versions(tenant=tenant, farm=farm)
    with pytest.raises(InputError) as told:
        check_versions(tenant=tenant, farm=farm)
    assert tenant in str(told.value)
    assert farm in str(told.value)


def test_another_protocol_is_another_version() -> None:
    with pytest.raises(InputError):
        check_versions(tenant="1.0.0", farm="1.0.0", protocol=FARM_PROTOCOL + 1)


def test_a_tenant_sees_which_gpus_are_taken_and_its_own_by_name() -> None:
    mine, others = lodging(1, order("d1.0", gpus=1)), lodging(2, order("d2.0", gpus=2), tenant="other")
    up = admit((mine, others), NODES, 5.0)
    waits = [lodging(3, order("d3.0", gpus=2), tenant="other"), lodging(4, order("d4.0", gpus=1))]
    seen = gpu_slots((*up, *waits), NODES, "home")
    assert seen["a"] == (GpuSlot(gpu=0, taken=True, deployment="d1"), GpuSlot(gpu=1))
    assert seen["b"] == (GpuSlot(gpu=0, taken=True), GpuSlot(gpu=1, taken=True))
    assert queued((*up, *waits), "home", {}) == (QueuedDeployment(deployment="d4", position=1),)
    [told] = queued((*up, *waits), "home", {4: 60.0})
    assert told.seconds == 60.0
    halves = gpu_slots((), NODES, "home", 2)["a"]
    assert halves == (GpuSlot(gpu=0), GpuSlot(gpu=0))
    assert all(not seat.taken for row in gpu_slots((), NODES, "home").values() for seat in row)
