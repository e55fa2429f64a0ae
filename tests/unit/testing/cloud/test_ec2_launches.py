"""The simulated EC2 launches instances as the documentation of RunInstances says."""

import base64
import urllib.parse
from typing import Any

import pytest
from tests.kit.ec2 import client, instance, launch, refused, run

ZONE_A = {"AvailabilityZone": "us-east-1a"}
ZONE_B = {"AvailabilityZone": "us-east-1b"}


def test_the_same_token_and_parameters_launch_once(ec2, simulation):
    first = run(ec2, ClientToken="one", Placement=ZONE_A)
    assert run(ec2, ClientToken="one", Placement=ZONE_A) == first
    assert len(simulation.machines()) == 1


def test_a_token_is_known_after_the_instance_has_ended(ec2, simulation):
    first = run(ec2, ClientToken="one", Placement=ZONE_A)
    ec2.terminate_instances(InstanceIds=[first])
    [again] = ec2.run_instances(**launch(ec2, ClientToken="one", Placement=ZONE_A))["Instances"]
    assert (again["InstanceId"], again["State"]["Name"]) == (first, "terminated")


def test_the_same_token_in_another_zone_launches_another_instance(ec2, simulation):
    assert run(ec2, ClientToken="one", Placement=ZONE_A) != run(ec2, ClientToken="one", Placement=ZONE_B)


def test_the_subnet_makes_a_token_zonal_too(ec2, simulation):
    subnets = ec2.describe_subnets()["Subnets"]
    ids = [run(ec2, ClientToken="one", SubnetId=subnet["SubnetId"]) for subnet in subnets]
    assert len(set(ids)) == len(subnets) == 4


def test_a_token_without_a_zone_is_for_the_region(ec2, simulation):
    assert run(ec2, ClientToken="one") == run(ec2, ClientToken="one")
    elsewhere = client(simulation, region="us-west-2")
    assert run(elsewhere, ClientToken="one") not in [run(ec2, ClientToken="one")]


def test_a_token_with_other_parameters_is_refused(ec2, simulation):
    run(ec2, ClientToken="one", Placement=ZONE_A)
    other = launch(ec2, ClientToken="one", Placement=ZONE_A, InstanceType="t3.small")
    assert refused(ec2.run_instances, **other) == "IdempotentParameterMismatch"
    assert len(simulation.machines()) == 1


def test_a_token_of_a_refused_launch_can_be_used_again(ec2, simulation):
    simulation.faults.capacity["t3.micro@us-east-1a"] = 0
    wanted = launch(ec2, ClientToken="one", Placement=ZONE_A)
    assert refused(ec2.run_instances, **wanted) == "InsufficientInstanceCapacity"
    simulation.faults.capacity.clear()
    assert run(ec2, ClientToken="one", Placement=ZONE_A)


def test_an_instance_has_what_was_asked_for(ec2, simulation):
    tags = [{"Key": "lease", "Value": "7"}]
    found = instance(
        ec2,
        run(
            ec2,
            ClientToken="one",
            Placement=ZONE_B,
            TagSpecifications=[{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")],
            BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 30, "VolumeType": "gp3"}}],
        ),
    )
    assert (found["State"]["Name"], found["ClientToken"], found["Tags"]) == ("running", "one", tags)
    assert found["Placement"]["AvailabilityZone"] == "us-east-1b"
    [volume] = ec2.describe_volumes(Filters=[{"Name": "tag:lease", "Values": ["7"]}])["Volumes"]
    assert (volume["Size"], volume["VolumeType"], volume["State"]) == (30, "gp3", "in-use")
    assert volume["Attachments"][0]["InstanceId"] == found["InstanceId"]


def test_user_data_is_readable_again(ec2, simulation):
    made = run(ec2, UserData="#!/bin/sh\ntrue\n")
    data = ec2.describe_instance_attribute(InstanceId=made, Attribute="userData")["UserData"]["Value"]
    assert base64.b64decode(data) == b"#!/bin/sh\ntrue\n"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"ImageId": "ami-00000000000000000"}, "InvalidAMIID.NotFound"),
        ({"ImageId": "jammy"}, "InvalidAMIID.Malformed"),
        ({"InstanceType": "g99.huge"}, "InvalidParameterValue"),
        ({"InstanceType": "g5g.xlarge"}, "InvalidParameterValue"),
        ({"InstanceType": "g3s.xlarge", "Placement": {"AvailabilityZone": "us-east-1d"}}, "Unsupported"),
        ({"Placement": {"AvailabilityZone": "us-east-1z"}}, "InvalidParameterValue"),
        ({"KeyName": "nobody"}, "InvalidKeyPair.NotFound"),
        ({"SecurityGroupIds": ["sg-00000000000000000"]}, "InvalidGroup.NotFound"),
        ({"SubnetId": "subnet-00000000"}, "InvalidSubnetID.NotFound"),
        ({"MinCount": 2, "MaxCount": 1}, "InvalidParameterValue"),
        ({"ClientToken": "x" * 65}, "InvalidParameterValue"),
        ({"UserData": "x" * (16 * 1024 + 1)}, "InvalidParameterValue"),
        (
            {"TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "aws:x", "Value": "1"}]}]},
            "InvalidParameterValue",
        ),
        (
            {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 1}}]},
            "InvalidBlockDeviceMapping",
        ),
        ({"HibernationOptions": {"Configured": True}}, "Simulation.NotImplemented"),
        ({"Monitoring": {"Enabled": True}}, "Simulation.NotImplemented"),
        ({"MetadataOptions": {"HttpEndpoint": "disabled"}}, "Simulation.NotImplemented"),
        ({"DryRun": True}, "DryRunOperation"),
        (
            {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.002"}}},
            "SpotMaxPriceTooLow",
        ),
        (
            {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.001"}}},
            "InvalidParameterValue",
        ),
    ],
)
def test_a_launch_that_aws_refuses_is_refused(ec2, simulation, changes, code):
    assert refused(ec2.run_instances, **launch(ec2) | changes) == code
    assert simulation.machines() == []


def test_a_parameter_that_the_api_does_not_have_is_refused(ec2, simulation):
    def add_parameter(request: Any, **_: Any) -> None:
        form = dict(urllib.parse.parse_qsl(request.data)) if isinstance(request.data, str) else request.data
        request.data = {**form, "InstanceSize": "big"}

    ec2.meta.events.register("request-created.ec2.DescribeRegions", add_parameter)
    assert refused(ec2.describe_regions) == "UnknownParameter"


def test_a_spot_instance_says_so_and_costs_the_spot_price(ec2, simulation):
    made = instance(ec2, run(ec2, InstanceType="g5.xlarge", InstanceMarketOptions={"MarketType": "spot"}))
    assert made["InstanceLifecycle"] == "spot"
    assert made["SpotInstanceRequestId"].startswith("sir-")
    assert [one.hourly_micros for one in simulation.machines()] == [420_000]


def test_a_launch_without_a_zone_is_where_there_is_capacity(ec2, simulation):
    simulation.faults.capacity = {"*@us-east-1a": 0, "*@us-east-1b": 1}
    zones = [instance(ec2, run(ec2))["Placement"]["AvailabilityZone"] for _ in range(2)]
    assert zones == ["us-east-1b", "us-east-1c"]


def test_several_instances_are_one_reservation(ec2, simulation):
    made = ec2.run_instances(**launch(ec2, MinCount=2, MaxCount=3))
    [listed] = ec2.describe_instances()["Reservations"]
    assert [one["AmiLaunchIndex"] for one in listed["Instances"]] == [0, 1, 2]
    assert listed["ReservationId"] == made["ReservationId"]


def test_quotas_count_virtual_processors_of_a_family(ec2, simulation):
    simulation.faults.quotas = {"L-DB2E81BA@us-east-1": 8, "L-3819A6DF": 4}
    gpu = launch(ec2, InstanceType="g5.xlarge")
    spot = gpu | {"InstanceMarketOptions": {"MarketType": "spot"}}
    ec2.run_instances(**gpu)
    ec2.run_instances(**gpu)
    assert refused(ec2.run_instances, **gpu) == "VcpuLimitExceeded"
    ec2.run_instances(**spot)
    assert refused(ec2.run_instances, **spot) == "MaxSpotInstanceCountExceeded"
    assert run(ec2, InstanceType="m5.large")
    assert run(client(simulation, region="us-west-2"), InstanceType="g5.xlarge")


def test_a_launch_ends_at_the_quota_between_its_counts(ec2, simulation):
    simulation.faults.quotas = {"L-1216C47A": 6}
    assert len(ec2.run_instances(**launch(ec2, MinCount=1, MaxCount=5))["Instances"]) == 3


def test_the_metadata_have_the_tags_if_it_is_asked_for(ec2, simulation):
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "lease", "Value": "7"}]}]
    shown = run(ec2, TagSpecifications=tags, MetadataOptions={"InstanceMetadataTags": "enabled"})
    hidden = run(ec2, TagSpecifications=tags)
    metadata = simulation.host.metadata
    assert metadata[shown]["tags/instance/lease"] == "7"
    assert "tags/instance/lease" not in metadata[hidden]
