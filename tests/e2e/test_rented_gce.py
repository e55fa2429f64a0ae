"""A machine of Compute Engine deletes itself, against the simulated Compute Engine with real machines."""

import json
import tempfile
from pathlib import Path

import pytest

from gridmill.clouds.gcp.cloud import make
from gridmill.clouds.gcp.policy import SELF_END
from gridmill.clouds.gcp.self_end import end_command
from gridmill.ports.cloud import LaunchRequest
from gridmill.sites.cloud.boot import WatchSettings, user_data
from gridmill.sites.cloud.keys import keys_of
from gridmill.testing.cloud.gce.simulation import simulated_gce
from gridmill.testing.cloud.namespace_machines import NamespaceMachines, why_no_machines
from tests.e2e.conftest import eventually

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(why_no_machines()), reason=why_no_machines() or "there are machines"),
]


def test_a_machine_without_contact_deletes_itself_and_its_disk() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="gm-") as folder,
        simulated_gce(host=NamespaceMachines()) as gce,
    ):
        email = gce.add_service_account(
            "end", allowed=SELF_END, resources=("*/instances/gridmill-*", "*/disks/gridmill-*")
        )
        given = {
            "regions": "us-central1",
            "endpoint_url": gce.endpoint_url,
            "service_account_key": "key",
            "service_account": email,
        }
        cloud = make(given, {"key": json.dumps(gce.service_account_key)}.__getitem__)
        watch = WatchSettings(
            dead_man_seconds=3,
            cap_seconds=600,
            step_seconds=1,
            end_command=end_command(has_service_account=True, endpoint_url=gce.guest_url),
        )
        request = LaunchRequest(
            token="t1",
            lease="lease-1",
            owner="grid-a",
            region="us-central1",
            zone="us-central1-a",
            instance_type="e2-micro",
            image="ubuntu-os-cloud/family/ubuntu-2204-lts",
            spot=False,
            disk_bytes=0,
            ssh_public_key="",
            user_data=user_data(watch, keys_of(Path(folder), "lease-1", 1).make()),
            max_seconds=600.0,
        )
        machine = cloud.launch(request)
        assert [one.id for one in cloud.machines("grid-a")] == [machine.id]
        assert eventually(lambda: not cloud.machines("grid-a"), 60)
        assert {one.kind for one in cloud.leftovers("grid-a")} == {"firewall-rule"}
        for one in cloud.leftovers():
            cloud.delete(one)
        assert eventually(lambda: gce.leftovers() == [], 60)
        cloud.close()
