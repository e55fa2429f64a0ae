"""Compute Engine makes, keeps and deletes images of machines, against the simulated Compute Engine."""

from collections.abc import Iterator

import pytest
from tests.contract.test_clouds_gcp import GceHarness

from gridmill.bootstrap.reap import Reaper
from gridmill.clouds.gcp.own_images import image_name, image_of
from gridmill.domain.machine_image import ImageState
from gridmill.domain.reaping import ReapOrder, ReapResult
from gridmill.errors import ConflictError, RefusedError, UnavailableError
from gridmill.ports.cloud import ImageRequest, Machine
from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.gce.simulation import simulated_gce


@pytest.fixture
def harness() -> Iterator[GceHarness]:
    with simulated_gce(clock=FakeClock()) as gce:
        gce.faults.quotas["*"] = 10_000
        made = GceHarness(gce)
        yield made
        made.cloud.close()


def machine(harness: GceHarness, lease: str = "lease-1") -> Machine:
    return harness.cloud.launch(harness.request("t-" + lease, lease=lease, owner="My Grid"))


def order(lease: str = "lease-1", name: str = "Base_1.x") -> ImageRequest:
    return ImageRequest(name=name, lease=lease, owner="My Grid", version="1.2.3")


def test_names_that_labels_do_not_permit_are_exact(harness: GceHarness) -> None:
    made = harness.cloud.create_image(machine(harness), order())
    assert (made.name, made.owner, made.version) == ("Base_1.x", "My Grid", "1.2.3")
    assert made.id == image_name("My Grid", "Base_1.x")
    assert made.id.startswith("gridmill-base-1-x-")
    assert [one.id for one in harness.cloud.images("My Grid")] == [made.id]
    assert len(image_name("g" * 80, "n" * 80)) <= 63
    assert image_name("other", "Base_1.x") != made.id


def test_the_machine_runs_while_its_image_is_made_so_that_google_ends_it_in_any_case(
    harness: GceHarness,
) -> None:
    harness.gce.faults.image_seconds = 7200.0
    harness.cloud.create_image(machine(harness), order())
    assert len(harness.alive()) == 1
    harness.gce.advance(3700.0)
    assert not harness.alive()
    assert [one for one in harness.gce.leftovers() if not one.startswith("firewalls/")] == [
        f"images/{image_name('My Grid', 'Base_1.x')}"
    ]


def test_an_image_that_is_not_visible_yet_is_found_later(harness: GceHarness) -> None:
    cloud, rented = harness.cloud, machine(harness)
    harness.gce.faults.invisible_seconds = 100.0
    with pytest.raises(UnavailableError, match="is not visible yet"):
        cloud.create_image(rented, order())
    with pytest.raises(UnavailableError):
        cloud.create_image(rented, order())
    harness.gce.advance(101)
    assert cloud.create_image(rented, order()).state is ImageState.AVAILABLE
    assert len(harness.gce.leftovers()) == len(set(harness.gce.leftovers()))


def test_labels_that_change_at_the_same_time_are_read_again(harness: GceHarness) -> None:
    cloud = harness.cloud
    made = cloud.create_image(machine(harness), order())
    harness.gce.faults.fail("images.setLabels", "conditionNotMet", status=412)
    with pytest.raises(UnavailableError):
        cloud.keep_image(made)
    cloud.keep_image(made)
    [kept] = cloud.images("My Grid")
    assert (kept.lease, kept.build) == ("", "lease-1")


def test_a_missing_right_and_a_machine_that_has_ended_are_refused(harness: GceHarness) -> None:
    cloud, rented = harness.cloud, machine(harness)
    harness.gce.deny("compute.images.create")
    with pytest.raises(RefusedError, match=r"compute\.images\.create"):
        cloud.create_image(rented, order())
    assert "compute.images.create" in cloud.check_account("us-central1").missing_rights
    harness.gce.deny()
    cloud.terminate(rented)
    with pytest.raises(ConflictError, match="has ended"):
        cloud.create_image(rented, order())


def test_a_failed_or_unknown_state_is_no_usable_image() -> None:
    assert image_of({"name": "x", "status": "FAILED"}).state is ImageState.FAILED
    assert image_of({"name": "x", "status": "NEW"}).state is ImageState.FAILED
    assert image_of({"name": "x", "status": "READY", "description": "text"}).owner == ""


def test_the_reaper_shows_an_image_as_kept_and_deletes_it_only_if_asked(harness: GceHarness) -> None:
    cloud, rented = harness.cloud, machine(harness)
    cloud.keep_image(cloud.create_image(rented, order()))
    cloud.create_image(machine(harness, "lease-2"), order("lease-2", "unfinished"))

    def results(**changes: bool) -> list[tuple[str, ReapResult]]:
        wanted = ReapOrder(kind="gcp", owner="My Grid", end=True, **changes)
        report = Reaper(cloud=cloud, order=wanted, clock=harness.gce.clock, pause=harness.gce.advance).reap()
        return sorted((one.kind, one.result) for one in report.items if one.kind == "image")

    assert results() == [("image", ReapResult.ENDED), ("image", ReapResult.KEPT)]
    assert harness.gce.leftovers() == [f"images/{image_name('My Grid', 'Base_1.x')}"]
    assert results(with_images=True) == [("image", ReapResult.ENDED)]
    assert harness.gce.leftovers() == []
