"""EC2 makes, keeps and deletes images of machines, against the simulated EC2."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.contract.test_clouds_aws import Ec2Harness, settings

from gridmill.bootstrap.reap import Reaper
from gridmill.clouds.aws.cloud import AwsCloud
from gridmill.clouds.aws.images import read_image
from gridmill.clouds.aws.requests import AwsRequests
from gridmill.clouds.gcp.cloud import GcpCloud
from gridmill.clouds.lambda_cloud.cloud import LambdaCloud
from gridmill.domain.machine_image import ImageState
from gridmill.domain.reaping import ReapOrder, ReapResult
from gridmill.errors import ConflictError, RefusedError, UnavailableError
from gridmill.plugins import IMAGE_CLOUDS
from gridmill.ports.cloud import ImageProvider, ImageRequest, Machine
from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.ec2.simulation import EC2Simulation, simulated_ec2


@pytest.fixture
def harness() -> Iterator[Ec2Harness]:
    with simulated_ec2(clock=FakeClock()) as ec2:
        yield Ec2Harness(ec2)


def machine(harness: Ec2Harness, lease: str = "lease-1") -> Machine:
    return harness.cloud.launch(harness.request("t-" + lease, lease=lease, owner="g"))


def order(lease: str = "lease-1", name: str = "base") -> ImageRequest:
    return ImageRequest(name=name, lease=lease, owner="g", version="1.2.3")


def images(ec2: EC2Simulation) -> list[str]:
    return [one.id for region in ec2.world.regions.values() for one in region.images.all()]


def snapshots(ec2: EC2Simulation) -> tuple[str, ...]:
    return tuple(one for one in ec2.leftovers() if one.startswith("snap"))


def test_an_image_is_a_leftover_of_its_lease_until_it_is_kept(harness: Ec2Harness) -> None:
    harness.ec2.faults.image_seconds = 60.0
    cloud, rented = harness.cloud, machine(harness)
    made = cloud.create_image(rented, order())
    assert cloud.create_image(rented, order()).id == made.id
    [listed] = cloud.images("g")
    assert (listed.id, listed.state, listed.lease, listed.version) == (
        made.id,
        ImageState.PENDING,
        "lease-1",
        "1.2.3",
    )
    found = {one.kind: one for one in cloud.leftovers("g") if one.kind in ("image", "snapshot")}
    assert {one.lease for one in found.values()} == {"lease-1"}
    with pytest.raises(ConflictError):
        cloud.delete(found["snapshot"])
    harness.ec2.advance(61)
    [listed] = cloud.images("g")
    cloud.keep_image(listed)
    cloud.keep_image(listed)
    [kept] = cloud.images("g")
    assert (kept.state, kept.lease, kept.build) == (ImageState.AVAILABLE, "", "lease-1")
    assert not [one for one in cloud.leftovers("g") if one.kind in ("image", "snapshot")]
    # a control node that was killed before it recorded the image finds it again
    assert cloud.create_image(rented, order()) == kept
    cloud.delete_image(kept)
    cloud.delete_image(kept)
    assert not images(harness.ec2)
    assert not snapshots(harness.ec2)


def test_the_leftovers_of_a_failed_build_are_deleted(harness: Ec2Harness) -> None:
    harness.ec2.faults.failing_images = 1
    cloud = harness.cloud
    assert cloud.create_image(machine(harness), order()).state is ImageState.PENDING
    [failed] = cloud.images("g")
    assert failed.state is ImageState.FAILED
    for left in sorted(cloud.leftovers("g"), key=lambda one: one.kind):
        if left.kind in ("image", "snapshot"):
            cloud.delete(left)
    assert not images(harness.ec2)
    assert not snapshots(harness.ec2)


def test_a_lost_answer_makes_no_second_image(harness: Ec2Harness) -> None:
    cloud, rented = harness.cloud, machine(harness)
    harness.ec2.faults.lose_answers("CreateImage")
    with pytest.raises(UnavailableError):
        cloud.create_image(rented, order())
    assert [cloud.create_image(rented, order()).id] == images(harness.ec2)


def test_an_image_that_is_not_listed_yet_is_found_by_its_name_later(harness: Ec2Harness) -> None:
    cloud, rented = harness.cloud, machine(harness)
    harness.ec2.faults.invisible_seconds = 100.0
    made = cloud.create_image(rented, order())
    with pytest.raises(UnavailableError):
        cloud.create_image(rented, order())
    harness.ec2.advance(101)
    assert cloud.create_image(rented, order()).id == made.id


def test_a_name_in_use_and_a_missing_right_are_refused(harness: Ec2Harness) -> None:
    cloud = harness.cloud
    cloud.create_image(machine(harness), order())
    with pytest.raises(ConflictError, match="is in use by the image ami-"):
        cloud.create_image(machine(harness, "lease-2"), order("lease-2"))
    harness.ec2.deny("ec2:CreateImage")
    with pytest.raises(RefusedError):
        cloud.create_image(machine(harness, "lease-3"), order("lease-3", "other"))


def test_a_machine_boots_from_a_kept_image_with_the_checked_driver_of_its_base(harness: Ec2Harness) -> None:
    cloud = harness.cloud
    base = read_image(AwsRequests(settings(harness.ec2)), harness.region, "", "g5.xlarge")
    request = replace(harness.request("t-1", owner="g"), image=base.id)
    made = cloud.create_image(cloud.launch(request), order())
    image = read_image(AwsRequests(settings(harness.ec2)), harness.region, made.id, "g5.xlarge")
    assert image.disk_bytes >= base.disk_bytes
    with pytest.raises(RefusedError, match="driver"):
        read_image(AwsRequests(settings(harness.ec2)), harness.region, made.id, "g3.4xlarge")


def test_the_named_providers_are_those_that_make_images() -> None:
    makers = {
        name
        for name, cloud in {"aws": AwsCloud, "gcp": GcpCloud, "lambda": LambdaCloud}.items()
        if issubclass(cloud, ImageProvider)
    }
    assert makers == set(IMAGE_CLOUDS)


def test_the_reaper_shows_an_image_as_kept_and_deletes_it_only_if_asked(harness: Ec2Harness) -> None:
    cloud = harness.cloud
    rented = machine(harness)
    cloud.keep_image(replace(cloud.create_image(rented, order()), snapshots=snapshots(harness.ec2)))
    cloud.terminate(rented)

    def results(**changes: bool) -> dict[str, str]:
        order = ReapOrder(kind="aws", owner="g", end=True, **changes)
        pause = harness.ec2.advance
        report = Reaper(cloud=cloud, order=order, clock=harness.ec2.clock, pause=pause).reap()
        return {one.kind: one.result for one in report.items}

    assert results()["image"] is ReapResult.KEPT
    assert images(harness.ec2)
    assert results(with_images=True) == {"image": ReapResult.ENDED}
    assert not images(harness.ec2)
    assert not snapshots(harness.ec2)
