"""The lease of a build has no deployment. Its machine is ended when the image is finished or the build
fails."""

from tests.kit.renting_world import LAG, RentingWorld

from gridmill.domain.frozen import replace
from gridmill.domain.lease import Lease, LeaseState, RentalTerms
from gridmill.domain.machine import Leftover
from gridmill.scheduler.rental_calls import Call
from gridmill.scheduler.rental_list import MachineList, strangers
from gridmill.scheduler.rental_results import image_built, image_failed


def built() -> RentingWorld:
    """Return a world with one ready machine of a build."""
    world = RentingWorld()
    lease = Lease(
        id="lease-1",
        provider="aws",
        owner="grid",
        resource="image base",
        deployment_id="",
        pod_id="image.lease-1",
        state=LeaseState.PLANNED,
        terms=RentalTerms(max_seconds=3600.0),
        opened=world.now,
        image_name="base",
    )
    world.put(lease)
    world.until(LeaseState.READY)
    return world


def executed(world: RentingWorld, call: Call) -> list[str]:
    return [one.key for one in world.executed if one.call is call]


def part(kind: str, lease: str = "lease-1") -> Leftover:
    return Leftover(kind=kind, id=f"{kind}-1", region="us-east-1", lease=lease, owner="grid")


def test_a_ready_machine_of_a_build_builds_and_stays_without_a_deployment() -> None:
    world = built()
    world.step()
    world.step()
    [token] = {one.token for one in world.lease().tries}
    assert set(executed(world, Call.BUILD)) == {token}
    assert world.lease().state is LeaseState.READY


def test_a_finished_image_ends_the_machine_and_is_kept_although_the_list_is_old() -> None:
    world = built()
    token = world.lease().tries[0].token
    world.leftovers = {"image-1": part("image"), "snapshot-1": part("snapshot")}
    world.step(LAG)
    world.put(image_built(world.lease(), token, "image-1", world.now))
    assert "base is finished: image-1" in world.lease().reason
    world.step(1.0)
    world.leftovers = {}
    world.until(LeaseState.CLOSED)
    assert executed(world, Call.DELETE) == []
    assert not world.alive()
    assert world.lease().image_id == "image-1"


def test_a_failed_build_leaves_neither_a_machine_nor_a_part_of_the_image() -> None:
    world = built()
    token = world.lease().tries[0].token
    world.leftovers = {"image-1": part("image"), "snapshot-1": part("snapshot")}
    world.put(image_failed(world.lease(), token, "it is broken", world.now))
    assert world.until(LeaseState.CLOSED).reason == "the image base could not be built: it is broken"
    assert set(executed(world, Call.DELETE)) == {"image-1", "snapshot-1"}
    assert not world.leftovers


def test_a_result_that_comes_after_a_stop_changes_nothing() -> None:
    world = built()
    token = world.lease().tries[0].token
    stopped = replace(world.lease(), state=LeaseState.RELEASING, reason="stopped by a user")
    assert image_built(stopped, token, "image-1", world.now) == stopped
    assert image_failed(stopped, token, "x", world.now) == stopped
    ready = world.lease()
    assert image_built(ready, "another", "image-1", world.now) == ready


def test_the_longest_time_ends_a_build() -> None:
    world = built()
    world.now += 3600.0
    world.until(LeaseState.CLOSED)
    assert not world.alive()


def test_parts_of_an_image_of_a_closed_lease_are_never_deleted() -> None:
    listed = MachineList(at=1.0, leftovers=(part("image"), part("volume")))
    problems, actions = strangers(
        "aws", "aws", RentingWorld().market, listed, (), {"lease-1": frozenset({"t"})}
    )
    assert ([one.key for one in actions], problems) == (["volume-1"], {})
