"""The simulated Compute Engine makes images of disks as the documentation of Google says."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.kit.gce import ZONE, Gce

from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.bill import Charge
from gridmill.testing.cloud.gce.simulation import GceSimulation, simulated_gce
from gridmill.testing.cloud.machine_host import NoMachines

DISK = f"zones/{ZONE}/disks/worker"


@pytest.fixture
def cloud() -> Iterator[GceSimulation]:
    with simulated_gce(clock=FakeClock(), host=NoMachines()) as made:
        yield made


@pytest.fixture
def gce(cloud: GceSimulation) -> Iterator[Gce]:
    made = Gce(cloud)
    made.insert()
    yield made
    made.close()


def make(gce: Gce, name: str = "mine", **more: Any) -> Any:
    body = {"name": name, "sourceDisk": DISK, **more}
    return gce.operation(gce.wire.ok("POST", "global/images", body, forceCreate="true"))


def boot(gce: Gce, image: str, name: str = "second") -> dict[str, Any]:
    parameters = {"sourceImage": f"projects/{gce.cloud.project}/global/images/{image}"}
    disks = [{"boot": True, "autoDelete": True, "initializeParams": parameters}]
    return gce.request(name, disks=disks)


def test_the_disk_of_a_running_instance_needs_force_and_that_of_a_stopped_one_does_not(cloud, gce):
    body = {"name": "mine", "sourceDisk": DISK}
    used = (400, "resourceInUseByAnotherResource")
    assert gce.refused("POST", "global/images", body) == used
    assert gce.refused("POST", "global/images", body, forceCreate="perhaps") == (400, "invalid")
    gce.wire.ok("POST", f"zones/{ZONE}/instances/worker/stop")
    assert gce.operation(gce.wire.ok("POST", "global/images", body))["status"] == "DONE"


def test_an_image_is_pending_until_it_is_ready_and_instances_boot_only_then(cloud, gce):
    cloud.faults.image_seconds = 300.0
    assert make(gce, labels={"team": "a"})["status"] == "RUNNING"
    image = gce.get("global/images/mine")
    assert (image["status"], image["labels"], image["architecture"]) == ("PENDING", {"team": "a"}, "X86_64")
    assert image["sourceDisk"].endswith(DISK)
    path = f"zones/{ZONE}/instances"
    assert gce.refused("POST", path, boot(gce, "mine")) == (400, "resourceNotReady")
    cloud.advance(301)
    assert gce.get("global/images/mine")["status"] == "READY"
    gce.wire.ok("POST", path, boot(gce, "mine"))
    [disk] = gce.get(f"zones/{ZONE}/disks", filter="name=second")["items"]
    assert disk["sourceImage"].endswith(f"projects/{cloud.project}/global/images/mine")
    assert gce.refused("POST", path, boot(gce, "other", "third")) == (404, "notFound")
    cloud.world.host.close()
    assert cloud.world.host.saved == {image["id"]: cloud.find("worker").id}


def test_a_failed_image_cannot_be_used(cloud, gce):
    cloud.faults.failing_images = 1
    operation = make(gce)
    assert operation["error"]["errors"][0]["code"] == "INTERNAL_ERROR"
    assert gce.get("global/images/mine")["status"] == "FAILED"
    assert gce.refused("POST", f"zones/{ZONE}/instances", boot(gce, "mine")) == (400, "resourceNotReady")


def test_a_name_is_used_once_and_images_are_listed_by_label(cloud, gce):
    make(gce, labels={"team": "a"})
    body = {"name": "mine", "sourceDisk": DISK}
    assert gce.refused("POST", "global/images", body, forceCreate="true") == (409, "alreadyExists")
    make(gce, "other")
    assert [one["name"] for one in gce.get("global/images", filter="labels.team:*")["items"]] == ["mine"]
    assert gce.refused("POST", "global/images", {"name": "x"}, forceCreate="true") == (400, "badRequest")
    lost = {"name": "x", "sourceDisk": f"zones/{ZONE}/disks/none"}
    assert gce.refused("POST", "global/images", lost) == (404, "notFound")


def test_labels_are_replaced_only_with_the_present_fingerprint(cloud, gce):
    make(gce, labels={"team": "a"})
    body = {"labels": {}, "labelFingerprint": gce.get("global/images/mine")["labelFingerprint"]}
    gce.wire.ok("POST", "global/images/mine/setLabels", body)
    assert "labels" not in gce.get("global/images/mine")
    assert gce.refused("POST", "global/images/mine/setLabels", body) == (412, "conditionNotMet")


def test_an_image_stays_and_is_charged_until_it_is_deleted(cloud, gce):
    make(gce)
    gce.delete()
    cloud.advance(3600)
    assert cloud.leftovers() == ["images/mine"]
    [item] = [one for one in cloud.bill().items if one.charge is Charge.SNAPSHOT]
    # 1 GB for 1 of the 720 hours of a month, at 0.05 USD per GB and month
    assert item.is_running
    assert item.amount_micros == pytest.approx(50_000 / 720, rel=0.02)
    gce.wire.ok("DELETE", "global/images/mine")
    assert gce.refused("GET", "global/images/mine") == (404, "notFound")
    assert gce.refused("DELETE", "global/images/mine") == (404, "notFound")
    assert cloud.leftovers() == []


@pytest.mark.parametrize(
    "permission", ["compute.images.create", "compute.images.setLabels", "compute.disks.useReadOnly"]
)
def test_an_image_needs_three_permissions(cloud, gce, permission):
    cloud.deny(permission)
    body = {"name": "mine", "sourceDisk": DISK, "labels": {"team": "a"}}
    assert gce.refused("POST", "global/images", body, forceCreate="true") == (403, "forbidden")
