"""When a farm that is silent has ended its pods, as its source sees it."""

from pathlib import Path

import pytest

from gridmill.errors import UnavailableError
from gridmill.model.amounts import Amounts
from gridmill.model.farm import Deploy, FarmLook
from gridmill.model.message import PodOrder
from gridmill.ports.farm import Sights
from gridmill.ports.site import PodSight, Sight
from gridmill.sites.cluster.carrying import HomeCarrying
from gridmill.sites.cluster.leases import Leases
from gridmill.sites.cluster.site import ClusterSite

LATE = 60.0
"""Seconds that a farm has, beside the lease."""


class Cut:
    """A farm that answers until it is cut off."""

    def __init__(self) -> None:
        self.reached = float("-inf")
        self.there: dict[str, Deploy] = {}
        self.cut = False

    def deploy(self, deployment_id: str, wanted: Deploy) -> None:
        self.there.setdefault(deployment_id, wanted)

    def observe(self, pods: tuple[str, ...]) -> Sights:
        if self.cut:
            raise UnavailableError("cut")
        return Sights(sights={pod: PodSight(sight=Sight.RUNNING) for pod in pods})

    end = observe

    def look(self) -> FarmLook:
        return FarmLook(version="", protocol=1, root="", nodes=(), warnings=("what a left is lost",))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def order(pod: str) -> PodOrder:
    return PodOrder(
        pod_id=pod,
        deployment_id=pod.partition(".")[0],
        type="command",
        secret="",
        home="",
        link="",
        capacity=Amounts(cpus=1, memory_bytes=1),
        keep_seconds=1,
    )


def site(farm: Cut, folder: Path, lease_seconds: float, clock: Clock) -> ClusterSite:
    leases = Leases(folder / "leases.json", lease_seconds)
    root = folder / "root"
    root.mkdir(exist_ok=True)
    carrying = HomeCarrying(farm, root, folder / "bundles", folder / "carried")  # type: ignore[arg-type]
    return ClusterSite("far", farm, None, carrying, "", leases, clock)  # type: ignore[arg-type]


def test_pods_that_are_up_keep_their_lease(tmp_path: Path) -> None:
    farm, clock = Cut(), Clock()
    site(farm, tmp_path, 1000.0, clock).bring_up([order("old.0")])
    changed = site(farm, tmp_path, 10.0, clock)
    changed.bring_up([order("old.0"), order("new.0")])
    assert {name: one.lease_seconds for name, one in farm.there.items()} == {"old": 1000.0, "new": 10.0}
    farm.cut = True
    clock.now = 10.0 + LATE - 1
    with pytest.raises(UnavailableError):
        changed.observe(("old.0", "new.0"))
    clock.now = 10.0 + LATE
    sights = changed.observe(("old.0", "new.0"))
    assert [sights[pod].sight for pod in ("old.0", "new.0")] == [Sight.UNKNOWN, Sight.GONE]
    with pytest.raises(UnavailableError):
        changed.tear_down(("old.0", "new.0"))
    changed.tear_down(("new.0",))
    clock.now = 1000.0 + LATE
    assert changed.observe(("old.0",))["old.0"].sight == Sight.GONE


def test_what_a_farm_has_lost_is_told_at_home(tmp_path: Path) -> None:
    far = site(Cut(), tmp_path, 10.0, Clock())
    assert far.held_up() == {}
    far.looks()
    assert list(far.held_up().values()) == ["site far: what a left is lost"]


def test_what_is_noted_of_a_lease_is_what_was_asked_for(tmp_path: Path) -> None:
    Leases(tmp_path / "leases.json", 100.0).asked(("a",))
    shorter = Leases(tmp_path / "leases.json", 10.0)
    assert shorter.asked(("a", "b")) == 100.0
    assert shorter.of("b") == 100.0


def test_what_is_known_of_leases_ends_with_their_pods(tmp_path: Path) -> None:
    leases = Leases(tmp_path / "leases.json", 10.0)
    leases.asked(("a", "b"))
    leases.over(("a",))
    again = Leases(tmp_path / "leases.json", 20.0)
    assert (again.of("a"), again.of("b")) == (20.0, 10.0)
