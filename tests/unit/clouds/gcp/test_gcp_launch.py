import re
import uuid
from dataclasses import replace

import pytest

from gridmill.clouds.gcp.firewalls import rule_body, rule_name
from gridmill.clouds.gcp.launch import (
    LEASE,
    OWNER,
    STATES,
    TOKEN,
    Image,
    description_of,
    fingerprint,
    insert_body,
    instance_name,
    label,
    labels_of,
    machine_of,
    machine_type,
    request_id,
    subnetwork_in,
)
from gridmill.clouds.gcp.settings import GcpSettings
from gridmill.domain.machine import MachineState
from gridmill.errors import InputError
from gridmill.ports.cloud import LaunchRequest

GIB = 2**30
REQUEST = LaunchRequest(
    token="lease-1/0/abc",
    lease="lease-1",
    owner="grid-a",
    region="us-central1",
    zone="us-central1-a",
    instance_type="g2-standard-8",
    image="",
    spot=False,
    disk_bytes=60 * GIB,
    ssh_public_key="ssh-ed25519 AAAA test",
    user_data="#cloud-config\n{}\n",
    max_seconds=7200.0,
    allowed_addresses=("192.0.2.0/24", "2001:db8::/32"),
)
IMAGE = Image(path="projects/p/global/images/family/f", disk_bytes=50 * GIB)


def _body(request=REQUEST, settings=None, tags=("tag",), service_account=""):
    return insert_body(request, IMAGE, settings or GcpSettings(), tags, "my-project", service_account)


def test_the_provider_deletes_a_machine_at_the_end_of_its_longest_time():
    assert _body()["scheduling"] == {
        "provisioningModel": "STANDARD",
        "instanceTerminationAction": "DELETE",
        "maxRunDuration": {"seconds": "7200"},
        "automaticRestart": False,
        "onHostMaintenance": "TERMINATE",
    }
    assert _body(replace(REQUEST, spot=True))["scheduling"]["provisioningModel"] == "SPOT"
    assert _body(replace(REQUEST, max_seconds=1.0))["scheduling"]["maxRunDuration"] == {"seconds": "30"}
    longest = _body(replace(REQUEST, max_seconds=1e9))["scheduling"]["maxRunDuration"]
    assert longest == {"seconds": str(120 * 86_400)}


def test_the_disk_is_deleted_with_the_machine_and_is_as_large_as_the_image():
    (disk,) = _body(replace(REQUEST, disk_bytes=GIB))["disks"]
    assert disk["autoDelete"]
    assert disk["initializeParams"]["diskSizeGb"] == "50"
    assert _body()["disks"][0]["initializeParams"]["diskSizeGb"] == "60"
    assert disk["initializeParams"]["labels"] == labels_of(REQUEST)
    assert disk["initializeParams"]["diskType"].endswith("/pd-balanced")
    newest = _body(replace(REQUEST, instance_type="n4-standard-2"))["disks"][0]
    assert newest["initializeParams"]["diskType"].endswith("/hyperdisk-balanced")


def test_keys_of_the_project_do_not_reach_the_machine():
    metadata = {one["key"]: one["value"] for one in _body()["metadata"]["items"]}
    assert metadata["block-project-ssh-keys"] == "TRUE"
    assert metadata["enable-oslogin"] == "FALSE"
    assert metadata["user-data"] == REQUEST.user_data
    assert metadata["ssh-keys"] == "root:ssh-ed25519 AAAA test"


def test_a_machine_has_credentials_only_if_a_service_account_is_set():
    assert _body()["serviceAccounts"] == []
    email = "end@my-project.iam.gserviceaccount.com"
    (account,) = _body(service_account=email)["serviceAccounts"]
    assert account["email"] == email
    assert account["scopes"] == ["https://www.googleapis.com/auth/compute"]


def test_gpus_are_attached_to_machines_that_have_none():
    body = _body(replace(REQUEST, instance_type="n1-standard-8+2xnvidia-tesla-t4"))
    assert body["machineType"] == "zones/us-central1-a/machineTypes/n1-standard-8"
    path = "zones/us-central1-a/acceleratorTypes/nvidia-tesla-t4"
    assert body["guestAccelerators"] == [{"acceleratorType": path, "acceleratorCount": 2}]
    assert _body()["guestAccelerators"] == []


@pytest.mark.parametrize("text", ["", "n1-standard-8+", "n1-standard-8+t4", "N1", "a b"])
def test_an_invalid_type_is_explained(text):
    with pytest.raises(InputError, match="not a type of machines"):
        machine_type(text)


def test_the_network_is_public_unless_the_addresses_are_private():
    (public,) = _body()["networkInterfaces"]
    assert public["accessConfigs"]
    assert "subnetwork" not in public
    settings = GcpSettings(is_private=True, network="lab", subnetworks=("us-central1/machines", "all"))
    (private,) = _body(settings=settings)["networkInterfaces"]
    assert private == {
        "network": "projects/my-project/global/networks/lab",
        "subnetwork": "projects/my-project/regions/us-central1/subnetworks/machines",
    }
    assert subnetwork_in("us-east1", settings) == "all"


@pytest.mark.parametrize("lease", ["lease-1", "Läse 1", "x" * 200, "---", ""])
def test_the_name_of_a_machine_depends_on_its_token_and_is_valid(lease):
    request = replace(REQUEST, lease=lease)
    names = {instance_name(request), instance_name(replace(request, token="other"))}
    assert len(names) == 2
    assert all(re.fullmatch(r"gridmill-[-a-z0-9]{0,52}[a-z0-9]", name) for name in names)
    assert instance_name(request) == instance_name(replace(request, spot=True, disk_bytes=0))


def test_the_request_id_is_a_uuid_that_depends_on_the_token():
    assert uuid.UUID(request_id("a")) == uuid.UUID(request_id("a"))
    assert request_id("a") != request_id("b")


def test_labels_have_permitted_values_and_the_description_has_the_exact_ones():
    request = replace(REQUEST, owner="Grid Ä", lease="L" * 100)
    labels = labels_of(replace(request, tags={"team": "Vision", "Not allowed": "x"}))
    assert set(labels) == {LEASE, OWNER, TOKEN, "team"}
    assert all(re.fullmatch(r"[a-z0-9_-]{0,63}", value) for value in labels.values())
    item = {"name": "n", "labels": labels, "description": description_of(request)}
    machine = machine_of(item)
    assert (machine.lease, machine.owner, machine.token) == (request.lease, request.owner, request.token)
    assert label("grid-a") == "grid-a"


def test_a_description_that_was_changed_by_hand_does_not_change_the_owner():
    item = {
        "name": "n",
        "labels": labels_of(REQUEST),
        "description": '{"owner": "other", "lease": "lease-1"}',
    }
    machine = machine_of(item)
    assert (machine.lease, machine.owner) == ("lease-1", "grid-a")
    assert machine_of({**item, "description": "by hand"}).lease == "lease-1"


def test_the_hash_of_a_request_changes_with_each_parameter():
    changes = [
        {"disk_bytes": 1},
        {"spot": True},
        {"image": "other"},
        {"instance_type": "n1-standard-1"},
        {"user_data": ""},
        {"max_seconds": 1.0},
    ]
    hashes = {fingerprint(replace(REQUEST, **change)) for change in changes}
    assert len(hashes | {fingerprint(REQUEST)}) == len(changes) + 1


def _instance(**changes):
    return {
        "name": "gridmill-lease-1-0",
        "zone": "https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a",
        "machineType": "https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a/machineTypes/n1-standard-8",
        "status": "RUNNING",
        "creationTimestamp": "2026-01-02T03:04:05.678-07:00",
        "networkInterfaces": [{"networkIP": "10.0.0.2", "accessConfigs": [{"natIP": "192.0.2.1"}]}],
        "labels": labels_of(REQUEST),
        "scheduling": {"provisioningModel": "SPOT"},
        "guestAccelerators": [
            {
                "acceleratorType": "https://www.googleapis.com/compute/v1/projects/p/zones/z/acceleratorTypes/nvidia-tesla-t4",
                "acceleratorCount": 1,
            }
        ],
        **changes,
    }


def test_a_machine_as_compute_engine_describes_it():
    machine = machine_of(_instance())
    assert machine.region == "us-central1"
    assert machine.zone == "us-central1-a"
    assert machine.instance_type == "n1-standard-8+1xnvidia-tesla-t4"
    assert (machine.state, machine.native_state) == (MachineState.RUNNING, "RUNNING")
    assert machine.address == "192.0.2.1"
    assert machine.spot
    assert machine.launched == pytest.approx(1767348245.678)
    assert machine_of(_instance(), is_private=True).address == "10.0.0.2"


def test_a_machine_without_an_address_or_with_a_new_state_is_known():
    machine = machine_of(_instance(networkInterfaces=[], status="DREAMING", scheduling={}))
    assert (machine.address, machine.state, machine.spot) == ("", MachineState.UNKNOWN, False)


def test_a_machine_that_is_off_still_costs_money():
    assert STATES["TERMINATED"] is MachineState.STOPPED
    assert MachineState.ENDED not in STATES.values()


def test_the_firewall_rule_of_a_lease_permits_only_ssh():
    body = rule_body(REQUEST, "projects/p/global/networks/default", REQUEST.allowed_addresses)
    assert body["name"] == rule_name("grid-a", "lease-1")
    assert body["targetTags"] == [body["name"]]
    assert body["allowed"] == [{"IPProtocol": "tcp", "ports": ["22"]}]
    assert body["sourceRanges"] == ["192.0.2.0/24"]
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])", body["name"])
    with pytest.raises(InputError, match="IPv4"):
        rule_body(REQUEST, "n", ("2001:db8::/32",))
