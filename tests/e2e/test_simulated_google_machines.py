"""The machines of the simulated Compute Engine are real: they have the users, scripts and metadata of their
instance, and can delete themselves with their own service account."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridmill.testing.cloud.gce.simulation import GceSimulation, simulated_gce
from gridmill.testing.cloud.namespace_machines import NamespaceMachines, why_no_machines
from tests.e2e.conftest import eventually
from tests.kit.gce import ZONE, Gce

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(why_no_machines()), reason=why_no_machines()),
]
OPTIONS = (
    *("-F", "/dev/null", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"),
    *("-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=5"),
)
DELETES_ITSELF = """
import json, sys, urllib.request
base = "http://metadata.google.internal/computeMetadata/v1/instance/"
def read(path):
    request = urllib.request.Request(base + path, headers={"Metadata-Flavor": "Google"})
    return urllib.request.urlopen(request).read().decode()
zone, name = read("zone").rpartition("/")[2], read("name")
token = json.loads(read("service-accounts/default/token"))["access_token"]
url = f"{sys.argv[1]}/zones/{zone}/instances/{name}"
headers = {"Authorization": "Bearer " + token}
request = urllib.request.Request(url, headers=headers, method="DELETE")
print(urllib.request.urlopen(request).status, flush=True)
"""


@pytest.fixture
def cloud() -> Iterator[GceSimulation]:
    with simulated_gce(host=NamespaceMachines()) as made:
        yield made


def ssh(cloud: GceSimulation, key: Path, user: str, command: str) -> str:
    """What a command prints on the machine."""
    address = cloud.find("worker").public_address
    words = ["ssh", "-i", str(key), *OPTIONS, f"{user}@{address}", command]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120).stdout


def test_a_machine_has_its_users_scripts_and_metadata_and_deletes_itself(
    cloud: GceSimulation, tmp_path: Path
):
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    public = key.with_suffix(".pub").read_text().strip()
    items = {
        "ssh-keys": f"me:{public}\nubuntu:{public}",
        "user-data": "#cloud-config\nwrite_files: [{path: /etc/lease, content: lease 7}]\n",
        "startup-script": "#!/bin/sh\ncp /etc/lease /etc/started\n",
    }
    worker = cloud.add_service_account(
        "worker", allowed=("compute.instances.delete",), resources=("*/instances/worker",)
    )
    scopes = ["https://www.googleapis.com/auth/compute"]
    gce = Gce(cloud)
    gce.insert(
        metadata={"items": [{"key": name, "value": value} for name, value in items.items()]},
        serviceAccounts=[{"email": worker, "scopes": scopes}],
    )
    for user in ("me", "ubuntu"):
        assert eventually(lambda who=user: ssh(cloud, key, who, "sudo -n cat /etc/started") == "lease 7")
    url = f"{cloud.guest_url}/compute/v1/projects/{cloud.project}"
    program = f"python3 -c '{DELETES_ITSELF}' {url}"
    assert ssh(cloud, key, "me", program) in ("200\n", "")
    assert cloud.leftovers() == []
    assert not cloud.find("worker").exists
    refused = gce.refused("GET", f"zones/{ZONE}/instances/worker")
    assert refused == (404, "notFound")
    gce.close()
