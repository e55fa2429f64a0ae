import pytest

from gridmill.clouds.lambda_cloud.launch import (
    STATES,
    fingerprint,
    is_ours,
    launch_body,
    machine_of,
    name_of,
    read_name,
)
from gridmill.domain.frozen import replace
from gridmill.domain.machine import MachineState
from gridmill.errors import InputError
from gridmill.ports.cloud import LaunchRequest

REQUEST = LaunchRequest(
    token="0123456789abcdef-lease-7-fedcba9876543210",
    lease="lease-7",
    owner="0123456789abcdef",
    region="us-east-1",
    zone="us-east-1",
    instance_type="gpu_1x_a10",
    image="",
    spot=False,
    disk_bytes=0,
    ssh_public_key="ssh-ed25519 AAAA comment",
    user_data="#cloud-config\n",
    max_seconds=3600.0,
    tags={"team:name": "vision", "Not_Valid": "x"},
)
INSTANCE = {
    "id": "0920582c7ff041399e34823a0be62549",
    "name": name_of(REQUEST),
    "ip": "192.0.2.7",
    "status": "active",
    "region": {"name": "us-east-1", "description": "Virginia, USA"},
    "instance_type": {"name": "gpu_1x_a10"},
    "tags": launch_body(REQUEST, 1000.0)["tags"],
}


def test_a_name_has_the_grid_and_the_lease_and_differs_for_each_token():
    name = name_of(REQUEST)
    parts = read_name(name)
    assert (parts.owner, parts.lease) == (REQUEST.owner, REQUEST.lease)
    assert len(name) <= 64
    assert name_of(replace(REQUEST, token="other")) != name
    assert read_name("web-server") is None
    assert read_name("gridmill.x") is None


@pytest.mark.parametrize("change", [{"lease": "a" * 60}, {"owner": "a.b"}, {"lease": ""}])
def test_a_name_that_could_not_be_read_again_is_refused(change):
    with pytest.raises(InputError, match="64 characters"):
        name_of(replace(REQUEST, **change))


def test_the_body_has_the_keys_and_tags_that_the_description_permits():
    body = launch_body(replace(REQUEST, image="lambda-stack-24-04"), 1000.0)
    assert set(body) == {
        "region_name",
        "instance_type_name",
        "ssh_key_names",
        "name",
        "user_data",
        "tags",
        "image",
    }
    assert body["image"] == {"family": "lambda-stack-24-04"}
    tags = {tag["key"]: tag["value"] for tag in body["tags"]}
    assert tags["team:name"] == "vision"
    assert "Not_Valid" not in tags
    assert max(map(len, tags.values())) <= 128
    by_id = launch_body(replace(REQUEST, image="43336648-096d-4cba-9aa2-f9bb7727639d"), 0.0)
    assert by_id["image"] == {"id": "43336648-096d-4cba-9aa2-f9bb7727639d"}


def test_a_machine_is_read_from_its_tags():
    machine = machine_of(INSTANCE)
    assert (machine.lease, machine.owner, machine.token) == (REQUEST.lease, REQUEST.owner, REQUEST.token)
    assert (machine.region, machine.zone, machine.address) == ("us-east-1", "us-east-1", "192.0.2.7")
    assert (machine.state, machine.launched) == (MachineState.RUNNING, 1000.0)


def test_a_machine_whose_tags_were_removed_is_found_by_its_name():
    machine = machine_of({**INSTANCE, "tags": []})
    assert is_ours({**INSTANCE, "tags": None})
    assert (machine.lease, machine.owner, machine.token) == (REQUEST.lease, REQUEST.owner, "")
    assert machine.launched is None
    assert not is_ours({**INSTANCE, "name": "mine", "tags": [{"key": "a", "value": "b"}]})


def test_every_documented_state_has_a_meaning():
    documented = {"active", "booting", "unhealthy", "terminated", "terminating", "preempted"}
    assert set(STATES) == documented
    assert machine_of({**INSTANCE, "status": "new-word"}).state is MachineState.UNKNOWN
    assert machine_of({**INSTANCE, "status": "preempted"}).reason == "preempted"


def test_only_what_a_repeated_request_must_keep_is_in_its_hash():
    assert fingerprint(replace(REQUEST, user_data="other")) == fingerprint(REQUEST)
    assert fingerprint(replace(REQUEST, disk_bytes=1)) != fingerprint(REQUEST)
