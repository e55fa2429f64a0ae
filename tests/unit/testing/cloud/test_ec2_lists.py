"""Lists, groups, keys and the services beside EC2 answer as their documentation says."""

import json
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.kit.ec2 import client, instance, launch, refused, run

SSH = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "203.0.113.7/32"}]}


def ids(answer: dict[str, Any]) -> list[str]:
    return [one["InstanceId"] for each in answer["Reservations"] for one in each["Instances"]]


def tagged(ec2: Any, **tags: str) -> str:
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    return run(ec2, TagSpecifications=[{"ResourceType": "instance", "Tags": pairs}])


def test_filters_of_one_name_are_alternatives_and_several_must_all_match(ec2):
    one, two, three = (
        tagged(ec2, node="a", lease="1"),
        tagged(ec2, node="a", lease="2"),
        tagged(ec2, node="b"),
    )
    ec2.terminate_instances(InstanceIds=[two])

    def found(**filters: list[str]) -> set[str]:
        wanted = [
            {"Name": name.replace("__", ":").replace("_", "-"), "Values": v} for name, v in filters.items()
        ]
        return set(ids(ec2.describe_instances(Filters=wanted)))

    assert found(tag__node=["a"]) == {one, two}
    assert found(tag__node=["a", "b"], instance_state_name=["running"]) == {one, three}
    assert found(tag_key=["lease"]) == {one, two}
    assert found(tag__lease=["?"]) == {one, two}
    assert found(instance_id=["i-*"]) == {one, two, three}
    assert found(tag__node=["nobody"]) == set()


def test_a_filter_that_is_not_simulated_is_refused(ec2):
    run(ec2)
    wanted = [{"Name": "hypervisor", "Values": ["xen"]}]
    assert refused(ec2.describe_instances, Filters=wanted) == "Simulation.NotImplemented"


def test_pages_have_all_instances_once(ec2):
    made = [run(ec2) for _ in range(12)]
    pages = list(ec2.get_paginator("describe_instances").paginate(PaginationConfig={"PageSize": 5}))
    assert [len(ids(page)) for page in pages] == [5, 5, 2]
    assert [one for page in pages for one in ids(page)] == made
    assert refused(ec2.describe_instances, MaxResults=4) == "InvalidParameterValue"
    assert refused(ec2.describe_instances, MaxResults=5, InstanceIds=made) == "InvalidParameterCombination"
    assert refused(ec2.describe_instances, NextToken="next") == "InvalidPaginationToken"


def test_unknown_ids_are_refused_as_a_whole(ec2):
    made = run(ec2)
    unknown = "i-0123456789abcdef0"
    assert refused(ec2.describe_instances, InstanceIds=[made, unknown]) == "InvalidInstanceID.NotFound"
    assert refused(ec2.terminate_instances, InstanceIds=[made, unknown]) == "InvalidInstanceID.NotFound"
    assert refused(ec2.terminate_instances, InstanceIds=["seven"]) == "InvalidInstanceID.Malformed"
    assert instance(ec2, made)["State"]["Name"] == "running"


def test_an_end_can_be_repeated(ec2, simulation):
    simulation.faults.shutting_down_seconds = 10.0
    made = run(ec2)
    for before, after in (("running", "shutting-down"), ("shutting-down", "shutting-down")):
        [change] = ec2.terminate_instances(InstanceIds=[made])["TerminatingInstances"]
        assert (change["PreviousState"]["Name"], change["CurrentState"]["Name"]) == (before, after)
    simulation.advance(10.0)
    [change] = ec2.terminate_instances(InstanceIds=[made])["TerminatingInstances"]
    assert change["PreviousState"] == change["CurrentState"] == {"Code": 48, "Name": "terminated"}


def test_a_protected_instance_is_not_ended(ec2):
    made = run(ec2, DisableApiTermination=True)
    assert refused(ec2.terminate_instances, InstanceIds=[made]) == "OperationNotPermitted"
    ec2.modify_instance_attribute(InstanceId=made, DisableApiTermination={"Value": False})
    ec2.terminate_instances(InstanceIds=[made])
    assert instance(ec2, made)["State"]["Name"] == "terminated"


def test_the_shutdown_behavior_can_be_changed(ec2, simulation):
    made = run(ec2)
    ec2.modify_instance_attribute(InstanceId=made, InstanceInitiatedShutdownBehavior={"Value": "terminate"})
    name = "instanceInitiatedShutdownBehavior"
    told = ec2.describe_instance_attribute(InstanceId=made, Attribute=name)
    assert told["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"
    simulation.shut_down(made)
    assert instance(ec2, made)["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
    assert instance(ec2, made)["State"]["Name"] == "terminated"


def test_a_security_group_is_deleted_only_when_no_instance_has_it(ec2):
    group = ec2.create_security_group(GroupName="lease", Description="one lease")["GroupId"]
    assert refused(ec2.create_security_group, GroupName="lease", Description="x") == "InvalidGroup.Duplicate"
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[SSH])
    again = refused(ec2.authorize_security_group_ingress, GroupId=group, IpPermissions=[SSH])
    assert again == "InvalidPermission.Duplicate"
    [listed] = ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": ["lease"]}])[
        "SecurityGroups"
    ]
    assert listed["IpPermissions"][0]["IpRanges"] == [{"CidrIp": "203.0.113.7/32"}]
    made = run(ec2, SecurityGroupIds=[group])
    assert instance(ec2, made)["SecurityGroups"] == [{"GroupId": group, "GroupName": "lease"}]
    assert refused(ec2.delete_security_group, GroupId=group) == "DependencyViolation"
    ec2.terminate_instances(InstanceIds=[made])
    ec2.delete_security_group(GroupId=group)
    assert refused(ec2.delete_security_group, GroupId=group) == "InvalidGroup.NotFound"


def test_a_key_pair_is_imported_once_and_deleted_as_often_as_asked(ec2, simulation):
    public = Ed25519PrivateKey.generate().public_key()
    key = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    assert refused(ec2.import_key_pair, KeyName="k", PublicKeyMaterial=b"key") == "InvalidKey.Format"
    ec2.import_key_pair(KeyName="k", PublicKeyMaterial=key)
    assert refused(ec2.import_key_pair, KeyName="k", PublicKeyMaterial=key) == "InvalidKeyPair.Duplicate"
    [listed] = ec2.describe_key_pairs(KeyNames=["k"], IncludePublicKey=True)["KeyPairs"]
    assert (listed["KeyType"], listed["PublicKey"]) == ("ed25519", key.decode())
    for _ in range(2):
        ec2.delete_key_pair(KeyName="k")
    assert refused(ec2.describe_key_pairs, KeyNames=["k"]) == "InvalidKeyPair.NotFound"
    assert simulation.leftovers() == []


def test_tags_are_added_and_deleted(ec2):
    made = tagged(ec2, a="1")
    ec2.create_tags(Resources=[made], Tags=[{"Key": "b", "Value": "2"}, {"Key": "a", "Value": "3"}])
    ec2.delete_tags(Resources=[made], Tags=[{"Key": "b"}])
    assert instance(ec2, made)["Tags"] == [{"Key": "a", "Value": "3"}]


def test_instance_types_have_their_gpus_and_their_zones(ec2, simulation):
    [kind] = ec2.describe_instance_types(InstanceTypes=["p4d.24xlarge"])["InstanceTypes"]
    assert kind["GpuInfo"]["Gpus"] == [
        {"Name": "A100", "Manufacturer": "NVIDIA", "Count": 8, "MemoryInfo": {"SizeInMiB": 40960}}
    ]
    assert (kind["VCpuInfo"]["DefaultVCpus"], kind["MemoryInfo"]["SizeInMiB"]) == (96, 1_179_648)
    offers = ec2.describe_instance_type_offerings(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": ["p4d.*"]}]
    )["InstanceTypeOfferings"]
    assert [one["Location"] for one in offers] == ["us-east-1a", "us-east-1b", "us-east-1d"]
    frankfurt = client(simulation, region="eu-central-1")
    assert refused(frankfurt.describe_instance_types, InstanceTypes=["p5.48xlarge"]) == "InvalidInstanceType"
    assert refused(frankfurt.run_instances, **launch(frankfurt, InstanceType="p5.48xlarge")) == "Unsupported"


def test_prices_and_quotas_are_those_of_the_region(simulation):
    filters = [
        {"Type": "TERM_MATCH", "Field": "instanceType", "Value": "g5.xlarge"},
        {"Type": "TERM_MATCH", "Field": "regionCode", "Value": "eu-central-1"},
        {"Type": "TERM_MATCH", "Field": "operatingSystem", "Value": "Linux"},
    ]
    [text] = client(simulation, "pricing").get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
    [term] = json.loads(text)["terms"]["OnDemand"].values()
    [dimension] = term["priceDimensions"].values()
    assert dimension["pricePerUnit"] == {"USD": "1.2575000000"}
    frankfurt = client(simulation, region="eu-central-1")
    [newest, *_] = frankfurt.describe_spot_price_history(
        InstanceTypes=["g5.xlarge"], ProductDescriptions=["Linux/UNIX"]
    )["SpotPriceHistory"]
    assert (newest["SpotPrice"], newest["AvailabilityZone"]) == ("0.525000", "eu-central-1a")
    simulation.faults.quotas = {"L-DB2E81BA@eu-*": 0, "L-DB2E81BA": 64}
    quota = {"ServiceCode": "ec2", "QuotaCode": "L-DB2E81BA"}
    values = [
        client(simulation, "service-quotas", region).get_service_quota(**quota)["Quota"]["Value"]
        for region in ("eu-central-1", "us-east-1")
    ]
    assert values == [0.0, 64.0]
    unknown = {"ServiceCode": "ec2", "QuotaCode": "L-0"}
    assert (
        refused(client(simulation, "service-quotas").get_service_quota, **unknown)
        == "NoSuchResourceException"
    )


def test_an_action_that_is_not_simulated_says_so(ec2):
    assert refused(ec2.describe_hosts) == "Simulation.NotImplemented"


def test_a_request_without_a_signature_is_refused(simulation):
    anonymous = client(simulation)
    anonymous.meta.events.register(
        "before-send.ec2", lambda request, **_: request.headers.__delitem__("Authorization")
    )
    assert refused(anonymous.describe_regions) == "MissingAuthenticationToken"


def test_two_users_see_the_same_account(simulation, ec2):
    made = run(ec2)
    user = simulation.add_user("watcher", denied=("ec2:Run*",))
    keys = {"aws_access_key_id": user.access_key, "aws_secret_access_key": user.secret_key}
    other = client(simulation, **keys)
    assert ids(other.describe_instances()) == [made]
    assert refused(other.run_instances, **launch(ec2)) == "UnauthorizedOperation"
    arn = client(simulation, "sts", **keys).get_caller_identity()["Arn"]
    assert arn == "arn:aws:iam::123456789012:user/watcher"


def test_a_rule_opens_a_port_of_the_machines_that_have_the_group(ec2, simulation):
    group = ec2.create_security_group(GroupName="lease", Description="one lease")["GroupId"]
    made, other = run(ec2, SecurityGroupIds=[group]), run(ec2)
    simulation.settle()
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[SSH])
    opened = simulation.host.ingress
    assert [(one.first_port, one.last_port, one.network) for one in opened[made]] == [
        (22, 22, "203.0.113.7/32")
    ]
    assert opened[other] == ()
