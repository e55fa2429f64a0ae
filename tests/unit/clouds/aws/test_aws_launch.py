from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gridmill.clouds.aws.launch import (
    Image,
    Network,
    client_token,
    machine_of,
    run_arguments,
    ssh_permission,
    tags_of,
)
from gridmill.domain.machine import MachineState
from gridmill.ports.cloud import LaunchRequest

REQUEST = LaunchRequest(
    token="lease-7.1",
    lease="lease-7",
    owner="grid-a",
    region="us-east-1",
    zone="us-east-1b",
    instance_type="g5.xlarge",
    image="",
    spot=False,
    disk_bytes=100 * 10**9,
    ssh_public_key="ssh-ed25519 AAAA",
    user_data="#cloud-config\n{}\n",
    max_seconds=3600.0,
    tags={"team": "vision"},
)
IMAGE = Image(id="ami-1", root_device="/dev/sda1", disk_bytes=65 * 2**30)
NETWORK = Network(security_group="sg-1")


def test_a_machine_that_shuts_down_or_is_ended_leaves_nothing():
    arguments = run_arguments(REQUEST, IMAGE, NETWORK)
    assert arguments["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert all(disk["Ebs"]["DeleteOnTermination"] for disk in arguments["BlockDeviceMappings"])
    assert arguments["MetadataOptions"]["HttpTokens"] == "required"
    assert arguments["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
    assert (arguments["MinCount"], arguments["MaxCount"]) == (1, 1)
    assert arguments["Placement"] == {"AvailabilityZone": "us-east-1b"}
    assert "KeyName" not in arguments


def test_everything_that_a_launch_creates_is_tagged_at_once():
    kinds = {
        one["ResourceType"]: one["Tags"]
        for one in run_arguments(REQUEST, IMAGE, NETWORK)["TagSpecifications"]
    }
    assert set(kinds) == {"instance", "volume", "network-interface"}
    tags = {tag["Key"]: tag["Value"] for tag in kinds["volume"]}
    assert tags["gridmill-lease"] == "lease-7"
    assert tags["gridmill-owner"] == "grid-a"
    assert tags["gridmill-token"] == "lease-7.1"
    assert tags["team"] == "vision"


def test_a_users_tag_cannot_replace_the_tag_of_the_lease():
    tags = {tag["Key"]: tag["Value"] for tag in tags_of(replace(REQUEST, tags={"gridmill-lease": "other"}))}
    assert tags["gridmill-lease"] == "lease-7"


def test_a_spot_machine_is_rented_once_and_without_a_price_limit():
    arguments = run_arguments(replace(REQUEST, spot=True), IMAGE, NETWORK)
    assert arguments["InstanceMarketOptions"] == {
        "MarketType": "spot",
        "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
    }
    assert "spot-instances-request" in {one["ResourceType"] for one in arguments["TagSpecifications"]}


def test_the_disk_holds_the_image_and_the_requested_size():
    def size(request, image):
        return run_arguments(request, image, NETWORK)["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"]

    assert size(REQUEST, IMAGE) == 94
    assert size(replace(REQUEST, disk_bytes=10**9), IMAGE) == 65
    assert size(replace(REQUEST, disk_bytes=0), replace(IMAGE, disk_bytes=0)) == 8


def test_a_repeated_request_has_the_same_arguments():
    assert run_arguments(REQUEST, IMAGE, NETWORK) == run_arguments(replace(REQUEST), IMAGE, NETWORK)


def test_a_subnet_has_the_address_and_the_group():
    arguments = run_arguments(
        REQUEST, IMAGE, Network(security_group="sg-1", subnet="subnet-1", is_public=False)
    )
    (interface,) = arguments["NetworkInterfaces"]
    assert (interface["SubnetId"], interface["Groups"]) == ("subnet-1", ["sg-1"])
    assert interface["AssociatePublicIpAddress"] is False
    assert interface["DeleteOnTermination"] is True
    assert "SecurityGroupIds" not in arguments


@pytest.mark.parametrize("token", ["x" * 65, "lease-ü", "a b", ""])
def test_a_token_that_ec2_does_not_permit_is_hashed(token):
    assert len(client_token(token)) == 64
    assert client_token(token).isascii()
    assert client_token(token) == client_token(token)
    assert client_token(token) != client_token(token + "1")


def test_a_permitted_token_is_used_as_it_is():
    assert client_token("lease-7.1") == "lease-7.1"


def test_ssh_is_permitted_from_both_kinds_of_networks():
    (rule,) = ssh_permission(["192.0.2.0/24", "2001:db8::/32"])
    assert (rule["FromPort"], rule["ToPort"]) == (22, 22)
    assert rule["IpRanges"] == [{"CidrIp": "192.0.2.0/24"}]
    assert rule["Ipv6Ranges"] == [{"CidrIpv6": "2001:db8::/32"}]


@pytest.mark.parametrize(
    ("native", "state"),
    [
        ("pending", MachineState.PENDING),
        ("running", MachineState.RUNNING),
        ("shutting-down", MachineState.STOPPING),
        ("terminated", MachineState.ENDED),
        ("stopping", MachineState.STOPPING),
        ("stopped", MachineState.STOPPED),
        ("hibernated", MachineState.UNKNOWN),
    ],
)
def test_every_state_is_known_or_unknown(native, state):
    machine = machine_of({"InstanceId": "i-1", "State": {"Name": native}}, "us-east-1")
    assert (machine.state, machine.native_state) == (state, native)


def test_a_described_instance_becomes_a_machine():
    machine = machine_of(
        {
            "InstanceId": "i-1",
            "InstanceType": "g5.xlarge",
            "InstanceLifecycle": "spot",
            "State": {"Name": "terminated"},
            "StateReason": {
                "Code": "Server.SpotInstanceTermination",
                "Message": "Server.SpotInstanceTermination: x",
            },
            "Placement": {"AvailabilityZone": "us-east-1b"},
            "LaunchTime": datetime(2026, 1, 1, tzinfo=UTC),
            "PublicIpAddress": "192.0.2.1",
            "PrivateIpAddress": "10.0.0.1",
            "Tags": tags_of(REQUEST),
        },
        "us-east-1",
    )
    assert (machine.lease, machine.owner, machine.token) == ("lease-7", "grid-a", "lease-7.1")
    assert machine.spot
    assert machine.address == "192.0.2.1"
    assert machine.launched == 1_767_225_600.0
    assert machine.reason == "Server.SpotInstanceTermination: x"


def test_an_instance_without_tags_is_a_machine_too():
    machine = machine_of({"InstanceId": "i-1"}, "us-east-1", is_private=True)
    assert (machine.lease, machine.owner, machine.token, machine.address) == ("", "", "", "")
    assert machine.state is MachineState.UNKNOWN


@pytest.mark.parametrize(
    ("native", "text", "ended"),
    [
        ("terminated", "User initiated (2026-01-01 00:00:10 GMT)", 1_767_225_610.0),
        ("terminated", "Server.SpotInstanceTermination (2026-01-01 00:00:10 GMT)", 1_767_225_610.0),
        ("terminated", "User initiated", None),
        ("terminated", "", None),
        ("stopped", "User initiated (2026-01-01 00:00:10 GMT)", None),
    ],
)
def test_the_end_of_a_machine_is_the_time_that_ec2_states(native, text, ended):
    described = {"InstanceId": "i-1", "State": {"Name": native}, "StateTransitionReason": text}
    assert machine_of(described, "us-east-1").ended == ended
