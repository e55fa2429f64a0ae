"""The simulated EC2 makes images of instances, with snapshots, as the documentation of AWS says."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.kit.ec2 import client, launch, refused, run

from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.bill import Charge
from gridmill.testing.cloud.ec2.simulation import EC2Simulation, simulated_ec2

TAGS = [{"Key": "gridmill-owner", "Value": "g"}]


@pytest.fixture
def cloud() -> Iterator[EC2Simulation]:
    with simulated_ec2(clock=FakeClock()) as simulation:
        yield simulation


def make(ec2: Any, instance: str, name: str = "mine", **more: Any) -> str:
    tagged = [{"ResourceType": kind, "Tags": TAGS} for kind in ("image", "snapshot")]
    answer = ec2.create_image(InstanceId=instance, Name=name, TagSpecifications=tagged, **more)
    return str(answer["ImageId"])


def shown(ec2: Any, image: str) -> dict[str, Any]:
    [found] = ec2.describe_images(ImageIds=[image])["Images"]
    return dict(found)


def test_an_image_is_pending_until_its_snapshots_are_complete(cloud: EC2Simulation) -> None:
    cloud.faults.image_seconds = 300.0
    ec2 = client(cloud)
    image = make(ec2, run(ec2))
    found = shown(ec2, image)
    assert (found["State"], found["Public"], found["OwnerId"]) == ("pending", False, "123456789012")
    assert refused(ec2.run_instances, **launch(ec2, ImageId=image)) == "InvalidAMIID.Unavailable"
    [snapshot] = ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"]
    assert (snapshot["State"], snapshot["Tags"]) == ("pending", TAGS)
    cloud.advance(301)
    assert shown(ec2, image)["State"] == "available"
    assert (
        ec2.describe_snapshots(SnapshotIds=[snapshot["SnapshotId"]])["Snapshots"][0]["State"] == "completed"
    )
    assert run(ec2, ImageId=image)


def test_own_images_are_found_by_tag_and_a_failed_image_cannot_be_used(cloud: EC2Simulation) -> None:
    cloud.faults.failing_images = 1
    ec2 = client(cloud)
    image = make(ec2, run(ec2))
    filters = [{"Name": "tag:gridmill-owner", "Values": ["g"]}]
    [found] = ec2.describe_images(Owners=["self"], Filters=filters)["Images"]
    assert (found["ImageId"], found["State"], found["Tags"]) == (image, "failed", TAGS)
    assert len(ec2.describe_images(Owners=["self"])["Images"]) == 1
    assert refused(ec2.run_instances, **launch(ec2, ImageId=image)) == "InvalidAMIID.Unavailable"


def test_a_name_is_used_once_and_has_the_documented_form(cloud: EC2Simulation) -> None:
    ec2 = client(cloud)
    instance = run(ec2)
    make(ec2, instance)
    assert refused(make, ec2, instance) == "InvalidAMIName.Duplicate"
    assert refused(make, ec2, instance, "a;b;c") == "InvalidAMIName.Malformed"
    ec2.terminate_instances(InstanceIds=[instance])
    assert refused(make, ec2, instance, "other") == "IncorrectInstanceState"


def test_a_deregistered_image_leaves_its_snapshots_which_are_charged(cloud: EC2Simulation) -> None:
    ec2 = client(cloud)
    instance = run(ec2)
    image = make(ec2, instance)
    [snapshot] = ec2.describe_snapshots()["Snapshots"]
    assert refused(ec2.delete_snapshot, SnapshotId=snapshot["SnapshotId"]) == "InvalidSnapshot.InUse"
    ec2.deregister_image(ImageId=image)
    assert refused(ec2.deregister_image, ImageId=image) == "InvalidAMIID.Unavailable"
    assert refused(ec2.describe_images, ImageIds=[image]) == "InvalidAMIID.NotFound"
    ec2.terminate_instances(InstanceIds=[instance])
    cloud.advance(3600)
    assert cloud.leftovers() == [snapshot["SnapshotId"]]
    [item] = [one for one in cloud.bill().items if one.charge is Charge.SNAPSHOT]
    # 8 GB for 1 of the 720 hours of a month, at 0.05 USD per GB and month
    assert item.is_running
    assert item.amount_micros == pytest.approx(8 * 50_000 / 720, rel=0.02)
    ec2.delete_snapshot(SnapshotId=snapshot["SnapshotId"])
    assert refused(ec2.delete_snapshot, SnapshotId=snapshot["SnapshotId"]) == "InvalidSnapshot.NotFound"
    assert cloud.leftovers() == []


def test_the_snapshots_can_be_deleted_together_with_the_image(cloud: EC2Simulation) -> None:
    ec2 = client(cloud)
    image = make(ec2, run(ec2))
    [snapshot] = ec2.describe_snapshots()["Snapshots"]
    answer = ec2.deregister_image(ImageId=image, DeleteAssociatedSnapshots=True)
    assert answer["DeleteSnapshotResults"] == [
        {"SnapshotId": snapshot["SnapshotId"], "ReturnCode": "success"}
    ]
    assert ec2.describe_snapshots()["Snapshots"] == []


def test_tags_of_images_and_snapshots_change(cloud: EC2Simulation) -> None:
    ec2 = client(cloud)
    image = make(ec2, run(ec2))
    [snapshot] = ec2.describe_snapshots()["Snapshots"]
    ids = [image, snapshot["SnapshotId"]]
    ec2.create_tags(Resources=ids, Tags=[{"Key": "k", "Value": "v"}])
    ec2.delete_tags(Resources=ids, Tags=[{"Key": "gridmill-owner"}])
    assert shown(ec2, image)["Tags"] == [{"Key": "k", "Value": "v"}]
    assert ec2.describe_snapshots()["Snapshots"][0]["Tags"] == [{"Key": "k", "Value": "v"}]
