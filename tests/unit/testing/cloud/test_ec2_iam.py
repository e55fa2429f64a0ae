"""Roles, instance profiles, and the network that programs look up before they launch a machine."""

import json
from typing import Any

import pytest
from tests.kit.ec2 import client, instance, launch, refused, run

from gridmill.testing.cloud.ec2.simulation import EC2Simulation

TRUST = json.dumps({"Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}}]})


@pytest.fixture
def iam(simulation: EC2Simulation) -> Any:
    return client(simulation, "iam")


def test_a_machine_gets_an_instance_profile_that_exists(ec2, iam, simulation):
    named = {"IamInstanceProfile": {"Name": "worker"}}
    assert refused(ec2.run_instances, **launch(ec2, **named)) == "InvalidParameterValue"
    profile = iam.create_instance_profile(InstanceProfileName="worker")["InstanceProfile"]
    assert profile["Arn"] == "arn:aws:iam::123456789012:instance-profile/worker"
    for given in (named, {"IamInstanceProfile": {"Arn": profile["Arn"]}}):
        assert instance(ec2, run(ec2, **given))["IamInstanceProfile"]["Arn"] == profile["Arn"]
    assert profile["Arn"] in simulation.leftovers()


def test_an_instance_profile_has_one_role(iam):
    iam.create_instance_profile(InstanceProfileName="worker")
    for name in ("one", "two"):
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)
    iam.add_role_to_instance_profile(InstanceProfileName="worker", RoleName="one")
    [role] = iam.get_instance_profile(InstanceProfileName="worker")["InstanceProfile"]["Roles"]
    assert (role["RoleName"], role["AssumeRolePolicyDocument"]) == ("one", json.loads(TRUST))
    second = {"InstanceProfileName": "worker", "RoleName": "two"}
    assert refused(iam.add_role_to_instance_profile, **second) == "LimitExceeded"


def test_names_are_unique_and_unknown_names_are_refused(iam):
    assert refused(iam.get_instance_profile, InstanceProfileName="none") == "NoSuchEntity"
    assert refused(iam.get_role, RoleName="none") == "NoSuchEntity"
    iam.create_instance_profile(InstanceProfileName="worker")
    assert refused(iam.create_instance_profile, InstanceProfileName="worker") == "EntityAlreadyExists"
    role = {"RoleName": "worker", "AssumeRolePolicyDocument": TRUST}
    iam.create_role(**role)
    assert refused(iam.create_role, **role) == "EntityAlreadyExists"
    wrong = {"RoleName": "other", "AssumeRolePolicyDocument": "no JSON"}
    assert refused(iam.create_role, **wrong) == "MalformedPolicyDocument"


def test_policies_of_a_role_can_be_set_again(iam, simulation):
    iam.create_role(RoleName="worker", AssumeRolePolicyDocument=TRUST)
    for _ in range(2):
        iam.attach_role_policy(RoleName="worker", PolicyArn="arn:aws:iam::aws:policy/AmazonS3FullAccess")
        iam.put_role_policy(RoleName="worker", PolicyName="own", PolicyDocument=TRUST)
    role = simulation.world.roles["worker"]
    assert role.attached == ("arn:aws:iam::aws:policy/AmazonS3FullAccess",)
    assert role.inline == (("own", TRUST),)


def test_the_default_network_has_a_route_to_the_internet(ec2):
    [vpc] = ec2.describe_vpcs()["Vpcs"]
    main = [{"Name": "association.main", "Values": ["true"]}, {"Name": "vpc-id", "Values": [vpc["VpcId"]]}]
    [table] = ec2.describe_route_tables(Filters=main)["RouteTables"]
    assert [one["DestinationCidrBlock"] for one in table["Routes"]] == [vpc["CidrBlock"], "0.0.0.0/0"]
    assert table["Routes"][1]["GatewayId"].startswith("igw-")
    others = [{"Name": "association.main", "Values": ["false"]}]
    assert ec2.describe_route_tables(Filters=others)["RouteTables"] == []


def test_members_of_a_source_group_reach_each_other(ec2, simulation):
    group = ec2.create_security_group(GroupName="cluster", Description="one cluster")["GroupId"]
    rule = {"IpProtocol": "-1", "FromPort": -1, "ToPort": -1, "UserIdGroupPairs": [{"GroupId": group}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    [stored] = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]["IpPermissions"]
    assert stored["UserIdGroupPairs"][0]["GroupId"] == group
    first = run(ec2, SecurityGroupIds=[group])
    simulation.settle()
    second = run(ec2, SecurityGroupIds=[group])
    simulation.settle()
    addresses = {f"{instance(ec2, one)['PrivateIpAddress']}/32" for one in (first, second)}
    for one in (first, second):
        assert {each.network for each in simulation.host.ingress[one]} == addresses
    unknown = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-0"}]}
    given = {"GroupId": group, "IpPermissions": [unknown]}
    assert refused(ec2.authorize_security_group_ingress, **given) == "InvalidGroup.NotFound"
