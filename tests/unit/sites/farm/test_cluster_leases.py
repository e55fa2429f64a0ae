"""When a farm that is silent has ended its pods, as its tenant sees it."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridmill.domain.amounts import Amounts
from gridmill.domain.farm_protocol import DeployRequest, FarmStatus
from gridmill.domain.pod_protocol import Events, EventType, PodEvent, PodOrder
from gridmill.errors import UnavailableError
from gridmill.farm.deployment import TenantDeployment, TenantDeploymentState, expired, silent
from gridmill.pod.agent import is_given_up
from gridmill.ports.site import PodReport, PodReports, PodStatus
from gridmill.sites.farm.pod_leases import PodLeases, is_over
from gridmill.sites.farm.site import FarmSite
from gridmill.sites.farm.staging import HomeAttemptData

LATE = 60.0
"""Seconds that a farm has, beside the lease."""


class Cut:
    """A farm that answers until it is cut off."""

    def __init__(self) -> None:
        self.reached = float("-inf")
        self.there: dict[str, DeployRequest] = {}
        self.cut = False

    def deploy(self, deployment_id: str, wanted: DeployRequest) -> None:
        self.there.setdefault(deployment_id, wanted)

    def observe(self, pods: tuple[str, ...]) -> PodReports:
        if self.cut:
            raise UnavailableError("cut")
        return PodReports(reports={pod: PodReport(status=PodStatus.RUNNING) for pod in pods})

    end = observe

    def status(self) -> FarmStatus:
        return FarmStatus(version="", protocol=1, root="", nodes=(), warnings=("what a left is lost",))


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


def site(farm: Cut, folder: Path, lease_seconds: float, clock: Clock) -> FarmSite:
    leases = PodLeases(folder / "leases.json", lease_seconds)
    root = folder / "root"
    root.mkdir(exist_ok=True)
    carrying = HomeAttemptData(farm, root, folder / "bundles", folder / "carried")  # type: ignore[arg-type]
    return FarmSite("far", farm, None, carrying, "", leases, clock)  # type: ignore[arg-type]


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
    assert [sights[pod].status for pod in ("old.0", "new.0")] == [PodStatus.UNKNOWN, PodStatus.GONE]
    with pytest.raises(UnavailableError):
        changed.tear_down(("old.0", "new.0"))
    changed.tear_down(("new.0",))
    clock.now = 1000.0 + LATE
    assert changed.observe(("old.0",))["old.0"].status == PodStatus.GONE


def test_what_a_farm_has_lost_is_told_at_home(tmp_path: Path) -> None:
    far = site(Cut(), tmp_path, 10.0, Clock())
    assert far.transfer_problems() == {}
    far.utilization()
    assert list(far.transfer_problems().values()) == ["site far: what a left is lost"]


def test_what_is_noted_of_a_lease_is_what_was_asked_for(tmp_path: Path) -> None:
    PodLeases(tmp_path / "leases.json", 100.0).lease_seconds(("a",))
    shorter = PodLeases(tmp_path / "leases.json", 10.0)
    assert shorter.lease_seconds(("a", "b")) == 100.0
    assert shorter.of("b") == 100.0


def test_what_is_known_of_leases_ends_with_their_pods(tmp_path: Path) -> None:
    leases = PodLeases(tmp_path / "leases.json", 10.0)
    leases.lease_seconds(("a", "b"))
    leases.over(("a",))
    again = PodLeases(tmp_path / "leases.json", 20.0)
    assert (again.of("a"), again.of("b")) == (20.0, 10.0)


UNDER_WAY = 20
"""Seconds for which a question may be on its way to a farm, at the most."""


def pod_ends(lease: int, heard: int, *, down: int, back: int, controlled: bool) -> int:
    """When a pod ends at a farm that has heard of its tenant last at `heard`, by what is looked at each
    second; the farm's controller is away from `down` on until it is `back`."""
    up = TenantDeployment(
        id="d",
        tenant="home",
        number=1,
        request=DeployRequest(orders=(order("d.0"),), lease_seconds=lease),
        since=0,
        state=TenantDeploymentState.UP,
    )
    lonely_since: int | None = None
    now = heard
    while True:
        is_there = not down <= now < back
        if is_there and expired((up,), {"home": heard}, now) and controlled:
            return now
        if lonely_since is None and (not is_there or silent({"home": heard}, now)):
            lonely_since = now
        lonely = 0.0 if lonely_since is None else now - lonely_since
        if is_given_up(lonely=lonely, lease_seconds=lease):
            return now
        now += 1


@given(
    lease=st.integers(1, 300),
    under_way=st.integers(0, UNDER_WAY),
    down=st.integers(0, 600),
    away=st.integers(0, 600),
    controlled=st.booleans(),
)
def test_what_home_gives_up_has_ended_whatever_became_of_the_controller(
    lease: int, under_way: int, down: int, away: int, controlled: bool
) -> None:
    """`controlled`: whether the controller can end it, when it is there."""
    ends = pod_ends(lease, under_way, down=down, back=down + away, controlled=controlled)
    assert not is_over(ends - 1, lease)
    assert is_over(lease + LATE, lease)


class Left(Cut):
    """A farm where one pod is gone, and had something to say."""

    def observe(self, pods: tuple[str, ...]) -> PodReports:
        sights = {
            pod: PodReport(status=PodStatus.GONE if pod == "gone.0" else PodStatus.RUNNING) for pod in pods
        }
        return PodReports(reports=sights, undelivered={"gone.0": (SAID,)} if "gone.0" in pods else {})


SAID = PodEvent(number=1, attempt_id="a", token="t", time=1.0, type=EventType.ENDED, body={})


def test_others_are_looked_at_while_what_a_pod_left_comes_home(tmp_path: Path) -> None:
    far, go = site(Left(), tmp_path, 10.0, Clock()), threading.Event()
    bring_home: Callable[[Events], Events] = far._attempt_data.download_results
    fails = [UnavailableError("cut")]

    def slowly(events: Events) -> Events:
        assert go.wait(120.0)
        if fails:
            raise fails.pop()
        return bring_home(events)

    far._attempt_data.download_results = slowly  # type: ignore[method-assign]
    sights = far.observe(("gone.0", "up.0"))
    assert [sights[pod].status for pod in ("gone.0", "up.0")] == [PodStatus.UNKNOWN, PodStatus.RUNNING]
    go.set()
    while far.observe(("gone.0", "up.0"))["gone.0"].status != PodStatus.GONE:
        assert not fails or go.is_set()
    assert fails == []
    assert list(far.undelivered_events("gone.0")) == [SAID]
    far._undelivered.close()
    assert list(far.undelivered_events("gone.0")) == [SAID]
    with pytest.raises(UnavailableError):  # it is being closed while its pods are looked at
        far.observe(("gone.0", "up.0"))


def test_who_is_silent_is_told_while_others_are_heard() -> None:
    class Meanwhile(float):
        def __add__(self, seconds: float) -> float:
            heard[f"tenant-{len(heard)}"] = 100.0
            return float(self) + seconds

    heard: dict[str, float] = {"a": Meanwhile(0.0), "b": Meanwhile(0.0), "c": Meanwhile(99.0)}
    assert silent(heard, 100.0) == ("a", "b")
